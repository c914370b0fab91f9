/* Completion and asynchronous events: descriptors, acknowledgements, and who waits for them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "expect.h"

static char memory[64];
static atomic_int acknowledged;

static int readable(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout_ms);
}

static void post(struct ibv_qp *from, struct ibv_qp *to, struct ibv_mr *mr,
		 enum ibv_wr_opcode opcode, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;

	send.wr.rdma.remote_addr = (uintptr_t)memory;
	send.wr.rdma.rkey = rkey;
	if (opcode == IBV_WR_SEND)
		expect(!ibv_post_recv(to, &receive, &bad_receive));
	expect(!ibv_post_send(from, &send, &bad_send));
}

static void *acknowledge_cq(void *cq)
{
	usleep(50000);
	acknowledged = 1;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *acknowledge(void *event)
{
	usleep(50000);
	acknowledged = 1;
	ibv_ack_async_event(event);
	return NULL;
}

/* The descriptor's flags decide whether a call waits, and O_NONBLOCK can be set at any time. */
static void completions(struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(pd->context);
	struct ibv_cq *cq = ibv_create_cq(pd->context, 8, memory, channel, 0), *which;
	struct ibv_qp *a = make_qp(pd, cq), *b = make_qp(pd, cq);
	struct ibv_wc wc[4];
	pthread_t thread;
	void *context;
	int done = 0;

	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
	expect(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	errno = 0;
	expect(ibv_get_cq_event(channel, &which, &context) == -1 && errno == EAGAIN);
	expect(!ibv_req_notify_cq(cq, 0) && !readable(channel->fd, 0));
	post(a, b, mr, IBV_WR_SEND, 0);
	expect(readable(channel->fd, 5000) == 1);
	expect(!ibv_get_cq_event(channel, &which, &context) && which == cq && context == memory);
	expect(!readable(channel->fd, 0));
	while (done < 2) {
		int count = ibv_poll_cq(cq, 4, wc);

		expect(count >= 0);
		for (int i = 0; i < count; i++)
			expect(wc[i].status == IBV_WC_SUCCESS);
		done += count;
	}
	expect(ibv_poll_cq(cq, -1, wc) < 0 && ibv_poll_cq(cq, 0, NULL) == 0);
	expect(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK));
	expect(!ibv_req_notify_cq(cq, 0));
	post(b, a, mr, IBV_WR_SEND, 0);
	expect(!ibv_get_cq_event(channel, &which, &context));
	ibv_ack_cq_events(cq, 1);
	expect(cq->comp_events_completed == 1);
	expect(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	acknowledged = 0;
	expect(!pthread_create(&thread, NULL, acknowledge_cq, cq));
	expect(!ibv_destroy_cq(cq) && acknowledged);
	expect(!pthread_join(thread, NULL) && !ibv_destroy_comp_channel(channel));
}

/* A peer with a wrong key puts its target in error, which an event tells. */
static void errors(struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_context *context = pd->context;
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *a = make_qp(pd, cq), *b = make_qp(pd, cq);
	struct ibv_async_event event;
	pthread_t thread;

	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
	expect(!fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK));
	errno = 0;
	expect(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	expect(!fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) & ~O_NONBLOCK));
	post(a, b, mr, IBV_WR_RDMA_WRITE, mr->rkey ^ 0x55);
	/* The requester may be told of its error before. */
	for (;;) {
		expect(!ibv_get_async_event(context, &event));
		if (event.event_type != IBV_EVENT_COMM_EST && event.element.qp == b)
			break;
		ibv_ack_async_event(&event);
	}
	expect(event.event_type == IBV_EVENT_QP_ACCESS_ERR);
	acknowledged = 0;
	expect(!pthread_create(&thread, NULL, acknowledge, &event));
	expect(!ibv_destroy_qp(b) && acknowledged);
	expect(!pthread_join(thread, NULL) && !ibv_destroy_qp(a) && !ibv_destroy_cq(cq));
}

static void *wait_for_cq(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *wait_for_async(void *context)
{
	struct ibv_async_event event;

	ibv_get_async_event(context, &event);
	return NULL;
}

/* Programs end the threads that wait for events by cancelling them. */
static void cancelled(void *(*wait)(void *), void *where)
{
	pthread_t thread;
	void *result = NULL;

	expect(!pthread_create(&thread, NULL, wait, where));
	usleep(50000);
	expect(!pthread_cancel(thread) && !pthread_join(thread, &result));
	expect(result == PTHREAD_CANCELED);
}

static int right;

/* What is logged and captured must not be where a thread ends: the library holds locks. */
static void *post_uncancelled(void *qp)
{
	struct ibv_send_wr wr = { .opcode = 99 }, good = { .opcode = IBV_WR_RDMA_WRITE }, *bad;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	right = ibv_post_send(qp, &wr, &bad) == EINVAL && !ibv_post_send(qp, &good, &bad);
	pthread_testcancel();
	return NULL;
}

static void cancelled_while_posting(struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 8, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq);
	pthread_t thread;
	void *result;

	connect_qp(qp, qp->qp_num);
	expect(!pthread_create(&thread, NULL, post_uncancelled, qp) && !pthread_join(thread, &result));
	expect(result == PTHREAD_CANCELED && right);
	expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

static int capture_into(FILE *file)
{
	char path[32];

	if (!file)
		return 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
	return !setenv("IRDMA_CAPTURE", path, 1);
}

int main(void)
{
	/* Refusals write a line, and packets go into a file. */
	int writes = !setenv("IRDMA_LOG", "info", 1) && capture_into(tmpfile());
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_comp_channel *channel;

	expect(writes && pd && mr);
	completions(pd, mr);
	errors(pd, mr);
	channel = ibv_create_comp_channel(context);
	expect(channel);
	cancelled(wait_for_cq, channel);
	cancelled(wait_for_async, context);
	cancelled_while_posting(pd);
	completions(pd, mr);
	expect(!ibv_destroy_comp_channel(channel));
	expect(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
