/*
 * cm_badargs: connection management calls that must be refused, each with the errno of its man
 * page, and must leave everything as it was.
 *
 *   cm_badargs ADDRESS [--null]
 *
 * ADDRESS is of a device on this host. --null also does what rdma-core itself does not survive:
 * passes null pointers, uses identifiers without a device. Exit status: enum outcome of common.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "checks.h"

static struct rdma_event_channel *channel;
static struct sockaddr_storage address;

/* What a call that answers -1 said. */
static int refused(int answer)
{
	int code = errno;

	errno = 0;
	return answer == -1 ? code : answer;
}

#define CHECK(name, expected, call) check_errno(name, expected, refused(call))

static struct sockaddr *at(uint16_t port)
{
	if (address.ss_family == AF_INET)
		((struct sockaddr_in *)&address)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)&address)->sin6_port = htons(port);
	return (struct sockaddr *)&address;
}

static struct rdma_cm_id *make_id(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, space))
		fail_verb("rdma_create_id");
	return id;
}

static struct rdma_cm_event *next_event(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, 20000) != 1)
		fail(OUTCOME_DEADLINE, "no event");
	if (rdma_get_cm_event(channel, &event))
		fail_verb("rdma_get_cm_event");
	return event;
}

static void expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event();

	if (event->event != type || event->status)
		fail(OUTCOME_VERB, "%s, status %d, in the place of %s", rdma_event_str(event->event),
		     event->status, rdma_event_str(type));
	rdma_ack_cm_event(event);
}

static struct ibv_qp_init_attr small(void)
{
	return (struct ibv_qp_init_attr){ .cap = small_cap(), .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
}

/* ------------------------------------------------- a fresh identifier */

static void identifiers(void)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	int flags = fcntl(channel->fd, F_GETFL);

	CHECK("create_id in an unknown port space", EINVAL, rdma_create_id(channel, &id, NULL, 7));
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	CHECK("get_cm_event with none waiting", EAGAIN, rdma_get_cm_event(channel, &event));
	fcntl(channel->fd, F_SETFL, flags);
}

/* What rdma-core looks for in the device, without looking whether there is one. */
static void deviceless(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7, .qp_num = 5 };
	struct ibv_qp_init_attr attr = small();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };

	CHECK("resolve_route before the address", EINVAL, rdma_resolve_route(id, 1000));
	CHECK("connect before the route", EINVAL, rdma_connect(id, &param));
	CHECK("connect without queue pair and parameters", EINVAL, rdma_connect(id, NULL));
	CHECK("accept by nobody's request", EINVAL, rdma_accept(id, &param));
	CHECK("create_qp without a device", EINVAL, rdma_create_qp(id, NULL, &attr));
	CHECK("create_srq without a device", EINVAL, rdma_create_srq(id, NULL, &srq));
	check(!id->verbs && !id->qp && !id->srq && !id->send_cq && !id->pd, "nothing has come of it");
	rdma_destroy_id(id);
}

static void unbound(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP), *other;
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_INIT };
	int mask;

	CHECK("reject of nobody's request", EINVAL, rdma_reject(id, NULL, 0));
	CHECK("establish before an answer", EINVAL, rdma_establish(id));
	CHECK("disconnect without a connection", EINVAL, rdma_disconnect(id));
	CHECK("notify without a connection", EINVAL, rdma_notify(id, IBV_EVENT_COMM_EST));
	CHECK("notify of another event", EINVAL, rdma_notify(id, IBV_EVENT_PORT_ERR));
	CHECK("init_qp_attr without a device", EINVAL, rdma_init_qp_attr(id, &qp, &mask));
	CHECK("get_request of an identifier with a channel", EINVAL, rdma_get_request(id, &other));
	check(!id->verbs && !id->qp && !id->srq && !id->send_cq && !id->pd, "nothing has come of it");
	check(!rdma_get_src_port(id) && !rdma_get_dst_port(id), "it has no ports");
	CHECK("destroy_id", 0, rdma_destroy_id(id));
}

static void options(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);
	uint8_t tos = 8, timeout = 14, too_long = 32;
	int yes = 1;

	CHECK("TOS", 0, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	CHECK("TOS of four bytes", EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, 4));
	CHECK("REUSEADDR", 0, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, 4));
	CHECK("REUSEADDR of one byte", EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &tos, 1));
	CHECK("ACK_TIMEOUT", 0, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	CHECK("ACK_TIMEOUT above 31", EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, 1));
	CHECK("an unknown option", ENOSYS, rdma_set_option(id, RDMA_OPTION_ID, 99, &yes, 4));
	CHECK("an unknown level", ENOSYS, rdma_set_option(id, 99, RDMA_OPTION_ID_TOS, &tos, 1));
	CHECK("a path", EOPNOTSUPP, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &yes, 4));
	rdma_destroy_id(id);
}

/* ------------------------------------------------------------ addresses */

static struct sockaddr *foreign(void)
{
	static struct sockaddr_in v4 = { .sin_family = AF_INET };
	static struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };

	inet_pton(AF_INET, "192.0.2.77", &v4.sin_addr);
	inet_pton(AF_INET6, "2001:db8::77", &v6.sin6_addr);
	return address.ss_family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
}

static void addresses(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP), *other = make_id(RDMA_PS_TCP);
	struct sockaddr_un path = { .sun_family = AF_UNIX };
	uint16_t port;

	CHECK("bind_addr to a path", EINVAL, rdma_bind_addr(id, (struct sockaddr *)&path));
	CHECK("bind_addr to a foreign address", EADDRNOTAVAIL, rdma_bind_addr(id, foreign()));
	CHECK("resolve_addr to a path", EINVAL, rdma_resolve_addr(id, NULL, (struct sockaddr *)&path, 1000));
	CHECK("bind_addr", 0, rdma_bind_addr(id, at(0)));
	port = ntohs(rdma_get_src_port(id));
	check(port && id->verbs && id->port_num == 1 && id->pd, "port %u, device and domain", port);
	CHECK("bind_addr again", EINVAL, rdma_bind_addr(id, at(0)));
	CHECK("listen", 0, rdma_listen(id, 4));
	CHECK("connect of a listener", EINVAL, rdma_connect(id, NULL));
	CHECK("resolve_addr of a listener", EINVAL, rdma_resolve_addr(id, NULL, at(port), 1000));
	CHECK("the same port again", EADDRINUSE, rdma_bind_addr(other, at(port)));
	check(!rdma_get_src_port(other) && !other->verbs, "the refused one is unbound");
	CHECK("destroy_id of the listener", 0, rdma_destroy_id(id));
	CHECK("the port is free again", 0, rdma_bind_addr(other, at(port)));
	CHECK("destroy_id", 0, rdma_destroy_id(other));
}

/* An address without a route: at once, or by an event. */
static void no_route(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);
	int code = refused(rdma_resolve_addr(id, NULL, foreign(), 500));

	if (!code) {
		struct rdma_cm_event *event = next_event();

		check(event->event == RDMA_CM_EVENT_ADDR_ERROR, "no route: %s", rdma_event_str(event->event));
		code = -event->status;
		rdma_ack_cm_event(event);
	}
	check(code == ENETUNREACH || code == EHOSTUNREACH || code == ENODEV, "no route: errno %d", code);
	rdma_destroy_id(id);
}

static void names(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *found = NULL;

	CHECK("getaddrinfo of nothing", EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &found));
	check(rdma_getaddrinfo("no number", "1", &hints, &found) == EAI_NONAME, "a name for a number");
	hints.ai_flags = 1 << 20;
	check(rdma_getaddrinfo("127.0.0.1", "1", &hints, &found) == EAI_BADFLAGS, "unknown flags");
	check(!found, "nothing was found");
	hints.ai_flags = RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_UDP;
	CHECK("getaddrinfo", 0, rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found));
	check(found->ai_src_len == sizeof(struct sockaddr_in) && !found->ai_dst_len && !found->ai_dst_addr &&
	      found->ai_qp_type == IBV_QPT_UD && found->ai_port_space == RDMA_PS_UDP,
	      "a passive address for datagrams");
	rdma_freeaddrinfo(found);
	rdma_freeaddrinfo(NULL);
}

static void devices(void)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count), **again = rdma_get_devices(NULL);
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);
	bool among = false;

	check(list && count > 0 && !list[count], "a list with its end");
	check(again && again[0] == list[0], "the devices stay open");
	CHECK("bind_addr", 0, rdma_bind_addr(id, at(0)));
	for (int i = 0; i < count; i++)
		among |= list[i] == id->verbs;
	check(among, "the identifier's device is among them");
	rdma_free_devices(list);
	rdma_free_devices(again);
	rdma_destroy_id(id);
}

/* -------------------------------------------------------------- queues */

static void queues(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = small(), huge = small();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_context *elsewhere;
	struct ibv_pd *foreign_pd;

	CHECK("bind_addr", 0, rdma_bind_addr(id, at(0)));
	elsewhere = ibv_open_device(id->verbs->device);
	foreign_pd = ibv_alloc_pd(elsewhere);
	CHECK("create_qp with the domain of another context", EINVAL, rdma_create_qp(id, foreign_pd, &attr));
	huge.cap.max_send_wr = huge.cap.max_recv_wr = 1 << 30;
	CHECK("create_qp too large", EINVAL, rdma_create_qp(id, NULL, &huge));
	huge = small();
	huge.cap.max_inline_data = 1 << 30;
	CHECK("create_qp with too much inline data", EINVAL, rdma_create_qp(id, NULL, &huge));
	check(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !huge.send_cq,
	      "no queues are left of them");
	CHECK("create_qp", 0, rdma_create_qp(id, NULL, &attr));
	check(id->qp && id->send_cq == attr.send_cq && id->recv_cq == attr.recv_cq && id->send_cq_channel &&
	      id->send_cq->cq_context == id && qp_state(id->qp) == IBV_QPS_INIT, "queues, in INIT");
	CHECK("create_qp again", EINVAL, rdma_create_qp(id, NULL, &attr));
	CHECK("establish with a queue pair of the library's", EINVAL, rdma_establish(id));
	rdma_destroy_qp(id);
	check(!id->qp && !id->send_cq && !id->recv_cq && !id->recv_cq_channel, "all queues are gone");
	CHECK("create_srq with the domain of another context", EINVAL, rdma_create_srq(id, foreign_pd, &srq));
	CHECK("create_srq", 0, rdma_create_srq(id, NULL, &srq));
	CHECK("create_srq again", EINVAL, rdma_create_srq(id, NULL, &srq));
	rdma_destroy_srq(id);
	check(!id->srq, "the shared queue is gone");
	ibv_dealloc_pd(foreign_pd);
	ibv_close_device(elsewhere);
	CHECK("destroy_id", 0, rdma_destroy_id(id));
}

/* -------------------------------------------- both ends of a connection */

struct ends {
	struct rdma_cm_id *listener, *active, *passive;
};

static void resolved(struct ends *e)
{
	struct ibv_qp_init_attr attr = small();

	e->listener = make_id(RDMA_PS_TCP);
	e->active = make_id(RDMA_PS_TCP);
	if (rdma_bind_addr(e->listener, at(0)) || rdma_listen(e->listener, 4))
		fail_verb("rdma_listen");
	if (rdma_resolve_addr(e->active, NULL, at(ntohs(rdma_get_src_port(e->listener))), 2000))
		fail_verb("rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK("resolve_addr again", EINVAL, rdma_resolve_addr(e->active, NULL, at(1), 2000));
	CHECK("bind_addr of a resolved one", EINVAL, rdma_bind_addr(e->active, at(0)));
	if (rdma_resolve_route(e->active, 2000))
		fail_verb("rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	check(e->active->route.num_paths == 1 && e->active->route.path_rec, "a path");
	if (rdma_create_qp(e->active, NULL, &attr))
		fail_verb("rdma_create_qp");
}

static void ask(struct ends *e)
{
	uint8_t much[256] = { 0 };
	struct rdma_conn_param param = { .private_data = much, .private_data_len = 57, .retry_count = 7 };
	struct rdma_cm_event *event;

	CHECK("connect with 57 bytes", EINVAL, rdma_connect(e->active, &param));
	param.private_data_len = 56;
	param.responder_resources = 254;
	CHECK("connect with more resources than there are", EINVAL, rdma_connect(e->active, &param));
	param.responder_resources = 1;
	CHECK("connect", 0, rdma_connect(e->active, &param));
	CHECK("connect again", EINVAL, rdma_connect(e->active, &param));
	event = next_event();
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		fail(OUTCOME_VERB, "%s in the place of a request", rdma_event_str(event->event));
	check(event->listen_id == e->listener && event->id != e->listener && event->id->verbs &&
	      event->param.conn.private_data_len == 56, "a request with a new identifier");
	e->passive = event->id;
	rdma_ack_cm_event(event);
}

static void answer(struct ends *e)
{
	uint8_t much[256] = { 0 };
	struct rdma_conn_param param = { .private_data = much, .private_data_len = 197, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = small();

	CHECK("create_qp of the new peer", 0, rdma_create_qp(e->passive, NULL, &attr));
	CHECK("accept with 197 bytes", EINVAL, rdma_accept(e->passive, &param));
	param.private_data_len = 196;
	param.responder_resources = 254;
	CHECK("accept with more resources than there are", EINVAL, rdma_accept(e->passive, &param));
	check(qp_state(e->passive->qp) == IBV_QPS_INIT, "the queue pair is still in INIT");
	CHECK("connect by the passive side", EINVAL, rdma_connect(e->passive, NULL));
	CHECK("listen by the passive side", EINVAL, rdma_listen(e->passive, 1));
	param.responder_resources = 1;
	CHECK("accept", 0, rdma_accept(e->passive, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK("accept again", EINVAL, rdma_accept(e->passive, &param));
	CHECK("reject of an accepted one", EINVAL, rdma_reject(e->passive, NULL, 0));
	CHECK("connect of a connected one", EINVAL, rdma_connect(e->active, NULL));
	CHECK("resolve_route of a connected one", EINVAL, rdma_resolve_route(e->active, 100));
	CHECK("establish of a connected one", EINVAL, rdma_establish(e->active));
	check(qp_state(e->active->qp) == IBV_QPS_RTS && qp_state(e->passive->qp) == IBV_QPS_RTS,
	      "both queue pairs are ready");
}

/* After all that was refused, a message goes through. */
static void talk(struct ends *e)
{
	static uint8_t area[128];
	struct ibv_mr *mr = rdma_reg_msgs(e->active, area, sizeof(area));
	struct ibv_wc wc;

	memset(area, 0x5a, 64);
	if (!mr || rdma_post_recv(e->passive, NULL, area + 64, 64, mr) ||
	    rdma_post_send(e->active, NULL, area, 64, mr, 0))
		fail_verb("posting");
	check(rdma_get_recv_comp(e->passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 64 &&
	      area[127] == 0x5a, "a message goes through");
	check(rdma_get_send_comp(e->active, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "and is acknowledged");
	rdma_dereg_mr(mr);
}

static void part(struct ends *e)
{
	CHECK("disconnect", 0, rdma_disconnect(e->active));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK("disconnect by the other side", 0, rdma_disconnect(e->passive));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	check(qp_state(e->active->qp) == IBV_QPS_ERR && qp_state(e->passive->qp) == IBV_QPS_ERR,
	      "both queue pairs are flushed");
	CHECK("accept after the end", EINVAL, rdma_accept(e->passive, NULL));
	rdma_destroy_qp(e->active);
	rdma_destroy_qp(e->passive);
	CHECK("destroy_id of the active side", 0, rdma_destroy_id(e->active));
	CHECK("destroy_id of the passive side", 0, rdma_destroy_id(e->passive));
	CHECK("destroy_id of the listener", 0, rdma_destroy_id(e->listener));
}

/* ---------------------------------------------------- refused connections */

static void rejections(void)
{
	struct ends e;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	uint8_t reason[149] = "because";
	struct ibv_qp_init_attr attr = small();

	resolved(&e);
	ask(&e);
	CHECK("create_qp of the new peer", 0, rdma_create_qp(e.passive, NULL, &attr));
	CHECK("reject with 149 bytes", EINVAL, rdma_reject(e.passive, reason, 149));
	CHECK("reject", 0, rdma_reject(e.passive, reason, 8));
	event = next_event();
	check(event->event == RDMA_CM_EVENT_REJECTED && event->status == 28 && event->id == e.active &&
	      event->param.conn.private_data_len == 148 && !strcmp(event->param.conn.private_data, "because"),
	      "rejected with status %d and its reason", event->status);
	rdma_ack_cm_event(event);
	CHECK("accept of a rejected one", EINVAL, rdma_accept(e.passive, &param));
	check(qp_state(e.passive->qp) == IBV_QPS_ERR, "its queue pair is flushed");
	rdma_destroy_qp(e.passive);
	rdma_destroy_id(e.passive);
	rdma_destroy_id(e.listener);
	rdma_destroy_qp(e.active);
	rdma_destroy_id(e.active);
}

static void nobody_listens(void)
{
	struct ends e;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = { .retry_count = 7 };

	resolved(&e);
	rdma_destroy_id(e.listener);
	CHECK("connect to nobody", 0, rdma_connect(e.active, &param));
	event = next_event();
	check(event->event == RDMA_CM_EVENT_REJECTED && event->status == 8, "%s with status %d",
	      rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(e.active);
	rdma_destroy_id(e.active);
}

/* Whoever goes without a word, by closing the channel, is missed at once. */
static void left_behind(void)
{
	struct rdma_event_channel *ours = channel, *theirs = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = small();
	struct rdma_cm_event *event;
	struct ends e;

	resolved(&e);
	CHECK("migrate_id of the listener", 0, rdma_migrate_id(e.listener, theirs));
	CHECK("connect", 0, rdma_connect(e.active, &param));
	channel = theirs;
	event = next_event();
	check(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->id->channel == theirs,
	      "a request on the other channel");
	e.passive = event->id;
	rdma_ack_cm_event(event);
	if (rdma_create_qp(e.passive, NULL, &attr) || rdma_accept(e.passive, NULL))
		fail_verb("rdma_accept");
	channel = ours;
	expect(RDMA_CM_EVENT_ESTABLISHED);
	channel = theirs;
	expect(RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_event_channel(theirs);
	channel = ours;
	expect(RDMA_CM_EVENT_DISCONNECTED);
	CHECK("disconnect", 0, rdma_disconnect(e.active));
	rdma_destroy_qp(e.active);
	CHECK("destroy_id", 0, rdma_destroy_id(e.active));
}

static void null_pointers(void)
{
	struct rdma_cm_id *id = make_id(RDMA_PS_TCP);

	CHECK("create_id without a place", EINVAL, rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP));
	CHECK("destroy_id of nothing", EINVAL, rdma_destroy_id(NULL));
	CHECK("bind_addr to nothing", EINVAL, rdma_bind_addr(id, NULL));
	CHECK("resolve_addr to nothing", EINVAL, rdma_resolve_addr(id, NULL, NULL, 1000));
	CHECK("get_cm_event of nothing", EINVAL, rdma_get_cm_event(NULL, NULL));
	CHECK("ack_cm_event of nothing", EINVAL, rdma_ack_cm_event(NULL));
	CHECK("listen of nothing", EINVAL, rdma_listen(NULL, 1));
	CHECK("connect of nothing", EINVAL, rdma_connect(NULL, NULL));
	CHECK("accept of nothing", EINVAL, rdma_accept(NULL, NULL));
	CHECK("reject with a length and no data", EINVAL, rdma_reject(id, NULL, 5));
	CHECK("create_qp without attributes", EINVAL, rdma_create_qp(id, NULL, NULL));
	CHECK("set_option without a value", EINVAL,
	      rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1));
	CHECK("init_qp_attr without attributes", EINVAL, rdma_init_qp_attr(id, NULL, NULL));
	CHECK("getaddrinfo without a place", EINVAL, rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL));
	rdma_destroy_event_channel(NULL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_free_devices(NULL);
	rdma_destroy_id(id);
}

static void *waiter(void *of)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(of, &event);
	fail(OUTCOME_VERB, "rdma_get_cm_event came back from a channel that was destroyed");
}

/* Programs end with a thread that still waits for events. */
static void left_waiting(void)
{
	struct rdma_event_channel *gone = rdma_create_event_channel();
	pthread_t thread;
	void *end;

	if (!gone || pthread_create(&thread, NULL, waiter, gone))
		fail(OUTCOME_VERB, "no thread");
	usleep(100000);
	rdma_destroy_event_channel(gone);
	/* It looks each second whether it was cancelled. */
	usleep(1200000);
	pthread_cancel(thread);
	pthread_join(thread, &end);
	check(end == PTHREAD_CANCELED, "who waited waits on, and can be cancelled");
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;
	struct ends e;

	program_name = "cm_badargs";
	if (argc < 2 || getaddrinfo(argv[1], NULL, &hints, &found))
		fail(OUTCOME_USAGE, "ADDRESS [--null]");
	memcpy(&address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	channel = rdma_create_event_channel();
	if (!channel)
		fail_verb("rdma_create_event_channel");
	if (argc > 2) {
		null_pointers();
		deviceless();
	}
	identifiers();
	unbound();
	options();
	addresses();
	no_route();
	names();
	devices();
	queues();
	rejections();
	nobody_listens();
	resolved(&e);
	ask(&e);
	answer(&e);
	talk(&e);
	part(&e);
	left_behind();
	left_waiting();
	rdma_destroy_event_channel(channel);
	checks_finish();
}
