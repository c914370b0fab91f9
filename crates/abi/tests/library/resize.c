/* A completion queue that changes its size under traffic: nothing is lost, nothing comes twice. */
#include <pthread.h>

#include "expect.h"

enum { ROUNDS = 1000, DEPTH = 8 };

static char memory[64];
static volatile int resizing = 1;

static void *resizer(void *argument)
{
	struct ibv_cq *cq = argument;

	for (int round = 0; round < ROUNDS; round++) {
		int cqe = 2 * DEPTH + 1 + round % 40;

		expect(!ibv_resize_cq(cq, cqe) && cq->cqe == cqe);
	}
	resizing = 0;
	return NULL;
}

/* What waits is not given up. */
static void shrink(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad;
	struct ibv_qp *qp = make_qp(pd, cq);
	int cqe = cq->cqe;
	struct ibv_wc wc;

	connect_qp(qp, qp->qp_num);
	for (recv.wr_id = 0; recv.wr_id < 4; recv.wr_id++)
		expect(!ibv_post_recv(qp, &recv, &bad));
	expect(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
	expect(ibv_resize_cq(cq, 3) == EINVAL && cq->cqe == cqe);
	expect(ibv_resize_cq(cq, 1 << 30) == EINVAL && ibv_resize_cq(cq, 0) == EINVAL);
	expect(!ibv_resize_cq(cq, 4) && cq->cqe == 4);
	for (uint64_t i = 0; i < 2; i++)
		expect(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == i);
	expect(!ibv_resize_cq(cq, 2));
	/* Those of a dead queue pair go with it. */
	expect(!ibv_destroy_qp(qp) && ibv_poll_cq(cq, 1, &wc) == 0);
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH + 1, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	uint64_t posted = 0, sent = 0, received = 0;
	pthread_t thread;

	connect_qp(qp, qp->qp_num);
	expect(!pthread_create(&thread, NULL, resizer, cq));
	while (resizing || sent < posted || received < posted) {
		struct ibv_recv_wr recv = { posted, NULL, &sge, 1 }, *bad_recv;
		struct ibv_send_wr send = {
			.wr_id = posted, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		}, *bad_send;
		struct ibv_wc wc[4];
		int count;

		if (resizing && posted - sent < DEPTH && posted - received < DEPTH) {
			expect(!ibv_post_recv(qp, &recv, &bad_recv));
			expect(!ibv_post_send(qp, &send, &bad_send));
			posted++;
		}
		count = ibv_poll_cq(cq, 4, wc);
		expect(count >= 0);
		for (int i = 0; i < count; i++) {
			expect(wc[i].status == IBV_WC_SUCCESS);
			expect(wc[i].wr_id == (wc[i].opcode == IBV_WC_RECV ? received++ : sent++));
		}
	}
	expect(!pthread_join(thread, NULL) && posted > 0 && sent == posted && received == posted);
	expect(!ibv_destroy_qp(qp));
	shrink(pd, cq);
	expect(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	expect(!ibv_close_device(context));
	return 0;
}
