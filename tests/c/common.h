/*
 * What the C test programs share: exit statuses, deadlines, the TCP side
 * channel, and opening a device. libibverbs is the only RDMA library used.
 */
#ifndef IRDMA_TESTS_COMMON_H
#define IRDMA_TESTS_COMMON_H

#include <infiniband/verbs.h>
#include <stdint.h>

/* Exit statuses. A test may rely on each of them. */
enum outcome {
	OUTCOME_OK = 0,
	OUTCOME_MISMATCH = 1,   /* a byte, a value or a refusal differs */
	OUTCOME_USAGE = 2,
	OUTCOME_VERB = 3,       /* a verb that should succeed failed */
	OUTCOME_COMPLETION = 4, /* a completion with a bad status or field */
	OUTCOME_DEADLINE = 5,   /* nothing happened in time */
	OUTCOME_PEER = 6,       /* the other side failed or went away */
};

#define MICRO 1000ull
#define MILLI 1000000ull
#define SECOND 1000000000ull

extern const char *program_name;

/* Prints "PROGRAM: message" on stderr and exits. */
void fail(enum outcome outcome, const char *format, ...)
	__attribute__((noreturn, format(printf, 2, 3)));

/* As fail(OUTCOME_VERB), with the text of errno behind the message. */
void fail_verb(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t now_ns(void);

/* Seconds from now as a point in time for the waits below. */
uint64_t deadline_in(double seconds);

void *must_calloc(size_t count, size_t size);

/* The side channel: TCP, either address family. */
int side_listen(const char *port);
int side_accept(int listener, uint64_t deadline_ns);
int side_connect(const char *host, const char *port, uint64_t deadline_ns);
void side_send(int fd, const void *data, size_t size);
/* Waits for exactly size bytes, or fails with OUTCOME_DEADLINE or OUTCOME_PEER. */
void side_recv(int fd, void *data, size_t size, uint64_t deadline_ns);

/* Which GID to use when the command line names no index. */
enum family { FAMILY_IPV4, FAMILY_IPV6 };

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
};

/*
 * Opens the device called name (NULL: the first one) and its port 1.
 * gid_index below 0: the first RoCE v2 GID of the family.
 */
struct device open_device(const char *name, int gid_index, enum family family);

/* True for an IPv4-mapped GID. */
int gid_is_ipv4(const union ibv_gid *gid);

/* What one side must know of a QP to talk to it. */
struct qp_address {
	uint32_t qpn;
	uint32_t psn;
	union ibv_gid gid;
	uint32_t mtu; /* enum ibv_mtu */
};

struct qp_timing {
	uint8_t timeout;
	uint8_t retry_count;
	uint8_t rnr_retry;
};

#define QKEY 0x11223344u

struct ibv_ah_attr route_to(const struct device *device, const struct qp_address *remote);
void qp_to_init(struct ibv_qp *qp, enum ibv_qp_type type, int access);
void qp_to_rtr(const struct device *device, struct ibv_qp *qp, enum ibv_qp_type type,
	       const struct qp_address *remote);
void qp_to_rts(const struct device *device, struct ibv_qp *qp, enum ibv_qp_type type, uint32_t psn,
	       struct qp_timing timing);

/* Polls one completion until the deadline; false when there was none. */
int poll_within(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t deadline_ns);

#endif
