/*
 * victim: queue pairs of every service that wait to be attacked.
 *
 *   victim [--device NAME] [--gid INDEX] [--ipv6]
 *
 * Prints "target QPN-RC QPN-UC QPN-UD PSN ADDRESS LENGTH RKEY", then waits for
 * a line on stdin. Afterwards nothing outside the LENGTH bytes may have
 * changed, and a new pair of queue pairs must still work.
 *
 * Exit status: enum outcome of common.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checks.h"

#define PAGE 4096
#define FILL 0xc3
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* The registered page has a page of ours on either side, and nothing mapped beyond. */
static uint8_t *pages(void)
{
	uint8_t *p = mmap(NULL, 5 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mprotect(p + PAGE, 3 * PAGE, PROT_READ | PROT_WRITE))
		fail_verb("mmap");
	memset(p + PAGE, FILL, 3 * PAGE);
	return p + PAGE;
}

static void post_receives(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = PAGE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	while (!ibv_post_recv(qp, &wr, &bad))
		;
}

static struct pair open_target(struct bench *b, enum ibv_qp_type type, struct ibv_mr *mr)
{
	struct pair p = pair_open(&b->device, (struct pair_options){
						      .type = type, .timing = patient,
						      .access = { all_access, all_access } });

	post_receives(p.qp[1], mr);
	return p;
}

static void check_untouched(const uint8_t *memory)
{
	for (size_t i = 0; i < 3 * PAGE; i++)
		if ((i < PAGE || i >= 2 * PAGE) && memory[i] != FILL)
			fail(OUTCOME_MISMATCH, "byte %ld outside the region is 0x%02x", (long)i - PAGE, memory[i]);
}

int main(int argc, char **argv)
{
	struct bench b = bench_open("victim", argc, argv);
	uint8_t *memory = pages();
	struct ibv_mr *mr = ibv_reg_mr(b.device.pd, memory + PAGE, PAGE, ACCESS);
	struct pair rc, uc, ud;
	char line[16];

	if (!mr)
		fail_verb("ibv_reg_mr");
	rc = open_target(&b, IBV_QPT_RC, mr);
	uc = open_target(&b, IBV_QPT_UC, mr);
	ud = open_target(&b, IBV_QPT_UD, mr);
	printf("target %u %u %u %u %llu %u %u\n", rc.qp[1]->qp_num, uc.qp[1]->qp_num, ud.qp[1]->qp_num, 77u,
	       (unsigned long long)(uintptr_t)mr->addr, PAGE, mr->rkey);
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		fail(OUTCOME_USAGE, "expected a line on stdin");
	check_untouched(memory);
	bench_still_works(&b);
	pair_close(&rc);
	pair_close(&uc);
	pair_close(&ud);
	checks_finish();
}
