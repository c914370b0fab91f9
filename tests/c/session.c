#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#define ACCESS                                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |               \
	 IBV_ACCESS_REMOTE_ATOMIC)

static struct queue queue_create(const struct session *s, int entries, bool solicited_only)
{
	struct queue q = { .solicited_only = solicited_only };

	if (s->spec.wait != WAIT_POLL) {
		q.channel = ibv_create_comp_channel(s->device->context);
		if (!q.channel)
			fail_verb("ibv_create_comp_channel");
	}
	q.cq = ibv_create_cq(s->device->context, entries, NULL, q.channel, 0);
	if (!q.cq)
		fail_verb("ibv_create_cq of %d entries", entries);
	return q;
}

static void queue_destroy(struct queue *q)
{
	if ((errno = ibv_destroy_cq(q->cq)))
		fail_verb("ibv_destroy_cq");
	if (q->channel && (errno = ibv_destroy_comp_channel(q->channel)))
		fail_verb("ibv_destroy_comp_channel");
}

static struct ibv_qp *qp_create(struct session *s)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = s->send.cq,
		.recv_cq = s->receive.cq,
		.qp_type = s->spec.service,
		.cap = { .max_send_wr = 2 * s->spec.depth + 2,
			 .max_recv_wr = s->spec.depth,
			 .max_send_sge = s->spec.sge_max,
			 .max_recv_sge = s->spec.sge_max,
			 .max_inline_data = s->spec.inline_max },
	};
	struct ibv_qp *qp = ibv_create_qp(s->device->pd, &attr);

	if (!qp)
		fail_verb("ibv_create_qp of %u SGEs, %u inline bytes", s->spec.sge_max, s->spec.inline_max);
	if (attr.cap.max_inline_data < s->spec.inline_max)
		fail(OUTCOME_VERB, "asked for %u inline bytes, got %u", s->spec.inline_max,
		     attr.cap.max_inline_data);
	if (attr.cap.max_inline_data < s->inline_granted)
		s->inline_granted = attr.cap.max_inline_data;
	return qp;
}

static void create_objects(struct session *s, uint64_t guard_key)
{
	uint32_t n = s->spec.qp_count;
	int sends = (int)((2 * s->spec.depth + 2) * n);

	s->pool = pool_create(s->spec.pool_bytes, guard_key);
	for (int i = 0; i < 2; i++) {
		s->mr[i] = ibv_reg_mr(s->device->pd, s->pool.base, s->pool.size,
				      ACCESS | IBV_ACCESS_MW_BIND);
		if (!s->mr[i])
			fail_verb("ibv_reg_mr of %zu bytes", s->pool.size);
	}
	s->send = queue_create(s, sends, false);
	s->receive = queue_create(s, (int)(s->spec.depth * n), s->spec.wait == WAIT_SOLICITED);
	s->qp = must_calloc(n, sizeof *s->qp);
	s->local = must_calloc(n, sizeof *s->local);
	s->remote = must_calloc(n, sizeof *s->remote);
	s->route = must_calloc(n, sizeof *s->route);
	for (uint32_t i = 0; i < n; i++) {
		s->qp[i] = qp_create(s);
		qp_to_init(s->qp[i], s->spec.service, ACCESS);
		s->local[i] = (struct qp_address){
			.qpn = s->qp[i]->qp_num,
			.psn = (uint32_t)(s->spec.key * (i + 3) >> 8) & 0xffffff,
			.gid = s->device->gid,
			.mtu = s->device->port.active_mtu,
		};
	}
}

static void exchange(struct session *s)
{
	uint64_t deadline = deadline_in(s->deadline_s);
	struct pool_address mine = {
		.address = (uintptr_t)s->pool.base,
		.rkey = s->mr[0]->rkey,
		.inline_granted = s->inline_granted,
	};

	side_send(s->side, s->local, s->spec.qp_count * sizeof *s->local);
	side_send(s->side, &mine, sizeof mine);
	side_recv(s->side, s->remote, s->spec.qp_count * sizeof *s->remote, deadline);
	side_recv(s->side, &s->remote_pool, sizeof s->remote_pool, deadline);
	if (s->remote_pool.inline_granted < s->inline_granted)
		s->inline_granted = s->remote_pool.inline_granted;
}

static void connect_qps(struct session *s)
{
	struct qp_timing patient = { .timeout = 14, .retry_count = 7, .rnr_retry = 7 };

	for (uint32_t i = 0; i < s->spec.qp_count; i++) {
		qp_to_rtr(s->device, s->qp[i], s->spec.service, &s->remote[i]);
		qp_to_rts(s->device, s->qp[i], s->spec.service, s->local[i].psn, patient);
		if (s->spec.service == IBV_QPT_UD) {
			struct ibv_ah_attr attr = route_to(s->device, &s->remote[i]);

			s->route[i] = ibv_create_ah(s->device->pd, &attr);
			if (!s->route[i])
				fail_verb("ibv_create_ah");
		}
	}
}

/* No side starts before both are ready to receive. */
static void rendezvous(const struct session *s)
{
	char token = 'r';

	side_send(s->side, &token, 1);
	side_recv(s->side, &token, 1, deadline_in(s->deadline_s));
}

struct session session_open(struct device *device, int side, struct session_spec spec,
			    uint64_t guard_key, double deadline_s)
{
	struct session s = {
		.spec = spec,
		.device = device,
		.side = side,
		.deadline_s = deadline_s,
		.inline_granted = UINT32_MAX,
	};

	create_objects(&s, guard_key);
	exchange(&s);
	connect_qps(&s);
	rendezvous(&s);
	return s;
}

void session_close(struct session *s)
{
	pool_check_clean(&s->pool, "end of the session");
	for (uint32_t i = 0; i < s->spec.qp_count; i++) {
		if ((errno = ibv_destroy_qp(s->qp[i])))
			fail_verb("ibv_destroy_qp");
		if (s->route[i] && (errno = ibv_destroy_ah(s->route[i])))
			fail_verb("ibv_destroy_ah");
	}
	queue_destroy(&s->send);
	queue_destroy(&s->receive);
	for (int i = 0; i < 2; i++)
		if ((errno = ibv_dereg_mr(s->mr[i])))
			fail_verb("ibv_dereg_mr");
	free(s->pool.allocated);
	free(s->qp);
	free(s->local);
	free(s->remote);
	free(s->route);
}

static void sleep_until_event(struct queue *q, uint64_t deadline_ns, const char *what)
{
	struct pollfd p = { .fd = q->channel->fd, .events = POLLIN };
	uint64_t now = now_ns();
	int milliseconds = now < deadline_ns ? (int)((deadline_ns - now) / MILLI) + 1 : 0;
	struct ibv_cq *cq;
	void *context;

	if (poll(&p, 1, milliseconds) < 1)
		fail(OUTCOME_DEADLINE, "%s: no completion event", what);
	if (ibv_get_cq_event(q->channel, &cq, &context))
		fail_verb("ibv_get_cq_event");
	if (cq != q->cq)
		fail(OUTCOME_COMPLETION, "%s: event of a foreign CQ", what);
	ibv_ack_cq_events(cq, 1);
}

void queue_wait(const struct session *session, struct queue *q, struct ibv_wc *wc, const char *what)
{
	uint64_t deadline = deadline_in(session->deadline_s);

	if (!q->channel) {
		if (!poll_within(q->cq, wc, deadline))
			fail(OUTCOME_DEADLINE, "%s: no completion", what);
		return;
	}
	for (;;) {
		if (ibv_poll_cq(q->cq, 1, wc) == 1)
			return;
		if ((errno = ibv_req_notify_cq(q->cq, q->solicited_only)))
			fail_verb("ibv_req_notify_cq");
		if (ibv_poll_cq(q->cq, 1, wc) == 1)
			return;
		sleep_until_event(q, deadline, what);
	}
}
