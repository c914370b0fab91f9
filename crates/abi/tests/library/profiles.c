/* What a profile lacks is refused to whoever posts it, by either interface: profiles gen2|gen3 */
#include "expect.h"

static char memory[64];
static struct ibv_mr *mr;
static struct ibv_cq *cq;

static struct ibv_qp *make_ex(struct ibv_pd *pd, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .send_ops_flags = ops,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp_ex(pd->context, &attr);
}

static int post(struct ibv_qp *qp, int opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad = NULL;
	int status;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory;
		wr.wr.atomic.rkey = mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory;
		wr.wr.rdma.rkey = mr->rkey;
	}
	status = ibv_post_send(qp, &wr, &bad);
	expect(!status || bad == &wr);
	return status;
}

/* A batch with what the queue pair was not created for. */
static void batch(struct ibv_qp *qp, int kind)
{
	struct ibv_mw_bind_info info = { 0 };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	uint64_t at = (uintptr_t)memory;

	ibv_wr_start(ex);
	switch (kind) {
	case 0: ibv_wr_atomic_fetch_add(ex, mr->rkey, at, 1); break;
	case 1: ibv_wr_atomic_cmp_swp(ex, mr->rkey, at, 1, 2); break;
	case 2: ibv_wr_bind_mw(ex, NULL, 1, &info); break;
	case 3: ibv_wr_atomic_write(ex, mr->rkey, at, memory); break;
	}
	expect(ibv_wr_complete(ex) == EINVAL);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp *qp;
	int gen2;

	expect(argc == 2);
	gen2 = !strcmp(argv[1], "gen2");
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	expect(cq && mr);
	qp = make_qp(pd, cq);
	connect_qp(qp, qp->qp_num);
	expect(post(qp, IBV_WR_ATOMIC_WRITE) == EINVAL);
	expect(post(qp, IBV_WR_ATOMIC_FETCH_AND_ADD) == (gen2 ? EINVAL : 0));
	expect(post(qp, IBV_WR_ATOMIC_CMP_AND_SWP) == (gen2 ? EINVAL : 0));
	if (gen2) {
		/* There is no window that a request could name. */
		expect_null(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
		expect(post(qp, IBV_WR_BIND_MW) == EINVAL);
	}
	expect(!ibv_destroy_qp(qp));

	/* What could only be refused later is not promised. */
	expect_null(make_ex(pd, IBV_QP_EX_WITH_ATOMIC_WRITE), EOPNOTSUPP);
	expect_null(make_ex(pd, 1 << 11 /* FLUSH */), EOPNOTSUPP);
	for (int flag = 0; flag < 3; flag++) {
		static const uint64_t flags[] = { IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
						  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
						  IBV_QP_EX_WITH_BIND_MW };
		struct ibv_qp *ex = make_ex(pd, IBV_QP_EX_WITH_SEND | flags[flag]);

		expect(gen2 ? !ex && errno == EOPNOTSUPP : ex && !ibv_destroy_qp(ex));
	}
	qp = make_ex(pd, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_LOCAL_INV);
	expect(qp);
	for (int kind = 0; kind < 4; kind++)
		batch(qp, kind);
	expect(!ibv_destroy_qp(qp));
	expect(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
