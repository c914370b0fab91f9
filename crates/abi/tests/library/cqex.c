/* Extended completion queues: creation, every field of a completion, and who holds what when the
 * queue is empty. */
#include <pthread.h>
#include <time.h>

#include "expect.h"

static char memory[4096];

static struct ibv_cq_ex *make_cq_ex(struct ibv_context *context, uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64, .wc_flags = wc_flags, .cq_context = memory, .flags = flags,
		.comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
	};

	return ibv_create_cq_ex(context, &attr);
}

static void creation(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 1 };
	struct ibv_pd *pd = ibv_alloc_pd(context), *parent;
	struct ibv_parent_domain_init_attr domain = { .pd = pd };
	struct ibv_device_attr limits;
	struct ibv_cq_ex *cq;

	expect(!ibv_query_device(context, &limits));
	for (int bit = 0; bit < 12; bit++) {
		if (1 << bit == IBV_WC_EX_WITH_TM_INFO)
			continue;
		cq = make_cq_ex(context, 1 << bit, 0);
		expect(cq && cq->context == context && cq->cq_context == memory && cq->cqe == 64);
		expect(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
	expect_null(make_cq_ex(context, IBV_WC_EX_WITH_TM_INFO, 0), EOPNOTSUPP);
	expect_null(make_cq_ex(context, 1 << 12, 0), EOPNOTSUPP);
	expect_null(make_cq_ex(context, 0, 4), EOPNOTSUPP);
	cq = make_cq_ex(context, 0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	expect(cq && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	attr.comp_vector = 1;
	expect_null(ibv_create_cq_ex(context, &attr), EINVAL);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = limits.max_cqe + 1 };
	expect_null(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.cqe = 0;
	expect_null(ibv_create_cq_ex(context, &attr), EINVAL);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 1, .comp_mask = 4 };
	expect_null(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	attr.parent_domain = pd;
	expect_null(ibv_create_cq_ex(context, &attr), EINVAL);
	parent = ibv_alloc_parent_domain(context, &domain);
	attr.parent_domain = parent;
	cq = ibv_create_cq_ex(context, &attr);
	expect(cq && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	expect(!ibv_dealloc_pd(parent) && !ibv_dealloc_pd(pd));
}

static void post(struct ibv_qp *qp, struct ibv_mr *mr, int count)
{
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 100, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = 0x01020304,
	}, *bad_send;

	for (int i = 0; i < count; i++) {
		expect(!ibv_post_recv(qp, &recv, &bad_recv));
		expect(!ibv_post_send(qp, &send, &bad_send));
	}
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int status;

	while ((status = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	return status;
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* One SEND with immediate to itself: two completions in one poll, or one after the other. */
static void fields(struct ibv_cq_ex *cq, struct ibv_qp *qp, struct ibv_mr *mr)
{
	uint64_t before = now_ns(CLOCK_MONOTONIC), wall = now_ns(CLOCK_REALTIME), last = before;
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	int seen = 0, status;

	post(qp, mr, 1);
	for (int left = 2; left; ibv_end_poll(cq)) {
		expect(!start(cq));
		do {
			uint64_t ts = ibv_wc_read_completion_ts(cq);
			uint64_t at = ibv_wc_read_completion_wallclock_ns(cq);

			left--;
			expect(cq->status == IBV_WC_SUCCESS && ibv_wc_read_qp_num(cq) == qp->qp_num);
			expect(ts >= last && ts <= now_ns(CLOCK_MONOTONIC));
			expect(at + 1000000 > wall && at < now_ns(CLOCK_REALTIME) + 1000000);
			last = ts;
			expect(!ibv_wc_read_vendor_err(cq) && !ibv_wc_read_slid(cq));
			expect(!ibv_wc_read_sl(cq) && !ibv_wc_read_dlid_path_bits(cq));
			expect(!ibv_wc_read_cvlan(cq) && !ibv_wc_read_flow_tag(cq));
			if (ibv_wc_read_opcode(cq) == IBV_WC_SEND) {
				seen |= 1;
				expect(cq->wr_id == 7);
				continue;
			}
			seen |= 2;
			expect(cq->wr_id == 100 && ibv_wc_read_opcode(cq) == IBV_WC_RECV);
			expect(ibv_wc_read_byte_len(cq) == 16);
			expect(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
			expect(ibv_wc_read_imm_data(cq) == 0x01020304);
		} while (!(status = ibv_next_poll(cq)));
		expect(status == ENOENT);
	}
	expect(seen == 3);
	expect(!ibv_query_rt_values_ex(qp->context, &values));
	expect(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	expect(values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec >= last);
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK << 1;
	expect(ibv_query_rt_values_ex(qp->context, &values) == EINVAL);
}

enum { MESSAGES = 2000 };

/* Polls until it has seen its share; half of the time the queue is empty. */
static void *poller(void *argument)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *cq = argument;
	static int taken;
	long mine = 0;

	while (__atomic_load_n(&taken, __ATOMIC_RELAXED) < 2 * MESSAGES) {
		int status = ibv_start_poll(cq, &attr);

		if (status == ENOENT)
			continue;
		expect(!status);
		do {
			expect(cq->status == IBV_WC_SUCCESS);
			mine++;
			__atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
		} while (!ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	return (void *)mine;
}

static void two_threads(struct ibv_cq_ex *cq, struct ibv_qp *qp, struct ibv_mr *mr)
{
	void *first, *second;
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		expect(!pthread_create(&threads[i], NULL, poller, cq));
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
		struct ibv_send_wr send = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		}, *bad_send;

		while (ibv_post_recv(qp, &recv, &bad_recv))
			;
		while (ibv_post_send(qp, &send, &bad_send))
			;
	}
	expect(!pthread_join(threads[0], &first) && !pthread_join(threads[1], &second));
	expect((long)first + (long)second == 2 * MESSAGES);
}

/* The plain interface works on the same queue, an armed one raises its event. */
static void plain(struct ibv_cq_ex *ex, struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_poll_cq_attr attr = { 0 }, bad = { .comp_mask = 1 };
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct ibv_wc wc;
	int polled;

	expect(ibv_start_poll(ex, &attr) == ENOENT && ibv_start_poll(ex, &attr) == ENOENT);
	expect(ibv_start_poll(ex, &bad) == EINVAL && ibv_next_poll(ex) == EINVAL);
	expect(!ibv_poll_cq(cq, 1, &wc));
	post(qp, mr, 1);
	for (int left = 2; left; left -= polled) {
		polled = ibv_poll_cq(cq, 1, &wc);
		expect(polled >= 0 && (!polled || wc.status == IBV_WC_SUCCESS));
	}
	expect(ibv_start_poll(ex, &attr) == ENOENT);
}

/* Without a lock for the full queue the oldest completions go. */
static void overrun(struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 2, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(pd->context, &attr);
	struct ibv_qp *qp = make_qp(pd, ibv_cq_ex_to_cq(cq));
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad;
	struct ibv_wc wc[4];

	connect_qp(qp, qp->qp_num);
	for (recv.wr_id = 0; recv.wr_id < 5; recv.wr_id++)
		expect(!ibv_post_recv(qp, &recv, &bad));
	expect(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
	expect(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 4, wc) == 2);
	expect(wc[0].wr_id == 3 && wc[1].wr_id == 4 && wc[1].status == IBV_WC_WR_FLUSH_ERR);
	expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq_ex *cq = make_cq_ex(context,
					  0xbff | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0);
	struct ibv_qp *qp = make_qp(pd, ibv_cq_ex_to_cq(cq));

	connect_qp(qp, qp->qp_num);
	creation(context);
	fields(cq, qp, mr);
	plain(cq, qp, mr);
	two_threads(cq, qp, mr);
	overrun(pd, mr);
	expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	expect(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
