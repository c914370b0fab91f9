#include "step.h"

#include <stdio.h>

#include "step_parts.h"

const char *const operation_names[OP_COUNT] = {
	"send", "send_imm", "write", "write_imm", "read", "fetch_add", "cmp_swap", "send_inv",
};

static const char *service_name(uint32_t service)
{
	return service == IBV_QPT_RC ? "rc" : service == IBV_QPT_UC ? "uc" : "ud";
}

bool operation_allowed(enum operation operation, uint32_t service)
{
	if (service == IBV_QPT_RC)
		return true;
	if (service == IBV_QPT_UC)
		return operation <= OP_WRITE_IMM;
	return operation == OP_SEND || operation == OP_SEND_IMM;
}

bool operation_takes_inline(enum operation operation)
{
	return operation <= OP_WRITE_IMM || operation == OP_SEND_INV;
}

bool takes_receive(uint32_t operation)
{
	return operation == OP_SEND || operation == OP_SEND_IMM || operation == OP_WRITE_IMM ||
	       operation == OP_SEND_INV;
}

bool is_atomic(uint32_t operation)
{
	return operation == OP_FETCH_ADD || operation == OP_CMP_SWAP;
}

/* Cells that each message of this operation needs. */
size_t cells_per_message(uint32_t operation)
{
	return operation == OP_SEND_INV ? 2 : 1;
}

/*
 * Messages in one piece, as RDMA operations of the other side see them. Windows
 * share the pool with receives and so have the receives' cells.
 */
struct layout target_layout(const struct step_spec *step)
{
	struct layout layout = layout_of(step->size, 0, 1, is_atomic(step->operation));

	if (step->operation == OP_SEND_INV)
		layout.stride = layout_of(step->size, 0, (int)step->receive_chunks, false).stride;
	return layout;
}

struct layout active_layout(const struct step_spec *step)
{
	return layout_of(step->size, 0, (int)step->chunks, is_atomic(step->operation));
}

struct layout receive_layout(const struct session *s, const struct step_spec *step)
{
	size_t head = s->spec.service == IBV_QPT_UD ? GRH_BYTES : 0;

	return layout_of(step->size, head, (int)step->receive_chunks, false);
}

size_t step_room(const struct session *s, enum operation operation, size_t size)
{
	struct step_spec worst = {
		.operation = operation, .size = size, .chunks = s->spec.sge_max,
		.receive_chunks = s->spec.sge_max,
	};
	struct layout layout = receive_layout(s, &worst);
	size_t room = layout_capacity(&s->pool, &layout) / cells_per_message(operation);
	size_t want = (size_t)s->spec.qp_count * s->spec.depth;

	return room < want ? room : want;
}

void describe(const struct session *s, const struct step_spec *step, const char *side, char text[TEXT])
{
	snprintf(text, TEXT, "%s %s size %llu chunks %u/%u%s (%s side)", service_name(s->spec.service),
		 operation_names[step->operation], (unsigned long long)step->size, step->chunks,
		 step->receive_chunks, step->inlined ? " inline" : "", side);
}

int message_sges(const struct session *s, const struct layout *layout, size_t i,
		 struct ibv_sge sge[MAX_CHUNKS])
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(&s->pool, layout, i, chunks);

	for (int c = 0; c < count; c++)
		sge[c] = (struct ibv_sge){
			.addr = (uintptr_t)chunks[c].at,
			.length = (uint32_t)chunks[c].size,
			.lkey = s->mr[c & 1]->lkey,
		};
	return count;
}

uint32_t immediate_of(const struct step_spec *step, size_t i)
{
	return (uint32_t)(step->key >> 13) + (uint32_t)i * 0x01010101u;
}

uint64_t word_of(uint64_t key, size_t i)
{
	uint64_t word = 0;

	for (size_t b = 0; b < 8; b++)
		word = word << 8 | pattern_byte(key, i, b);
	return word;
}

/* Odd, so that every message's sum differs; with carries into every byte. */
uint64_t addend_of(uint64_t key)
{
	return key << 1 | 1;
}

/* Every second comparison misses. */
uint64_t comparand_of(uint64_t key, size_t i)
{
	return word_of(key, i) + (i & 1);
}

uint64_t swap_of(uint64_t key, size_t i)
{
	return ~word_of(key, i);
}
