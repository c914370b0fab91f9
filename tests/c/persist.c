/*
 * persist: ATOMIC WRITE and FLUSH (IBTA annex A19) between two hosts.
 *
 *   persist -s PORT [--gid INDEX] [--ipv6]
 *   persist HOST PORT [flush] [--gid INDEX] [--ipv6]
 *
 * The client writes, flushes a range and the region where it is told to (headers
 * older than release 45 have no call for that), changes a word at once, and reads
 * it all back. Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "link.h"

#define BYTES 4096
#define WORD_AT 1024
#define WORD 0x1122334455667788ull
/* Values of <infiniband/verbs.h> from release 45 on. */
#define ACCESS_FLUSH_GLOBAL (1 << 8)
#define WITH_FLUSH (1 << 11)
#define FLUSH_GLOBAL 1
#define FLUSH_RANGE 0
#define FLUSH_REGION 1

static struct ibv_qp_ex *start(struct link *l)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(l->qp);

	if (!ex)
		fail_verb("ibv_qp_to_qp_ex");
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	return ex;
}

static void done(struct link *l, struct ibv_qp_ex *ex, const char *what)
{
	if ((errno = ibv_wr_complete(ex)))
		fail_verb("%s", what);
	link_complete(l, what);
	printf("persist: %s\n", what);
}

static void flush(struct link *l, size_t bytes, uint8_t level, const char *what)
{
	void (*call)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	struct ibv_qp_ex *ex = start(l);

	memcpy(&call, (char *)ex + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof call, sizeof call);
	call(ex, l->rkey, l->remote_addr, bytes, FLUSH_GLOBAL, level);
	done(l, ex, what);
}

static void run(struct link *l)
{
	uint64_t word = WORD;
	struct ibv_qp_ex *ex = start(l);

	for (int i = 0; i < BYTES; i++)
		l->buffer[i] = (uint8_t)(i * 7 + 3);
	ibv_wr_rdma_write(ex, l->rkey, l->remote_addr);
	ibv_wr_set_sge(ex, l->mr->lkey, (uintptr_t)l->buffer, BYTES);
	done(l, ex, "write");
	if (l->argument) {
		flush(l, BYTES, FLUSH_RANGE, "flush of a range");
		flush(l, 33, FLUSH_RANGE, "flush of a part");
		flush(l, 0, FLUSH_REGION, "flush of the region");
	}
	ex = start(l);
	ibv_wr_atomic_write(ex, l->rkey, l->remote_addr + WORD_AT, &word);
	done(l, ex, "atomic write");
	memset(l->buffer, 0, BYTES);
	ex = start(l);
	ibv_wr_rdma_read(ex, l->rkey, l->remote_addr);
	ibv_wr_set_sge(ex, l->mr->lkey, (uintptr_t)l->buffer, BYTES);
	done(l, ex, "read");
	for (int i = 0; i < BYTES; i++) {
		const uint8_t *new_word = (const uint8_t *)&word;
		int inside = i >= WORD_AT && i < WORD_AT + 8;
		uint8_t wanted = inside ? new_word[i - WORD_AT] : (uint8_t)(i * 7 + 3);

		if (l->buffer[i] != wanted)
			fail(OUTCOME_MISMATCH, "byte %d is %#x, not %#x", i, l->buffer[i], wanted);
	}
}

int main(int argc, char **argv)
{
	struct link_spec spec = {
		.bytes = BYTES,
		.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			  ACCESS_FLUSH_GLOBAL,
		.send_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
			    IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	struct link l;

	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "flush"))
			spec.send_ops |= WITH_FLUSH;
	l = link_open("persist", argc, argv, spec);
	if (l.serves) {
		link_serve(&l);
		return OUTCOME_OK;
	}
	run(&l);
	link_finish(&l);
	return OUTCOME_OK;
}
