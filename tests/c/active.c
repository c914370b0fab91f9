/* The side of a step that posts the operation. */
#include <errno.h>
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "step_parts.h"

struct active {
	struct session *s;
	const struct step_spec *step;
	struct layout local, target;
	uint32_t *window_rkey; /* OP_SEND_INV: one a message */
	char what[TEXT];
};

static uint64_t remote_address(const struct active *a, size_t cell)
{
	struct chunk chunks[MAX_CHUNKS];

	if (!layout_chunks(&a->s->pool, &a->target, cell, chunks))
		return a->s->remote_pool.address;
	return a->s->remote_pool.address + (uint64_t)(chunks[0].at - a->s->pool.base);
}

static enum ibv_wr_opcode wr_opcode(uint32_t operation)
{
	static const enum ibv_wr_opcode opcodes[OP_COUNT] = {
		[OP_SEND] = IBV_WR_SEND,
		[OP_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
		[OP_WRITE] = IBV_WR_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[OP_READ] = IBV_WR_RDMA_READ,
		[OP_FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[OP_CMP_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP,
		[OP_SEND_INV] = IBV_WR_SEND_WITH_INV,
	};

	return opcodes[operation];
}

static enum ibv_wc_opcode wc_opcode(uint32_t operation)
{
	static const enum ibv_wc_opcode opcodes[OP_COUNT] = {
		[OP_SEND] = IBV_WC_SEND,
		[OP_SEND_IMM] = IBV_WC_SEND,
		[OP_WRITE] = IBV_WC_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WC_RDMA_WRITE,
		[OP_READ] = IBV_WC_RDMA_READ,
		[OP_FETCH_ADD] = IBV_WC_FETCH_ADD,
		[OP_CMP_SWAP] = IBV_WC_COMP_SWAP,
		[OP_SEND_INV] = IBV_WC_SEND,
	};

	return opcodes[operation];
}

/* Messages go round the queue pairs: message i is on queue pair i modulo their number. */
static bool is_last_of_qp(const struct active *a, size_t i)
{
	return i + a->s->spec.qp_count >= a->step->count;
}

/* Every third of a queue pair and its last are signalled; the others complete with them. */
static bool is_signalled(const struct active *a, size_t i)
{
	return is_last_of_qp(a, i) || (i / a->s->spec.qp_count) % 3 == 2;
}

static void set_remote(const struct active *a, size_t i, struct ibv_send_wr *wr)
{
	uint64_t key = a->step->key;
	uint32_t qp = (uint32_t)(i % a->s->spec.qp_count);

	switch (a->step->operation) {
	case OP_FETCH_ADD:
		wr->wr.atomic.remote_addr = remote_address(a, 0);
		wr->wr.atomic.rkey = a->s->remote_pool.rkey;
		wr->wr.atomic.compare_add = addend_of(key);
		return;
	case OP_CMP_SWAP:
		wr->wr.atomic.remote_addr = remote_address(a, i);
		wr->wr.atomic.rkey = a->s->remote_pool.rkey;
		wr->wr.atomic.compare_add = comparand_of(key, i);
		wr->wr.atomic.swap = swap_of(key, i);
		return;
	case OP_SEND_INV:
		wr->invalidate_rkey = a->window_rkey[i];
		return;
	case OP_SEND_IMM:
		wr->imm_data = htonl(immediate_of(a->step, i));
		break;
	case OP_WRITE_IMM:
		wr->imm_data = htonl(immediate_of(a->step, i));
		/* fall through */
	case OP_WRITE:
	case OP_READ:
		wr->wr.rdma.remote_addr = remote_address(a, i);
		wr->wr.rdma.rkey = a->s->remote_pool.rkey;
		return;
	}
	if (a->s->spec.service == IBV_QPT_UD) {
		wr->wr.ud.ah = a->s->route[qp];
		wr->wr.ud.remote_qpn = a->s->remote[qp].qpn;
		wr->wr.ud.remote_qkey = QKEY;
	}
}

/* The WRITE through the window that goes before a SEND with invalidate. */
static void build_window_write(const struct active *a, size_t i, struct ibv_send_wr *wr,
			       struct ibv_sge *sge)
{
	size_t cell = a->step->count + i;

	wr->wr_id = i;
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->sg_list = sge;
	wr->num_sge = message_sges(a->s, &a->local, cell, sge);
	wr->send_flags = a->step->inlined ? IBV_SEND_INLINE : 0;
	wr->wr.rdma.remote_addr = remote_address(a, cell);
	wr->wr.rdma.rkey = a->window_rkey[i];
}

static void build(const struct active *a, size_t i, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	wr->wr_id = i;
	wr->opcode = wr_opcode(a->step->operation);
	wr->sg_list = sge;
	wr->num_sge = message_sges(a->s, &a->local, i, sge);
	wr->send_flags = is_signalled(a, i) ? IBV_SEND_SIGNALED : 0;
	if (a->step->inlined)
		wr->send_flags |= IBV_SEND_INLINE;
	if (a->s->spec.wait == WAIT_SOLICITED && is_last_of_qp(a, i))
		wr->send_flags |= IBV_SEND_SOLICITED;
	if (a->s->sabotage == SABOTAGE_LENGTH && i == 0 && wr->num_sge)
		sge[wr->num_sge - 1].length++;
	set_remote(a, i, wr);
}

/* Turns one bit of the first message: once before it goes, once after. */
static void turn_bit(const struct active *a)
{
	struct chunk chunks[MAX_CHUNKS];

	if (a->s->sabotage == SABOTAGE_BYTE && layout_chunks(&a->s->pool, &a->local, 0, chunks))
		chunks[0].at[chunks[0].size / 2] ^= 1;
}

/* Posts all messages of one queue pair as one list. */
static void post_qp(const struct active *a, uint32_t qp)
{
	size_t per_message = cells_per_message(a->step->operation);
	size_t room = per_message * a->s->spec.depth, n = 0;
	struct ibv_send_wr *wr = must_calloc(room, sizeof *wr), *bad = NULL;
	struct ibv_sge(*sge)[MAX_CHUNKS] = must_calloc(room, sizeof *sge);

	for (size_t i = qp; i < a->step->count; i += a->s->spec.qp_count) {
		if (a->step->operation == OP_SEND_INV) {
			build_window_write(a, i, &wr[n], sge[n]);
			n++;
		}
		build(a, i, &wr[n], sge[n]);
		n++;
	}
	for (size_t k = 1; k < n; k++)
		wr[k - 1].next = &wr[k];
	if (n && (errno = ibv_post_send(a->s->qp[qp], wr, &bad)))
		fail_verb("%s: ibv_post_send, message %llu", a->what,
			  bad ? (unsigned long long)bad->wr_id : 0ull);
	free(wr);
	free(sge);
}

static size_t cells(const struct active *a)
{
	return a->step->count * cells_per_message(a->step->operation);
}

static bool is_source(const struct active *a)
{
	return a->step->operation != OP_READ && !is_atomic(a->step->operation);
}

static void prepare(const struct active *a)
{
	if (is_source(a))
		for (size_t i = 0; i < cells(a); i++)
			message_fill(&a->s->pool, &a->local, i, a->step->key);
}

/* An inline message is taken at the post: what is there afterwards does not count. */
static void spoil_inline(const struct active *a)
{
	if (a->step->inlined)
		for (size_t i = 0; i < cells(a); i++)
			message_poison(&a->s->pool, &a->local, i, 0xee);
}

static void check_completion(const struct active *a, const struct ibv_wc *wc)
{
	uint32_t qp = (uint32_t)(wc->wr_id % a->s->spec.qp_count);

	if (wc->status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "%s: message %llu: %s (%d), vendor error %u", a->what,
		     (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status), wc->status,
		     wc->vendor_err);
	if (wc->wr_id >= a->step->count || !is_signalled(a, wc->wr_id))
		fail(OUTCOME_COMPLETION, "%s: completion of work request %llu, which was not signalled",
		     a->what, (unsigned long long)wc->wr_id);
	if (wc->opcode != wc_opcode(a->step->operation))
		fail(OUTCOME_COMPLETION, "%s: completion opcode %d", a->what, wc->opcode);
	if (wc->qp_num != a->s->qp[qp]->qp_num)
		fail(OUTCOME_COMPLETION, "%s: completion of QP %u, posted on %u", a->what, wc->qp_num,
		     a->s->qp[qp]->qp_num);
}

/* Every signalled message completes once, those of one queue pair in order. */
static void complete(const struct active *a)
{
	size_t expected = 0, *next = must_calloc(a->s->spec.qp_count, sizeof *next);
	struct ibv_wc wc;

	for (size_t i = 0; i < a->step->count; i++)
		expected += is_signalled(a, i);
	while (expected--) {
		uint32_t qp;

		queue_wait(a->s, &a->s->send, &wc, a->what);
		check_completion(a, &wc);
		qp = (uint32_t)(wc.wr_id % a->s->spec.qp_count);
		if (wc.wr_id < next[qp])
			fail(OUTCOME_COMPLETION, "%s: message %llu completed twice or out of order", a->what,
			     (unsigned long long)wc.wr_id);
		next[qp] = wc.wr_id + 1;
	}
	if (ibv_poll_cq(a->s->send.cq, 1, &wc))
		fail(OUTCOME_COMPLETION, "%s: one completion too many, message %llu", a->what,
		     (unsigned long long)wc.wr_id);
	free(next);
}

static uint64_t returned_value(const struct active *a, size_t i)
{
	struct chunk chunks[MAX_CHUNKS];
	uint64_t value;

	layout_chunks(&a->s->pool, &a->local, i, chunks);
	memcpy(&value, chunks[0].at, 8);
	return value;
}

/* The values returned are start, start + addend, ..., each once, rising on each queue pair. */
static void check_fetch_add(const struct active *a)
{
	uint64_t start = word_of(a->step->key, 0), addend = addend_of(a->step->key);
	bool *seen = must_calloc(a->step->count, sizeof *seen);
	size_t *least = must_calloc(a->s->spec.qp_count, sizeof *least);

	for (size_t i = 0; i < a->step->count; i++) {
		uint64_t value = returned_value(a, i);
		size_t rank = 0, qp = i % a->s->spec.qp_count;

		while (rank < a->step->count && start + rank * addend != value)
			rank++;
		if (rank == a->step->count || seen[rank] || rank < least[qp])
			fail(OUTCOME_MISMATCH, "%s: message %zu returned 0x%016llx, start 0x%016llx, addend 0x%016llx",
			     a->what, i, (unsigned long long)value, (unsigned long long)start,
			     (unsigned long long)addend);
		seen[rank] = true;
		least[qp] = rank + 1;
	}
	free(seen);
	free(least);
}

static void check_cmp_swap(const struct active *a)
{
	for (size_t i = 0; i < a->step->count; i++) {
		uint64_t expected = word_of(a->step->key, i), value = returned_value(a, i);

		if (value != expected)
			fail(OUTCOME_MISMATCH, "%s: message %zu: expected 0x%016llx, got 0x%016llx", a->what, i,
			     (unsigned long long)expected, (unsigned long long)value);
	}
}

static void check_local(const struct active *a)
{
	for (size_t i = 0; i < cells(a); i++) {
		if (!a->step->inlined && !is_atomic(a->step->operation))
			message_check(&a->s->pool, &a->local, i, a->step->key, a->what);
		cell_check(&a->s->pool, &a->local, i, a->what);
	}
	if (a->step->operation == OP_FETCH_ADD)
		check_fetch_add(a);
	if (a->step->operation == OP_CMP_SWAP)
		check_cmp_swap(a);
	for (size_t i = 0; i < cells(a); i++)
		message_erase(&a->s->pool, &a->local, i);
}

static void await_token(const struct active *a)
{
	char token;

	side_recv(a->s->side, &token, 1, deadline_in(a->s->deadline_s));
}

void step_active(struct session *s, const struct step_spec *step)
{
	struct active a = {
		.s = s, .step = step, .local = active_layout(step), .target = target_layout(step),
	};
	char token = 'd';

	describe(s, step, "active", a.what);
	prepare(&a);
	a.window_rkey = must_calloc(step->count, sizeof *a.window_rkey);
	if (step->operation == OP_SEND_INV)
		side_recv(s->side, a.window_rkey, step->count * sizeof *a.window_rkey,
			  deadline_in(s->deadline_s));
	await_token(&a);
	turn_bit(&a);
	for (uint32_t qp = 0; qp < s->spec.qp_count; qp++)
		post_qp(&a, qp);
	spoil_inline(&a);
	complete(&a);
	turn_bit(&a);
	check_local(&a);
	side_send(s->side, &token, 1);
	await_token(&a);
	free(a.window_rkey);
}
