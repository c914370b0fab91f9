/*
 * badargs: calls that must be refused, each with the errno of its man page,
 * and must leave everything as it was.
 *
 *   badargs [--device NAME] [--gid INDEX] [--ipv6] [--null]
 *
 * --null also passes null pointers, which rdma-core itself does not survive.
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "checks.h"

/* ------------------------------------------------------- ports, GIDs, keys */

static void bad_queries(struct bench *b)
{
	struct ibv_context *context = b->device.context;
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;

	check_errno("query_port 0", EINVAL, ibv_query_port(context, 0, &port));
	check_errno("query_port 2", EINVAL, ibv_query_port(context, 2, &port));
	check(ibv_query_gid(context, 1, b->device.port.gid_tbl_len, &gid) != 0, "query_gid past the table");
	check(ibv_query_gid(context, 1, -1, &gid) != 0, "query_gid -1");
	check(ibv_query_gid(context, 2, 0, &gid) != 0, "query_gid of port 2");
	check(ibv_query_pkey(context, 1, b->device.port.pkey_tbl_len, &pkey) != 0,
	      "query_pkey past the table");
	for (int i = 0; i < b->device.port.gid_tbl_len; i++)
		if (ibv_query_gid(context, 1, i, &gid))
			check(false, "query_gid %d of %d", i, b->device.port.gid_tbl_len);
}

/* --------------------------------------------------- completion and memory */

/* What a device does not offer says so, whatever the arguments. */
static void bad_resizes(struct bench *b)
{
	int to_twice = ibv_resize_cq(b->cq, 2 * b->cq->cqe);

	if (to_twice == EOPNOTSUPP) {
		check_errno("resize_cq is not offered", EOPNOTSUPP, ibv_resize_cq(b->cq, 0));
		return;
	}
	check_errno("resize_cq to twice", 0, to_twice);
	check_errno("resize_cq over max_cqe", EINVAL, ibv_resize_cq(b->cq, b->device.attr.max_cqe + 1));
	check_errno("resize_cq to nothing", EINVAL, ibv_resize_cq(b->cq, 0));
}

static void bad_cqs(struct bench *b)
{
	struct ibv_context *context = b->device.context;
	int most = b->device.attr.max_cqe;

	errno = 0;
	check_null("create_cq of no entries", ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	errno = 0;
	check_null("create_cq of -1 entries", ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	errno = 0;
	check_null("create_cq over max_cqe", ibv_create_cq(context, most + 1, NULL, NULL, 0), EINVAL);
	errno = 0;
	check_null("create_cq on a missing vector",
		   ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL);
	errno = 0;
	check_null("create_cq on vector -1", ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	bad_resizes(b);
}

static void bad_regions(struct bench *b)
{
	struct ibv_pd *pd = b->device.pd;
	uint8_t *hole = mmap(NULL, AREA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *fixed = mmap(NULL, AREA, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(hole, AREA);
	errno = 0;
	check_null("remote write without local write",
		   ibv_reg_mr(pd, b->area, AREA, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	errno = 0;
	check_null("remote atomic without local write",
		   ibv_reg_mr(pd, b->area, AREA, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	errno = 0;
	check_null("region that is not mapped", ibv_reg_mr(pd, hole, AREA, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	errno = 0;
	check_null("writable region of read-only memory",
		   ibv_reg_mr(pd, fixed, AREA, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	errno = 0;
	check(!ibv_reg_mr(pd, b->area, SIZE_MAX - AREA, IBV_ACCESS_LOCAL_WRITE) && errno,
	      "region that wraps the address space");
	munmap(fixed, AREA);
}

static void bad_windows(struct bench *b)
{
	struct ibv_mw *mw;

	errno = 0;
	mw = ibv_alloc_mw(b->device.pd, IBV_MW_TYPE_2);
	if (!mw) {
		check(errno == EOPNOTSUPP && b->device.attr.max_mw == 0, "windows are not offered");
		return;
	}
	check_errno("dealloc_mw", 0, ibv_dealloc_mw(mw));
	errno = 0;
	check_null("window of type 9", ibv_alloc_mw(b->device.pd, (enum ibv_mw_type)9), EINVAL);
}

/* EINVAL past the table, ENODATA for an empty place in it. */
static bool is_no_such_gid(int error)
{
	return error == EINVAL || error == ENODATA;
}

static void bad_routes(struct bench *b)
{
	struct ibv_pd *pd = b->device.pd;
	struct qp_address self = { .gid = b->device.gid };
	struct ibv_ah_attr good = route_to(&b->device, &self), attr;

	attr = good, attr.port_num = 2;
	errno = 0;
	check_null("address handle of port 2", ibv_create_ah(pd, &attr), EINVAL);
	attr = good, attr.is_global = 0;
	errno = 0;
	check_null("address handle without a GRH", ibv_create_ah(pd, &attr), EINVAL);
	attr = good, attr.grh.sgid_index = 255;
	errno = 0;
	check(!ibv_create_ah(pd, &attr) && is_no_such_gid(errno), "address handle from a missing GID");
}

/* ------------------------------------------------------------ queue pairs */

static void refused_qp(struct bench *b, const char *name, enum ibv_qp_type type, struct ibv_qp_cap cap)
{
	struct ibv_qp *qp = bench_qp(b, type, cap);
	int error = errno;

	check(!qp && (error == EINVAL || error == ENOMEM || error == EOPNOTSUPP), "%s: %s", name,
	      qp ? "an object" : strerror(error));
	if (qp)
		ibv_destroy_qp(qp);
}

static void bad_qps(struct bench *b)
{
	struct ibv_qp_cap cap = small_cap();
	uint32_t sges = (uint32_t)b->device.attr.max_sge + 1, wrs = (uint32_t)b->device.attr.max_qp_wr + 1;

	cap.max_send_sge = sges;
	refused_qp(b, "create_qp with too many send SGEs", IBV_QPT_RC, cap);
	cap = small_cap(), cap.max_recv_sge = sges;
	refused_qp(b, "create_qp with too many receive SGEs", IBV_QPT_RC, cap);
	cap = small_cap(), cap.max_send_wr = wrs;
	refused_qp(b, "create_qp with too many send WRs", IBV_QPT_RC, cap);
	cap = small_cap(), cap.max_recv_wr = wrs;
	refused_qp(b, "create_qp with too many receive WRs", IBV_QPT_RC, cap);
	cap = small_cap(), cap.max_inline_data = 1u << 20;
	refused_qp(b, "create_qp with a megabyte inline", IBV_QPT_RC, cap);
	refused_qp(b, "create_qp of type 99", (enum ibv_qp_type)99, small_cap());
}

/* What modify_qp must refuse in the state the QP is in. */
static void refused_move(struct ibv_qp *qp, const char *name, struct ibv_qp_attr attr, int mask)
{
	enum ibv_qp_state before = qp_state(qp);

	check_errno(name, EINVAL, ibv_modify_qp(qp, &attr, mask));
	check(qp_state(qp) == before, "%s: the state stays %d", name, before);
}

#define TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR                                                                                     \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |            \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define TO_RTS                                                                                     \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |     \
	 IBV_QP_MAX_QP_RD_ATOMIC)

static void refused_from_reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, attr;

	refused_move(qp, "RESET to RTS", (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE);
	refused_move(qp, "RESET to RTR", (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR }, IBV_QP_STATE);
	refused_move(qp, "RESET to ERR", (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE);
	refused_move(qp, "RESET to no state", (struct ibv_qp_attr){ .qp_state = 99 }, IBV_QP_STATE);
	refused_move(qp, "INIT without a port", init, TO_INIT & ~IBV_QP_PORT);
	refused_move(qp, "INIT without a P_Key", init, TO_INIT & ~IBV_QP_PKEY_INDEX);
	refused_move(qp, "INIT without access flags", init, TO_INIT & ~IBV_QP_ACCESS_FLAGS);
	refused_move(qp, "INIT with an attribute of RTR", init, TO_INIT | IBV_QP_RQ_PSN);
	refused_move(qp, "INIT of an RC QP with a Q_Key", init, TO_INIT | IBV_QP_QKEY);
	attr = init, attr.port_num = 2;
	refused_move(qp, "INIT on port 2", attr, TO_INIT);
	attr = init, attr.pkey_index = 999;
	refused_move(qp, "INIT with a missing P_Key", attr, TO_INIT);
}

static void refused_from_init(struct bench *b, struct ibv_qp *qp)
{
	struct qp_address self = { .gid = b->device.gid };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = route_to(&b->device, &self),
	}, attr;
	static const struct { const char *name; int bit; } required[] = {
		{ "RTR without a route", IBV_QP_AV },
		{ "RTR without a path MTU", IBV_QP_PATH_MTU },
		{ "RTR without a destination", IBV_QP_DEST_QPN },
		{ "RTR without a PSN", IBV_QP_RQ_PSN },
		{ "RTR without responder resources", IBV_QP_MAX_DEST_RD_ATOMIC },
		{ "RTR without an RNR timer", IBV_QP_MIN_RNR_TIMER },
	};

	for (size_t i = 0; i < sizeof required / sizeof *required; i++)
		refused_move(qp, required[i].name, rtr, TO_RTR & ~required[i].bit);
	refused_move(qp, "RTR with an attribute of RTS", rtr, TO_RTR | IBV_QP_SQ_PSN);
	refused_move(qp, "INIT to RTS", (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, TO_RTS);
	attr = rtr, attr.ah_attr.grh.sgid_index = 255;
	check(is_no_such_gid(ibv_modify_qp(qp, &attr, TO_RTR)), "RTR from a missing GID");
	attr = rtr, attr.ah_attr.port_num = 2;
	refused_move(qp, "RTR through port 2", attr, TO_RTR);
	attr = rtr, attr.path_mtu = 99;
	refused_move(qp, "RTR with path MTU 99", attr, TO_RTR);
	if (b->device.port.active_mtu < IBV_MTU_4096) {
		attr = rtr, attr.path_mtu = b->device.port.active_mtu + 1;
		refused_move(qp, "RTR over the port's MTU", attr, TO_RTR);
	}
	attr = rtr, attr.max_dest_rd_atomic = 255;
	if (b->device.attr.max_qp_rd_atom < 255)
		refused_move(qp, "RTR with too many responder resources", attr, TO_RTR);
	check_errno("RTR", 0, ibv_modify_qp(qp, &rtr, TO_RTR));
}

static void refused_from_rtr(struct bench *b, struct ibv_qp *qp)
{
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1 }, attr;
	static const struct { const char *name; int bit; } required[] = {
		{ "RTS without a timeout", IBV_QP_TIMEOUT },
		{ "RTS without a retry count", IBV_QP_RETRY_CNT },
		{ "RTS without an RNR retry count", IBV_QP_RNR_RETRY },
		{ "RTS without a PSN", IBV_QP_SQ_PSN },
		{ "RTS without initiator depth", IBV_QP_MAX_QP_RD_ATOMIC },
	};

	for (size_t i = 0; i < sizeof required / sizeof *required; i++)
		refused_move(qp, required[i].name, rts, TO_RTS & ~required[i].bit);
	refused_move(qp, "RTS with an attribute of RTR", rts, TO_RTS | IBV_QP_DEST_QPN);
	refused_move(qp, "RTR to INIT", (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
		     TO_INIT);
	attr = rts, attr.max_rd_atomic = 255;
	if (b->device.attr.max_qp_init_rd_atom < 255)
		refused_move(qp, "RTS with too much initiator depth", attr, TO_RTS);
	check_errno("RTS", 0, ibv_modify_qp(qp, &rts, TO_RTS));
	refused_move(qp, "RTS to RTR", (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR }, IBV_QP_STATE);
}

static void bad_moves(struct bench *b)
{
	struct ibv_qp *qp = bench_qp(b, IBV_QPT_RC, small_cap());
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	refused_from_reset(qp);
	qp_to_init(qp, IBV_QPT_RC, all_access);
	refused_from_init(b, qp);
	refused_from_rtr(b, qp);
	check_errno("RTS to ERR", 0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	refused_move(qp, "ERR to RTS", (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RESET;
	check_errno("ERR to RESET", 0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	qp_to_init(qp, IBV_QPT_RC, all_access);
	check(qp_state(qp) == IBV_QPS_INIT, "a QP that was reset can be used again");
	check_errno("destroy_qp", 0, ibv_destroy_qp(qp));
}

/* ------------------------------------------------------------------- SRQ */

static void bad_srqs(struct bench *b)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } }, over;
	struct ibv_sge sge = bench_sge(b, 8);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	struct ibv_srq_attr limit = { .srq_limit = 1u << 20 };
	struct ibv_qp_init_attr init = { .send_cq = b->cq, .recv_cq = b->cq, .qp_type = IBV_QPT_RC,
					 .cap = small_cap() };
	struct ibv_srq *srq = ibv_create_srq(b->device.pd, &attr);
	struct ibv_qp *qp;

	check(srq != NULL, "create_srq");
	if (!srq)
		return;
	over = attr, over.attr.max_wr = (uint32_t)b->device.attr.max_srq_wr + 1;
	errno = 0;
	check_null("create_srq with too many WRs", ibv_create_srq(b->device.pd, &over), EINVAL);
	over = attr, over.attr.max_sge = (uint32_t)b->device.attr.max_srq_sge + 1;
	errno = 0;
	check_null("create_srq with too many SGEs", ibv_create_srq(b->device.pd, &over), EINVAL);
	check_errno("SRQ limit over its size", EINVAL, ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	wr.num_sge = INT_MAX;
	check_errno("post_srq_recv with 2^31-1 SGEs", EINVAL, ibv_post_srq_recv(srq, &wr, &bad));
	wr.num_sge = INT_MIN;
	check_errno("post_srq_recv with -2^31 SGEs", EINVAL, ibv_post_srq_recv(srq, &wr, &bad));
	wr.num_sge = 1;
	init.srq = srq;
	qp = ibv_create_qp(b->device.pd, &init);
	check(qp != NULL, "create_qp with an SRQ");
	qp_to_init(qp, IBV_QPT_RC, all_access);
	check_errno("post_recv to a QP that has an SRQ", EINVAL, ibv_post_recv(qp, &wr, &bad));
	check_errno("destroy an SRQ that a QP uses", EBUSY, ibv_destroy_srq(srq));
	check_errno("post_srq_recv after the refusal", 0, ibv_post_srq_recv(srq, &wr, &bad));
	ibv_destroy_qp(qp);
	check_errno("destroy_srq", 0, ibv_destroy_srq(srq));
}

/* ------------------------------------------------------------------- busy */

static void busy_pd(struct bench *b)
{
	struct ibv_pd *pd = ibv_alloc_pd(b->device.context);
	struct ibv_qp_init_attr init = { .send_cq = b->cq, .recv_cq = b->cq, .qp_type = IBV_QPT_RC,
					 .cap = small_cap() };
	struct qp_address self = { .gid = b->device.gid };
	struct ibv_ah_attr route = route_to(&b->device, &self);
	struct ibv_mr *mr = ibv_reg_mr(pd, b->area, AREA, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp;
	struct ibv_ah *ah;

	check_errno("dealloc_pd that has a region", EBUSY, ibv_dealloc_pd(pd));
	check_errno("dereg_mr", 0, ibv_dereg_mr(mr));
	qp = ibv_create_qp(pd, &init);
	check_errno("dealloc_pd that has a QP", EBUSY, ibv_dealloc_pd(pd));
	check_errno("destroy_qp", 0, ibv_destroy_qp(qp));
	ah = ibv_create_ah(pd, &route);
	check_errno("dealloc_pd that has an address handle", EBUSY, ibv_dealloc_pd(pd));
	check_errno("destroy_ah", 0, ibv_destroy_ah(ah));
	check_errno("dealloc_pd", 0, ibv_dealloc_pd(pd));
}

static void busy_cq(struct bench *b)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(b->device.context);
	struct ibv_cq *cq = ibv_create_cq(b->device.context, 4, NULL, channel, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = b->cq, .qp_type = IBV_QPT_RC,
					 .cap = small_cap() };
	struct ibv_qp *qp = ibv_create_qp(b->device.pd, &init);

	check_errno("destroy_cq that a QP uses", EBUSY, ibv_destroy_cq(cq));
	check_errno("destroy_comp_channel that a CQ uses", EBUSY, ibv_destroy_comp_channel(channel));
	check_errno("req_notify_cq after the refusal", 0, ibv_req_notify_cq(cq, 0));
	check_errno("destroy_qp", 0, ibv_destroy_qp(qp));
	check_errno("destroy_cq", 0, ibv_destroy_cq(cq));
	check_errno("destroy_comp_channel", 0, ibv_destroy_comp_channel(channel));
}

/* ------------------------------------------------------------------- null */

static void null_devices(void)
{
	errno = 0;
	check_null("open_device(NULL)", ibv_open_device(NULL), EINVAL);
	errno = 0;
	check_null("alloc_pd(NULL)", ibv_alloc_pd(NULL), EINVAL);
	errno = 0;
	check_null("create_comp_channel(NULL)", ibv_create_comp_channel(NULL), EINVAL);
	errno = 0;
	check_null("create_cq(NULL)", ibv_create_cq(NULL, 4, NULL, NULL, 0), EINVAL);
	check(ibv_get_device_name(NULL) == NULL, "get_device_name(NULL)");
	check(ibv_close_device(NULL) != 0, "close_device(NULL)");
	ibv_free_device_list(NULL);
}

static void null_results(struct bench *b)
{
	struct ibv_context *context = b->device.context;

	check_errno("query_device into NULL", EINVAL, ibv_query_device(context, NULL));
	check(ibv_query_gid(context, 1, 0, NULL) != 0, "query_gid into NULL");
	check(ibv_query_pkey(context, 1, 0, NULL) != 0, "query_pkey into NULL");
	errno = 0;
	check_null("create_qp without attributes", ibv_create_qp(b->device.pd, NULL), EINVAL);
	errno = 0;
	check_null("create_srq without attributes", ibv_create_srq(b->device.pd, NULL), EINVAL);
	errno = 0;
	check_null("create_ah without attributes", ibv_create_ah(b->device.pd, NULL), EINVAL);
	errno = 0;
	check(!ibv_reg_mr(b->device.pd, NULL, AREA, IBV_ACCESS_LOCAL_WRITE) &&
		      (errno == EFAULT || errno == EINVAL),
	      "region at NULL");
	check(ibv_get_async_event(context, NULL) != 0, "get_async_event into NULL");
}

static void null_objects(void)
{
	check_errno("dealloc_pd(NULL)", EINVAL, ibv_dealloc_pd(NULL));
	check_errno("dereg_mr(NULL)", EINVAL, ibv_dereg_mr(NULL));
	check_errno("destroy_cq(NULL)", EINVAL, ibv_destroy_cq(NULL));
	check_errno("resize_cq(NULL)", EINVAL, ibv_resize_cq(NULL, 4));
	check_errno("destroy_comp_channel(NULL)", EINVAL, ibv_destroy_comp_channel(NULL));
	check_errno("destroy_qp(NULL)", EINVAL, ibv_destroy_qp(NULL));
	check_errno("destroy_srq(NULL)", EINVAL, ibv_destroy_srq(NULL));
	check_errno("destroy_ah(NULL)", EINVAL, ibv_destroy_ah(NULL));
	check_errno("attach_mcast(NULL)", EINVAL, ibv_attach_mcast(NULL, NULL, 0));
	check_errno("detach_mcast(NULL)", EINVAL, ibv_detach_mcast(NULL, NULL, 0));
}

static void null_of_qp(struct bench *b)
{
	struct ibv_qp *qp = bench_qp(b, IBV_QPT_UD, small_cap());
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	check_errno("modify_qp without attributes", EINVAL, ibv_modify_qp(qp, NULL, IBV_QP_STATE));
	check_errno("modify_qp(NULL)", EINVAL, ibv_modify_qp(NULL, &attr, IBV_QP_STATE));
	check_errno("query_qp(NULL)", EINVAL, ibv_query_qp(NULL, &attr, IBV_QP_STATE, &init));
	check_errno("query_qp into NULL", EINVAL, ibv_query_qp(qp, NULL, IBV_QP_STATE, &init));
	check_errno("attach_mcast without a group", EINVAL, ibv_attach_mcast(qp, NULL, 0));
	check_errno("destroy_qp", 0, ibv_destroy_qp(qp));
}

int main(int argc, char **argv)
{
	struct bench b = bench_open("badargs", argc, argv);

	bad_queries(&b);
	bad_cqs(&b);
	bad_regions(&b);
	bad_windows(&b);
	bad_routes(&b);
	bad_qps(&b);
	bad_moves(&b);
	bad_srqs(&b);
	busy_pd(&b);
	busy_cq(&b);
	if (b.null) {
		null_devices();
		null_results(&b);
		null_objects();
		null_of_qp(&b);
	}
	bench_still_works(&b);
	checks_finish();
}
