/*
 * rate: a queue pair keeps to the rate that was set, and refuses what it cannot keep to.
 *
 *   rate [--device NAME] [--gid INDEX] [--ipv6]
 *
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "checks.h"

#define MESSAGE (1u << 20)
#define BURST (64u << 10)
#define SLOW_KBPS 80000u

struct memory {
	uint8_t *from, *to;
	struct ibv_mr *mr[2];
};

static struct memory memory_of(const struct device *device)
{
	struct memory m;

	m.from = must_calloc(MESSAGE, 1);
	m.to = must_calloc(MESSAGE, 1);
	m.mr[0] = ibv_reg_mr(device->pd, m.from, MESSAGE, all_access);
	m.mr[1] = ibv_reg_mr(device->pd, m.to, MESSAGE, all_access);
	if (!m.mr[0] || !m.mr[1])
		fail_verb("ibv_reg_mr");
	return m;
}

static int set_rate(struct ibv_qp *qp, uint32_t kbps, uint32_t burst)
{
	struct ibv_qp_rate_limit_attr attr = { .rate_limit = kbps, .max_burst_sz = burst };

	return ibv_modify_qp_rate_limit(qp, &attr);
}

/* A WRITE of MESSAGE bytes, in nanoseconds. */
static uint64_t write_ns(struct pair *p, const struct memory *m)
{
	struct ibv_sge sge = { .addr = (uintptr_t)m->from, .length = MESSAGE, .lkey = m->mr[0]->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	uint64_t start = now_ns();
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)m->to;
	wr.wr.rdma.rkey = m->mr[1]->rkey;
	if ((errno = ibv_post_send(p->qp[0], &wr, &bad)))
		fail_verb("ibv_post_send");
	if (!poll_within(p->cq[0], &wc, deadline_in(60)))
		fail(OUTCOME_DEADLINE, "no completion");
	if (wc.status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "%s", ibv_wc_status_str(wc.status));
	return now_ns() - start;
}

/* What is above a burst takes at least its time at the rate. */
static uint64_t least_ns(uint32_t kbps)
{
	return (MESSAGE - BURST) * 8ull * MILLI / kbps;
}

static uint64_t timed(struct pair *p, const struct memory *m, uint32_t kbps)
{
	uint64_t took;

	check_errno("the rate is taken", 0, set_rate(p->qp[0], kbps, BURST));
	took = write_ns(p, m);
	check(took >= least_ns(kbps), "1 MiB at %u kbit/s in %llu us, at least %llu", kbps,
	      (unsigned long long)(took / MICRO), (unsigned long long)(least_ns(kbps) / MICRO));
	return took;
}

static void rates(struct device *device)
{
	struct memory m = memory_of(device);
	struct pair p = pair_rc(device);
	uint64_t slow = timed(&p, &m, SLOW_KBPS), fast = timed(&p, &m, 4 * SLOW_KBPS);

	check(slow > 2 * fast, "four times the rate takes less than half the time");
	check_errno("no limit", 0, set_rate(p.qp[0], 0, 0));
	check(write_ns(&p, &m) < slow / 2, "without a limit it is faster");
	pair_close(&p);
	for (int i = 0; i < 2; i++)
		ibv_dereg_mr(m.mr[i]);
	free(m.from);
	free(m.to);
}

static void refusals(struct bench *b)
{
	struct ibv_qp_rate_limit_attr unknown = { .rate_limit = 1000, .comp_mask = 1 };
	struct ibv_qp *qp = bench_qp(b, IBV_QPT_RC, small_cap());
	struct ibv_device_attr_ex attr = { 0 };
	struct pair p = pair_rc(&b->device);
	uint32_t most;

	if (ibv_query_device_ex(b->device.context, NULL, &attr))
		fail_verb("ibv_query_device_ex");
	most = attr.packet_pacing_caps.qp_rate_limit_max;
	check(most > 0 && attr.packet_pacing_caps.qp_rate_limit_min == 1, "the device tells its rates");
	check(attr.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC, "RC is among the services");
	check_errno("in RESET", EINVAL, set_rate(qp, 1000, 0));
	qp_to_init(qp, IBV_QPT_RC, all_access);
	check_errno("in INIT", EINVAL, set_rate(qp, 1000, 0));
	check_errno("the advertised rate", 0, set_rate(p.qp[0], most, 0));
	check_errno("one more", EINVAL, set_rate(p.qp[0], most + 1, 0));
	check_errno("an unknown extension", EINVAL, ibv_modify_qp_rate_limit(p.qp[0], &unknown));
	check(qp_state(p.qp[0]) == IBV_QPS_RTS, "the queue pair is what it was");
	pair_close(&p);
	check_errno("destroy", 0, ibv_destroy_qp(qp));
}

int main(int argc, char **argv)
{
	struct bench b = bench_open("rate", argc, argv);

	refusals(&b);
	rates(&b.device);
	bench_still_works(&b);
	checks_finish();
}
