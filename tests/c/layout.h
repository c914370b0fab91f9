/*
 * Where the bytes of a step lie, and what each of them must be.
 *
 * A pool is one registered area with unregistered guard bytes around it. A
 * step cuts it into cells, one a message. A message is one or several chunks
 * inside its cell, with guard bytes between and around them, so that a byte
 * written anywhere but into the message is seen.
 */
#ifndef IRDMA_TESTS_LAYOUT_H
#define IRDMA_TESTS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_CHUNKS 64
#define GRH_BYTES 40

struct pool {
	uint8_t *allocated; /* OUTER guard bytes, the pool, OUTER guard bytes */
	uint8_t *base;
	size_t size;
	uint64_t guard_key;
};

struct layout {
	size_t size;   /* bytes of payload of each message */
	size_t head;   /* bytes before the payload whose content is not ours (GRH) */
	int chunk_max; /* pieces a message is scattered into, if it has the bytes */
	bool aligned;  /* the first byte lies at a multiple of 8 */
	size_t stride; /* bytes of a cell */
};

struct chunk {
	uint8_t *at;
	size_t size;
};

struct pool pool_create(size_t size, uint64_t guard_key);
/* Fails when a byte of the pool or around it is not a guard byte. */
void pool_check_clean(const struct pool *pool, const char *what);

struct layout layout_of(size_t size, size_t head, int chunk_max, bool aligned);
/* Cells of this layout that the pool holds. */
size_t layout_capacity(const struct pool *pool, const struct layout *layout);
/* The chunks of message i; returns how many (0 for an empty message). */
int layout_chunks(const struct pool *pool, const struct layout *layout, size_t i,
		  struct chunk chunks[MAX_CHUNKS]);

/* The payload byte at position of message i of the step called key. */
uint8_t pattern_byte(uint64_t key, size_t i, size_t position);

/* Writes the payload of message i into its chunks. */
void message_fill(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key);
/* Writes one value into every byte of the chunks of message i. */
void message_poison(const struct pool *pool, const struct layout *layout, size_t i, uint8_t value);
/* Makes the chunks of message i guard bytes again. */
void message_erase(const struct pool *pool, const struct layout *layout, size_t i);
/* True when the payload of message i is there. */
bool message_arrived(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key);
/* Fails unless the payload of message i is there. */
void message_check(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key,
		   const char *what);
/* Fails when a byte of the cell of message i outside its chunks changed. */
void cell_check(const struct pool *pool, const struct layout *layout, size_t i, const char *what);
/* Collects the first bytes of message i. */
void message_head(const struct pool *pool, const struct layout *layout, size_t i, uint8_t *head);

#endif
