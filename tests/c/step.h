/* One step of the verifier: one operation on every queue pair of a session. */
#ifndef IRDMA_TESTS_STEP_H
#define IRDMA_TESTS_STEP_H

#include "session.h"

enum operation {
	OP_SEND,
	OP_SEND_IMM,
	OP_WRITE,
	OP_WRITE_IMM,
	OP_READ,
	OP_FETCH_ADD,
	OP_CMP_SWAP,
	OP_SEND_INV, /* a WRITE through a type 2 window, then SEND with invalidate of it */
	OP_COUNT,
};

extern const char *const operation_names[OP_COUNT];

enum order { ORDER_STEP, ORDER_CLOSE, ORDER_BYE };

/* What the client orders; sent as it is. */
struct step_spec {
	uint32_t order; /* enum order; the rest counts for ORDER_STEP only */
	uint32_t operation;
	uint32_t server_active; /* which side posts the operation */
	uint32_t chunks;        /* pieces on the active side */
	uint32_t receive_chunks;
	uint32_t inlined;
	uint64_t size;
	uint64_t count; /* messages */
	uint64_t key;
};

bool operation_allowed(enum operation operation, uint32_t service);
bool operation_takes_inline(enum operation operation);
/* Messages of one step that the session has room for. */
size_t step_room(const struct session *session, enum operation operation, size_t size);

void step_active(struct session *session, const struct step_spec *step);
void step_passive(struct session *session, const struct step_spec *step);

#endif
