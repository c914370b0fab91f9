/* Named checks that are all run, then counted. */
#ifndef IRDMA_TESTS_CHECKS_H
#define IRDMA_TESTS_CHECKS_H

#include <stdbool.h>

#include "common.h"

/* Prints ok or FAIL with the name; counts failures. */
void check(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An errno value, 0 for success. */
void check_errno(const char *name, int expected, int got);
/* One of two errno values that the man page allows. */
void check_either(const char *name, int one, int other, int got);
/* A constructor that must return NULL with this errno. */
void check_null(const char *name, const void *object, int expected);
/* Prints the sum and exits: OUTCOME_OK, or OUTCOME_MISMATCH when one failed. */
void checks_finish(void) __attribute__((noreturn));

/* Two queue pairs of this process, connected with each other. */
struct pair {
	struct device *device;
	struct ibv_cq *cq[2]; /* sends and receives of each side */
	struct ibv_qp *qp[2];
	struct ibv_ah *ah; /* UD only: from side 0 to side 1 */
};

struct pair_options {
	enum ibv_qp_type type;
	int access[2];
	struct ibv_pd *pd[2]; /* NULL: the device's */
	struct qp_timing timing;
};

extern const struct qp_timing patient;
extern const int all_access;

struct ibv_qp_cap small_cap(void);
struct pair pair_open(struct device *device, struct pair_options options);
/* An RC pair with every right. */
struct pair pair_rc(struct device *device);
void pair_close(struct pair *pair);
enum ibv_qp_state qp_state(struct ibv_qp *qp);

#define AREA 4096

/* A device with a completion queue and one registered page. */
struct bench {
	struct device device;
	struct ibv_cq *cq;
	uint8_t *area;
	struct ibv_mr *mr;
	bool null; /* --null */
};

/* Takes --device NAME, --gid INDEX, --ipv6 and --null. */
struct bench bench_open(const char *name, int argc, char **argv);
struct ibv_qp *bench_qp(struct bench *bench, enum ibv_qp_type type, struct ibv_qp_cap cap);
/* The first bytes of the page. */
struct ibv_sge bench_sge(const struct bench *bench, uint32_t length);
/* After all that was refused, a good message still goes through. */
void bench_still_works(struct bench *bench);

#endif
