/* Two threads with a thread domain each send to one another, and each to itself. */
#include <pthread.h>

#include "expect.h"

#define ROUNDS 200
#define LEN 2000
#define QPS 3

/* A thread, its domains, and its queue pairs: to the other thread's, and to its own. */
struct side {
	struct ibv_td *td;
	struct ibv_pd *parent;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qps[QPS];
	unsigned char memory[QPS * 2 * LEN];
	int seed;
};

static struct side sides[2];

static void make(struct side *side, struct ibv_pd *pd, int seed)
{
	struct ibv_context *context = pd->context;
	struct ibv_parent_domain_init_attr attr = { .pd = pd };

	side->seed = seed;
	side->td = ibv_alloc_td(context, &(struct ibv_td_init_attr){ 0 });
	attr.td = side->td;
	side->parent = ibv_alloc_parent_domain(context, &attr);
	side->cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	expect(side->td && side->parent && side->cq);
	side->mr = ibv_reg_mr(side->parent, side->memory, sizeof side->memory, IBV_ACCESS_LOCAL_WRITE);
	expect(side->mr);
	for (int i = 0; i < QPS; i++)
		side->qps[i] = make_qp(side->parent, side->cq);
}

static struct ibv_sge part(struct side *side, int at)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)side->memory + at * LEN, .length = LEN, .lkey = side->mr->lkey,
	};
}

static unsigned char byte(int seed, int round, int i)
{
	return seed * 97 + round * 31 + i * 7 + (i >> 8);
}

static void receive(struct side *side, int qp)
{
	struct ibv_sge sge = part(side, 2 * qp + 1);
	struct ibv_recv_wr wr = { .wr_id = qp, .sg_list = &sge, .num_sge = 1 }, *bad;

	expect(!ibv_post_recv(side->qps[qp], &wr, &bad));
}

static void send_message(struct side *side, int qp, int round)
{
	struct ibv_sge sge = part(side, 2 * qp);
	struct ibv_send_wr wr = {
		.wr_id = 100 + qp, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	for (int i = 0; i < LEN; i++)
		side->memory[2 * qp * LEN + i] = byte(side->seed * 10 + qp, round, i);
	expect(!ibv_post_send(side->qps[qp], &wr, &bad));
}

/* Who sends to a queue pair: that of the other thread, or the thread's other one. */
static int sender_of(struct side *side, int qp)
{
	return qp == 0 ? (1 - side->seed) * 10 : side->seed * 10 + (3 - qp);
}

static void *run(void *arg)
{
	struct side *side = arg;
	int sent[QPS] = { 0 }, received[QPS] = { 0 };
	struct ibv_wc wc;

	for (int qp = 0; qp < QPS; qp++)
		receive(side, qp);
	for (int qp = 0; qp < QPS; qp++)
		send_message(side, qp, sent[qp]++);
	for (int left = 2 * QPS * ROUNDS; left > 0; left--) {
		int count;

		while (!(count = ibv_poll_cq(side->cq, 1, &wc)))
			;
		expect(count == 1 && wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id >= 100) {
			int qp = wc.wr_id - 100;

			if (sent[qp] < ROUNDS)
				send_message(side, qp, sent[qp]++);
			continue;
		}
		expect(wc.byte_len == LEN && wc.qp_num == side->qps[wc.wr_id]->qp_num);
		for (int i = 0; i < LEN; i++)
			expect(side->memory[(2 * wc.wr_id + 1) * LEN + i] ==
			       byte(sender_of(side, wc.wr_id), received[wc.wr_id], i));
		if (++received[wc.wr_id] < ROUNDS)
			receive(side, wc.wr_id);
	}
	return NULL;
}

/* The number's upper ten bits say which socket its packets arrive at. */
static unsigned slot(struct ibv_qp *qp)
{
	return qp->qp_num >> 14;
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *other = make_qp(pd, cq);
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		make(&sides[i], pd, i);
	expect(slot(sides[0].qps[0]) != slot(sides[1].qps[0]));
	expect(slot(other) != slot(sides[0].qps[0]) && slot(other) != slot(sides[1].qps[0]));
	for (int i = 0; i < 2; i++) {
		expect(slot(sides[i].qps[0]) == slot(sides[i].qps[2]));
		connect_qp(sides[i].qps[0], sides[1 - i].qps[0]->qp_num);
		connect_qp(sides[i].qps[1], sides[i].qps[2]->qp_num);
		connect_qp(sides[i].qps[2], sides[i].qps[1]->qp_num);
	}
	for (int i = 0; i < 2; i++)
		expect(!pthread_create(&threads[i], NULL, run, &sides[i]));
	for (int i = 0; i < 2; i++)
		expect(!pthread_join(threads[i], NULL));
	for (int i = 0; i < 2; i++) {
		struct side *side = &sides[i];

		expect(ibv_dealloc_td(side->td) == EBUSY);
		for (int qp = 0; qp < QPS; qp++)
			expect(!ibv_destroy_qp(side->qps[qp]));
		expect(!ibv_destroy_cq(side->cq) && !ibv_dereg_mr(side->mr));
		expect(!ibv_dealloc_pd(side->parent) && !ibv_dealloc_td(side->td));
	}
	expect(!ibv_destroy_qp(other) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	expect(!ibv_close_device(context));
	return 0;
}
