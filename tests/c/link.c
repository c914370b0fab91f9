#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct memory {
	uint64_t address;
	uint32_t rkey;
	uint32_t unused;
};

static void create_qp(struct link *l, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.send_cq = l->cq,
		.recv_cq = l->cq,
		.cap = { .max_send_wr = LINK_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.pd = l->device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.send_ops_flags = send_ops,
	};

	if (send_ops)
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	l->qp = ibv_create_qp_ex(l->device.context, &attr);
	if (!l->qp)
		fail_verb("ibv_create_qp_ex");
}

static void create(struct link *l, struct link_spec spec)
{
	int access = IBV_ACCESS_LOCAL_WRITE | spec.access;

	l->buffer = must_calloc(spec.bytes, 1);
	l->mr = ibv_reg_mr(l->device.pd, l->buffer, spec.bytes, access);
	if (!l->mr)
		fail_verb("ibv_reg_mr with access %#x", access);
	l->cq = ibv_create_cq(l->device.context, LINK_DEPTH, NULL, NULL, 0);
	if (!l->cq)
		fail_verb("ibv_create_cq");
	create_qp(l, spec.send_ops);
	qp_to_init(l->qp, IBV_QPT_RC, access);
}

static void connect_ends(struct link *l)
{
	struct qp_timing patient = { .timeout = 14, .retry_count = 7, .rnr_retry = 7 };
	struct memory mine = { .address = (uintptr_t)l->buffer, .rkey = l->mr->rkey }, theirs;
	struct qp_address local = { .qpn = l->qp->qp_num, .psn = 77, .gid = l->device.gid,
				    .mtu = l->device.port.active_mtu }, remote;
	char token = 'r';

	side_send(l->side, &local, sizeof local);
	side_send(l->side, &mine, sizeof mine);
	side_recv(l->side, &remote, sizeof remote, deadline_in(LINK_PATIENCE_S));
	side_recv(l->side, &theirs, sizeof theirs, deadline_in(LINK_PATIENCE_S));
	l->remote_addr = theirs.address;
	l->rkey = theirs.rkey;
	qp_to_rtr(&l->device, l->qp, IBV_QPT_RC, &remote);
	qp_to_rts(&l->device, l->qp, IBV_QPT_RC, local.psn, patient);
	side_send(l->side, &token, 1);
	side_recv(l->side, &token, 1, deadline_in(LINK_PATIENCE_S));
}

struct link link_open(const char *name, int argc, char **argv, struct link_spec spec)
{
	enum family family = FAMILY_IPV4;
	int gid_index = -1, count = 0;
	const char *word[3] = { NULL };
	struct link l = { 0 };

	program_name = name;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-s"))
			l.serves = 1;
		else if (!strcmp(argv[i], "--ipv6"))
			family = FAMILY_IPV6;
		else if (!strcmp(argv[i], "--gid") && i + 1 < argc)
			gid_index = atoi(argv[++i]);
		else if (count < 3)
			word[count++] = argv[i];
	}
	if (l.serves ? count != 1 : count < 2)
		fail(OUTCOME_USAGE, "expected -s PORT or HOST PORT [ARGUMENT]");
	l.argument = word[2];
	l.device = open_device(NULL, gid_index, family);
	create(&l, spec);
	l.side = l.serves ? side_accept(side_listen(word[0]), deadline_in(LINK_PATIENCE_S))
			  : side_connect(word[0], word[1], deadline_in(LINK_PATIENCE_S));
	connect_ends(&l);
	return l;
}

void link_serve(struct link *l)
{
	char token;

	side_recv(l->side, &token, 1, deadline_in(LINK_PATIENCE_S));
}

void link_finish(struct link *l)
{
	char token = 'b';

	side_send(l->side, &token, 1);
}

void link_complete(struct link *l, const char *what)
{
	struct ibv_wc wc;

	if (!poll_within(l->cq, &wc, deadline_in(LINK_PATIENCE_S)))
		fail(OUTCOME_DEADLINE, "%s: no completion", what);
	if (wc.status != IBV_WC_SUCCESS)
		fail(OUTCOME_COMPLETION, "%s: %s", what, ibv_wc_status_str(wc.status));
}
