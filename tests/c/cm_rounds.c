/*
 * cm_rounds: connects, moves bytes both ways, disconnects, again and again.
 *
 *   cm_rounds -s ADDRESS PORT ROUNDS          serves so many connections
 *   cm_rounds -c ADDRESS PORT ROUNDS [SIZE]   makes them, one after the other
 *
 * The server's acceptance carries a key. The client WRITEs a pattern there and SENDs a word; the
 * server compares, and answers with its own pattern, which the client compares. Each round has
 * its own pattern, and its number is in the private data of the request.
 * Exit status: enum outcome of common.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define MAX_SIZE (1 << 20)
#define DEPTH 4
#define PATIENCE_MS 20000

/* What the server tells who connects. */
struct invitation {
	uint64_t addr;
	uint32_t rkey;
};

struct connection {
	uint32_t round, size;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint8_t *area; /* size bytes of the peer's, size bytes of ours */
};

static struct rdma_event_channel *channel;

static uint8_t pattern(uint32_t round, uint32_t at, int side)
{
	return (round * 31 + at * 7 + at / 251 + side * 101) & 0xff;
}

static void fill(struct connection *c, uint8_t *to, int side)
{
	for (uint32_t i = 0; i < c->size; i++)
		to[i] = pattern(c->round, i, side);
}

static void compare(struct connection *c, const uint8_t *from, int side)
{
	for (uint32_t i = 0; i < c->size; i++)
		if (from[i] != pattern(c->round, i, side))
			fail(OUTCOME_MISMATCH, "round %u: byte %u of %u differs", c->round, i, c->size);
}

/* The next event; whatever is not expected names itself. */
static struct rdma_cm_event *next_event(uint32_t round)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, PATIENCE_MS) != 1)
		fail(OUTCOME_DEADLINE, "round %u: no event", round);
	if (rdma_get_cm_event(channel, &event))
		fail_verb("rdma_get_cm_event");
	return event;
}

static void expect(struct connection *c, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event(c->round);

	if (event->event != type || event->status || event->id != c->id)
		fail(OUTCOME_VERB, "round %u: %s, status %d, in the place of %s", c->round,
		     rdma_event_str(event->event), event->status, rdma_event_str(type));
	rdma_ack_cm_event(event);
}

static struct addrinfo *look_up(const char *host, const char *port)
{
	struct addrinfo *found;

	if (getaddrinfo(host, port, NULL, &found))
		fail(OUTCOME_USAGE, "%s %s is no address", host, port);
	return found;
}

/* Queue pair and memory; the library makes the completion queues. */
static void equip(struct connection *c)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};

	if (rdma_create_qp(c->id, NULL, &attr))
		fail_verb("rdma_create_qp");
	c->area = must_calloc(2, c->size);
	c->mr = ibv_reg_mr(c->id->pd, c->area, 2 * c->size,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!c->mr)
		fail_verb("ibv_reg_mr");
}

static void post_receive(struct connection *c)
{
	struct ibv_sge sge = { (uintptr_t)c->area, c->size, c->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad))
		fail_verb("ibv_post_recv");
}

static void post(struct connection *c, enum ibv_wr_opcode opcode, uint32_t len,
		 const struct invitation *to)
{
	struct ibv_sge sge = { (uintptr_t)c->area + c->size, len, c->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (to) {
		wr.wr.rdma.remote_addr = to->addr;
		wr.wr.rdma.rkey = to->rkey;
	}
	if (ibv_post_send(c->id->qp, &wr, &bad))
		fail_verb("ibv_post_send");
}

static void complete(struct connection *c, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (!poll_within(cq, &wc, deadline_in(20)))
		fail(OUTCOME_DEADLINE, "round %u: no completion", c->round);
	if (wc.status)
		fail(OUTCOME_COMPLETION, "round %u: %s", c->round, ibv_wc_status_str(wc.status));
}

static void tear_down(struct connection *c)
{
	rdma_destroy_qp(c->id);
	if (ibv_dereg_mr(c->mr))
		fail_verb("ibv_dereg_mr");
	if (rdma_destroy_id(c->id))
		fail_verb("rdma_destroy_id");
	free(c->area);
}

/* ----------------------------------------------------------------- client */

static void connect_round(struct connection *c, struct sockaddr *to, struct invitation *found)
{
	uint32_t hello[2] = { c->round, c->size };
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = sizeof(hello),
					 .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	if (rdma_create_id(channel, &c->id, c, RDMA_PS_TCP))
		fail_verb("rdma_create_id");
	if (rdma_resolve_addr(c->id, NULL, to, 2000))
		fail_verb("rdma_resolve_addr");
	expect(c, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(c->id, 2000))
		fail_verb("rdma_resolve_route");
	expect(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	equip(c);
	post_receive(c);
	if (rdma_connect(c->id, &param))
		fail_verb("rdma_connect");
	event = next_event(c->round);
	if (event->event != RDMA_CM_EVENT_ESTABLISHED || event->status ||
	    event->param.conn.private_data_len < sizeof(*found))
		fail(OUTCOME_VERB, "round %u: %s, status %d, instead of a connection", c->round,
		     rdma_event_str(event->event), event->status);
	memcpy(found, event->param.conn.private_data, sizeof(*found));
	rdma_ack_cm_event(event);
}

static void client(struct sockaddr *to, uint32_t rounds, uint32_t size)
{
	for (uint32_t round = 0; round < rounds; round++) {
		struct connection c = { .round = round, .size = size };
		struct invitation there;

		connect_round(&c, to, &there);
		fill(&c, c.area + size, 0);
		post(&c, IBV_WR_RDMA_WRITE, size, &there);
		post(&c, IBV_WR_SEND, 1, NULL);
		complete(&c, c.id->send_cq);
		complete(&c, c.id->send_cq);
		complete(&c, c.id->recv_cq);
		compare(&c, c.area, 1);
		if (rdma_disconnect(c.id))
			fail_verb("rdma_disconnect");
		expect(&c, RDMA_CM_EVENT_DISCONNECTED);
		tear_down(&c);
	}
}

/* ----------------------------------------------------------------- server */

static void accept_peer(struct rdma_cm_event *event)
{
	struct connection *c = must_calloc(1, sizeof(*c));
	struct invitation here;
	struct rdma_conn_param param = { .private_data = &here, .private_data_len = sizeof(here),
					 .rnr_retry_count = 7 };
	const uint32_t *hello = event->param.conn.private_data;

	if (event->param.conn.private_data_len < 2 * sizeof(*hello))
		fail(OUTCOME_MISMATCH, "a request without its private data");
	c->id = event->id;
	c->id->context = c;
	c->round = hello[0];
	c->size = hello[1];
	equip(c);
	here.addr = (uintptr_t)c->area + c->size;
	here.rkey = c->mr->rkey;
	post_receive(c);
	if (rdma_accept(c->id, &param))
		fail_verb("rdma_accept");
}

/* The word that all bytes have come, and the answer. */
static void serve(struct connection *c)
{
	complete(c, c->id->recv_cq);
	compare(c, c->area + c->size, 0);
	fill(c, c->area + c->size, 1);
	post(c, IBV_WR_SEND, c->size, NULL);
	complete(c, c->id->send_cq);
}

static void server(struct sockaddr *at, uint32_t rounds)
{
	struct rdma_cm_id *listener;

	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, at) ||
	    rdma_listen(listener, 16))
		fail_verb("rdma_listen");
	puts("listening");
	fflush(stdout);
	for (uint32_t done = 0; done < rounds;) {
		struct rdma_cm_event *event = next_event(done);
		struct connection *c = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ?
				       NULL : event->id->context;

		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			accept_peer(event);
			rdma_ack_cm_event(event);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			rdma_ack_cm_event(event);
			serve(c);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_ack_cm_event(event);
			rdma_disconnect(c->id);
			tear_down(c);
			free(c);
			done++;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			rdma_ack_cm_event(event);
			break;
		default:
			fail(OUTCOME_VERB, "connection %u: %s, status %d", done,
			     rdma_event_str(event->event), event->status);
		}
	}
	rdma_destroy_id(listener);
}

int main(int argc, char **argv)
{
	struct addrinfo *found;
	uint32_t rounds, size;

	program_name = "cm_rounds";
	if (argc < 5 || (strcmp(argv[1], "-s") && strcmp(argv[1], "-c")))
		fail(OUTCOME_USAGE, "-s|-c ADDRESS PORT ROUNDS [SIZE]");
	found = look_up(argv[2], argv[3]);
	rounds = strtoul(argv[4], NULL, 0);
	size = argc > 5 ? strtoul(argv[5], NULL, 0) : 1000;
	if (!rounds || !size || size > MAX_SIZE)
		fail(OUTCOME_USAGE, "rounds and size are positive, size at most %d", MAX_SIZE);
	channel = rdma_create_event_channel();
	if (!channel)
		fail_verb("rdma_create_event_channel");
	if (argv[1][1] == 's')
		server(found->ai_addr, rounds);
	else
		client(found->ai_addr, rounds, size);
	rdma_destroy_event_channel(channel);
	freeaddrinfo(found);
	printf("%u rounds\n", rounds);
	return OUTCOME_OK;
}
