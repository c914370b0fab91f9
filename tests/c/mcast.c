/*
 * mcast: a member of a multicast group, driven by commands.
 *
 *   mcast [--device NAME] [--gid INDEX] [--ipv6] [--group ADDRESS] [--qps N]
 *         [--tag N] [--block-loopback] COMMAND...
 *
 * Commands, in order; "stdin" reads further ones, a line each. Every command
 * that is done is answered with "ok COMMAND" on stdout.
 *   attach, detach       every QP of this process
 *   send:N               N datagrams to the group from the first QP
 *   expect:N             each QP receives exactly N different datagrams, every byte right
 *   silence:MS           nothing arrives for that long
 *   sleep:MS
 *   join                 the kernel's own membership, which rdma_rxe leaves to rdma_cm
 *   checks               what attach and detach refuse, with which errno
 *
 * Exit status: enum outcome of common.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

#define QP_MAX 64
#define SLOTS 64
#define GRH 40
#define PAYLOAD 512
#define MULTICAST_QPN 0xffffff
#define TIMEOUT_S 10.0

struct member {
	struct ibv_qp *qp;
	uint8_t slot[SLOTS][GRH + PAYLOAD];
};

struct party {
	struct device device;
	struct ibv_cq *receive_cq, *send_cq;
	struct ibv_mr *mr;
	struct member *member;
	int qps;
	uint32_t tag, sent;
	bool block_loopback;
	union ibv_gid group;
	const char *group_text;
	uint8_t *message;
	struct ibv_mr *message_mr;
	struct ibv_ah *ah;
};

static union ibv_gid gid_of(const char *address)
{
	/* Of an IPv4 address the last four bytes are still missing. */
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	if (inet_pton(AF_INET6, address, gid.raw) != 1 && inet_pton(AF_INET, address, gid.raw + 12) != 1)
		fail(OUTCOME_USAGE, "%s is not an address", address);
	return gid;
}

static struct ibv_qp *create_qp(struct party *p, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = p->send_cq,
		.recv_cq = p->receive_cq,
		.qp_type = type,
		.pd = p->device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp;

	if (p->block_loopback) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
		attr.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
	}
	qp = ibv_create_qp_ex(p->device.context, &attr);
	if (!qp)
		fail_verb("ibv_create_qp_ex");
	return qp;
}

static void post_slot(struct party *p, int m, int slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)p->member[m].slot[slot], .length = GRH + PAYLOAD, .lkey = p->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)(m * SLOTS + slot), .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	if ((errno = ibv_post_recv(p->member[m].qp, &wr, &bad)))
		fail_verb("ibv_post_recv");
}

static void open_members(struct party *p)
{
	size_t bytes = (size_t)p->qps * sizeof *p->member;
	struct qp_timing unused = { 0 };

	p->member = must_calloc((size_t)p->qps, sizeof *p->member);
	p->message = must_calloc(1, PAYLOAD);
	p->mr = ibv_reg_mr(p->device.pd, p->member, bytes, IBV_ACCESS_LOCAL_WRITE);
	p->message_mr = ibv_reg_mr(p->device.pd, p->message, PAYLOAD, 0);
	p->send_cq = ibv_create_cq(p->device.context, SLOTS, NULL, NULL, 0);
	p->receive_cq = ibv_create_cq(p->device.context, p->qps * SLOTS, NULL, NULL, 0);
	if (!p->mr || !p->message_mr || !p->send_cq || !p->receive_cq)
		fail_verb("cannot set up memory and completion queues");
	for (int m = 0; m < p->qps; m++) {
		p->member[m].qp = create_qp(p, IBV_QPT_UD);
		qp_to_init(p->member[m].qp, IBV_QPT_UD, 0);
		for (int slot = 0; slot < SLOTS; slot++)
			post_slot(p, m, slot);
		qp_to_rtr(&p->device, p->member[m].qp, IBV_QPT_UD, NULL);
		qp_to_rts(&p->device, p->member[m].qp, IBV_QPT_UD, 0, unused);
	}
}

/* Byte at position of datagram number index of the sender called tag. */
static uint8_t payload_byte(uint32_t tag, uint32_t index, size_t position)
{
	return (uint8_t)((position + 1) * 31 + tag * 101 + index * 17);
}

static size_t payload_size(uint32_t index)
{
	return 12 + index * 37 % (PAYLOAD - 12);
}

static void fill_message(uint8_t *message, uint32_t tag, uint32_t index)
{
	uint32_t head[3] = { htonl(0x6d636173), htonl(tag), htonl(index) };

	for (size_t i = 0; i < payload_size(index); i++)
		message[i] = payload_byte(tag, index, i);
	memcpy(message, head, sizeof head);
}

static void send_one(struct party *p)
{
	struct ibv_sge sge = { .addr = (uintptr_t)p->message, .lkey = p->message_mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = p->ah, .remote_qpn = MULTICAST_QPN, .remote_qkey = QKEY },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	fill_message(p->message, p->tag, p->sent);
	sge.length = (uint32_t)payload_size(p->sent++);
	if ((errno = ibv_post_send(p->member[0].qp, &wr, &bad)))
		fail_verb("ibv_post_send to the group");
	if (!poll_within(p->send_cq, &wc, deadline_in(TIMEOUT_S)))
		fail(OUTCOME_DEADLINE, "no completion of a multicast send");
	if (wc.status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "multicast send: %s", ibv_wc_status_str(wc.status));
}

static void send_many(struct party *p, long count)
{
	if (!p->ah) {
		struct qp_address group = { .gid = p->group };
		struct ibv_ah_attr attr = route_to(&p->device, &group);

		p->ah = ibv_create_ah(p->device.pd, &attr);
		if (!p->ah)
			fail_verb("ibv_create_ah for the group");
	}
	while (count--)
		send_one(p);
}

static void attach(struct party *p)
{
	for (int m = 0; m < p->qps; m++)
		if ((errno = ibv_attach_mcast(p->member[m].qp, &p->group, 0)))
			fail_verb("ibv_attach_mcast of QP %d", m);
}

static void detach(struct party *p)
{
	for (int m = 0; m < p->qps; m++)
		if ((errno = ibv_detach_mcast(p->member[m].qp, &p->group, 0)))
			fail_verb("ibv_detach_mcast of QP %d", m);
}

/* The header in front of a datagram names the group it was sent to. */
static bool names_group(const struct party *p, const uint8_t *grh)
{
	if (gid_is_ipv4(&p->group))
		return !memcmp(grh + 36, p->group.raw + 12, 4);
	return !memcmp(grh + 24, p->group.raw, 16);
}

/* Checks the datagram and returns tag and index as one number. */
static uint64_t check_datagram(const struct party *p, const struct ibv_wc *wc)
{
	const uint8_t *slot = p->member[wc->wr_id / SLOTS].slot[wc->wr_id % SLOTS];
	const uint8_t *at = slot + GRH;
	uint32_t head[3], tag, index;
	size_t size = wc->byte_len - GRH;

	memcpy(head, at, sizeof head);
	tag = ntohl(head[1]), index = ntohl(head[2]);
	if (ntohl(head[0]) != 0x6d636173 || size != payload_size(index))
		fail(OUTCOME_MISMATCH, "a datagram of %zu bytes that no member sent", size);
	for (size_t i = sizeof head; i < size; i++)
		if (at[i] != payload_byte(tag, index, i))
			fail(OUTCOME_MISMATCH, "datagram %u of %u: offset %zu: expected 0x%02x, got 0x%02x", index,
			     tag, i, payload_byte(tag, index, i), at[i]);
	if (!names_group(p, slot))
		fail(OUTCOME_MISMATCH, "datagram %u of %u: its header does not name the group", index, tag);
	return (uint64_t)tag << 32 | index;
}

static void expect(struct party *p, long count)
{
	uint64_t *seen = must_calloc((size_t)(count * p->qps), sizeof *seen);
	long *have = must_calloc((size_t)p->qps, sizeof *have);
	uint64_t deadline = deadline_in(TIMEOUT_S);
	struct ibv_wc wc;

	for (long n = 0; n < count * p->qps; n++) {
		long m;
		uint64_t which;

		if (!poll_within(p->receive_cq, &wc, deadline))
			fail(OUTCOME_DEADLINE, "%ld of %ld datagrams arrived", n, count * p->qps);
		if (wc.status != IBV_WC_SUCCESS)
			fail(OUTCOME_COMPLETION, "receive: %s", ibv_wc_status_str(wc.status));
		m = (long)(wc.wr_id / SLOTS);
		which = check_datagram(p, &wc);
		for (long i = 0; i < have[m]; i++)
			if (seen[m * count + i] == which)
				fail(OUTCOME_MISMATCH, "QP %ld received a datagram twice", m);
		if (have[m] == count)
			fail(OUTCOME_MISMATCH, "QP %ld received more than %ld datagrams", m, count);
		seen[m * count + have[m]++] = which;
		post_slot(p, (int)m, (int)(wc.wr_id % SLOTS));
	}
	free(seen);
	free(have);
}

static void silence(struct party *p, long milliseconds)
{
	struct ibv_wc wc;

	if (poll_within(p->receive_cq, &wc, now_ns() + (uint64_t)milliseconds * MILLI))
		fail(OUTCOME_MISMATCH, "a datagram of %u bytes arrived", wc.byte_len);
}

static void join_ipv4(const struct party *p, int fd)
{
	struct ip_mreq request = { 0 };

	memcpy(&request.imr_multiaddr, p->group.raw + 12, 4);
	memcpy(&request.imr_interface, p->device.gid.raw + 12, 4);
	if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request))
		fail_verb("IP_ADD_MEMBERSHIP");
}

static void join_ipv6(const struct party *p, int fd)
{
	struct ipv6_mreq request = { 0 };

	memcpy(&request.ipv6mr_multiaddr, p->group.raw, 16);
	if (setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &request, sizeof request))
		fail_verb("IPV6_ADD_MEMBERSHIP");
}

/* The socket stays open until the program ends. */
static void join(const struct party *p)
{
	bool four = gid_is_ipv4(&p->group);
	int fd = socket(four ? AF_INET : AF_INET6, SOCK_DGRAM, 0);

	if (fd < 0)
		fail_verb("socket");
	if (four)
		join_ipv4(p, fd);
	else
		join_ipv6(p, fd);
}

/* ------------------------------------------------------------------ checks */

static int failures;

static void want(const char *what, int expected, int got)
{
	bool good = expected == got;

	printf("%s %s: %s\n", good ? "ok" : "FAIL", what, got ? strerror(got) : "0");
	if (!good) {
		printf("     expected %s\n", expected ? strerror(expected) : "0");
		failures++;
	}
}

static void check_refusals(struct party *p)
{
	struct ibv_qp *rc = create_qp(p, IBV_QPT_RC), *ud = p->member[0].qp;
	union ibv_gid group = p->group, other = group;

	other.raw[15] ^= 1;
	want("attach of an RC QP", EINVAL, ibv_attach_mcast(rc, &group, 0));
	want("attach to a unicast GID", EINVAL, ibv_attach_mcast(ud, &p->device.gid, 0));
	want("detach of a QP that is not attached", EINVAL, ibv_detach_mcast(ud, &group, 0));
	want("attach", 0, ibv_attach_mcast(ud, &group, 0));
	want("detach from another group", EINVAL, ibv_detach_mcast(ud, &other, 0));
	want("attach again", 0, ibv_attach_mcast(ud, &group, 0));
	want("detach", 0, ibv_detach_mcast(ud, &group, 0));
	want("detach again: the second attach did not count", EINVAL, ibv_detach_mcast(ud, &group, 0));
	want("destroy the RC QP", 0, ibv_destroy_qp(rc));
}

static void check_busy(struct party *p)
{
	struct ibv_qp *qp = create_qp(p, IBV_QPT_UD);

	qp_to_init(qp, IBV_QPT_UD, 0);
	want("attach a QP that is in INIT", 0, ibv_attach_mcast(qp, &p->group, 0));
	want("destroy a QP that is attached", EBUSY, ibv_destroy_qp(qp));
	want("detach a QP that could not be destroyed", 0, ibv_detach_mcast(qp, &p->group, 0));
	want("destroy a QP that is detached", 0, ibv_destroy_qp(qp));
}

/* One QP more than the device's max_mcast_qp_attach. */
static void check_full(struct party *p)
{
	int limit = (int)p->device.attr.max_mcast_qp_attach, attached = 0;
	struct ibv_qp **qp = must_calloc((size_t)limit + 1, sizeof *qp);

	printf("max_mcast_qp_attach %d\n", limit);
	for (int i = 0; i <= limit; i++)
		qp[i] = create_qp(p, IBV_QPT_UD);
	while (attached < limit && !ibv_attach_mcast(qp[attached], &p->group, 0))
		attached++;
	want("every QP up to the limit attaches", 0, attached == limit ? 0 : ENOMEM);
	want("one more", ENOMEM, ibv_attach_mcast(qp[limit], &p->group, 0));
	want("the refused one is no member", EINVAL, ibv_detach_mcast(qp[limit], &p->group, 0));
	want("one leaves", 0, ibv_detach_mcast(qp[0], &p->group, 0));
	want("another takes the place", 0, ibv_attach_mcast(qp[limit], &p->group, 0));
	for (int i = 1; i <= limit; i++)
		want("detach", 0, ibv_detach_mcast(qp[i], &p->group, 0));
	for (int i = 0; i <= limit; i++)
		want("destroy", 0, ibv_destroy_qp(qp[i]));
	free(qp);
}

static void checks(struct party *p)
{
	check_refusals(p);
	check_busy(p);
	check_full(p);
	if (failures)
		fail(OUTCOME_MISMATCH, "%d checks failed", failures);
}

/* ---------------------------------------------------------------- commands */

static void run(struct party *p, const char *command);

static void run_stdin(struct party *p)
{
	char line[128];

	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		run(p, line);
	}
}

static void run(struct party *p, const char *command)
{
	const char *colon = strchr(command, ':');
	size_t length = colon ? (size_t)(colon - command) : strlen(command);
	long argument = colon ? atol(colon + 1) : 0;
	bool known = true;

#define IS(word) (length == strlen(word) && !strncmp(command, word, length))
	if (IS("attach"))
		attach(p);
	else if (IS("detach"))
		detach(p);
	else if (IS("send"))
		send_many(p, argument);
	else if (IS("expect"))
		expect(p, argument);
	else if (IS("silence"))
		silence(p, argument);
	else if (IS("sleep"))
		usleep((useconds_t)argument * 1000);
	else if (IS("join"))
		join(p);
	else if (IS("checks"))
		checks(p);
	else if (IS("stdin"))
		run_stdin(p);
	else
		known = false;
#undef IS
	if (!known)
		fail(OUTCOME_USAGE, "no command %s", command);
	printf("ok %s\n", command);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", 1, NULL, 'd' },  { "gid", 1, NULL, 'g' }, { "ipv6", 0, NULL, '6' },
		{ "group", 1, NULL, 'm' },   { "qps", 1, NULL, 'q' }, { "tag", 1, NULL, 't' },
		{ "block-loopback", 0, NULL, 'b' }, { NULL, 0, NULL, 0 },
	};
	struct party p = { .qps = 1 };
	const char *device = NULL;
	enum family family = FAMILY_IPV4;
	int gid_index = -1, option;

	program_name = "mcast";
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (option) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case '6': family = FAMILY_IPV6; break;
		case 'm': p.group_text = optarg; break;
		case 'q': p.qps = atoi(optarg); break;
		case 't': p.tag = (uint32_t)atoi(optarg); break;
		case 'b': p.block_loopback = true; break;
		default: return OUTCOME_USAGE;
		}
	if (p.qps < 1 || p.qps > QP_MAX || optind == argc)
		fail(OUTCOME_USAGE, "expected 1 to %d QPs and a command", QP_MAX);
	if (!p.group_text)
		p.group_text = family == FAMILY_IPV6 ? "ff0e::4791:1" : "239.47.91.1";
	p.group = gid_of(p.group_text);
	p.device = open_device(device, gid_index, family);
	open_members(&p);
	for (int i = optind; i < argc; i++)
		run(&p, argv[i]);
	return OUTCOME_OK;
}
