/* Kinds of memory beyond plain regions: windows, device memory, on-demand paging, files; changes
 * of a region; and objects found again by their numbers. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "expect.h"

enum { SIZE = 4096, WRITE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static char source[SIZE], target[SIZE];
static struct ibv_cq *cq;
static struct ibv_mr *from;

static enum ibv_wc_status result(struct ibv_qp *qp)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	expect(count == 1 && wc.qp_num == qp->qp_num);
	return wc.status;
}

static enum ibv_wc_status post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	wr.send_flags |= IBV_SEND_SIGNALED;
	expect(!ibv_post_send(qp, &wr, &bad));
	return result(qp);
}

static enum ibv_wc_status write_to(struct ibv_qp *qp, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)source, 8, from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	return post(qp, wr);
}

/* The queue pair talks to itself: the error of its receiving side flushes the request. Then it is
 * brought back to work, which leaves no completion behind. */
static void expect_refusal(struct ibv_qp *qp, uint64_t addr, uint32_t rkey)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	enum ibv_wc_status status = write_to(qp, addr, rkey);

	expect(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_WR_FLUSH_ERR);
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	connect_qp(qp, qp->qp_num);
}

static struct ibv_send_wr bind_request(struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr,
				       uint64_t length)
{
	return (struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { mw, rkey, { mr, (uintptr_t)target, length,
					 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE } },
	};
}

static void windows(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, target, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)target, 64, IBV_ACCESS_REMOTE_WRITE },
	};
	uint64_t at = (uintptr_t)target;
	uint32_t old;

	expect(mr && one && two && one->pd == pd && one->type == IBV_MW_TYPE_1 && two->rkey);
	expect_null(ibv_alloc_mw(pd, 3), EINVAL);
	old = one->rkey;
	expect(!ibv_bind_mw(qp, one, &bind) && result(qp) == IBV_WC_SUCCESS && one->rkey != old);
	strcpy(source, "window1");
	expect(write_to(qp, at, one->rkey) == IBV_WC_SUCCESS && !strcmp(target, "window1"));
	expect(ibv_dereg_mr(mr) == EBUSY);
	bind.bind_info.length = 0;
	expect(!ibv_bind_mw(qp, one, &bind) && result(qp) == IBV_WC_SUCCESS);
	expect_refusal(qp, at, one->rkey);
	bind.bind_info.mr = NULL;
	bind.bind_info.length = 8;
	expect(ibv_bind_mw(qp, one, &bind) == EINVAL);
	bind.bind_info.mr = mr;
	bind.bind_info.mw_access_flags = 1 << 15;
	expect(ibv_bind_mw(qp, one, &bind) == EINVAL);

	old = ibv_inc_rkey(two->rkey);
	expect(post(qp, bind_request(two, old, mr, 64)) == IBV_WC_SUCCESS && two->rkey == old);
	strcpy(source, "window2");
	expect(write_to(qp, at, two->rkey) == IBV_WC_SUCCESS && !strcmp(target, "window2"));
	expect(post(qp, (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV,
					      .invalidate_rkey = two->rkey }) == IBV_WC_SUCCESS);
	expect_refusal(qp, at, two->rkey);
	expect(!ibv_dealloc_mw(one) && !ibv_dealloc_mw(two) && !ibv_dereg_mr(mr));
}

static void bound_twice_in_a_batch(struct ibv_qp_ex *ex, struct ibv_mw *mw,
				   const struct ibv_mw_bind_info *info)
{
	uint32_t keys[2] = { ibv_inc_rkey(mw->rkey), ibv_inc_rkey(ibv_inc_rkey(mw->rkey)) };
	uint64_t value = 0x99aabbccddeeff00;

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_local_inv(ex, mw->rkey);
	ibv_wr_bind_mw(ex, mw, keys[0], info);
	ibv_wr_local_inv(ex, keys[0]);
	ibv_wr_bind_mw(ex, mw, keys[1], info);
	ibv_wr_atomic_write(ex, keys[1], (uintptr_t)target, &value);
	expect(!ibv_wr_complete(ex) && mw->rkey == keys[1]);
	for (int i = 0; i < 5; i++)
		expect(result(&ex->qp_base) == IBV_WC_SUCCESS);
	expect(!memcmp(target, &value, 8));
}

/* The structure shows a key that the window never got; nor does it matter what stands there. */
static void bound_after_a_failure(struct ibv_qp *qp, struct ibv_mw *mw,
				  const struct ibv_mw_bind_info *info)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	uint32_t old = mw->rkey, new = ibv_inc_rkey(old);

	/* Type 2 is bound already. */
	expect(post(qp, bind_request(mw, new, info->mr, 64)) == IBV_WC_MW_BIND_ERR);
	expect(mw->rkey == new);
	expect(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	connect_qp(qp, qp->qp_num);
	expect(post(qp, (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV,
					      .invalidate_rkey = old }) == IBV_WC_SUCCESS);
	mw->rkey = 0;
	expect(post(qp, bind_request(mw, new, info->mr, 64)) == IBV_WC_SUCCESS && mw->rkey == new);
	strcpy(source, "rebound");
	expect(write_to(qp, (uintptr_t)target, new) == IBV_WC_SUCCESS && !strcmp(target, "rebound"));
}

/* A bind in a batch shows its key when it is posted, and not before. */
static void window_in_a_batch(struct ibv_pd *pd)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, target, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_ATOMIC_WRITE |
				  IBV_QP_EX_WITH_LOCAL_INV,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &attr);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)target, 64, IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	uint32_t old = mw->rkey, new = ibv_inc_rkey(old);
	uint64_t value = 0x1122334455667788;

	connect_qp(qp, qp->qp_num);
	for (int round = 0; round < 2; round++) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(ex, mw, new, &info);
		expect(mw->rkey == old);
		if (!round) {
			ibv_wr_abort(ex);
			continue;
		}
		ibv_wr_atomic_write(ex, new, (uintptr_t)target, &value);
		expect(!ibv_wr_complete(ex) && mw->rkey == new);
	}
	expect(result(qp) == IBV_WC_SUCCESS && result(qp) == IBV_WC_SUCCESS);
	expect(!memcmp(target, &value, 8));
	bound_twice_in_a_batch(ex, mw, &info);
	bound_after_a_failure(qp, mw, &info);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, NULL, new, &info);
	expect(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, new, NULL);
	expect(ibv_wr_complete(ex) == EINVAL);
	expect(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr));
}

static void device_memory(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_alloc_dm_attr attr = { .length = 128, .log_align_req = 6 };
	struct ibv_dm *dm = ibv_alloc_dm(pd->context, &attr);
	struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 64, 64, IBV_ACCESS_ZERO_BASED | WRITE);
	char back[8];

	expect(dm && dm->context == pd->context && mr && mr->length == 64);
	strcpy(source, "devmem!");
	expect(write_to(qp, 8, mr->rkey) == IBV_WC_SUCCESS);
	expect(!ibv_memcpy_from_dm(back, dm, 72, 8) && !strcmp(back, "devmem!"));
	expect(!ibv_memcpy_to_dm(dm, 0, "12345678", 8) && !ibv_memcpy_from_dm(back, dm, 4, 4));
	expect(!memcmp(back, "5678", 4));
	expect(ibv_memcpy_to_dm(dm, 2, back, 4) == EINVAL && ibv_memcpy_to_dm(dm, 0, back, 3) == EINVAL);
	expect(ibv_memcpy_from_dm(back, dm, 128, 4) == EINVAL);
	expect(ibv_memcpy_from_dm(NULL, dm, 0, 4) == EINVAL);
	expect(ibv_memcpy_to_dm(dm, 0, back, (size_t)1 << 60) == EINVAL);
	expect(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(mr));
	expect_null(ibv_reg_dm_mr(pd, dm, 0, 8, WRITE), EINVAL);
	expect_null(ibv_reg_dm_mr(pd, dm, 124, 8, IBV_ACCESS_ZERO_BASED | WRITE), EINVAL);
	expect(!ibv_free_dm(dm));
	attr.comp_mask = 1;
	expect_null(ibv_alloc_dm(pd->context, &attr), EINVAL);
	attr = (struct ibv_alloc_dm_attr){ 0 };
	expect_null(ibv_alloc_dm(pd->context, &attr), EINVAL);
}

static void on_demand(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | WRITE);
	struct ibv_sge sge = { (uintptr_t)target, SIZE, mr ? mr->lkey : 0 };
	char *hole = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	expect(mr && hole != MAP_FAILED);
	strcpy(source, "anyroom");
	expect(write_to(qp, (uintptr_t)target, mr->rkey) == IBV_WC_SUCCESS);
	expect(!strcmp(target, "anyroom"));
	expect(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	expect(ibv_advise_mr(pd, 9, 0, &sge, 1) == EOPNOTSUPP);
	expect(ibv_advise_mr(pd, 0, 2, &sge, 1) == EINVAL);
	expect(ibv_advise_mr(pd, 0, 0, NULL, 1) == EINVAL && ibv_advise_mr(pd, 0, 0, &sge, 0) == EINVAL);
	expect_refusal(qp, (uintptr_t)hole, mr->rkey);
	expect(!ibv_dereg_mr(mr));
}

/* Reads give zeros, whatever the address; what is written goes nowhere. */
static void null_region(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, target, SIZE, WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_sge sge = { 0x123, 8, null ? null->lkey : 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	expect(null && mr);
	wr.wr.rdma.remote_addr = (uintptr_t)target;
	wr.wr.rdma.rkey = mr->rkey;
	memset(target, 'x', 16);
	expect(post(qp, wr) == IBV_WC_SUCCESS && !memcmp(target, "\0\0\0\0\0\0\0\0xxxxxxxx", 16));
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr += 8;
	expect(post(qp, wr) == IBV_WC_SUCCESS);
	wr.opcode = IBV_WR_RDMA_WRITE;
	expect(post(qp, wr) == IBV_WC_SUCCESS && !memcmp(target + 8, target, 8) && !target[0]);
	expect(!ibv_dereg_mr(null) && !ibv_dereg_mr(mr));
}

static void files(struct ibv_pd *pd, struct ibv_qp *qp)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);
	char back[8];
	struct ibv_mr *mr;

	expect(fd >= 0 && !ftruncate(fd, 2 * SIZE));
	mr = ibv_reg_dmabuf_mr(pd, SIZE, SIZE, 0x10000, fd, WRITE);
	expect(mr);
	strcpy(source, "in file");
	expect(write_to(qp, 0x10010, mr->rkey) == IBV_WC_SUCCESS);
	expect(pread(fd, back, 8, SIZE + 16) == 8 && !strcmp(back, "in file"));
	expect(!ibv_dereg_mr(mr) && !close(fd));
	expect_null(ibv_reg_dmabuf_mr(pd, 0, 8, 0, -1, 0), EBADF);
}

/* The keys stay, whatever changes; what is not named is not looked at. */
static void changes(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_pd *junk = (void *)0x1001;
	struct ibv_mr *mr = ibv_reg_mr(pd, target, 64, IBV_ACCESS_LOCAL_WRITE), before = *mr;

	expect(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, junk, NULL, 0, WRITE));
	expect(!memcmp(mr, &before, sizeof before));
	strcpy(source, "change!");
	expect(write_to(qp, (uintptr_t)target, mr->rkey) == IBV_WC_SUCCESS);
	expect(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, junk, target + 64, 128, 0));
	expect(mr->addr == target + 64 && mr->length == 128 && mr->rkey == before.rkey);
	expect(write_to(qp, (uintptr_t)target + 64, mr->rkey) == IBV_WC_SUCCESS);
	expect_refusal(qp, (uintptr_t)target, mr->rkey);
	expect(!ibv_dereg_mr(mr));
}

static void imports(struct ibv_pd *pd, struct ibv_qp *qp)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, target, 64, WRITE), *key;
	struct ibv_alloc_dm_attr attr = { .length = 16 };
	struct ibv_dm *dm = ibv_alloc_dm(pd->context, &attr), *same;
	struct ibv_context *context = ibv_import_device(dup(pd->context->cmd_fd));
	struct ibv_pd *domain = ibv_import_pd(context, pd->handle);
	char back[4];

	expect(context && context->device == pd->context->device && domain);
	expect(domain->context == context && domain->handle == pd->handle);
	key = ibv_import_mr(domain, mr->handle);
	expect(key && key->rkey == mr->rkey && !key->addr && !key->length && key->pd == domain);
	strcpy(source, "import!");
	expect(write_to(qp, (uintptr_t)target, key->rkey) == IBV_WC_SUCCESS);
	expect(ibv_dereg_mr(key) == EINVAL);
	same = ibv_import_dm(context, dm->handle);
	expect(same && !ibv_memcpy_to_dm(dm, 4, "same", 4) && !ibv_memcpy_from_dm(back, same, 4, 4));
	expect(!memcmp(back, "same", 4));
	expect_null(ibv_import_pd(context, 0), ENOENT);
	expect_null(ibv_import_mr(domain, 0), ENOENT);
	expect_null(ibv_import_dm(context, mr->handle), ENOENT);
	expect_null(ibv_import_device(-1), EBADF);
	expect_null(ibv_import_device(STDERR_FILENO), EOPNOTSUPP);
	ibv_unimport_dm(same);
	ibv_unimport_mr(key);
	ibv_unimport_pd(domain);
	expect(!ibv_close_device(context));
	expect(write_to(qp, (uintptr_t)target, mr->rkey) == IBV_WC_SUCCESS);
	expect(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp *qp;

	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	from = ibv_reg_mr(pd, source, SIZE, 0);
	qp = make_qp(pd, cq);
	connect_qp(qp, qp->qp_num);
	windows(pd, qp);
	window_in_a_batch(pd);
	device_memory(pd, qp);
	on_demand(pd, qp);
	null_region(pd, qp);
	files(pd, qp);
	changes(pd, qp);
	imports(pd, qp);
	expect(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(from));
	expect(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
