#include "checks.h"

#include <errno.h>
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
