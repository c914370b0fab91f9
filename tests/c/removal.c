/*
 * removal: a program whose device disappears.
 *
 *   removal [--device NAME] [--gid INDEX] [--ipv6]
 *
 * Prints "ready" with requests in flight and two threads that wait for events;
 * whoever started it deletes the interface, then sends a line to stdin.
 *
 * Exit status: enum outcome of common.h.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "checks.h"

#define LEN 4096

struct waiter {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	enum ibv_event_type heard[8];
	int count, error;
};

static void *wait_for_completions(void *argument)
{
	struct waiter *w = argument;
	struct ibv_cq *cq;
	void *context;

	w->error = ibv_get_cq_event(w->channel, &cq, &context) ? errno : 0;
	return NULL;
}

static void *wait_for_events(void *argument)
{
	struct waiter *w = argument;
	struct ibv_async_event event;

	while (!ibv_get_async_event(w->context, &event)) {
		if (event.event_type != IBV_EVENT_GID_CHANGE && w->count < 8)
			w->heard[w->count++] = event.event_type;
		ibv_ack_async_event(&event);
	}
	w->error = errno;
	return NULL;
}

/* One receive that nothing fills, and one send that nobody takes. */
static void post(struct pair *p, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = LEN, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;

	check_errno("posting a receive", 0, ibv_post_recv(p->qp[0], &recv, &bad_recv));
	check_errno("posting a send", 0, ibv_post_send(p->qp[0], &send, &bad_send));
}

static void check_flushed(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		int got = poll_within(cq, &wc, deadline_in(5));

		check(got == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, "request %d is flushed", i);
	}
	check(ibv_poll_cq(cq, 1, &wc) == -EIO, "an empty queue says that the device is gone");
}

static void check_calls(struct bench *b, struct pair *p, struct ibv_mr *mr)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr init;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { .wr_id = 3 }, *bad_recv;

	check_errno("ibv_post_send", EIO, ibv_post_send(p->qp[0], &send, &bad_send));
	check_errno("ibv_post_recv", EIO, ibv_post_recv(p->qp[0], &recv, &bad_recv));
	check_errno("ibv_modify_qp", EIO, ibv_modify_qp(p->qp[0], &attr, IBV_QP_STATE));
	check_errno("ibv_query_qp", EIO, ibv_query_qp(p->qp[0], &attr, IBV_QP_STATE, &init));
	check_errno("ibv_req_notify_cq", EIO, ibv_req_notify_cq(p->cq[0], 0));
	check_null("ibv_alloc_pd", ibv_alloc_pd(b->device.context), EIO);
	check_null("ibv_reg_mr", ibv_reg_mr(b->device.pd, mr->addr, LEN, 0), EIO);
	check_null("ibv_create_cq", ibv_create_cq(b->device.context, 1, NULL, NULL, 0), EIO);
	check_null("ibv_create_comp_channel", ibv_create_comp_channel(b->device.context), EIO);
}

int main(int argc, char **argv)
{
	static char memory[LEN];
	struct bench b = bench_open("removal", argc, argv);
	struct pair p = pair_open(&b.device, (struct pair_options){ .type = IBV_QPT_RC, .timing = patient });
	struct ibv_mr *mr = ibv_reg_mr(b.device.pd, memory, LEN, IBV_ACCESS_LOCAL_WRITE);
	struct waiter w[2] = { { .context = b.device.context }, { .context = b.device.context } };
	pthread_t thread[2];
	char line[16];

	w[0].channel = ibv_create_comp_channel(b.device.context);
	if (!mr || !w[0].channel)
		fail_verb("ibv_reg_mr or ibv_create_comp_channel");
	post(&p, mr);
	if (pthread_create(&thread[0], NULL, wait_for_completions, &w[0]) ||
	    pthread_create(&thread[1], NULL, wait_for_events, &w[1]))
		fail(OUTCOME_USAGE, "no threads");
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		fail(OUTCOME_USAGE, "expected a line on stdin");
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	check(w[0].error == EIO && w[1].error == EIO, "both threads come back with EIO");
	check(w[1].count == 2 && w[1].heard[0] == IBV_EVENT_PORT_ERR &&
		      w[1].heard[1] == IBV_EVENT_DEVICE_FATAL,
	      "PORT_ERR, then DEVICE_FATAL");
	check_flushed(p.cq[0]);
	check_calls(&b, &p, mr);
	memset(memory, 1, LEN);
	pair_close(&p);
	check_errno("ibv_dereg_mr", 0, ibv_dereg_mr(mr));
	check_errno("ibv_dereg_mr of an idle region", 0, ibv_dereg_mr(b.mr));
	check_errno("ibv_destroy_cq", 0, ibv_destroy_cq(b.cq));
	check_errno("ibv_destroy_comp_channel", 0, ibv_destroy_comp_channel(w[0].channel));
	check_errno("ibv_dealloc_pd", 0, ibv_dealloc_pd(b.device.pd));
	check_errno("ibv_close_device", 0, ibv_close_device(b.device.context));
	checks_finish();
}
