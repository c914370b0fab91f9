/* The same work by either interface for posting and for polling: apis plain|extended plain|extended
 * What goes over the wire is compared by who runs this. */
#include "expect.h"

enum { SIZE = 8192, IOVA = 0x100000, QKEY = 0x1234,
       ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	     IBV_ACCESS_REMOTE_ATOMIC };

static char memory[2][SIZE];
static struct ibv_mr *mr[2];
static struct ibv_cq_ex *cq[2];
static struct ibv_ah *ah;
static int extended_post, extended_poll;

/* What is done: with how many bytes in how many elements, or inline. */
struct task {
	enum ibv_wr_opcode opcode;
	uint32_t length;
	int elements;
	unsigned int flags;
};

static struct ibv_qp *make(struct ibv_pd *pd, enum ibv_qp_type type, struct ibv_cq_ex *queue)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(queue), .recv_cq = ibv_cq_ex_to_cq(queue),
		.qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 256 },
	};
	struct ibv_qp *qp;

	if (type != IBV_QPT_UD)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	if (type == IBV_QPT_RC)
		attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				       IBV_QP_EX_WITH_ATOMIC_WRITE;
	qp = ibv_create_qp_ex(pd->context, &attr);
	expect(qp);
	return qp;
}

static void begin(struct ibv_qp_ex *ex, const struct task *task)
{
	switch (task->opcode) {
	case IBV_WR_SEND: ibv_wr_send(ex); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(ex, 0x5a5a); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(ex, mr[1]->rkey, IOVA); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(ex, mr[1]->rkey, IOVA, 0x5a5a);
		break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(ex, mr[1]->rkey, IOVA); break;
	case IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_atomic_cmp_swp(ex, mr[1]->rkey, IOVA, 1, 2); break;
	case IBV_WR_ATOMIC_WRITE: ibv_wr_atomic_write(ex, mr[1]->rkey, IOVA, memory[0]); break;
	default: ibv_wr_atomic_fetch_add(ex, mr[1]->rkey, IOVA, 1);
	}
}

static void post_extended(struct ibv_qp *qp, const struct task *task, struct ibv_sge *list,
			  uint32_t peer)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_data_buf parts[4];

	ibv_wr_start(ex);
	ex->wr_id = 5;
	ex->wr_flags = IBV_SEND_SIGNALED | (task->flags & ~IBV_SEND_INLINE);
	begin(ex, task);
	if (qp->qp_type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(ex, ah, peer, QKEY);
	for (int i = 0; i < task->elements; i++)
		parts[i] = (struct ibv_data_buf){ memory[0] + (list[i].addr - IOVA), list[i].length };
	if (task->flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data_list(ex, task->elements, parts);
	else
		ibv_wr_set_sge_list(ex, task->elements, list);
	expect(!ibv_wr_complete(ex));
}

static void post_plain(struct ibv_qp *qp, const struct task *task, struct ibv_sge *list,
		       uint32_t peer)
{
	struct ibv_send_wr wr = {
		.wr_id = 5, .sg_list = list, .num_sge = task->elements, .opcode = task->opcode,
		.send_flags = IBV_SEND_SIGNALED | task->flags, .imm_data = 0x5a5a,
	}, *bad;

	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (task->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		   task->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = IOVA;
		wr.wr.atomic.rkey = mr[1]->rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 2;
	} else {
		wr.wr.rdma.remote_addr = IOVA;
		wr.wr.rdma.rkey = mr[1]->rkey;
	}
	/* Inline data is read where it lies. */
	if (task->flags & IBV_SEND_INLINE)
		for (int i = 0; i < task->elements; i++)
			list[i].addr = (uintptr_t)memory[0] + (list[i].addr - IOVA);
	expect(!ibv_post_send(qp, &wr, &bad));
}

static void wait_for(struct ibv_cq_ex *queue, uint64_t wr_id)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc;

	if (!extended_poll) {
		while (!ibv_poll_cq(ibv_cq_ex_to_cq(queue), 1, &wc))
			;
		expect(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
		return;
	}
	while (ibv_start_poll(queue, &attr) == ENOENT)
		;
	expect(queue->status == IBV_WC_SUCCESS && queue->wr_id == wr_id);
	ibv_end_poll(queue);
}

static void run(struct ibv_qp *from, struct ibv_qp *to, const struct task *task)
{
	int takes = task->opcode == IBV_WR_SEND || task->opcode == IBV_WR_SEND_WITH_IMM ||
		    task->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct ibv_sge place = { IOVA, SIZE, mr[1]->lkey }, list[4];
	struct ibv_recv_wr recv = { .wr_id = 6, .sg_list = &place, .num_sge = 1 }, *bad;
	uint32_t at = 0;

	for (int i = 0; i < task->elements; at += list[i++].length)
		list[i] = (struct ibv_sge){ IOVA + at, i == task->elements - 1 ?
						task->length - at : task->length / 4, mr[0]->lkey };
	if (takes)
		expect(!ibv_post_recv(to, &recv, &bad));
	(extended_post ? post_extended : post_plain)(from, task, list, to->qp_num);
	wait_for(cq[0], 5);
	if (takes)
		wait_for(cq[1], 6);
}

static const struct task tasks[] = {
	{ IBV_WR_SEND, 0, 0, 0 },
	{ IBV_WR_SEND, 33, 1, IBV_SEND_SOLICITED },
	{ IBV_WR_SEND, 900, 4, 0 },
	{ IBV_WR_SEND, 250, 3, IBV_SEND_INLINE },
	{ IBV_WR_SEND_WITH_IMM, 7, 1, IBV_SEND_FENCE },
	{ IBV_WR_SEND_WITH_IMM, 256, 2, IBV_SEND_INLINE | IBV_SEND_SOLICITED },
	/* From here on not for datagrams. */
	{ IBV_WR_SEND, 5000, 4, 0 },
	{ IBV_WR_RDMA_WRITE, 0, 0, 0 },
	{ IBV_WR_RDMA_WRITE, 3001, 3, 0 },
	{ IBV_WR_RDMA_WRITE, 100, 1, IBV_SEND_INLINE },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, 1025, 2, 0 },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, IBV_SEND_SOLICITED },
	/* From here on for reliable connections only. */
	{ IBV_WR_RDMA_READ, 5000, 2, 0 },
	{ IBV_WR_RDMA_READ, 8, 1, IBV_SEND_FENCE },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, 8, 1, 0 },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 1, 0 },
	{ IBV_WR_ATOMIC_WRITE, 8, 1, IBV_SEND_INLINE },
};

static void connect_datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						 IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void service(struct ibv_pd *pd, enum ibv_qp_type type, int count)
{
	struct ibv_qp *from = make(pd, type, cq[0]), *to = make(pd, type, cq[1]);

	if (type == IBV_QPT_UD) {
		connect_datagrams(from);
		connect_datagrams(to);
	} else {
		connect_qp(from, to->qp_num);
		connect_qp(to, from->qp_num);
	}
	for (int i = 0; i < count; i++)
		run(from, to, &tasks[i]);
	expect(!ibv_destroy_qp(from) && !ibv_destroy_qp(to));
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };

	expect(argc == 3);
	extended_post = !strcmp(argv[1], "extended");
	extended_poll = !strcmp(argv[2], "extended");
	for (int side = 0; side < 2; side++) {
		for (int i = 0; i < SIZE; i++)
			memory[side][i] = (char)(i * 5 + side);
		mr[side] = ibv_reg_mr_iova(pd, memory[side], SIZE, IOVA, ALL);
		cq[side] = ibv_create_cq_ex(context, &attr);
		expect(mr[side] && cq[side]);
	}
	expect(!ibv_query_gid(context, 1, 0, &way.grh.dgid));
	ah = ibv_create_ah(pd, &way);
	service(pd, IBV_QPT_RC, sizeof tasks / sizeof *tasks);
	service(pd, IBV_QPT_UC, 12);
	service(pd, IBV_QPT_UD, 6);
	return 0;
}
