/*
 * ratio: the bandwidth of READ in terms of that of WRITE. Both carry the same
 * bytes over the same queue pair in turn, so that whatever slows the machine
 * down slows both; the middle of the rounds counts.
 *
 *   ratio -s PORT [--gid INDEX] [--ipv6]
 *   ratio HOST PORT SIZE,... [--gid INDEX] [--ipv6]
 *
 * Prints a line for each size: bytes, READ / WRITE, MiB/s of READ and WRITE.
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "link.h"

#define LARGEST (16u << 20)
#define ROUND_BYTES (32u << 20)
#define ROUNDS 15

static void post(struct link *l, enum ibv_wr_opcode opcode, uint32_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)l->buffer, .length = size, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = l->remote_addr;
	wr.wr.rdma.rkey = l->rkey;
	if ((errno = ibv_post_send(l->qp, &wr, &bad)))
		fail_verb("ibv_post_send");
}

/* Moves ROUND_BYTES in messages of this size; returns MiB/s. */
static double bandwidth(struct link *l, enum ibv_wr_opcode opcode, uint32_t size)
{
	int count = (int)(ROUND_BYTES / size), posted = 0;
	uint64_t start = now_ns();

	for (int done = 0; done < count; done++) {
		for (; posted < count && posted < done + LINK_DEPTH; posted++)
			post(l, opcode, size);
		link_complete(l, opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE");
	}
	return ROUND_BYTES / 1048576.0 / ((double)(now_ns() - start) / (double)SECOND);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double middle(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, ascending);
	return values[count / 2];
}

static void measure(struct link *l, uint32_t size)
{
	double ratio[ROUNDS], read[ROUNDS], write[ROUNDS];

	/* The first round finds the window. */
	for (int i = -1; i < ROUNDS; i++) {
		int at = i < 0 ? 0 : i;

		write[at] = bandwidth(l, IBV_WR_RDMA_WRITE, size);
		read[at] = bandwidth(l, IBV_WR_RDMA_READ, size);
		ratio[at] = read[at] / write[at];
	}
	printf("%u %.3f %.0f %.0f\n", size, middle(ratio, ROUNDS), middle(read, ROUNDS),
	       middle(write, ROUNDS));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct link_spec spec = { .bytes = LARGEST,
				  .access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct link l = link_open("ratio", argc, argv, spec);
	char *end = (char *)l.argument;

	if (l.serves) {
		link_serve(&l);
		return OUTCOME_OK;
	}
	do {
		unsigned long size = end ? strtoul(end, &end, 10) : 0;

		if (size < 1 || size > LARGEST)
			fail(OUTCOME_USAGE, "sizes of 1 to %u bytes", LARGEST);
		measure(&l, (uint32_t)size);
	} while (*end++ == ',');
	link_finish(&l);
	return OUTCOME_OK;
}
