#include "common.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const char *program_name = "test";

void fail(enum outcome outcome, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "%s: ", program_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(outcome);
}

void fail_verb(const char *format, ...)
{
	char text[256];
	int error = errno;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fail(OUTCOME_VERB, "%s: %s", text, strerror(error));
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

uint64_t deadline_in(double seconds)
{
	return now_ns() + (uint64_t)(seconds * (double)SECOND);
}

void *must_calloc(size_t count, size_t size)
{
	void *p = calloc(count ? count : 1, size);

	if (!p)
		fail(OUTCOME_VERB, "no memory for %zu x %zu bytes", count, size);
	return p;
}

static struct addrinfo *resolve(const char *host, const char *port, int flags)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags };
	struct addrinfo *list;
	int error = getaddrinfo(host, port, &hints, &list);

	if (error)
		fail(OUTCOME_USAGE, "%s port %s: %s", host ? host : "*", port, gai_strerror(error));
	return list;
}

/* One listener for both families, or for IPv4 alone where IPv6 is off. */
int side_listen(const char *port)
{
	int on = 1, off = 0;
	uint16_t number = (uint16_t)atoi(port);
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(number) };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(number) };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (!bind(fd, (struct sockaddr *)&six, sizeof six) && !listen(fd, 4))
			return fd;
		close(fd);
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (fd < 0 || bind(fd, (struct sockaddr *)&four, sizeof four) || listen(fd, 4))
		fail_verb("cannot listen on TCP port %s", port);
	return fd;
}

static int milliseconds_until(uint64_t deadline_ns)
{
	uint64_t now = now_ns();

	return now >= deadline_ns ? 0 : (int)((deadline_ns - now) / MILLI) + 1;
}

static int no_delay(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return fd;
}

int side_accept(int listener, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };
	int fd;

	if (poll(&p, 1, milliseconds_until(deadline_ns)) < 1)
		fail(OUTCOME_DEADLINE, "no client connected");
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		fail_verb("accept");
	return no_delay(fd);
}

int side_connect(const char *host, const char *port, uint64_t deadline_ns)
{
	struct addrinfo *list = resolve(host, port, 0), *a;

	do {
		for (a = list; a; a = a->ai_next) {
			int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

			if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) {
				freeaddrinfo(list);
				return no_delay(fd);
			}
			if (fd >= 0)
				close(fd);
		}
		usleep(20000);
	} while (now_ns() < deadline_ns);
	fail(OUTCOME_PEER, "cannot connect to %s port %s: %s", host, port, strerror(errno));
}

void side_send(int fd, const void *data, size_t size)
{
	const char *p = data;

	while (size) {
		ssize_t n = send(fd, p, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail(OUTCOME_PEER, "the other side is gone: %s", strerror(errno));
		p += n;
		size -= (size_t)n;
	}
}

void side_recv(int fd, void *data, size_t size, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char *at = data;

	while (size) {
		ssize_t n;
		int ready = poll(&p, 1, milliseconds_until(deadline_ns));

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready < 1)
			fail(OUTCOME_DEADLINE, "the other side says nothing");
		n = recv(fd, at, size, 0);
		if (n <= 0)
			fail(OUTCOME_PEER, "the other side closed the side channel");
		at += n;
		size -= (size_t)n;
	}
}

int gid_is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid->raw, mapped, sizeof mapped);
}

static int is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static int gid_of_family(const struct device *d, enum family family)
{
	struct ibv_gid_entry entry;

	for (int i = 0; i < d->port.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(d->context, 1, (uint32_t)i, &entry, 0))
			continue;
		if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || is_link_local(&entry.gid))
			continue;
		if (gid_is_ipv4(&entry.gid) == (family == FAMILY_IPV4))
			return i;
	}
	fail(OUTCOME_VERB, "%s has no RoCE v2 GID for %s", ibv_get_device_name(d->context->device),
	     family == FAMILY_IPV4 ? "IPv4" : "IPv6");
}

static struct ibv_context *open_named(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	if (!list)
		fail_verb("ibv_get_device_list");
	for (int i = 0; i < count && !context; i++)
		if (!name || !strcmp(name, ibv_get_device_name(list[i])))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	if (!context)
		fail(OUTCOME_VERB, "cannot open device %s (%d devices)", name ? name : "0", count);
	return context;
}

struct device open_device(const char *name, int gid_index, enum family family)
{
	struct device d = { .context = open_named(name) };

	d.pd = ibv_alloc_pd(d.context);
	if (!d.pd)
		fail_verb("ibv_alloc_pd");
	if (ibv_query_device(d.context, &d.attr))
		fail_verb("ibv_query_device");
	if (ibv_query_port(d.context, 1, &d.port))
		fail_verb("ibv_query_port");
	if (d.port.state != IBV_PORT_ACTIVE)
		fail(OUTCOME_VERB, "port 1 is %s", ibv_port_state_str(d.port.state));
	d.gid_index = gid_index < 0 ? gid_of_family(&d, family) : gid_index;
	if (ibv_query_gid(d.context, 1, d.gid_index, &d.gid))
		fail_verb("ibv_query_gid %d", d.gid_index);
	return d;
}

struct ibv_ah_attr route_to(const struct device *device, const struct qp_address *remote)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = remote->gid,
			 .sgid_index = (uint8_t)device->gid_index,
			 .hop_limit = 64 },
	};
}

void qp_to_init(struct ibv_qp *qp, enum ibv_qp_type type, int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = (unsigned)access
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if ((errno = ibv_modify_qp(qp, &attr, mask)))
		fail_verb("ibv_modify_qp to INIT");
}

static uint8_t at_most(int have, int want)
{
	return (uint8_t)(have < want ? have : want);
}

void qp_to_rtr(const struct device *device, struct ibv_qp *qp, enum ibv_qp_type type,
	       const struct qp_address *remote)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask = IBV_QP_STATE;

	if (type != IBV_QPT_UD) {
		attr.path_mtu = device->port.active_mtu < remote->mtu ? device->port.active_mtu
								      : (enum ibv_mtu)remote->mtu;
		attr.dest_qp_num = remote->qpn;
		attr.rq_psn = remote->psn;
		attr.ah_attr = route_to(device, remote);
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (type == IBV_QPT_RC) {
		attr.max_dest_rd_atomic = at_most(device->attr.max_qp_rd_atom, 16);
		attr.min_rnr_timer = 12;
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	if ((errno = ibv_modify_qp(qp, &attr, mask)))
		fail_verb("ibv_modify_qp to RTR");
}

void qp_to_rts(const struct device *device, struct ibv_qp *qp, enum ibv_qp_type type, uint32_t psn,
	       struct qp_timing timing)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = psn };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (type == IBV_QPT_RC) {
		attr.timeout = timing.timeout;
		attr.retry_cnt = timing.retry_count;
		attr.rnr_retry = timing.rnr_retry;
		attr.max_rd_atomic = at_most(device->attr.max_qp_init_rd_atom, 16);
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if ((errno = ibv_modify_qp(qp, &attr, mask)))
		fail_verb("ibv_modify_qp to RTS");
}

int poll_within(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t deadline_ns)
{
	do {
		int n = ibv_poll_cq(cq, 1, wc);

		if (n < 0)
			fail(OUTCOME_VERB, "ibv_poll_cq returned %d", n);
		if (n)
			return 1;
	} while (now_ns() < deadline_ns);
	return 0;
}
