/*
 * rnr: a receiver that is late. Each message arrives before its receive is
 * posted, is turned away with the receiver's RNR timer, and must come again.
 *
 *   rnr [--device NAME] [--gid INDEX] [--ipv6] TIMER-CODE LATE-MS ROUNDS
 *
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checks.h"

#define MESSAGE 1500

static void set_timer(struct ibv_qp *qp, int code)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = (uint8_t)code };

	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER)))
		fail_verb("ibv_modify_qp with IBV_QP_MIN_RNR_TIMER");
}

static void await(struct ibv_cq *cq, const char *side)
{
	struct ibv_wc wc;

	if (!poll_within(cq, &wc, deadline_in(20)))
		fail(OUTCOME_DEADLINE, "the %s has no completion", side);
	if (wc.status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "the %s: %s", side, ibv_wc_status_str(wc.status));
}

static void round_trip(struct bench *b, struct pair *p, int round, useconds_t late_us)
{
	struct ibv_sge from = bench_sge(b, MESSAGE), to = from;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;

	to.addr += AREA / 2;
	for (int i = 0; i < MESSAGE; i++)
		b->area[i] = (uint8_t)(i * 11 + round);
	if ((errno = ibv_post_send(p->qp[0], &send, &bad_send)))
		fail_verb("ibv_post_send");
	usleep(late_us);
	if ((errno = ibv_post_recv(p->qp[1], &receive, &bad_receive)))
		fail_verb("ibv_post_recv");
	await(p->cq[0], "sender");
	await(p->cq[1], "receiver");
	if (memcmp(b->area, b->area + AREA / 2, MESSAGE))
		fail(OUTCOME_MISMATCH, "round %d: the message differs", round);
}

int main(int argc, char **argv)
{
	struct bench b = bench_open("rnr", argc, argv);
	char **argument = argv + argc - 3;
	uint64_t start = now_ns();
	struct pair p;
	int rounds;

	if (argc < 4)
		fail(OUTCOME_USAGE, "expected TIMER-CODE LATE-MS ROUNDS");
	rounds = atoi(argument[2]);
	p = pair_rc(&b.device);
	set_timer(p.qp[1], atoi(argument[0]));
	for (int round = 0; round < rounds; round++)
		round_trip(&b, &p, round, (useconds_t)atoi(argument[1]) * 1000);
	printf("rnr: ok: %d rounds in %llu ms\n", rounds, (unsigned long long)((now_ns() - start) / MILLI));
	pair_close(&p);
	return OUTCOME_OK;
}
