/* One RC queue pair and one buffer on each of two hosts, connected over the side channel. */
#ifndef IRDMA_TESTS_LINK_H
#define IRDMA_TESTS_LINK_H

#include "common.h"

#define LINK_DEPTH 16
#define LINK_PATIENCE_S 120.0

struct link_spec {
	size_t bytes;
	int access;        /* of region and queue pair, besides the local one */
	uint64_t send_ops; /* enum ibv_qp_create_send_ops_flags; 0 for ibv_post_send only */
};

struct link {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buffer;
	uint64_t remote_addr;
	uint32_t rkey;
	int side;
	int serves;
	const char *argument; /* what the client has besides host and port, NULL for nothing */
};

/*
 * Takes "-s PORT" or "HOST PORT [ARGUMENT]", and --gid INDEX, --ipv6 with
 * either; returns connected.
 */
struct link link_open(const char *name, int argc, char **argv, struct link_spec spec);
/* The server's part: nothing, until the client is done. */
void link_serve(struct link *link);
void link_finish(struct link *link);
/* One completion, which must be good. */
void link_complete(struct link *link, const char *what);

#endif
