#include "layout.h"

#include <string.h>

#include "common.h"

#define OUTER 8192
#define MARGIN 64
#define GAP 16

static uint64_t mix(uint64_t key, uint64_t index)
{
	uint64_t x = key + index * 0x9e3779b97f4a7c15ull;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 32;
}

static uint64_t message_key(uint64_t key, size_t i)
{
	return mix(key, i + 1);
}

static uint8_t byte_of(uint64_t key, size_t position)
{
	return (uint8_t)(mix(key, position / 8) >> 8 * (position % 8));
}

uint8_t pattern_byte(uint64_t key, size_t i, size_t position)
{
	return byte_of(message_key(key, i), position);
}

/* The same bytes as byte_of, eight at a time where possible. */
static void fill(uint8_t *at, size_t size, uint64_t key, size_t position)
{
	while (size) {
		if (position % 8 == 0 && size >= 8) {
			uint64_t word = mix(key, position / 8);

			memcpy(at, &word, 8);
			at += 8, position += 8, size -= 8;
		} else {
			*at++ = byte_of(key, position++);
			size--;
		}
	}
}

/* Offset of the first byte that is not as fill would write it, or size. */
static size_t first_difference(const uint8_t *at, size_t size, uint64_t key, size_t position)
{
	size_t done = 0;

	while (done < size) {
		size_t p = position + done;

		if (p % 8 == 0 && size - done >= 8) {
			uint64_t want = mix(key, p / 8);

			if (!memcmp(at + done, &want, 8)) {
				done += 8;
				continue;
			}
		}
		if (at[done] != byte_of(key, p))
			return done;
		done++;
	}
	return size;
}

/* Guard bytes depend on where they are: at is anywhere in the allocation. */
static void guard_fill(const struct pool *pool, uint8_t *at, size_t size)
{
	fill(at, size, pool->guard_key, (size_t)(at - pool->allocated));
}

static void guard_check(const struct pool *pool, const uint8_t *at, size_t size, const char *what)
{
	size_t position = (size_t)(at - pool->allocated);
	size_t bad = first_difference(at, size, pool->guard_key, position);
	long offset = (long)(at + bad - pool->base);

	if (bad == size)
		return;
	fail(OUTCOME_MISMATCH, "%s: guard byte at pool offset %ld of %zu: expected 0x%02x, got 0x%02x",
	     what, offset, pool->size, byte_of(pool->guard_key, position + bad), at[bad]);
}

struct pool pool_create(size_t size, uint64_t guard_key)
{
	struct pool pool = { .size = size, .guard_key = guard_key };

	pool.allocated = must_calloc(1, size + 2 * OUTER);
	pool.base = pool.allocated + OUTER;
	guard_fill(&pool, pool.allocated, size + 2 * OUTER);
	return pool;
}

void pool_check_clean(const struct pool *pool, const char *what)
{
	guard_check(pool, pool->allocated, pool->size + 2 * OUTER, what);
}

struct layout layout_of(size_t size, size_t head, int chunk_max, bool aligned)
{
	struct layout layout = { .size = size, .head = head, .chunk_max = chunk_max, .aligned = aligned };
	size_t pieces = (size_t)(chunk_max < MAX_CHUNKS ? chunk_max : MAX_CHUNKS);
	size_t bytes = 3 * MARGIN + head + size + pieces * (GAP + 5);

	layout.stride = (bytes + 63) / 64 * 64;
	return layout;
}

size_t layout_capacity(const struct pool *pool, const struct layout *layout)
{
	return pool->size / layout->stride;
}

static uint8_t *cell(const struct pool *pool, const struct layout *layout, size_t i)
{
	return pool->base + i * layout->stride;
}

int layout_chunks(const struct pool *pool, const struct layout *layout, size_t i,
		  struct chunk chunks[MAX_CHUNKS])
{
	size_t total = layout->head + layout->size;
	size_t shift = layout->aligned ? (i * 8) % 64 : (i * 7 + layout->size * 3) % 61;
	uint8_t *at = cell(pool, layout, i) + MARGIN + shift;
	size_t count = (size_t)(layout->chunk_max < MAX_CHUNKS ? layout->chunk_max : MAX_CHUNKS);

	if (count > total)
		count = total;
	for (size_t c = 0; c < count; c++) {
		chunks[c].at = at;
		chunks[c].size = total / count + (c < total % count);
		at += chunks[c].size + GAP + c % 5;
	}
	return (int)count;
}

void message_fill(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);
	size_t position = 0;

	for (int c = 0; c < count; c++) {
		fill(chunks[c].at, chunks[c].size, message_key(key, i), position);
		position += chunks[c].size;
	}
}

void message_poison(const struct pool *pool, const struct layout *layout, size_t i, uint8_t value)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);

	for (int c = 0; c < count; c++)
		memset(chunks[c].at, value, chunks[c].size);
}

void message_erase(const struct pool *pool, const struct layout *layout, size_t i)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);

	for (int c = 0; c < count; c++)
		guard_fill(pool, chunks[c].at, chunks[c].size);
}

/* Payload offset of the first wrong byte, or the payload's size. got receives the byte. */
static size_t payload_difference(const struct pool *pool, const struct layout *layout, size_t i,
				 uint64_t key, uint8_t *got)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);
	size_t before = 0;

	for (int c = 0; c < count; c++) {
		size_t skip = before < layout->head ? layout->head - before : 0;
		size_t size = chunks[c].size, bad;

		if (skip > size)
			skip = size;
		bad = first_difference(chunks[c].at + skip, size - skip, message_key(key, i),
				       before + skip - layout->head);
		if (bad < size - skip) {
			*got = chunks[c].at[skip + bad];
			return before + skip + bad - layout->head;
		}
		before += size;
	}
	return layout->size;
}

bool message_arrived(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key)
{
	uint8_t got;

	return payload_difference(pool, layout, i, key, &got) == layout->size;
}

void message_check(const struct pool *pool, const struct layout *layout, size_t i, uint64_t key,
		   const char *what)
{
	uint8_t got = 0;
	size_t bad = payload_difference(pool, layout, i, key, &got);

	if (bad == layout->size)
		return;
	fail(OUTCOME_MISMATCH, "%s: message %zu: offset %zu of %zu: expected 0x%02x, got 0x%02x", what, i,
	     bad, layout->size, pattern_byte(key, i, bad), got);
}

void cell_check(const struct pool *pool, const struct layout *layout, size_t i, const char *what)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);
	uint8_t *at = cell(pool, layout, i), *end = at + layout->stride;

	for (int c = 0; c < count; c++) {
		guard_check(pool, at, (size_t)(chunks[c].at - at), what);
		at = chunks[c].at + chunks[c].size;
	}
	guard_check(pool, at, (size_t)(end - at), what);
}

void message_head(const struct pool *pool, const struct layout *layout, size_t i, uint8_t *head)
{
	struct chunk chunks[MAX_CHUNKS];
	int count = layout_chunks(pool, layout, i, chunks);
	size_t have = 0;

	for (int c = 0; c < count && have < layout->head; c++)
		for (size_t b = 0; b < chunks[c].size && have < layout->head; b++)
			head[have++] = chunks[c].at[b];
}
