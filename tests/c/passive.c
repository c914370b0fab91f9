/* The side of a step that is written to, read from, or receives. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "step_parts.h"

struct passive {
	struct session *s;
	const struct step_spec *step;
	struct layout receive, target;
	struct ibv_mw **window;
	uint32_t *window_rkey;
	char what[TEXT];
};

static void post_receive(const struct passive *p, size_t i)
{
	struct ibv_sge sge[MAX_CHUNKS];
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = sge }, *bad;
	uint32_t qp = (uint32_t)(i % p->s->spec.qp_count);

	if (p->step->operation != OP_WRITE_IMM)
		wr.num_sge = message_sges(p->s, &p->receive, i, sge);
	if ((errno = ibv_post_recv(p->s->qp[qp], &wr, &bad)))
		fail_verb("%s: ibv_post_recv, message %zu", p->what, i);
}

static void put_word(const struct passive *p, size_t i, uint64_t word)
{
	struct chunk chunks[MAX_CHUNKS];

	layout_chunks(&p->s->pool, &p->target, i, chunks);
	memcpy(chunks[0].at, &word, 8);
}

static void bind_window(const struct passive *p, size_t i)
{
	uint32_t qp = (uint32_t)(i % p->s->spec.qp_count);
	struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct chunk chunks[MAX_CHUNKS];
	struct ibv_wc wc;

	layout_chunks(&p->s->pool, &p->target, p->step->count + i, chunks);
	p->window[i] = ibv_alloc_mw(p->s->device->pd, IBV_MW_TYPE_2);
	if (!p->window[i])
		fail_verb("%s: ibv_alloc_mw type 2", p->what);
	p->window_rkey[i] = ibv_inc_rkey(p->window[i]->rkey);
	wr.bind_mw.mw = p->window[i];
	wr.bind_mw.rkey = p->window_rkey[i];
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = p->s->mr[0],
		.addr = (uintptr_t)chunks[0].at,
		.length = p->step->size,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	if ((errno = ibv_post_send(p->s->qp[qp], &wr, &bad)))
		fail_verb("%s: ibv_post_send of a window bind", p->what);
	queue_wait(p->s, &p->s->send, &wc, p->what);
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_BIND_MW || wc.wr_id != i)
		fail(OUTCOME_COMPLETION, "%s: window bind %zu: %s, opcode %d", p->what, i,
		     ibv_wc_status_str(wc.status), wc.opcode);
}

static void prepare(const struct passive *p)
{
	const struct step_spec *step = p->step;

	for (size_t i = 0; i < step->count; i++) {
		if (takes_receive(step->operation))
			post_receive(p, i);
		if (step->operation == OP_READ)
			message_fill(&p->s->pool, &p->target, i, step->key);
		if (step->operation == OP_CMP_SWAP)
			put_word(p, i, word_of(step->key, i));
		if (step->operation == OP_SEND_INV)
			bind_window(p, i);
	}
	if (step->operation == OP_FETCH_ADD)
		put_word(p, 0, word_of(step->key, 0));
}

/* rdma_rxe hands the kernel's flag bit (4) to programs as it is. */
static unsigned invalidate_flags(const struct passive *p)
{
	return p->s->spec.strict ? IBV_WC_WITH_INV : IBV_WC_WITH_INV | 4u;
}

static void check_flags(const struct passive *p, const struct ibv_wc *wc)
{
	uint32_t op = p->step->operation;
	bool immediate = op == OP_SEND_IMM || op == OP_WRITE_IMM;
	bool ud = p->s->spec.service == IBV_QPT_UD;

	if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != immediate)
		fail(OUTCOME_COMPLETION, "%s: completion flags 0x%x", p->what, wc->wc_flags);
	if (immediate && ntohl(wc->imm_data) != immediate_of(p->step, wc->wr_id))
		fail(OUTCOME_MISMATCH, "%s: message %llu: immediate 0x%08x, expected 0x%08x", p->what,
		     (unsigned long long)wc->wr_id, ntohl(wc->imm_data), immediate_of(p->step, wc->wr_id));
	if (op == OP_SEND_INV && (!(wc->wc_flags & invalidate_flags(p)) ||
				  wc->invalidated_rkey != p->window_rkey[wc->wr_id]))
		fail(OUTCOME_COMPLETION, "%s: flags 0x%x, invalidated key 0x%x, expected 0x%x", p->what,
		     wc->wc_flags, wc->invalidated_rkey, p->window_rkey[wc->wr_id]);
	if (ud && !(wc->wc_flags & IBV_WC_GRH))
		fail(OUTCOME_COMPLETION, "%s: a datagram without IBV_WC_GRH", p->what);
}

static void check_completion(const struct passive *p, const struct ibv_wc *wc)
{
	bool ud = p->s->spec.service == IBV_QPT_UD;
	uint32_t qp = (uint32_t)(wc->wr_id % p->s->spec.qp_count);
	uint64_t bytes = p->step->size + p->receive.head;
	enum ibv_wc_opcode opcode = p->step->operation == OP_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM
								       : IBV_WC_RECV;

	if (wc->status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "%s: message %llu: %s (%d), vendor error %u", p->what,
		     (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status), wc->status,
		     wc->vendor_err);
	if (wc->opcode != opcode)
		fail(OUTCOME_COMPLETION, "%s: completion opcode %d", p->what, wc->opcode);
	if (wc->byte_len != bytes)
		fail(OUTCOME_COMPLETION, "%s: byte_len %u, expected %llu", p->what, wc->byte_len,
		     (unsigned long long)bytes);
	if (wc->qp_num != p->s->qp[qp]->qp_num)
		fail(OUTCOME_COMPLETION, "%s: completion of QP %u, posted on %u", p->what, wc->qp_num,
		     p->s->qp[qp]->qp_num);
	if (ud && wc->src_qp != p->s->remote[qp].qpn)
		fail(OUTCOME_COMPLETION, "%s: source QP %u, expected %u", p->what, wc->src_qp,
		     p->s->remote[qp].qpn);
	check_flags(p, wc);
}

/* Every message arrives once, those of one queue pair in the order of their receives. */
static void receive_all(const struct passive *p)
{
	size_t *next = must_calloc(p->s->spec.qp_count, sizeof *next);
	struct ibv_wc wc;

	for (size_t n = 0; n < p->step->count; n++) {
		size_t qp;

		queue_wait(p->s, &p->s->receive, &wc, p->what);
		qp = wc.wr_id % p->s->spec.qp_count;
		if (wc.wr_id >= p->step->count || wc.wr_id / p->s->spec.qp_count != next[qp]++)
			fail(OUTCOME_COMPLETION, "%s: completion of message %llu out of order", p->what,
			     (unsigned long long)wc.wr_id);
		check_completion(p, &wc);
	}
	if (ibv_poll_cq(p->s->receive.cq, 1, &wc))
		fail(OUTCOME_COMPLETION, "%s: one message too many", p->what);
	free(next);
}

static uint16_t ones_sum(const uint8_t *at, size_t size)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < size; i += 2)
		sum += (uint32_t)at[i] << 8 | at[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

/* IPv4: the header stands in the last 20 bytes; strictly, what is before is 0 and its sum is right. */
static bool grh_good_ipv4(const uint8_t *head, const union ibv_gid *from, const union ibv_gid *to,
			  bool strict)
{
	static const uint8_t zero[20];

	if (strict && (memcmp(head, zero, 20) || ones_sum(head + 20, 20) != 0xffff))
		return false;
	return head[20] == 0x45 && head[29] == 17 && !memcmp(head + 32, from->raw + 12, 4) &&
	       !memcmp(head + 36, to->raw + 12, 4);
}

static bool grh_good_ipv6(const uint8_t *head, const union ibv_gid *from, const union ibv_gid *to)
{
	return head[0] >> 4 == 6 && !memcmp(head + 8, from->raw, 16) && !memcmp(head + 24, to->raw, 16);
}

/* The network header of a datagram names the addresses of both ends. */
static void check_grh(const struct passive *p, size_t i)
{
	uint8_t head[GRH_BYTES];
	const union ibv_gid *from = &p->s->remote[i % p->s->spec.qp_count].gid;
	const union ibv_gid *to = &p->s->device->gid;
	bool good;

	message_head(&p->s->pool, &p->receive, i, head);
	good = gid_is_ipv4(from) ? grh_good_ipv4(head, from, to, p->s->spec.strict)
				 : grh_good_ipv6(head, from, to);
	if (!good)
		fail(OUTCOME_MISMATCH, "%s: message %zu: the network header does not name both ends", p->what,
		     i);
}

static void check_received(const struct passive *p)
{
	for (size_t i = 0; i < p->step->count; i++) {
		message_check(&p->s->pool, &p->receive, i, p->step->key, p->what);
		if (p->receive.head)
			check_grh(p, i);
		cell_check(&p->s->pool, &p->receive, i, p->what);
		message_erase(&p->s->pool, &p->receive, i);
	}
}

/* An unreliable WRITE may still be on its way when the requester has its completion. */
static void wait_for_bytes(const struct passive *p, size_t i)
{
	uint64_t deadline = deadline_in(p->s->deadline_s);

	while (p->s->spec.service == IBV_QPT_UC && now_ns() < deadline)
		if (message_arrived(&p->s->pool, &p->target, i, p->step->key))
			return;
}

static void check_target(const struct passive *p, size_t first, size_t count)
{
	for (size_t i = first; i < first + count; i++) {
		wait_for_bytes(p, i);
		message_check(&p->s->pool, &p->target, i, p->step->key, p->what);
		cell_check(&p->s->pool, &p->target, i, p->what);
		message_erase(&p->s->pool, &p->target, i);
	}
}

static void check_word(const struct passive *p, size_t i, uint64_t expected)
{
	struct chunk chunks[MAX_CHUNKS];
	uint64_t value;

	layout_chunks(&p->s->pool, &p->target, i, chunks);
	memcpy(&value, chunks[0].at, 8);
	if (value != expected)
		fail(OUTCOME_MISMATCH, "%s: word %zu: expected 0x%016llx, got 0x%016llx", p->what, i,
		     (unsigned long long)expected, (unsigned long long)value);
	cell_check(&p->s->pool, &p->target, i, p->what);
	message_erase(&p->s->pool, &p->target, i);
}

static void check_atomics(const struct passive *p)
{
	uint64_t key = p->step->key;

	if (p->step->operation == OP_FETCH_ADD) {
		check_word(p, 0, word_of(key, 0) + p->step->count * addend_of(key));
		return;
	}
	for (size_t i = 0; i < p->step->count; i++)
		check_word(p, i, i & 1 ? word_of(key, i) : swap_of(key, i));
}

static void check(const struct passive *p)
{
	size_t count = p->step->count;

	if (takes_receive(p->step->operation))
		receive_all(p);
	switch (p->step->operation) {
	case OP_SEND:
	case OP_SEND_IMM:
		check_received(p);
		return;
	case OP_WRITE:
	case OP_WRITE_IMM:
	case OP_READ:
		check_target(p, 0, count);
		return;
	case OP_SEND_INV:
		check_received(p);
		check_target(p, count, count);
		return;
	default:
		check_atomics(p);
	}
}

static void free_windows(struct passive *p)
{
	for (size_t i = 0; i < p->step->count; i++)
		if (p->window[i] && (errno = ibv_dealloc_mw(p->window[i])))
			fail_verb("%s: ibv_dealloc_mw", p->what);
	free(p->window);
	free(p->window_rkey);
}

void step_passive(struct session *s, const struct step_spec *step)
{
	struct passive p = {
		.s = s, .step = step, .receive = receive_layout(s, step), .target = target_layout(step),
	};
	char token = 'r';

	describe(s, step, "passive", p.what);
	p.window = must_calloc(step->count, sizeof(struct ibv_mw *));
	p.window_rkey = must_calloc(step->count, sizeof *p.window_rkey);
	prepare(&p);
	if (step->operation == OP_SEND_INV)
		side_send(s->side, p.window_rkey, step->count * sizeof *p.window_rkey);
	side_send(s->side, &token, 1);
	side_recv(s->side, &token, 1, deadline_in(s->deadline_s));
	check(&p);
	free_windows(&p);
	side_send(s->side, &token, 1);
}
