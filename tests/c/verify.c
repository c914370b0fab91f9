/*
 * verify: moves data between two processes with every operation, and compares
 * every byte of it and the bytes around it.
 *
 *   verify -s [OPTIONS]            server: serves one client, then exits
 *   verify HOST [OPTIONS] [MATRIX] client: says what is done, in both roles
 *
 * Options of both: --port P --device NAME --gid INDEX --ipv6 --deadline SECONDS
 * The matrix is the product of (comma separated):
 *   --services rc,uc,ud        --ops send,send_imm,write,write_imm,read,
 *   --qps 1,4                        fetch_add,cmp_swap,send_inv
 *   --wait poll,event,solicited
 *   --sges 1,3,max             --inline 0,64
 *   --sizes 1,7-40,41-8193/13,pow2:1-1048576   (pow2: with both neighbours)
 *   --direction out,in         who posts: out the client, in the server
 * and --depth messages a queue pair and step, --pool-mib memory a side,
 * --uc-max bytes, --strict: fail on what rdma_rxe does differently, too.
 * --sabotage byte|length makes the client's messages wrong: the server must fail.
 *
 * Exit status: enum outcome of common.h.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"

#define LIST_MAX 16
#define SGE_MAX_WORD UINT32_MAX

struct list {
	uint32_t item[LIST_MAX];
	int count;
};

struct options {
	const char *host, *port, *device;
	int gid_index;
	enum family family;
	double deadline_s;
	struct list services, operations, qps, waits, sges, inlines, directions;
	uint64_t *sizes;
	size_t size_count;
	uint32_t depth;
	uint64_t pool_bytes, uc_max;
	bool strict, server;
	enum sabotage sabotage;
};

/* What either side tells first. */
struct hello {
	uint32_t magic;
	uint32_t sge_max;
	uint32_t mtu_bytes;
};

#define MAGIC 0x76657233u

static const struct session_spec no_session = { .service = UINT32_MAX };

static void usage(const char *problem, const char *value)
{
	fail(OUTCOME_USAGE, "%s: %s (see the head of verify.c)", problem, value);
}

static uint32_t word_index(const char *word, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(word, names[i]))
			return (uint32_t)i;
	usage("not known", word);
	return 0;
}

static uint64_t number(const char *word)
{
	char *end;
	uint64_t n = strtoull(word, &end, 0);

	if (*end || end == word)
		usage("not a number", word);
	return n;
}

static uint32_t number_or_max(const char *word)
{
	return !strcmp(word, "max") ? SGE_MAX_WORD : (uint32_t)number(word);
}

static uint32_t service_of(const char *word)
{
	static const char *const names[] = { "rc", "uc", "ud" };
	static const uint32_t types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };

	return types[word_index(word, names, 3)];
}

static uint32_t operation_of(const char *word)
{
	return word_index(word, operation_names, OP_COUNT);
}

static uint32_t wait_of(const char *word)
{
	static const char *const names[] = { "poll", "event", "solicited" };

	return word_index(word, names, WAIT_COUNT);
}

static uint32_t direction_of(const char *word)
{
	static const char *const names[] = { "out", "in" };

	return word_index(word, names, 2);
}

static enum sabotage sabotage_of(const char *word)
{
	static const char *const names[] = { "none", "byte", "length" };

	return word_index(word, names, SABOTAGE_COUNT);
}

static struct list parse_list(const char *text, uint32_t (*parse)(const char *))
{
	char *copy = strdup(text), *rest = copy, *word;
	struct list list = { .count = 0 };

	while ((word = strsep(&rest, ","))) {
		if (list.count == LIST_MAX)
			usage("too many items", text);
		list.item[list.count++] = parse(word);
	}
	free(copy);
	return list;
}

static void add_size(struct options *o, uint64_t size)
{
	if (o->size_count % 1024 == 0) {
		o->sizes = realloc(o->sizes, (o->size_count + 1024) * sizeof *o->sizes);
		if (!o->sizes)
			fail(OUTCOME_VERB, "no memory for the sizes");
	}
	o->sizes[o->size_count++] = size;
}

/* One item: N, FROM-TO, FROM-TO/STEP or pow2:FROM-TO. */
static void add_sizes(struct options *o, const char *item)
{
	bool powers = !strncmp(item, "pow2:", 5);
	unsigned long long from, to, step = 1;
	int fields = sscanf(item + (powers ? 5 : 0), "%llu-%llu/%llu", &from, &to, &step);

	if (fields < 1 || step == 0 || (powers && fields != 2))
		usage("not a size", item);
	if (fields == 1)
		to = from;
	if (!powers) {
		for (unsigned long long size = from; size <= to; size += step)
			add_size(o, size);
		return;
	}
	for (unsigned long long power = 1; power <= to; power *= 2)
		for (int neighbour = -1; neighbour <= 1; neighbour++)
			if (power + neighbour >= from && power + neighbour <= to + 1)
				add_size(o, power + neighbour);
}

static void parse_sizes(struct options *o, const char *text)
{
	char *copy = strdup(text), *rest = copy, *word;

	o->size_count = 0;
	while ((word = strsep(&rest, ",")))
		add_sizes(o, word);
	free(copy);
}

enum long_option {
	O_PORT = 256, O_DEVICE, O_GID, O_IPV6, O_DEADLINE, O_SERVICES, O_OPS, O_QPS, O_WAIT, O_SGES,
	O_INLINE, O_SIZES, O_DIRECTION, O_DEPTH, O_POOL, O_UC_MAX, O_STRICT, O_SABOTAGE,
};

static const struct option long_options[] = {
	{ "port", 1, NULL, O_PORT },
	{ "device", 1, NULL, O_DEVICE },
	{ "gid", 1, NULL, O_GID },
	{ "ipv6", 0, NULL, O_IPV6 },
	{ "deadline", 1, NULL, O_DEADLINE },
	{ "services", 1, NULL, O_SERVICES },
	{ "ops", 1, NULL, O_OPS },
	{ "qps", 1, NULL, O_QPS },
	{ "wait", 1, NULL, O_WAIT },
	{ "sges", 1, NULL, O_SGES },
	{ "inline", 1, NULL, O_INLINE },
	{ "sizes", 1, NULL, O_SIZES },
	{ "direction", 1, NULL, O_DIRECTION },
	{ "depth", 1, NULL, O_DEPTH },
	{ "pool-mib", 1, NULL, O_POOL },
	{ "uc-max", 1, NULL, O_UC_MAX },
	{ "strict", 0, NULL, O_STRICT },
	{ "sabotage", 1, NULL, O_SABOTAGE },
	{ NULL, 0, NULL, 0 },
};

static void take_option(struct options *o, int option, const char *value)
{
	switch (option) {
	case 's': o->server = true; break;
	case O_PORT: o->port = value; break;
	case O_DEVICE: o->device = value; break;
	case O_GID: o->gid_index = (int)number(value); break;
	case O_IPV6: o->family = FAMILY_IPV6; break;
	case O_DEADLINE: o->deadline_s = (double)number(value); break;
	case O_SERVICES: o->services = parse_list(value, service_of); break;
	case O_OPS: o->operations = parse_list(value, operation_of); break;
	case O_QPS: o->qps = parse_list(value, number_or_max); break;
	case O_WAIT: o->waits = parse_list(value, wait_of); break;
	case O_SGES: o->sges = parse_list(value, number_or_max); break;
	case O_INLINE: o->inlines = parse_list(value, number_or_max); break;
	case O_SIZES: parse_sizes(o, value); break;
	case O_DIRECTION: o->directions = parse_list(value, direction_of); break;
	case O_DEPTH: o->depth = (uint32_t)number(value); break;
	case O_POOL: o->pool_bytes = number(value) << 20; break;
	case O_UC_MAX: o->uc_max = number(value); break;
	case O_STRICT: o->strict = true; break;
	case O_SABOTAGE: o->sabotage = sabotage_of(value); break;
	default: exit(OUTCOME_USAGE);
	}
}

static struct options parse_options(int argc, char **argv)
{
	struct options o = {
		.port = "7471", .gid_index = -1, .deadline_s = 10, .depth = 4,
		.pool_bytes = 40ull << 20, .uc_max = 65536,
		.services = parse_list("rc,uc,ud", service_of),
		.operations = parse_list("send,send_imm,write,write_imm,read,fetch_add,cmp_swap", operation_of),
		.qps = parse_list("1", number_or_max), .waits = parse_list("poll", wait_of),
		.sges = parse_list("1", number_or_max), .inlines = parse_list("0", number_or_max),
		.directions = parse_list("out,in", direction_of),
	};
	int option;

	parse_sizes(&o, "1-64,65-8193/131,pow2:128-1048576");
	while ((option = getopt_long(argc, argv, "s", long_options, NULL)) != -1)
		take_option(&o, option, optarg);
	if (optind < argc)
		o.host = argv[optind++];
	if (optind < argc || o.server == !!o.host)
		usage("expected either -s or one HOST", optind < argc ? argv[optind] : "");
	return o;
}

/* ------------------------------------------------------------------ server */

static void serve(const struct options *o, struct device *device, int side)
{
	struct session_spec spec;
	struct step_spec step;

	for (;;) {
		struct session session;

		side_recv(side, &spec, sizeof spec, deadline_in(10 * o->deadline_s));
		if (spec.service == no_session.service)
			return;
		session = session_open(device, side, spec, ~spec.key, o->deadline_s);
		for (;;) {
			side_recv(side, &step, sizeof step, deadline_in(10 * o->deadline_s));
			if (step.order == ORDER_CLOSE)
				break;
			if (step.server_active)
				step_active(&session, &step);
			else
				step_passive(&session, &step);
		}
		session_close(&session);
	}
}

/* ------------------------------------------------------------------ client */

struct totals {
	uint64_t steps, messages, bytes;
};

struct client {
	const struct options *o;
	struct device *device;
	int side;
	struct hello remote;
	uint32_t sge_limit;
	uint64_t key;
	struct totals totals;
};

static uint64_t next_key(struct client *c)
{
	c->key = c->key * 6364136223846793005ull + 1442695040888963407ull;
	return c->key;
}

static uint64_t size_limit(const struct client *c, uint32_t service)
{
	uint32_t mine = 128u << c->device->port.active_mtu;

	if (service == IBV_QPT_UD)
		return mine < c->remote.mtu_bytes ? mine : c->remote.mtu_bytes;
	return service == IBV_QPT_UC ? c->o->uc_max : UINT64_MAX;
}

static void run_step(struct client *c, struct session *s, struct step_spec step)
{
	side_send(c->side, &step, sizeof step);
	if (step.server_active)
		step_passive(s, &step);
	else
		step_active(s, &step);
	c->totals.steps++;
	c->totals.messages += step.count;
	c->totals.bytes += step.count * step.size;
}

/* Both directions of one operation and size. */
static void run_size(struct client *c, struct session *s, enum operation op, uint64_t size,
		     uint32_t chunks, bool inlined)
{
	size_t room = step_room(s, op, size);

	if (!room)
		fail(OUTCOME_USAGE, "size %llu needs a larger --pool-mib", (unsigned long long)size);
	for (int d = 0; d < c->o->directions.count; d++)
		run_step(c, s, (struct step_spec){
			.order = ORDER_STEP, .operation = op,
			.server_active = c->o->directions.item[d],
			.chunks = chunks, .receive_chunks = s->spec.sge_max + 1 - chunks,
			.inlined = inlined, .size = size, .count = room, .key = next_key(c),
		});
}

static void run_operation(struct client *c, struct session *s, enum operation op, uint32_t chunks,
			  uint32_t inline_bytes)
{
	uint64_t limit = size_limit(c, s->spec.service);

	if (op == OP_FETCH_ADD || op == OP_CMP_SWAP) {
		if (!inline_bytes)
			run_size(c, s, op, 8, 1, false);
		return;
	}
	if (inline_bytes && !operation_takes_inline(op))
		return;
	if (inline_bytes && limit > s->inline_granted)
		limit = s->inline_granted;
	for (size_t i = 0; i < c->o->size_count; i++)
		if (c->o->sizes[i] <= limit && c->o->sizes[i] >= (op == OP_SEND_INV))
			run_size(c, s, op, c->o->sizes[i], chunks, inline_bytes);
}

static void run_session(struct client *c, struct session_spec spec)
{
	struct step_spec end = { .order = ORDER_CLOSE };
	struct totals before = c->totals;
	struct session s;

	side_send(c->side, &spec, sizeof spec);
	s = session_open(c->device, c->side, spec, spec.key, c->o->deadline_s);
	s.sabotage = c->o->sabotage;
	for (int g = 0; g < c->o->sges.count; g++)
		for (int n = 0; n < c->o->inlines.count; n++)
			for (int op = 0; op < c->o->operations.count; op++) {
				uint32_t chunks = c->o->sges.item[g];
				enum operation operation = c->o->operations.item[op];

				if (operation_allowed(operation, spec.service))
					run_operation(c, &s, operation,
						      chunks > c->sge_limit ? c->sge_limit : chunks,
						      c->o->inlines.item[n]);
			}
	side_send(c->side, &end, sizeof end);
	session_close(&s);
	printf("%s qps %u %s: %llu steps, %llu messages\n",
	       spec.service == IBV_QPT_RC ? "rc" : spec.service == IBV_QPT_UC ? "uc" : "ud",
	       spec.qp_count, spec.wait == WAIT_POLL ? "poll" : spec.wait == WAIT_EVENT ? "event" : "solicited",
	       (unsigned long long)(c->totals.steps - before.steps),
	       (unsigned long long)(c->totals.messages - before.messages));
	fflush(stdout);
}

static uint32_t largest(const struct list *list, uint32_t limit)
{
	uint32_t most = 0;

	for (int i = 0; i < list->count; i++)
		if (list->item[i] > most)
			most = list->item[i];
	return most < limit ? most : limit;
}

static void run_matrix(struct client *c)
{
	const struct options *o = c->o;

	for (int service = 0; service < o->services.count; service++)
		for (int qps = 0; qps < o->qps.count; qps++)
			for (int wait = 0; wait < o->waits.count; wait++)
				run_session(c, (struct session_spec){
					.service = o->services.item[service],
					.qp_count = o->qps.item[qps],
					.depth = o->depth,
					.wait = o->waits.item[wait],
					.sge_max = largest(&o->sges, c->sge_limit),
					.inline_max = largest(&o->inlines, 1u << 16),
					.strict = o->strict,
					.pool_bytes = o->pool_bytes,
					.key = next_key(c),
				});
	side_send(c->side, &no_session, sizeof no_session);
	if (!c->totals.steps)
		fail(OUTCOME_USAGE, "the matrix is empty: nothing was verified");
}

/* -------------------------------------------------------------------- both */

static struct hello exchange_hello(const struct options *o, const struct device *device, int side)
{
	struct hello mine = {
		.magic = MAGIC,
		.sge_max = (uint32_t)device->attr.max_sge,
		.mtu_bytes = 128u << device->port.active_mtu,
	};
	struct hello theirs;

	side_send(side, &mine, sizeof mine);
	side_recv(side, &theirs, sizeof theirs, deadline_in(o->deadline_s));
	if (theirs.magic != MAGIC)
		fail(OUTCOME_PEER, "the other side is not this program");
	return theirs;
}

static int open_side(const struct options *o)
{
	uint64_t deadline = deadline_in(10 * o->deadline_s);

	return o->server ? side_accept(side_listen(o->port), deadline)
			 : side_connect(o->host, o->port, deadline);
}

int main(int argc, char **argv)
{
	struct options o = parse_options(argc, argv);
	struct device device;
	struct hello remote;
	int side;

	program_name = o.server ? "verify server" : "verify client";
	device = open_device(o.device, o.gid_index, o.family);
	side = open_side(&o);
	remote = exchange_hello(&o, &device, side);
	if (o.server) {
		serve(&o, &device, side);
		puts("verify server: ok");
	} else {
		uint32_t sges = (uint32_t)device.attr.max_sge;
		struct client c = {
			.o = &o, .device = &device, .side = side, .remote = remote, .key = 1,
			.sge_limit = sges < remote.sge_max ? sges : remote.sge_max,
		};

		run_matrix(&c);
		printf("verify: ok: %llu steps, %llu messages, %llu bytes\n",
		       (unsigned long long)c.totals.steps, (unsigned long long)c.totals.messages,
		       (unsigned long long)c.totals.bytes);
	}
	ibv_dealloc_pd(device.pd);
	ibv_close_device(device.context);
	return OUTCOME_OK;
}
