/* What programs read from objects without a call, what may be changed, what is not offered. */
#include "expect.h"

static char memory[4096];

static void regions(struct ibv_pd *pd)
{
	struct ibv_pd *other = ibv_alloc_pd(pd->context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1024, IBV_ACCESS_LOCAL_WRITE), before;

	expect(other && mr && mr->context == pd->context && mr->pd == pd);
	expect(mr->addr == memory && mr->length == 1024 && mr->lkey && mr->lkey == mr->rkey);
	before = *mr;
	errno = 0;
	expect(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	expect(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			    IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_INPUT);
	expect(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	expect(!memcmp(&before, mr, sizeof before));
	expect(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other,
			     memory + 8, 16, 0));
	expect(mr->addr == memory + 8 && mr->length == 16 && mr->pd == other);
	expect(!ibv_dealloc_pd(ibv_alloc_pd(pd->context)) && ibv_dealloc_pd(other) == EBUSY);
	expect(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));

	expect_null(ibv_reg_mr(pd, memory, 8, 1 << 19), EINVAL);
	mr = ibv_reg_mr_iova(pd, memory, 8, 0x1000, IBV_ACCESS_RELAXED_ORDERING | 1 << 28);
	expect(mr && mr->addr == memory && !ibv_dereg_mr(mr));
}

static void queues(struct ibv_pd *pd)
{
	struct ibv_context *context = pd->context;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 10, memory, channel, 0);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 2 }, .srq_context = cq };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr;

	expect(channel && channel->context == context && channel->fd >= 0);
	expect(cq && cq->context == context && cq->channel == channel && cq->cq_context == memory);
	expect(cq->cqe >= 10 && !pthread_mutex_trylock(&cq->mutex) && !pthread_mutex_unlock(&cq->mutex));
	expect(!ibv_resize_cq(cq, 20) && cq->cqe == 20);
	expect(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, -1) == EINVAL && cq->cqe == 20);
	expect(srq && srq->context == context && srq->pd == pd && srq->srq_context == cq);
	expect(init.attr.max_wr >= 4 && init.attr.max_sge >= 2);
	attr.srq_limit = 3;
	expect(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	expect(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	expect(!ibv_query_srq(srq, &attr) && attr.max_wr == init.attr.max_wr && attr.srq_limit == 3);
	expect(ibv_destroy_comp_channel(channel) == EBUSY);
	expect(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void queue_pairs(struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 10, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	expect(qp->context == pd->context && qp->pd == pd && qp->send_cq == cq && qp->recv_cq == cq);
	expect(!qp->srq && qp->qp_type == IBV_QPT_RC && qp->state == IBV_QPS_RESET && qp->qp_num > 1);
	connect_qp(qp, qp->qp_num);
	expect(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV, &init));
	expect(attr.qp_state == IBV_QPS_RTS && attr.path_mtu == IBV_MTU_1024 && attr.sq_psn == 7);
	expect(attr.dest_qp_num == qp->qp_num && attr.port_num == 1 && attr.retry_cnt == 7);
	expect(attr.ah_attr.is_global && attr.ah_attr.grh.dgid.raw[10] == 0xff);
	expect(init.send_cq == cq && init.qp_context == pd && init.qp_type == IBV_QPT_RC);
	expect(init.cap.max_send_wr >= 8 && !memcmp(&init.cap, &attr.cap, sizeof init.cap));
	attr.qp_state = IBV_QPS_ERR;
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && qp->state == IBV_QPS_ERR);
	expect(ibv_modify_qp(qp, &attr, 1 << 24) == EINVAL);
	expect(!ibv_qp_to_qp_ex(qp) && ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == 0);
	expect(ibv_destroy_cq(cq) == EBUSY && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

static void extensions(struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, .cap = { .max_send_wr = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &init);

	expect(qp && qp->qp_type == IBV_QPT_UD && !ibv_destroy_qp(qp));
	init.create_flags |= IBV_QP_CREATE_SCATTER_FCS;
	expect_null(ibv_create_qp_ex(pd->context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	expect_null(ibv_create_qp_ex(pd->context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	init.qp_type = IBV_QPT_RAW_PACKET;
	expect_null(ibv_create_qp_ex(pd->context, &init), EOPNOTSUPP);
	expect(!ibv_destroy_cq(cq));
}

static void domains(struct ibv_pd *pd)
{
	struct ibv_context *context = pd->context, *other = open_loopback();
	struct ibv_td *td = ibv_alloc_td(context, &(struct ibv_td_init_attr){ 0 });
	struct ibv_td *foreign = ibv_alloc_td(other, &(struct ibv_td_init_attr){ 0 });
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_mr *mr = ibv_reg_mr(parent, memory, 8, 0);

	expect(td && td->context == context && parent && parent->context == context && mr);
	expect_null(ibv_alloc_td(context, &(struct ibv_td_init_attr){ 1 }), EINVAL);
	attr.pd = parent;
	expect_null(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = NULL;
	expect_null(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = pd;
	expect_null(ibv_alloc_parent_domain(other, &attr), EINVAL);
	attr.td = foreign;
	expect_null(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.td = NULL;
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	expect_null(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 4;
	expect_null(ibv_alloc_parent_domain(context, &attr), EINVAL);
	expect(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	expect(ibv_dealloc_pd(parent) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(parent));
	expect(!ibv_dealloc_td(td) && !ibv_dealloc_td(foreign) && !ibv_close_device(other));
}

/* What a closed context leaves behind says so. */
static void closed(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8, 0);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	expect(mr && cq && !ibv_close_device(context));
	expect(ibv_query_qp(qp, &attr, 0, &init) == EINVAL);
	expect(ibv_destroy_qp(qp) == EINVAL && ibv_dereg_mr(mr) == EINVAL);
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);

	expect(pd && pd->context == context);
	regions(pd);
	queues(pd);
	queue_pairs(pd);
	extensions(pd);
	domains(pd);
	closed();
	expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
