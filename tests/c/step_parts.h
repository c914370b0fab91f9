/* What the active and the passive side of a step share. */
#ifndef IRDMA_TESTS_STEP_PARTS_H
#define IRDMA_TESTS_STEP_PARTS_H

#include "step.h"

#define TEXT 160

bool takes_receive(uint32_t operation);
bool is_atomic(uint32_t operation);
size_t cells_per_message(uint32_t operation);
struct layout target_layout(const struct step_spec *step);
struct layout active_layout(const struct step_spec *step);
struct layout receive_layout(const struct session *s, const struct step_spec *step);
void describe(const struct session *s, const struct step_spec *step, const char *side,
	      char text[TEXT]);
int message_sges(const struct session *s, const struct layout *layout, size_t i,
		 struct ibv_sge sge[MAX_CHUNKS]);

/* Values both sides derive from the step's key. */
uint32_t immediate_of(const struct step_spec *step, size_t i);
uint64_t word_of(uint64_t key, size_t i);
uint64_t addend_of(uint64_t key);
uint64_t comparand_of(uint64_t key, size_t i);
uint64_t swap_of(uint64_t key, size_t i);

#endif
