/*
 * ratio: the bandwidth of READ in terms of that of WRITE. Both carry the same
 * bytes over the same queue pair in turn, so that whatever slows the machine
 * down slows both; the middle of the rounds counts.
 *
 *   ratio -s PORT [--gid INDEX] [--ipv6]
 *   ratio HOST PORT ROUNDS [--gid INDEX] [--ipv6]
 *
 * Prints a line for each size: bytes, READ / WRITE, MiB/s of READ and WRITE.
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define LARGEST (16u << 20)
#define ROUND_BYTES (32u << 20)
#define DEPTH 16
#define MAX_ROUNDS 101
#define PATIENCE_S 120.0

struct memory {
	uint64_t address;
	uint32_t rkey;
	uint32_t unused;
};

struct end {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buffer;
	struct memory remote;
	int side;
};

static void create(struct end *e)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	e->buffer = must_calloc(LARGEST, 1);
	e->mr = ibv_reg_mr(e->device.pd, e->buffer, LARGEST, access);
	if (!e->mr)
		fail_verb("ibv_reg_mr");
	e->cq = ibv_create_cq(e->device.context, DEPTH, NULL, NULL, 0);
	if (!e->cq)
		fail_verb("ibv_create_cq");
	attr.send_cq = attr.recv_cq = e->cq;
	e->qp = ibv_create_qp(e->device.pd, &attr);
	if (!e->qp)
		fail_verb("ibv_create_qp");
	qp_to_init(e->qp, IBV_QPT_RC, access);
}

static void connect_ends(struct end *e)
{
	struct qp_timing patient = { .timeout = 14, .retry_count = 7, .rnr_retry = 7 };
	struct memory memory = { .address = (uintptr_t)e->buffer, .rkey = e->mr->rkey };
	struct qp_address local = { .qpn = e->qp->qp_num, .psn = 77, .gid = e->device.gid,
				    .mtu = e->device.port.active_mtu }, remote;
	char token = 'r';

	side_send(e->side, &local, sizeof local);
	side_send(e->side, &memory, sizeof memory);
	side_recv(e->side, &remote, sizeof remote, deadline_in(PATIENCE_S));
	side_recv(e->side, &e->remote, sizeof e->remote, deadline_in(PATIENCE_S));
	qp_to_rtr(&e->device, e->qp, IBV_QPT_RC, &remote);
	qp_to_rts(&e->device, e->qp, IBV_QPT_RC, local.psn, patient);
	side_send(e->side, &token, 1);
	side_recv(e->side, &token, 1, deadline_in(PATIENCE_S));
}

static void post(struct end *e, enum ibv_wr_opcode opcode, uint32_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->buffer, .length = size, .lkey = e->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = e->remote.address;
	wr.wr.rdma.rkey = e->remote.rkey;
	if ((errno = ibv_post_send(e->qp, &wr, &bad)))
		fail_verb("ibv_post_send");
}

/* Moves ROUND_BYTES in messages of this size; returns MiB/s. */
static double bandwidth(struct end *e, enum ibv_wr_opcode opcode, uint32_t size)
{
	int count = (int)(ROUND_BYTES / size), posted = 0;
	uint64_t start = now_ns();

	for (int done = 0; done < count; done++) {
		struct ibv_wc wc;

		for (; posted < count && posted < done + DEPTH; posted++)
			post(e, opcode, size);
		if (!poll_within(e->cq, &wc, deadline_in(PATIENCE_S)))
			fail(OUTCOME_DEADLINE, "%u bytes: no completion", size);
		if (wc.status != IBV_WC_SUCCESS)
			fail(OUTCOME_COMPLETION, "%u bytes: %s", size, ibv_wc_status_str(wc.status));
	}
	return ROUND_BYTES / 1048576.0 / ((double)(now_ns() - start) / (double)SECOND);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double middle(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, ascending);
	return values[count / 2];
}

static void measure(struct end *e, uint32_t size, int rounds)
{
	double ratio[MAX_ROUNDS], read[MAX_ROUNDS], write[MAX_ROUNDS];

	/* The first round finds the window. */
	for (int i = -1; i < rounds; i++) {
		int at = i < 0 ? 0 : i;

		write[at] = bandwidth(e, IBV_WR_RDMA_WRITE, size);
		read[at] = bandwidth(e, IBV_WR_RDMA_READ, size);
		ratio[at] = read[at] / write[at];
	}
	printf("%u %.3f %.0f %.0f\n", size, middle(ratio, rounds), middle(read, rounds),
	       middle(write, rounds));
	fflush(stdout);
}

static void serve(struct end *e, const char *port)
{
	char token;

	e->side = side_accept(side_listen(port), deadline_in(PATIENCE_S));
	connect_ends(e);
	side_recv(e->side, &token, 1, deadline_in(PATIENCE_S));
}

static void run(struct end *e, char **argument)
{
	int rounds = atoi(argument[2]);
	char token = 'b';

	if (rounds < 1 || rounds > MAX_ROUNDS)
		fail(OUTCOME_USAGE, "1 to %d rounds", MAX_ROUNDS);
	e->side = side_connect(argument[0], argument[1], deadline_in(PATIENCE_S));
	connect_ends(e);
	for (uint32_t size = 64u << 10; size <= LARGEST; size *= 2)
		measure(e, size, rounds);
	side_send(e->side, &token, 1);
}

int main(int argc, char **argv)
{
	enum family family = FAMILY_IPV4;
	int gid_index = -1, serves = 0, count = 0;
	char *argument[3];
	struct end e = { 0 };

	program_name = "ratio";
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-s"))
			serves = 1;
		else if (!strcmp(argv[i], "--ipv6"))
			family = FAMILY_IPV6;
		else if (!strcmp(argv[i], "--gid") && i + 1 < argc)
			gid_index = atoi(argv[++i]);
		else if (count < 3)
			argument[count++] = argv[i];
	}
	if (count != (serves ? 1 : 3))
		fail(OUTCOME_USAGE, "expected -s PORT or HOST PORT ROUNDS");
	e.device = open_device(NULL, gid_index, family);
	create(&e);
	if (serves)
		serve(&e, argument[0]);
	else
		run(&e, argument);
	return OUTCOME_OK;
}
