/* What the C tests of the library share: checks, and a pair of connected queue pairs. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define expect(condition)                                                                         \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
				errno);                                                           \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define expect_null(call, error) expect((errno = 0, (call) == NULL) && errno == (error))

/* The loopback device: every machine has it. */
static struct ibv_context *open_loopback(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	expect(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "roce_lo"))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	expect(context);
	return context;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .qp_context = pd,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	expect(qp);
	return qp;
}

static inline void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	/* Of an extended connection each side has the attributes of its half. */
	int connected = qp->qp_type == IBV_QPT_RC;
	int sends = connected || qp->qp_type == IBV_QPT_XRC_SEND
			    ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0;
	int receives = connected || qp->qp_type == IBV_QPT_XRC_RECV
			       ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
	int times_out = qp->qp_type == IBV_QPT_UC ? 0 : IBV_QP_TIMEOUT;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						 IBV_QP_ACCESS_FLAGS));
	expect(qp->state == IBV_QPS_INIT);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	expect(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						 IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | receives));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1,
	};
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | times_out | sends));
	expect(qp->state == IBV_QPS_RTS);
}
