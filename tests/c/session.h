/*
 * A session of the verifier: the connected queue pairs of one service, their
 * completion queues and the pool, on both sides of the side channel.
 */
#ifndef IRDMA_TESTS_SESSION_H
#define IRDMA_TESTS_SESSION_H

#include "common.h"
#include "layout.h"

enum wait { WAIT_POLL, WAIT_EVENT, WAIT_SOLICITED, WAIT_COUNT };

/* Wrong on purpose, on the active client: what the other side must then notice. */
enum sabotage { SABOTAGE_NONE, SABOTAGE_BYTE, SABOTAGE_LENGTH, SABOTAGE_COUNT };

/* What the client asks of both sides; sent as it is, both run the same program. */
struct session_spec {
	uint32_t service; /* enum ibv_qp_type */
	uint32_t qp_count;
	uint32_t depth; /* messages a queue pair and step */
	uint32_t wait;  /* enum wait */
	uint32_t sge_max;
	uint32_t inline_max;
	uint32_t strict; /* also what rdma_rxe does not get right */
	uint32_t unused;
	uint64_t pool_bytes;
	uint64_t key;
};

struct pool_address {
	uint64_t address;
	uint32_t rkey;
	uint32_t inline_granted;
};

struct queue {
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel; /* NULL when polled */
	bool solicited_only;
};

struct session {
	struct session_spec spec;
	struct device *device;
	int side;
	double deadline_s;
	enum sabotage sabotage; /* of this side only */
	struct pool pool;
	/* The same bytes twice, so that the SGEs of one message carry different keys. */
	struct ibv_mr *mr[2];
	struct queue send, receive;
	struct ibv_qp **qp;
	struct qp_address *local, *remote;
	struct ibv_ah **route; /* UD only */
	struct pool_address remote_pool;
	uint32_t inline_granted; /* the smaller of both sides */
};

/* guard_key differs between the sides: guard bytes of one must not pass for those of the other. */
struct session session_open(struct device *device, int side, struct session_spec spec,
			    uint64_t guard_key, double deadline_s);
/* Checks that every byte of the pool is a guard byte again, then frees it all. */
void session_close(struct session *session);

/* Waits for one completion with the means of the session. */
void queue_wait(const struct session *session, struct queue *queue, struct ibv_wc *wc,
		const char *what);

#endif
