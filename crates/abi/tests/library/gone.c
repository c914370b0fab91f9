/* Objects that end while a thread waits for their events, or before one does: where a kernel has
 * the events, the thread sleeps for ever in read(2), and programs count on it when they end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "expect.h"

static struct ibv_context *context;

static void *new_channel(void)
{
	return ibv_create_comp_channel(context);
}

static int end_channel(void *channel)
{
	return ibv_destroy_comp_channel(channel);
}

static int wait_channel(void *channel)
{
	struct ibv_cq *cq;
	void *cq_context;

	return ibv_get_cq_event(channel, &cq, &cq_context);
}

static void *new_context(void)
{
	return ibv_open_device(context->device);
}

static int end_context(void *which)
{
	return ibv_close_device(which);
}

static int wait_context(void *which)
{
	struct ibv_async_event event;

	return ibv_get_async_event(which, &event);
}

static void *new_cm(void)
{
	return rdma_create_event_channel();
}

static int end_cm(void *channel)
{
	rdma_destroy_event_channel(channel);
	return 0;
}

static int wait_cm(void *channel)
{
	struct rdma_cm_event *event;

	return rdma_get_cm_event(channel, &event);
}

static const struct kind {
	void *(*make)(void);
	int (*end)(void *);
	int (*wait)(void *);
} kinds[] = {
	{ new_channel, end_channel, wait_channel },
	{ new_context, end_context, wait_context },
	{ new_cm, end_cm, wait_cm },
};

struct waiter {
	const struct kind *kind;
	void *object;
	pthread_t thread;
	int answer, error;
};

static void *wait(void *arg)
{
	struct waiter *waiter = arg;

	waiter->answer = waiter->kind->wait(waiter->object);
	waiter->error = errno;
	return NULL;
}

static void start(struct waiter *waiter, const struct kind *kind, void *object)
{
	*waiter = (struct waiter){ .kind = kind, .object = object };
	expect(!pthread_create(&waiter->thread, NULL, wait, waiter));
	usleep(50000);
}

/* It waited until now. */
static void cancel(struct waiter *waiter)
{
	void *result = NULL;

	expect(!pthread_cancel(waiter->thread) && !pthread_join(waiter->thread, &result));
	expect(result == PTHREAD_CANCELED);
}

static void nothing(int signal)
{
	(void)signal;
}

/* A signal whose handler is to interrupt calls ends the wait, as it does that in read(2). */
static void interrupted(const struct kind *kind)
{
	struct sigaction action = { .sa_handler = nothing }, before;
	struct waiter waiter;
	void *object = kind->make();

	expect(object && !sigaction(SIGUSR1, &action, &before));
	start(&waiter, kind, object);
	expect(!kind->end(object));
	/* A signal before the thread sleeps interrupts nothing. */
	for (int i = 0; pthread_tryjoin_np(waiter.thread, NULL); i++) {
		expect(i < 500);
		pthread_kill(waiter.thread, SIGUSR1);
		usleep(20000);
	}
	expect(waiter.answer == -1 && waiter.error == EINTR);
	expect(!sigaction(SIGUSR1, &before, NULL));
}

static void ends(const struct kind *kind)
{
	struct waiter in_time, late;
	void *object = kind->make();

	expect(object);
	start(&in_time, kind, object);
	expect(!kind->end(object));
	start(&late, kind, object);
	usleep(50000);
	cancel(&in_time);
	cancel(&late);
}

/* A channel at the address of one that is gone. */
static struct ibv_comp_channel *channel_at(const void *address)
{
	struct ibv_comp_channel *made[64], *found = NULL;
	int count = 0;

	while (!found && count < 64) {
		made[count] = ibv_create_comp_channel(context);
		expect(made[count]);
		if (made[count] == address)
			found = made[count];
		else
			count++;
	}
	while (count)
		expect(!ibv_destroy_comp_channel(made[--count]));
	expect(found);
	return found;
}

/* What comes after an object, at its address, has its events for itself. */
static void follows(void)
{
	struct waiter waiter;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context), *gone = channel;
	struct ibv_cq *cq, *which;
	void *cq_context;

	start(&waiter, &kinds[0], channel);
	expect(!ibv_destroy_comp_channel(channel));
	for (int round = 0; round < 3; round++) {
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_qp *qp;

		channel = channel_at(gone);
		cq = ibv_create_cq(context, 8, NULL, channel, 0);
		expect(pd && channel && cq && !ibv_req_notify_cq(cq, 0));
		qp = make_qp(pd, cq);
		connect_qp(qp, qp->qp_num);
		/* The last one is there for longer than a thread waits before it looks again. */
		usleep(round == 2 ? 1500000 : 0);
		expect(!ibv_post_send(qp, &wr, &bad));
		expect(!ibv_get_cq_event(channel, &which, &cq_context) && which == cq);
		ibv_ack_cq_events(cq, 1);
		expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
		expect(!ibv_destroy_comp_channel(channel));
	}
	cancel(&waiter);
}

/* What never was an object is refused. */
static void unknown(const struct kind *kind)
{
	long nothing[64] = { 0 };

	errno = 0;
	expect(kind->wait(NULL) == -1 && errno == EINVAL);
	errno = 0;
	expect(kind->wait(nothing) == -1 && errno == EINVAL);
}

int main(void)
{
	context = open_loopback();
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		ends(&kinds[i]);
		interrupted(&kinds[i]);
		unknown(&kinds[i]);
	}
	follows();
	expect(!ibv_close_device(context));
	return 0;
}
