/*
 * badwork: work requests that must fail, each with the status of the
 * specification, on two queue pairs of this process. What they aimed at must
 * be untouched, what follows is flushed, and the device works on afterwards.
 *
 *   badwork [--device NAME] [--gid INDEX] [--ipv6]
 *
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "checks.h"

#define SPAN 8192 /* a page of it is registered, the next one is not */
#define REGISTERED 4096
#define FILL 0x5a
#define SETTLE_S 5.0

struct rig {
	struct device device;
	struct ibv_pd *other_pd;
	uint8_t *source, *target;
	struct ibv_mr *source_mr, *target_mr;
};

/* One faulty work request and what it leads to. */
struct expectation {
	const char *name;
	enum ibv_wc_status sender;
	enum ibv_wc_status also_sender; /* a second status that is right, or the same */
	int receiver;                   /* enum ibv_wc_status, or NO_COMPLETION */
	bool access_event;              /* IBV_EVENT_QP_ACCESS_ERR of the receiver */
	int post_may_refuse;            /* errno that ibv_post_send may answer instead, or 0 */
};

#define NO_COMPLETION -1

static uint8_t *area(void)
{
	uint8_t *p = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		fail_verb("mmap");
	memset(p, FILL, SPAN);
	return p;
}

static struct ibv_mr *must_register(struct ibv_pd *pd, void *at, size_t size, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, size, access);

	if (!mr)
		fail_verb("ibv_reg_mr");
	return mr;
}

static struct ibv_sge source_sge(const struct rig *b, uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)b->source, .length = length,
				 .lkey = b->source_mr->lkey };
}

static struct ibv_send_wr rdma(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint64_t address,
			       uint32_t rkey)
{
	return (struct ibv_send_wr){ .wr_id = 1, .opcode = opcode, .sg_list = sge, .num_sge = 1,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.rdma = { .remote_addr = address, .rkey = rkey } };
}

static struct ibv_send_wr atomic(struct ibv_sge *sge, uint64_t address, uint32_t rkey)
{
	return (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = sge,
				     .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				     .wr.atomic = { .remote_addr = address, .rkey = rkey, .compare_add = 1 } };
}

static struct ibv_send_wr plain_send(struct ibv_sge *sge)
{
	return (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = 1,
				     .send_flags = IBV_SEND_SIGNALED };
}

static void receive_into(struct ibv_qp *qp, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = 100, .sg_list = &sge, .num_sge = 1 }, *bad;

	if ((errno = ibv_post_recv(qp, &wr, &bad)))
		fail_verb("ibv_post_recv");
}

static const char *status_or_none(int status)
{
	return status == NO_COMPLETION ? "no completion" : ibv_wc_status_str(status);
}

static void expect_sender(struct pair *p, const struct expectation *e)
{
	struct ibv_wc wc;

	if (!poll_within(p->cq[0], &wc, deadline_in(SETTLE_S))) {
		check(false, "%s: no completion", e->name);
		return;
	}
	check(wc.wr_id == 1 && (wc.status == e->sender || wc.status == e->also_sender),
	      "%s: %s, expected %s", e->name, ibv_wc_status_str(wc.status), ibv_wc_status_str(e->sender));
}

static void expect_receiver(struct pair *p, const struct expectation *e)
{
	struct ibv_wc wc;
	double wait = e->receiver == NO_COMPLETION ? 0.05 : SETTLE_S;
	int got = poll_within(p->cq[1], &wc, deadline_in(wait)) ? (int)wc.status : NO_COMPLETION;

	check(got == e->receiver, "%s: the receiver has %s, expected %s", e->name, status_or_none(got),
	      status_or_none(e->receiver));
}

/* A connected queue pair stops at the first failure; what is posted later is flushed. */
static void expect_stopped(const struct rig *b, struct pair *p, const char *name)
{
	struct ibv_sge sge = source_sge(b, 8);
	struct ibv_send_wr wr = plain_send(&sge), *bad;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };

	wr.wr_id = 2;
	check(qp_state(p->qp[0]) == IBV_QPS_ERR, "%s: the sender's state is %d", name, qp_state(p->qp[0]));
	check_errno("post after the failure", 0, ibv_post_send(p->qp[0], &wr, &bad));
	while (poll_within(p->cq[0], &wc, deadline_in(SETTLE_S)) && wc.wr_id != 2)
		;
	check(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR, "%s: what follows: %s", name,
	      ibv_wc_status_str(wc.status));
}

static bool event_arrives(struct ibv_context *context, struct ibv_qp *qp, enum ibv_event_type type)
{
	struct pollfd p = { .fd = context->async_fd, .events = POLLIN };
	uint64_t deadline = deadline_in(SETTLE_S);
	struct ibv_async_event event;

	while (now_ns() < deadline) {
		bool right;

		if (poll(&p, 1, 100) < 1)
			continue;
		if (ibv_get_async_event(context, &event))
			return false;
		right = event.event_type == type && event.element.qp == qp;
		ibv_ack_async_event(&event);
		if (right)
			return true;
	}
	return false;
}

static void expect_access_event(const struct rig *b, struct pair *p, const char *name)
{
	check(event_arrives(b->device.context, p->qp[1], IBV_EVENT_QP_ACCESS_ERR),
	      "%s: IBV_EVENT_QP_ACCESS_ERR at the receiver", name);
	check(qp_state(p->qp[1]) == IBV_QPS_ERR, "%s: the receiver's state is %d", name,
	      qp_state(p->qp[1]));
}

static void expect_untouched(struct rig *b, const char *name)
{
	for (size_t i = 0; i < SPAN; i++)
		if (b->target[i] != FILL) {
			check(false, "%s: target byte %zu is 0x%02x", name, i, b->target[i]);
			memset(b->target, FILL, SPAN);
			return;
		}
	check(true, "%s: the target is untouched", name);
}

/* Posts wr on side 0 of the pair, checks all it leads to, closes the pair. */
static void try_wr(struct rig *b, struct pair p, struct ibv_send_wr wr, struct expectation e)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(p.qp[0], &wr, &bad);

	if (error)
		check_errno(e.name, e.post_may_refuse, error);
	else {
		expect_sender(&p, &e);
		expect_receiver(&p, &e);
		if (e.access_event)
			expect_access_event(b, &p, e.name);
		expect_stopped(b, &p, e.name);
	}
	expect_untouched(b, e.name);
	pair_close(&p);
}

static void local_faults(struct rig *b)
{
	struct ibv_mr *foreign = must_register(b->other_pd, b->source, REGISTERED, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *readable = must_register(b->device.pd, b->source, REGISTERED, 0);
	struct ibv_mr *gone = must_register(b->device.pd, b->source, REGISTERED, 0);
	struct expectation e = { .sender = IBV_WC_LOC_PROT_ERR, .also_sender = IBV_WC_LOC_PROT_ERR,
				 .receiver = NO_COMPLETION };
	uint32_t gone_key = gone->lkey;
	struct ibv_sge sge = source_sge(b, 64);

	ibv_dereg_mr(gone);
	e.name = "SEND with a key nobody has";
	sge.lkey = b->source_mr->lkey ^ 0x5500;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "SEND with the key of a deregistered region";
	sge.lkey = gone_key;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "SEND with a region of another PD";
	sge.lkey = foreign->lkey;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "SEND that ends past its region";
	sge = source_sge(b, 64);
	sge.addr += REGISTERED - 63;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "SEND that begins before its region";
	sge = source_sge(b, 64);
	sge.addr -= 1;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "SEND whose range wraps the address space";
	sge = source_sge(b, 64);
	sge.addr = UINT64_MAX - 8;
	try_wr(b, pair_rc(&b->device), plain_send(&sge), e);
	e.name = "READ into a region without local write";
	sge = source_sge(b, 64);
	sge.lkey = readable->lkey;
	try_wr(b, pair_rc(&b->device),
	       rdma(IBV_WR_RDMA_READ, &sge, (uintptr_t)b->target, b->target_mr->rkey), e);
	ibv_dereg_mr(foreign);
	ibv_dereg_mr(readable);
}

static void remote_key_faults(struct rig *b)
{
	struct ibv_mr *foreign = must_register(b->other_pd, b->target, REGISTERED, all_access);
	struct ibv_mr *gone = must_register(b->device.pd, b->target, REGISTERED, all_access);
	struct expectation e = { .sender = IBV_WC_REM_ACCESS_ERR, .also_sender = IBV_WC_REM_ACCESS_ERR,
				 .receiver = NO_COMPLETION, .access_event = true };
	struct ibv_sge sge = source_sge(b, 64);
	uint64_t target = (uintptr_t)b->target;
	uint32_t key = b->target_mr->rkey, gone_key = gone->rkey;

	ibv_dereg_mr(gone);
	e.name = "WRITE with a key nobody has";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target, key ^ 0x5500), e);
	e.name = "WRITE with the key of a deregistered region";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target, gone_key), e);
	e.name = "WRITE with a region of another PD";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target, foreign->rkey), e);
	e.name = "WRITE that ends past its region";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target + REGISTERED - 63, key), e);
	e.name = "WRITE that begins before its region";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target - 1, key), e);
	e.name = "WRITE whose range wraps the address space";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, UINT64_MAX - 8, key), e);
	e.name = "READ with a key nobody has";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_READ, &sge, target, key ^ 0x5500), e);
	e.name = "READ past its region";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_READ, &sge, target + REGISTERED - 63, key), e);
	sge.length = 8;
	e.name = "FETCH_ADD with a key nobody has";
	try_wr(b, pair_rc(&b->device), atomic(&sge, target, key ^ 0x5500), e);
	ibv_dereg_mr(foreign);
}

static void length_faults(struct rig *b)
{
	struct ibv_sge sge = source_sge(b, 16);
	struct expectation e = { .name = "FETCH_ADD of 16 bytes", .sender = IBV_WC_LOC_LEN_ERR,
				 .also_sender = IBV_WC_LOC_QP_OP_ERR, .receiver = NO_COMPLETION,
				 .post_may_refuse = EINVAL };

	try_wr(b, pair_rc(&b->device), atomic(&sge, (uintptr_t)b->target, b->target_mr->rkey), e);
}

static void remote_right_faults(struct rig *b)
{
	struct ibv_mr *closed = must_register(b->device.pd, b->target, REGISTERED, IBV_ACCESS_LOCAL_WRITE);
	struct expectation e = { .sender = IBV_WC_REM_ACCESS_ERR, .also_sender = IBV_WC_REM_ACCESS_ERR,
				 .receiver = NO_COMPLETION, .access_event = true };
	struct pair_options deaf = { .type = IBV_QPT_RC, .timing = patient, .access = { all_access, 0 } };
	struct ibv_sge sge = source_sge(b, 64);
	uint64_t target = (uintptr_t)b->target;

	e.name = "WRITE to a region without remote write";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_WRITE, &sge, target, closed->rkey), e);
	e.name = "READ of a region without remote read";
	try_wr(b, pair_rc(&b->device), rdma(IBV_WR_RDMA_READ, &sge, target, closed->rkey), e);
	sge.length = 8;
	e.name = "FETCH_ADD on a region without remote atomic";
	try_wr(b, pair_rc(&b->device), atomic(&sge, target, closed->rkey), e);
	e.access_event = false;
	e.sender = e.also_sender = IBV_WC_REM_INV_REQ_ERR;
	sge.length = 64;
	e.name = "WRITE to a QP without remote write";
	try_wr(b, pair_open(&b->device, deaf),
	       rdma(IBV_WR_RDMA_WRITE, &sge, target, b->target_mr->rkey), e);
	e.name = "READ from a QP without remote read";
	try_wr(b, pair_open(&b->device, deaf),
	       rdma(IBV_WR_RDMA_READ, &sge, target, b->target_mr->rkey), e);
	sge.length = 8;
	e.name = "FETCH_ADD at a misaligned address";
	e.post_may_refuse = EINVAL;
	try_wr(b, pair_rc(&b->device), atomic(&sge, target + 4, b->target_mr->rkey), e);
	ibv_dereg_mr(closed);
}

static void receive_faults(struct rig *b)
{
	struct ibv_sge sge = source_sge(b, 64);
	struct expectation bad_key = { .name = "SEND into a receive with a bad key",
				       .sender = IBV_WC_REM_OP_ERR, .also_sender = IBV_WC_REM_OP_ERR,
				       .receiver = IBV_WC_LOC_PROT_ERR };
	/* The specification says invalid request; rdma_rxe answers operation error. */
	struct expectation too_long = { .name = "SEND longer than the receive",
					.sender = IBV_WC_REM_INV_REQ_ERR, .also_sender = IBV_WC_REM_OP_ERR,
					.receiver = IBV_WC_LOC_LEN_ERR };
	struct pair p = pair_rc(&b->device);

	receive_into(p.qp[1], b->target, 64, b->target_mr->lkey ^ 0x5500);
	try_wr(b, p, plain_send(&sge), bad_key);
	p = pair_rc(&b->device);
	receive_into(p.qp[1], b->target, 64, b->source_mr->lkey);
	try_wr(b, p, plain_send(&sge), bad_key);
	p = pair_rc(&b->device);
	receive_into(p.qp[1], b->target, 63, b->target_mr->lkey);
	try_wr(b, p, plain_send(&sge), too_long);
}

static void retry_faults(struct rig *b)
{
	struct pair_options options = { .type = IBV_QPT_RC, .access = { all_access, all_access },
					.timing = { .timeout = 14, .retry_count = 1, .rnr_retry = 0 } };
	struct expectation e = { .receiver = NO_COMPLETION };
	struct ibv_sge sge = source_sge(b, 64);
	struct pair p = pair_open(&b->device, options);

	e.name = "SEND with no receive posted";
	e.sender = e.also_sender = IBV_WC_RNR_RETRY_EXC_ERR;
	try_wr(b, p, plain_send(&sge), e);
	p = pair_open(&b->device, options);
	ibv_destroy_qp(p.qp[1]);
	p.qp[1] = NULL;
	e.name = "SEND to a QP that is gone";
	e.sender = e.also_sender = IBV_WC_RETRY_EXC_ERR;
	try_wr(b, p, plain_send(&sge), e);
}

/* A datagram with a wrong Q_Key vanishes; the sender's completion is good. */
static void datagram_faults(struct rig *b)
{
	struct pair p = pair_open(&b->device, (struct pair_options){ .type = IBV_QPT_UD });
	struct ibv_sge sge = source_sge(b, 64);
	struct ibv_send_wr wr = plain_send(&sge), *bad;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	receive_into(p.qp[1], b->target, 128, b->target_mr->lkey);
	wr.wr.ud.ah = p.ah;
	wr.wr.ud.remote_qpn = p.qp[1]->qp_num;
	wr.wr.ud.remote_qkey = QKEY + 1;
	check_errno("post of a datagram with a wrong Q_Key", 0, ibv_post_send(p.qp[0], &wr, &bad));
	poll_within(p.cq[0], &wc, deadline_in(SETTLE_S));
	check(wc.status == IBV_WC_SUCCESS, "wrong Q_Key: the sender has %s", ibv_wc_status_str(wc.status));
	check(!poll_within(p.cq[1], &wc, deadline_in(0.2)), "wrong Q_Key: nothing arrives");
	expect_untouched(b, "wrong Q_Key");
	wr.wr.ud.remote_qkey = QKEY;
	check_errno("post of a datagram", 0, ibv_post_send(p.qp[0], &wr, &bad));
	check(poll_within(p.cq[1], &wc, deadline_in(SETTLE_S)) && wc.status == IBV_WC_SUCCESS,
	      "right Q_Key: it arrives");
	memset(b->target, FILL, SPAN);
	pair_close(&p);
}

/* After a failure on one side, posted receives of the other come back flushed on its way to ERR. */
static void flush_on_error(struct rig *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;
	int flushed = 0;

	for (int i = 0; i < 5; i++)
		receive_into(p.qp[1], b->target, 64, b->target_mr->lkey);
	check_errno("modify to ERR", 0, ibv_modify_qp(p.qp[1], &attr, IBV_QP_STATE));
	while (flushed < 5 && poll_within(p.cq[1], &wc, deadline_in(SETTLE_S)))
		flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
	check(flushed == 5, "%d of 5 receives flushed", flushed);
	pair_close(&p);
}

static void still_works(struct rig *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_sge sge = source_sge(b, 64);
	struct ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, (uintptr_t)b->target, b->target_mr->rkey);
	struct ibv_send_wr *bad;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	memset(b->source, 0xa5, 64);
	check_errno("a good WRITE", 0, ibv_post_send(p.qp[0], &wr, &bad));
	poll_within(p.cq[0], &wc, deadline_in(SETTLE_S));
	check(wc.status == IBV_WC_SUCCESS && !memcmp(b->source, b->target, 64) && b->target[64] == FILL,
	      "a good WRITE: %s", ibv_wc_status_str(wc.status));
	pair_close(&p);
}

int main(int argc, char **argv)
{
	struct rig b = { .device = bench_open("badwork", argc, argv).device };

	b.other_pd = ibv_alloc_pd(b.device.context);
	b.source = area();
	b.target = area();
	b.source_mr = must_register(b.device.pd, b.source, REGISTERED, IBV_ACCESS_LOCAL_WRITE);
	b.target_mr = must_register(b.device.pd, b.target, REGISTERED, all_access);
	local_faults(&b);
	remote_key_faults(&b);
	remote_right_faults(&b);
	length_faults(&b);
	receive_faults(&b);
	retry_faults(&b);
	datagram_faults(&b);
	flush_on_error(&b);
	still_works(&b);
	checks_finish();
}
