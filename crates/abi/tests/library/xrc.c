/* Extended reliable connections within one process: domains, shared queues, both post interfaces. */
#include <fcntl.h>
#include <unistd.h>

#include "expect.h"

static char memory[256];
static struct ibv_cq *cq, *shared_cq;

static struct ibv_xrcd *open_domain(struct ibv_context *context, uint32_t mask, int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = mask, .fd = fd, .oflags = flags };

	return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq *make_srq(struct ibv_pd *pd, struct ibv_xrcd *xrcd, uint32_t mask)
{
	struct ibv_srq_init_attr_ex attr = {
		.comp_mask = mask, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = shared_cq,
		.srq_context = memory, .attr = { .max_wr = 4, .max_sge = 1 },
	};

	return ibv_create_srq_ex(pd->context, &attr);
}

static struct ibv_qp *make_sender(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .qp_type = IBV_QPT_XRC_SEND, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND, .cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};

	return ibv_create_qp_ex(pd->context, &attr);
}

static struct ibv_qp *make_receiver(struct ibv_context *context, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.qp_context = memory,
	};

	return ibv_create_qp_ex(context, &attr);
}

static void wait_for_message(uint64_t wr_id, const char *text)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(shared_cq, 1, &wc))
		;
	expect(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == wr_id);
	expect(!strcmp(memory + 128, text));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	expect(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
}

static void talk(struct ibv_pd *pd, struct ibv_mr *mr, struct ibv_srq *srq, struct ibv_qp *sender)
{
	struct ibv_sge from = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_sge to = { (uintptr_t)memory + 128, 8, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad_send;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(sender);
	uint32_t number;

	expect(!ibv_get_srq_num(srq, &number) && number);
	strcpy(memory, "plain");
	expect(!ibv_post_srq_recv(srq, &recv, &bad_recv));
	send.qp_type.xrc.remote_srqn = number;
	expect(!ibv_post_send(sender, &send, &bad_send));
	wait_for_message(1, "plain");
	strcpy(memory, "extend");
	recv.wr_id = 2;
	expect(!ibv_post_srq_recv(srq, &recv, &bad_recv));
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, number);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
	expect(!ibv_wr_complete(ex));
	wait_for_message(2, "extend");
}

static void domains(struct ibv_context *context)
{
	uint32_t both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	int fd = open("/", O_RDONLY | O_CLOEXEC);
	struct ibv_xrcd *first, *second;

	expect_null(open_domain(context, IBV_XRCD_INIT_ATTR_FD, -1, O_CREAT), EINVAL);
	expect_null(open_domain(context, both, -1, 0), EINVAL);
	expect_null(open_domain(context, both, -1, O_CREAT | O_APPEND), EINVAL);
	expect_null(open_domain(context, both, -2, O_CREAT), EBADF);
	expect_null(open_domain(context, both, fd, 0), EAGAIN);
	first = open_domain(context, both, fd, O_CREAT);
	expect(first && first->context == context);
	expect_null(open_domain(context, both, fd, O_CREAT | O_EXCL), EINVAL);
	second = open_domain(context, both, fd, 0);
	expect(second && !ibv_close_xrcd(first) && !ibv_close_xrcd(second) && !close(fd));
}

static void refusals(struct ibv_pd *pd, struct ibv_xrcd *xrcd)
{
	uint32_t all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
		       IBV_SRQ_INIT_ATTR_CQ;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *basic = ibv_create_srq(pd, &init);
	uint32_t number;

	expect_null(make_srq(pd, xrcd, all & ~IBV_SRQ_INIT_ATTR_CQ), EINVAL);
	expect_null(make_srq(pd, NULL, all), EINVAL);
	expect_null(make_srq(pd, xrcd, all | 1 << 5), EINVAL);
	expect_null(make_receiver(pd->context, NULL), EINVAL);
	expect(basic && ibv_get_srq_num(basic, &number) && !ibv_destroy_srq(basic));
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_xrcd *xrcd = open_domain(context, IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					    -1, O_CREAT);
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
			     IBV_QP_OPEN_ATTR_CONTEXT,
		.xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV, .qp_context = pd,
	};
	struct ibv_qp *sender, *receiver, *same;
	struct ibv_srq *srq;

	domains(context);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	shared_cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	refusals(pd, xrcd);
	srq = make_srq(pd, xrcd, IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
				 IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ);
	sender = make_sender(pd);
	receiver = make_receiver(context, xrcd);
	expect(srq && srq->srq_context == memory && sender && receiver);
	expect(!receiver->pd && !receiver->send_cq && receiver->qp_context == memory);
	connect_qp(receiver, sender->qp_num);
	connect_qp(sender, receiver->qp_num);
	talk(pd, mr, srq, sender);

	attr.qp_num = receiver->qp_num;
	same = ibv_open_qp(context, &attr);
	expect(same && same->qp_num == receiver->qp_num && same->qp_context == pd);
	attr.qp_num = sender->qp_num;
	expect_null(ibv_open_qp(context, &attr), EINVAL);
	attr.comp_mask = IBV_QP_OPEN_ATTR_NUM;
	expect_null(ibv_open_qp(context, &attr), EINVAL);
	expect(!ibv_destroy_qp(receiver));
	talk(pd, mr, srq, sender);
	expect(ibv_close_xrcd(xrcd) == EBUSY && !ibv_destroy_qp(same));
	expect(!ibv_destroy_qp(sender) && !ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
	expect(!ibv_destroy_cq(cq) && !ibv_destroy_cq(shared_cq) && !ibv_dereg_mr(mr));
	expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
