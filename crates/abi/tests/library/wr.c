/* Posting by `ibv_wr_*`: every operation, all or nothing, and as many elements as were asked for. */
#include <stddef.h>

#include "expect.h"

enum { SIZE = 4096, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static const uint64_t RC_OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			       IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
			       IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

static char source[SIZE], target[SIZE];
static struct ibv_mr *from, *to;
static struct ibv_cq *cq;

static struct ibv_qp *make_ex(struct ibv_pd *pd, enum ibv_qp_type type, uint64_t ops, int max_sge,
			      int max_inline)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd, .send_ops_flags = ops,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = max_sge,
			 .max_recv_sge = max_sge, .max_inline_data = max_inline },
	};

	return ibv_create_qp_ex(pd->context, &attr);
}

static struct ibv_wc wait_for(uint64_t wr_id)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	expect(count == 1 && wc.wr_id == wr_id);
	return wc;
}

static void post_recv(struct ibv_qp *qp, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)target, length, to->lkey };
	struct ibv_recv_wr wr = { .wr_id = 99, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(target, 0, SIZE);
	expect(!ibv_post_recv(qp, &wr, &bad));
}

static struct ibv_qp_ex *start(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(ex);
	ex->wr_id = wr_id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	return ex;
}

/* The queue pair talks to itself: either completion may come first. */
static void wait_for_both(uint64_t wr_id, enum ibv_wc_opcode received, uint32_t length)
{
	int seen = 0;

	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;

		while (!ibv_poll_cq(cq, 1, &wc))
			;
		expect(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == wr_id) {
			seen |= 1;
			continue;
		}
		seen |= 2;
		expect(wc.wr_id == 99 && wc.opcode == received && wc.byte_len == length);
		expect(!(wc.wc_flags & IBV_WC_WITH_IMM) || wc.imm_data == 0xcafe);
	}
	expect(seen == 3);
}

static void operations(struct ibv_qp *qp)
{
	uint64_t local = (uintptr_t)source, remote = (uintptr_t)target, was;
	struct ibv_qp_ex *ex = start(qp, 1);

	strcpy(source, "one by one");
	ibv_wr_rdma_write(ex, to->rkey, remote);
	ibv_wr_set_sge(ex, from->lkey, local, 11);
	expect(!ibv_wr_complete(ex));
	expect(wait_for(1).status == IBV_WC_SUCCESS && !strcmp(target, "one by one"));

	ex = start(qp, 2);
	ibv_wr_rdma_read(ex, to->rkey, remote);
	ibv_wr_set_sge(ex, from->lkey, local + 100, 11);
	expect(!ibv_wr_complete(ex));
	expect(wait_for(2).opcode == IBV_WC_RDMA_READ && !strcmp(source + 100, "one by one"));

	memset(target, 0, 8);
	ex = start(qp, 3);
	ibv_wr_atomic_fetch_add(ex, to->rkey, remote, 5);
	ibv_wr_set_sge(ex, from->lkey, local, 8);
	ex->wr_id = 4;
	ibv_wr_atomic_cmp_swp(ex, to->rkey, remote, 5, 77);
	ibv_wr_set_sge(ex, from->lkey, local + 8, 8);
	expect(!ibv_wr_complete(ex));
	expect(wait_for(3).opcode == IBV_WC_FETCH_ADD && wait_for(4).opcode == IBV_WC_COMP_SWAP);
	memcpy(&was, source + 8, 8);
	expect(was == 5 && target[0] == 77);

	strcpy(source, "send");
	post_recv(qp, 5);
	ex = start(qp, 5);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, from->lkey, local, 5);
	expect(!ibv_wr_complete(ex));
	wait_for_both(5, IBV_WC_RECV, 5);
	expect(!strcmp(target, "send"));

	post_recv(qp, 5);
	ex = start(qp, 6);
	ibv_wr_send_imm(ex, 0xcafe);
	ibv_wr_set_inline_data(ex, "imm!", 5);
	expect(!ibv_wr_complete(ex));
	wait_for_both(6, IBV_WC_RECV, 5);
	expect(!strcmp(target, "imm!"));

	post_recv(qp, 0);
	ex = start(qp, 7);
	ibv_wr_rdma_write_imm(ex, to->rkey, remote + 50, 0xcafe);
	ibv_wr_set_inline_data(ex, "there", 6);
	expect(!ibv_wr_complete(ex));
	wait_for_both(7, IBV_WC_RECV_RDMA_WITH_IMM, 6);
	expect(!strcmp(target + 50, "there"));
}

static void nothing_waits(void)
{
	struct ibv_wc wc;

	for (int i = 0; i < 1000; i++)
		expect(!ibv_poll_cq(cq, 1, &wc));
}

/* A batch with a mistake anywhere posts nothing, and neither does one that is given up. */
static void all_or_nothing(struct ibv_qp *qp)
{
	uint64_t remote = (uintptr_t)target, local = (uintptr_t)source;
	struct ibv_sge list[3] = { { local, 1, from->lkey } };
	struct ibv_qp_ex *ex;

	strcpy(source, "never");
	memset(target, 0, SIZE);
	for (int mistake = 0; mistake < 9; mistake++) {
		ex = start(qp, 10);
		if (mistake == 0)
			ibv_wr_set_sge(ex, from->lkey, local, 6);
		ibv_wr_rdma_write(ex, to->rkey, remote);
		ibv_wr_set_sge(ex, from->lkey, local, 6);
		switch (mistake) {
		case 1: ibv_wr_set_sge_list(ex, 3, list); break;
		case 2: ibv_wr_set_inline_data(ex, source, 65); break;
		case 3: ex->wr_flags = 1 << 30; ibv_wr_rdma_write(ex, to->rkey, remote); break;
		case 4: ibv_wr_send_inv(ex, to->rkey); break;
		case 5: ibv_wr_rdma_read(ex, to->rkey, remote);
			ibv_wr_set_inline_data(ex, source, 6); break;
		case 6: ibv_wr_set_inline_data_list(ex, 1, NULL); break;
		case 7: ibv_wr_set_ud_addr(ex, NULL, 1, 1); break;
		case 8: ibv_wr_set_inline_data(ex, source, 1 << 20); break;
		}
		expect(ibv_wr_complete(ex) == EINVAL);
	}
	ex = start(qp, 11);
	for (int i = 0; i < 9; i++) {
		ibv_wr_rdma_write(ex, to->rkey, remote);
		ibv_wr_set_sge(ex, from->lkey, local, 6);
	}
	expect(ibv_wr_complete(ex) == ENOMEM);
	ex = start(qp, 12);
	ibv_wr_rdma_write(ex, to->rkey, remote);
	ibv_wr_set_sge(ex, from->lkey, local, 6);
	ibv_wr_abort(ex);
	expect(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	nothing_waits();
	expect(!target[0]);
	/* The next batch does not remember. */
	operations(qp);
}

static void check_pattern(int length)
{
	for (int i = 0; i < SIZE; i++)
		expect(target[i] == (i < length ? source[i] : 0));
}

/* 1 to max elements of odd lengths, by both interfaces. */
static void elements(struct ibv_qp *qp, int max)
{
	struct ibv_sge list[40];
	struct ibv_qp_ex *ex;

	for (int i = 0; i < SIZE; i++)
		source[i] = i * 7 + 1;
	for (int count = 0; count <= max; count++) {
		int length = 0;

		for (int i = 0; i < count; length += list[i++].length)
			list[i] = (struct ibv_sge){ (uintptr_t)source + length, 1 + i * 3 % 97,
						    from->lkey };
		post_recv(qp, SIZE);
		ex = start(qp, 20);
		ibv_wr_send(ex);
		ibv_wr_set_sge_list(ex, count, list);
		expect(!ibv_wr_complete(ex));
		wait_for_both(20, IBV_WC_RECV, length);
		check_pattern(length);

		struct ibv_send_wr wr = {
			.wr_id = 21, .sg_list = list, .num_sge = count, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		}, *bad;
		post_recv(qp, SIZE);
		expect(!ibv_post_send(qp, &wr, &bad));
		wait_for_both(21, IBV_WC_RECV, length);
		check_pattern(length);
	}
	ex = start(qp, 22);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, max + 1, list);
	expect(ibv_wr_complete(ex) == EINVAL);
}

static void inline_by_post_send(struct ibv_qp *qp, int length, int is_limit)
{
	struct ibv_sge list[2] = { { (uintptr_t)source, length / 2, 0 },
				   { (uintptr_t)source + length / 2, length - length / 2, 0 } };
	struct ibv_send_wr wr = {
		.wr_id = 31, .sg_list = list, .num_sge = 2, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	}, *bad = NULL;

	post_recv(qp, SIZE);
	expect(!ibv_post_send(qp, &wr, &bad));
	wait_for_both(31, IBV_WC_RECV, length);
	check_pattern(length);
	list[1].length++;
	if (is_limit)
		expect(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
}

/* Inline lists up to the limit, and one byte past it, by both interfaces. */
static void inline_lists(struct ibv_qp *qp, int limit)
{
	struct ibv_data_buf parts[3];
	struct ibv_qp_ex *ex;

	for (int length = 0; length <= limit + 1; length += length < 8 ? 1 : limit / 7) {
		if (length > limit - limit / 7 && length < limit)
			length = limit;
		for (int i = 0, at = 0; i < 3; at += parts[i++].length)
			parts[i] = (struct ibv_data_buf){ source + at, i == 2 ? length - at : length / 3 };
		for (int past = 0; past < (length == limit ? 2 : 1); past++) {
			parts[2].length += past;
			ex = start(qp, 30);
			ibv_wr_send(ex);
			ibv_wr_set_inline_data_list(ex, 3, parts);
			if (past) {
				expect(ibv_wr_complete(ex) == EINVAL);
				continue;
			}
			post_recv(qp, SIZE);
			expect(!ibv_wr_complete(ex));
			wait_for_both(30, IBV_WC_RECV, length);
			check_pattern(length);
		}
		inline_by_post_send(qp, length, length == limit);
		if (length == limit)
			break;
	}
}

static void creation(struct ibv_pd *pd)
{
	struct ibv_qp *qp = make_ex(pd, IBV_QPT_UC, IBV_QP_EX_WITH_SEND, 1, 0), *plain;

	expect(qp && ibv_qp_to_qp_ex(qp) && !ibv_destroy_qp(qp));
	expect_null(make_ex(pd, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ, 1, 0), EOPNOTSUPP);
	expect_null(make_ex(pd, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE, 1, 0), EOPNOTSUPP);
	expect_null(make_ex(pd, IBV_QPT_RC, IBV_QP_EX_WITH_TSO, 1, 0), EOPNOTSUPP);
	expect_null(make_ex(pd, IBV_QPT_RC, 1ull << 40, 1, 0), EOPNOTSUPP);
	plain = make_qp(pd, cq);
	expect_null(ibv_qp_to_qp_ex(plain), EOPNOTSUPP);
	expect(!ibv_destroy_qp(plain));
}

/* In RESET nothing can be posted. */
static void reset(struct ibv_pd *pd)
{
	struct ibv_qp *qp = make_ex(pd, IBV_QPT_RC, RC_OPS, 2, 64);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad_recv = NULL;
	struct ibv_qp_ex *ex = start(qp, 40);

	ibv_wr_send(ex);
	expect(ibv_wr_complete(ex) == EINVAL);
	expect(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	expect(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	qp->state = IBV_QPS_RTS;
	expect(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL);
	expect(!ibv_destroy_qp(qp));
}

/* Headers older than release 45 end before `wr_flush`. */
static void wr_flush(struct ibv_qp_ex *ex, size_t len, uint8_t type, uint8_t level)
{
	void (*call)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);

	memcpy(&call, (char *)ex + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof call,
	       sizeof call);
	call(ex, to->rkey, (uintptr_t)target, len, type, level);
}

static void flushes(struct ibv_pd *pd)
{
	enum { GLOBAL = 1, PERSISTENT = 2, RANGE = 0, REGION = 1, ACCESS_FLUSH_GLOBAL = 1 << 8 };
	static const struct { size_t len; uint8_t type, level; } mistakes[] = {
		{ (size_t)UINT32_MAX + 1, GLOBAL, RANGE }, { 8, 0, RANGE },
		{ 8, 4 | GLOBAL, RANGE }, { 8, GLOBAL, 2 },
	};
	struct ibv_qp *qp = make_ex(pd, IBV_QPT_RC, 1 << 11 /* WITH_FLUSH */, 1, 0);
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | ACCESS_FLUSH_GLOBAL };
	struct ibv_mr *whole = to;
	struct ibv_qp_ex *ex;

	connect_qp(qp, qp->qp_num);
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	to = ibv_reg_mr(pd, target, SIZE, ALL | ACCESS_FLUSH_GLOBAL);
	expect(to);
	for (int level = RANGE; level <= REGION; level++) {
		ex = start(qp, 60);
		wr_flush(ex, 8, GLOBAL, level);
		expect(!ibv_wr_complete(ex) && wait_for(60).status == IBV_WC_SUCCESS);
	}
	for (unsigned int i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
		ex = start(qp, 61);
		wr_flush(ex, mistakes[i].len, mistakes[i].type, mistakes[i].level);
		expect(ibv_wr_complete(ex) == EINVAL);
	}
	expect(!ibv_destroy_qp(qp) && !ibv_dereg_mr(to));
	to = whole;
}

static void datagrams(struct ibv_pd *pd)
{
	struct ibv_qp *qp = make_ex(pd, IBV_QPT_UD, IBV_QP_EX_WITH_SEND, 2, 64);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
	struct ibv_qp_ex *ex;
	struct ibv_ah *ah;

	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						 IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	expect(!ibv_query_gid(pd->context, 1, 0, &way.grh.dgid));
	ah = ibv_create_ah(pd, &way);
	expect(ah);
	post_recv(qp, 40 + 64);
	ex = start(qp, 50);
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, qp->qp_num, 0x11);
	ibv_wr_set_inline_data(ex, "datagram", 9);
	expect(!ibv_wr_complete(ex));
	wait_for_both(50, IBV_WC_RECV, 49);
	expect(!strcmp(target + 40, "datagram"));
	ex = start(qp, 51);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, "nowhere", 8);
	expect(ibv_wr_complete(ex) == EINVAL);
	expect(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp));
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_device_attr limits;
	struct ibv_qp *qp;

	expect(!ibv_query_device(context, &limits));
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	from = ibv_reg_mr(pd, source, SIZE, ALL);
	to = ibv_reg_mr(pd, target, SIZE, ALL);
	creation(pd);
	reset(pd);
	qp = make_ex(pd, IBV_QPT_RC, RC_OPS, 2, 64);
	connect_qp(qp, qp->qp_num);
	operations(qp);
	all_or_nothing(qp);
	expect(!ibv_destroy_qp(qp));
	qp = make_ex(pd, IBV_QPT_RC, RC_OPS, limits.max_sge, 1024);
	connect_qp(qp, qp->qp_num);
	elements(qp, limits.max_sge);
	inline_lists(qp, 1024);
	datagrams(pd);
	flushes(pd);
	expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	expect(!ibv_dereg_mr(from) && !ibv_dereg_mr(to));
	expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
