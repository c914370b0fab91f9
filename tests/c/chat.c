/*
 * chat: two processes that send each other messages for a while, every byte
 * compared, while the client forks or one of them is killed.
 *
 *   chat -s [OPTIONS]      server: sends every message back until the client is done
 *   chat HOST [OPTIONS]    client
 *
 * Options: --port P --device NAME --gid INDEX --ipv6 --seconds S (client)
 *   --fork exit|live|exec|open|touch   the client forks every 50 ms; the child
 *          ends at once, lives for a second, runs another program, opens the
 *          device anew and uses it, or touches what it inherited
 *   --fork-init   calls ibv_fork_init first
 *
 * Prints its queue pair's number, "chatting" once messages flow, and a line with the number of rounds
 * at the end. Exit status: enum outcome of common.h; OUTCOME_COMPLETION with
 * the status in the message when the other process is gone.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

#define MESSAGE 3000
#define WAIT_S 20.0
#define FORK_EVERY (50 * MILLI)
#define CHILD_MAX 256
#define PROBE 99

enum child { CHILD_NONE, CHILD_EXIT, CHILD_LIVE, CHILD_EXEC, CHILD_OPEN, CHILD_TOUCH, CHILD_COUNT };

struct chat {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint8_t *out, *in;
	struct ibv_mr *out_mr, *in_mr;
	int side;
	enum child kind;
	pid_t child[CHILD_MAX];
	int children;
};

static void open_qp(struct chat *c)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = small_cap() };
	struct qp_address mine = { .gid = c->device.gid, .mtu = c->device.port.active_mtu, .psn = 4791 };
	struct qp_address theirs;
	struct qp_timing timing = { .timeout = 14, .retry_count = 7, .rnr_retry = 7 };
	char token = 'r';

	c->cq = ibv_create_cq(c->device.context, 32, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = c->cq;
	c->qp = c->cq ? ibv_create_qp(c->device.pd, &attr) : NULL;
	if (!c->qp)
		fail_verb("cannot create a completion queue and a queue pair");
	mine.qpn = c->qp->qp_num;
	printf("qpn %u\n", mine.qpn);
	fflush(stdout);
	qp_to_init(c->qp, IBV_QPT_RC, all_access);
	side_send(c->side, &mine, sizeof mine);
	side_recv(c->side, &theirs, sizeof theirs, deadline_in(WAIT_S));
	qp_to_rtr(&c->device, c->qp, IBV_QPT_RC, &theirs);
	qp_to_rts(&c->device, c->qp, IBV_QPT_RC, mine.psn, timing);
	side_send(c->side, &token, 1);
	side_recv(c->side, &token, 1, deadline_in(WAIT_S));
}

static void open_memory(struct chat *c)
{
	c->out = aligned_alloc(4096, 4096);
	c->in = aligned_alloc(4096, 4096);
	c->out_mr = ibv_reg_mr(c->device.pd, c->out, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	c->in_mr = ibv_reg_mr(c->device.pd, c->in, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
	if (!c->out_mr || !c->in_mr)
		fail_verb("ibv_reg_mr");
}

static void post_receive(struct chat *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->in, .length = MESSAGE, .lkey = c->in_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if ((errno = ibv_post_recv(c->qp, &wr, &bad)))
		fail_verb("ibv_post_recv");
}

static int post_send(struct chat *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->out, .length = MESSAGE, .lkey = c->out_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	return ibv_post_send(c->qp, &wr, &bad);
}

/* An empty WRITE: a receiver that only waits would never learn that its peer is gone. */
static void post_probe(struct chat *c)
{
	struct ibv_send_wr wr = { .wr_id = PROBE, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	if ((errno = ibv_post_send(c->qp, &wr, &bad)))
		fail_verb("ibv_post_send of a probe");
}

static void await_one(struct chat *c)
{
	uint64_t deadline = deadline_in(WAIT_S);
	struct ibv_wc wc;

	do {
		if (!poll_within(c->cq, &wc, deadline_in(1))) {
			post_probe(c);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			fail(OUTCOME_COMPLETION, "%s", ibv_wc_status_str(wc.status));
		if (wc.wr_id != PROBE)
			return;
	} while (now_ns() < deadline);
	fail(OUTCOME_DEADLINE, "no answer");
}

/* Message number round: what it holds depends on the round and the place. */
static uint8_t byte_at(uint64_t round, size_t position)
{
	return (uint8_t)(round * 13 + position * 7 + position / 256);
}

static void check_message(const struct chat *c, uint64_t round)
{
	for (size_t i = 0; i < MESSAGE; i++)
		if (c->in[i] != byte_at(round, i))
			fail(OUTCOME_MISMATCH, "round %llu: offset %zu: expected 0x%02x, got 0x%02x",
			     (unsigned long long)round, i, byte_at(round, i), c->in[i]);
}

/* One message out; the answer and the completion of the send may come in either order. */
static void client_round(struct chat *c, uint64_t round)
{
	int awaited = 2;

	for (size_t i = 0; i < MESSAGE; i++)
		c->out[i] = byte_at(round, i);
	memset(c->in, 0, MESSAGE);
	post_receive(c);
	if ((errno = post_send(c)))
		fail_verb("ibv_post_send");
	while (awaited--)
		await_one(c);
	check_message(c, round);
}

/* ---------------------------------------------------------------- children */

/* Anything may be answered, but not by a crash, and the parent must not notice. */
static int child_touch(struct chat *c)
{
	struct ibv_wc wc;
	struct ibv_port_attr port;
	int posted = post_send(c);

	ibv_poll_cq(c->cq, 1, &wc);
	ibv_query_port(c->device.context, 1, &port);
	return posted ? 0 : 1;
}

/* The device works in the child when it is opened there. */
static int child_open(void)
{
	struct device device = open_device(NULL, -1, FAMILY_IPV4);
	struct pair pair = pair_rc(&device);

	pair_close(&pair);
	return ibv_dealloc_pd(device.pd) || ibv_close_device(device.context);
}

static void run_child(struct chat *c)
{
	switch (c->kind) {
	case CHILD_LIVE:
		sleep(1);
		exit(0);
	case CHILD_EXEC:
		execl("/bin/true", "true", NULL);
		_exit(9);
	case CHILD_OPEN:
		_exit(child_open());
	case CHILD_TOUCH:
		_exit(child_touch(c));
	default:
		exit(0);
	}
}

static void fork_one(struct chat *c)
{
	pid_t pid;

	if (c->children == CHILD_MAX)
		return;
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		fail_verb("fork");
	if (!pid)
		run_child(c);
	c->child[c->children++] = pid;
}

static void reap(struct chat *c)
{
	for (int i = 0; i < c->children; i++) {
		int status;

		waitpid(c->child[i], &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			fail(OUTCOME_MISMATCH, "child %d of %d ended with wait status 0x%x", i, c->children, status);
	}
}

/* -------------------------------------------------------------------- main */

static void run_client(struct chat *c, double seconds)
{
	uint64_t end = deadline_in(seconds), round = 0, next_fork = now_ns();
	char done = 'q';

	while (now_ns() < end) {
		client_round(c, round++);
		if (round == 3) {
			puts("chatting");
			fflush(stdout);
		}
		if (c->kind && now_ns() >= next_fork) {
			fork_one(c);
			next_fork = now_ns() + FORK_EVERY;
		}
	}
	reap(c);
	client_round(c, round++);
	side_send(c->side, &done, 1);
	printf("chat: ok: %llu rounds, %d children\n", (unsigned long long)round, c->children);
}

/* Posts the next receive before it answers, so that the client never finds none. */
static void run_server(struct chat *c)
{
	uint64_t round = 0;
	struct ibv_wc wc;
	char token;

	for (;;) {
		while (!ibv_poll_cq(c->cq, 1, &wc)) {
			ssize_t told = recv(c->side, &token, 1, MSG_DONTWAIT);

			if (told == 1)
				goto done;
			if (told == 0)
				fail(OUTCOME_PEER, "the client is gone");
		}
		if (wc.status != IBV_WC_SUCCESS)
			fail(OUTCOME_COMPLETION, "%s", ibv_wc_status_str(wc.status));
		if (wc.opcode != IBV_WC_RECV)
			continue;
		check_message(c, round++);
		memcpy(c->out, c->in, MESSAGE);
		post_receive(c);
		if ((errno = post_send(c)))
			fail_verb("ibv_post_send");
	}
done:
	printf("chat: ok: %llu rounds served\n", (unsigned long long)round);
}

static enum child child_of(const char *word)
{
	static const char *const names[CHILD_COUNT] = { "none", "exit", "live", "exec", "open", "touch" };

	for (int i = 0; i < CHILD_COUNT; i++)
		if (!strcmp(word, names[i]))
			return i;
	fail(OUTCOME_USAGE, "no child called %s", word);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "port", 1, NULL, 'p' },    { "device", 1, NULL, 'd' }, { "gid", 1, NULL, 'g' },
		{ "ipv6", 0, NULL, '6' },    { "seconds", 1, NULL, 't' }, { "fork", 1, NULL, 'f' },
		{ "fork-init", 0, NULL, 'i' }, { NULL, 0, NULL, 0 },
	};
	struct chat c = { .kind = CHILD_NONE };
	const char *device = NULL, *port = "7472";
	enum family family = FAMILY_IPV4;
	double seconds = 2;
	int gid_index = -1, option;
	bool server = false, fork_init = false;

	while ((option = getopt_long(argc, argv, "s", options, NULL)) != -1)
		switch (option) {
		case 's': server = true; break;
		case 'p': port = optarg; break;
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case '6': family = FAMILY_IPV6; break;
		case 't': seconds = atof(optarg); break;
		case 'f': c.kind = child_of(optarg); break;
		case 'i': fork_init = true; break;
		default: return OUTCOME_USAGE;
		}
	program_name = server ? "chat server" : "chat client";
	if (server == (optind < argc))
		fail(OUTCOME_USAGE, "expected either -s or one HOST");
	if (fork_init && (errno = ibv_fork_init()))
		fail_verb("ibv_fork_init");
	c.device = open_device(device, gid_index, family);
	open_memory(&c);
	c.side = server ? side_accept(side_listen(port), deadline_in(WAIT_S))
			: side_connect(argv[optind], port, deadline_in(WAIT_S));
	open_qp(&c);
	if (server) {
		post_receive(&c);
		side_send(c.side, "g", 1);
		run_server(&c);
	} else {
		char go;

		side_recv(c.side, &go, 1, deadline_in(WAIT_S));
		run_client(&c, seconds);
	}
	return OUTCOME_OK;
}
