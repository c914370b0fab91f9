#include "checks.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

const struct qp_timing patient = { .timeout = 14, .retry_count = 7, .rnr_retry = 7 };
const int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		       IBV_ACCESS_REMOTE_ATOMIC;

void check(bool good, const char *format, ...)
{
	va_list args;

	printf("%s ", good ? "ok" : "FAIL");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	*(good ? &passed : &failed) += 1;
}

static const char *errno_name(int error)
{
	return error ? strerrorname_np(error) : "0";
}

void check_errno(const char *name, int expected, int got)
{
	check(got == expected, "%s: %s, expected %s", name, errno_name(got), errno_name(expected));
}

void check_either(const char *name, int one, int other, int got)
{
	check(got == one || got == other, "%s: %s, expected %s or %s", name, errno_name(got),
	      errno_name(one), errno_name(other));
}

void check_null(const char *name, const void *object, int expected)
{
	int got = errno;

	check(!object && got == expected, "%s: %s, expected NULL and %s", name,
	      object ? "an object" : errno_name(got), errno_name(expected));
}

void checks_finish(void)
{
	printf("%s: %d checks passed, %d failed\n", program_name, passed, failed);
	exit(failed || !passed ? OUTCOME_MISMATCH : OUTCOME_OK);
}

struct ibv_qp_cap small_cap(void)
{
	return (struct ibv_qp_cap){ .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2,
				    .max_recv_sge = 2, .max_inline_data = 32 };
}

static void create_side(struct pair *pair, int side, const struct pair_options *options)
{
	struct ibv_qp_init_attr attr = { .qp_type = options->type, .cap = small_cap() };
	struct ibv_pd *pd = options->pd[side] ? options->pd[side] : pair->device->pd;

	pair->cq[side] = ibv_create_cq(pair->device->context, 64, NULL, NULL, 0);
	if (!pair->cq[side])
		fail_verb("ibv_create_cq");
	attr.send_cq = attr.recv_cq = pair->cq[side];
	pair->qp[side] = ibv_create_qp(pd, &attr);
	if (!pair->qp[side])
		fail_verb("ibv_create_qp");
	qp_to_init(pair->qp[side], options->type, options->access[side]);
}

struct pair pair_open(struct device *device, struct pair_options options)
{
	struct pair pair = { .device = device };
	struct qp_address address[2];

	for (int side = 0; side < 2; side++) {
		create_side(&pair, side, &options);
		address[side] = (struct qp_address){ .qpn = pair.qp[side]->qp_num, .psn = 77,
						     .gid = device->gid, .mtu = device->port.active_mtu };
	}
	for (int side = 0; side < 2; side++) {
		qp_to_rtr(device, pair.qp[side], options.type, &address[!side]);
		qp_to_rts(device, pair.qp[side], options.type, 77, options.timing);
	}
	if (options.type == IBV_QPT_UD) {
		struct ibv_ah_attr route = route_to(device, &address[1]);

		pair.ah = ibv_create_ah(device->pd, &route);
		if (!pair.ah)
			fail_verb("ibv_create_ah");
	}
	return pair;
}

struct pair pair_rc(struct device *device)
{
	return pair_open(device, (struct pair_options){ .type = IBV_QPT_RC, .timing = patient,
							.access = { all_access, all_access } });
}

void pair_close(struct pair *pair)
{
	for (int side = 0; side < 2; side++) {
		if (pair->qp[side] && (errno = ibv_destroy_qp(pair->qp[side])))
			fail_verb("ibv_destroy_qp");
		if ((errno = ibv_destroy_cq(pair->cq[side])))
			fail_verb("ibv_destroy_cq");
	}
	if (pair->ah && (errno = ibv_destroy_ah(pair->ah)))
		fail_verb("ibv_destroy_ah");
}

enum ibv_qp_state qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if ((errno = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)))
		fail_verb("ibv_query_qp");
	return attr.qp_state;
}

struct bench bench_open(const char *name, int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", 1, NULL, 'd' }, { "gid", 1, NULL, 'g' }, { "ipv6", 0, NULL, '6' },
		{ "null", 0, NULL, 'n' },   { NULL, 0, NULL, 0 },
	};
	const char *device = NULL;
	enum family family = FAMILY_IPV4;
	int gid_index = -1, option;
	struct bench b = { .null = false };

	program_name = name;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (option) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case '6': family = FAMILY_IPV6; break;
		case 'n': b.null = true; break;
		default: exit(OUTCOME_USAGE);
		}
	b.device = open_device(device, gid_index, family);
	b.area = aligned_alloc(AREA, AREA);
	b.cq = ibv_create_cq(b.device.context, 32, NULL, NULL, 0);
	b.mr = ibv_reg_mr(b.device.pd, b.area, AREA, all_access);
	if (!b.cq || !b.mr)
		fail_verb("cannot set up a completion queue and a region");
	return b;
}

struct ibv_qp *bench_qp(struct bench *b, enum ibv_qp_type type, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr attr = { .send_cq = b->cq, .recv_cq = b->cq, .qp_type = type, .cap = cap };

	errno = 0;
	return ibv_create_qp(b->device.pd, &attr);
}

struct ibv_sge bench_sge(const struct bench *b, uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)b->area, .length = length, .lkey = b->mr->lkey };
}

void bench_still_works(struct bench *b)
{
	struct pair p = pair_rc(&b->device);
	struct ibv_sge from = bench_sge(b, 64), to = from;
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1 }, *bad_send;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	to.addr += 1024;
	for (int i = 0; i < 64; i++)
		b->area[i] = (uint8_t)(i * 7 + 1);
	check_errno("a good receive", 0, ibv_post_recv(p.qp[1], &receive, &bad_receive));
	check_errno("a good send", 0, ibv_post_send(p.qp[0], &send, &bad_send));
	poll_within(p.cq[1], &wc, deadline_in(5));
	check(wc.status == IBV_WC_SUCCESS && !memcmp(b->area, b->area + 1024, 64), "a good message: %s",
	      ibv_wc_status_str(wc.status));
	pair_close(&p);
}
