/*
 * badposts: posts that must be refused, each with the errno of its man page;
 * bad_wr names the first one that was, what stood before it is done.
 *
 *   badposts [--device NAME] [--gid INDEX] [--ipv6] [--null]
 *
 * --null also leaves out pointers, which rdma-core itself does not survive.
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "checks.h"

static void check_no_completion(struct ibv_cq *cq, const char *name)
{
	struct ibv_wc wc;

	check(ibv_poll_cq(cq, 1, &wc) == 0, "%s: no completion", name);
}

/* Posts wr: it is refused with one of two errno values, bad_wr names it, nothing completes. */
static void refused_send(struct pair *p, const char *name, struct ibv_send_wr wr, int one, int other)
{
	struct ibv_send_wr *bad = NULL;

	check_either(name, one, other, ibv_post_send(p->qp[0], &wr, &bad));
	check(bad == &wr, "%s: bad_wr names the request", name);
	check_no_completion(p->cq[0], name);
}

static void bad_sends(struct bench *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_sge sge[64];
	struct ibv_send_wr good = { .opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED }, wr;

	for (int i = 0; i < 64; i++)
		sge[i] = bench_sge(b, 16);
	wr = good, wr.num_sge = 33;
	refused_send(&p, "post_send with too many SGEs", wr, EINVAL, ENOMEM);
	wr = good, wr.num_sge = INT_MAX;
	refused_send(&p, "post_send with 2^31-1 SGEs", wr, EINVAL, ENOMEM);
	wr = good, wr.num_sge = INT_MAX, wr.send_flags |= IBV_SEND_INLINE;
	refused_send(&p, "post_send with 2^31-1 inline SGEs", wr, EINVAL, ENOMEM);
	wr = good, wr.num_sge = -1;
	refused_send(&p, "post_send with -1 SGEs", wr, EINVAL, ENOMEM);
	wr = good, wr.opcode = (enum ibv_wr_opcode)99;
	refused_send(&p, "post_send of opcode 99", wr, EINVAL, EOPNOTSUPP);
	sge[0].length = 4096;
	wr = good, wr.send_flags |= IBV_SEND_INLINE;
	refused_send(&p, "post_send with too much inline", wr, EINVAL, ENOMEM);
	sge[0].length = 16;
	wr = good, wr.opcode = IBV_WR_RDMA_READ, wr.send_flags |= IBV_SEND_INLINE;
	wr.wr.rdma.remote_addr = (uintptr_t)b->area, wr.wr.rdma.rkey = b->mr->rkey;
	refused_send(&p, "post_send of an inline READ", wr, EINVAL, EOPNOTSUPP);
	pair_close(&p);
}

static void bad_services(struct bench *b)
{
	struct pair uc = pair_open(&b->device, (struct pair_options){ .type = IBV_QPT_UC });
	struct pair ud = pair_open(&b->device, (struct pair_options){ .type = IBV_QPT_UD });
	struct ibv_sge sge = bench_sge(b, 8);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1,
				  .wr.rdma.remote_addr = (uintptr_t)b->area, .wr.rdma.rkey = b->mr->rkey };

	refused_send(&uc, "READ on UC", wr, EINVAL, EOPNOTSUPP);
	refused_send(&ud, "READ on UD", wr, EINVAL, EOPNOTSUPP);
	wr.opcode = IBV_WR_RDMA_WRITE;
	refused_send(&ud, "WRITE on UD", wr, EINVAL, EOPNOTSUPP);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	refused_send(&uc, "CMP_SWAP on UC", wr, EINVAL, EOPNOTSUPP);
	memset(&wr.wr, 0, sizeof wr.wr);
	wr.opcode = IBV_WR_SEND;
	if (b->null)
		refused_send(&ud, "SEND on UD without an address handle", wr, EINVAL, EFAULT);
	pair_close(&uc);
	pair_close(&ud);
}

static void to_rts(struct bench *b, struct ibv_qp *qp, struct ibv_qp *other)
{
	struct qp_address remote = { .qpn = other->qp_num, .psn = 9, .gid = b->device.gid,
				     .mtu = b->device.port.active_mtu };

	qp_to_rtr(&b->device, qp, IBV_QPT_RC, &remote);
	qp_to_rts(&b->device, qp, IBV_QPT_RC, remote.psn, patient);
}

/* As with the irdma driver, what is posted before RTS waits (the specification refuses it); only in
 * RESET it is refused, as rdma-core's own tests want. */
static void posts_before_rts_wait(struct bench *b)
{
	struct ibv_qp *from = bench_qp(b, IBV_QPT_RC, small_cap());
	struct ibv_qp *to = bench_qp(b, IBV_QPT_RC, small_cap());
	struct ibv_sge source = bench_sge(b, 8), sink = source;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &source, .num_sge = 1 }, *bad_send;
	struct ibv_recv_wr receive = { .wr_id = 5, .sg_list = &sink, .num_sge = 1 }, *bad_receive;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	sink.addr += 1024;
	memcpy(b->area, "waiting", 8);
	check_errno("post_recv in RESET", EINVAL, ibv_post_recv(to, &receive, &bad_receive));
	check_errno("post_send in RESET", EINVAL, ibv_post_send(from, &send, &bad_send));
	qp_to_init(from, IBV_QPT_RC, all_access);
	qp_to_init(to, IBV_QPT_RC, all_access);
	check_errno("post_send in INIT", 0, ibv_post_send(from, &send, &bad_send));
	check_errno("post_recv in INIT", 0, ibv_post_recv(to, &receive, &bad_receive));
	check_no_completion(b->cq, "posts before RTS");
	to_rts(b, to, from);
	to_rts(b, from, to);
	poll_within(b->cq, &wc, deadline_in(5));
	check(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && !memcmp(b->area + 1024, "waiting", 8),
	      "what was posted before RTS goes then: %s", ibv_wc_status_str(wc.status));
	check_errno("destroy_qp", 0, ibv_destroy_qp(from));
	check_errno("destroy_qp", 0, ibv_destroy_qp(to));
}

/* Everything before the one that does not fit is taken, and completes. */
static void full_queues(struct bench *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_sge sge = bench_sge(b, 8);
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int posted = 0, error = 0;
	struct ibv_wc wc;

	ibv_query_qp(p.qp[1], &attr, IBV_QP_CAP, &init);
	while (posted <= (int)init.cap.max_recv_wr && !error) {
		error = ibv_post_recv(p.qp[1], &receive, &bad);
		posted += !error;
	}
	check_errno("post_recv to a full queue", ENOMEM, error);
	check(posted == (int)init.cap.max_recv_wr && bad == &receive, "%d of %u receives were taken", posted,
	      init.cap.max_recv_wr);
	attr.qp_state = IBV_QPS_ERR;
	ibv_modify_qp(p.qp[1], &attr, IBV_QP_STATE);
	while (posted && poll_within(p.cq[1], &wc, deadline_in(5)))
		posted--;
	check(posted == 0, "every receive that was taken comes back");
	receive.num_sge = 33;
	check_either("post_recv with too many SGEs", EINVAL, ENOMEM, ibv_post_recv(p.qp[1], &receive, &bad));
	pair_close(&p);
}

static void full_send_queue(struct bench *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_sge sge = bench_sge(b, 8);
	struct ibv_send_wr wr[100], *bad = NULL;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	int error, taken, completed = 0;

	ibv_query_qp(p.qp[0], &attr, IBV_QP_CAP, &init);
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < 100; i++) {
		wr[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)i, .opcode = IBV_WR_SEND, .sg_list = &sge,
					      .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
		wr[i].next = i < 99 ? &wr[i + 1] : NULL;
	}
	if (init.cap.max_send_wr >= 100)
		return;
	error = ibv_post_send(p.qp[0], wr, &bad);
	taken = bad ? (int)(bad - wr) : -1;
	check_errno("post_send of a list longer than the queue", ENOMEM, error);
	check(taken == (int)init.cap.max_send_wr, "%d of %u sends were taken", taken, init.cap.max_send_wr);
	attr.qp_state = IBV_QPS_ERR;
	ibv_modify_qp(p.qp[0], &attr, IBV_QP_STATE);
	while (completed < taken && poll_within(p.cq[0], &wc, deadline_in(5)))
		completed++;
	check(completed == taken, "%d of %d sends come back", completed, taken);
	pair_close(&p);
}

int main(int argc, char **argv)
{
	struct bench b = bench_open("badposts", argc, argv);

	bad_sends(&b);
	bad_services(&b);
	posts_before_rts_wait(&b);
	full_queues(&b);
	full_send_queue(&b);
	bench_still_works(&b);
	checks_finish();
}
