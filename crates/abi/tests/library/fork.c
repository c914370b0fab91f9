/* A forked child that cleans up what it inherited: nothing happens to its parent, and the child takes
 * no lock that a thread of the parent held at the fork. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

#define CHILDREN 200

static struct rdma_event_channel *asked;
static atomic_int done;

/* Looks for events all the time. */
static void *ask(void *arg)
{
	struct rdma_cm_event *event;

	while (!done) {
		errno = 0;
		expect(rdma_get_cm_event(asked, &event) == -1 && errno == EAGAIN);
	}
	return arg;
}

static void child(struct ibv_comp_channel *completions, struct rdma_event_channel *events)
{
	struct rdma_event_channel *own;
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *cq_context;

	alarm(30);
	own = rdma_create_event_channel();
	expect(own);
	rdma_destroy_event_channel(own);
	errno = 0;
	expect(ibv_get_cq_event(completions, &cq, &cq_context) == -1 && errno == EIO);
	errno = 0;
	expect(rdma_get_cm_event(events, &event) == -1 && errno == EIO);
	ibv_destroy_comp_channel(completions);
	rdma_destroy_event_channel(events);
	_exit(0);
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_comp_channel *completions = ibv_create_comp_channel(context);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct pollfd fds[3];
	pthread_t threads[2];

	asked = rdma_create_event_channel();
	expect(completions && events && asked && !fcntl(asked->fd, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < 2; i++)
		expect(!pthread_create(&threads[i], NULL, ask, NULL));
	for (int i = 0; i < CHILDREN; i++) {
		int status;
		pid_t pid = fork();

		if (!pid)
			child(completions, events);
		expect(pid > 0 && waitpid(pid, &status, 0) == pid && !status);
	}
	done = 1;
	for (int i = 0; i < 2; i++)
		expect(!pthread_join(threads[i], NULL));
	fds[0] = (struct pollfd){ .fd = completions->fd, .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = events->fd, .events = POLLIN };
	fds[2] = (struct pollfd){ .fd = context->async_fd, .events = POLLIN };
	expect(poll(fds, 3, 0) == 0);
	expect(!ibv_destroy_comp_channel(completions));
	rdma_destroy_event_channel(events);
	rdma_destroy_event_channel(asked);
	expect(!ibv_close_device(context));
	return 0;
}
