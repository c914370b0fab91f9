/* Opens a library as NCCL does and looks for each symbol at its version. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static const char *const required[] = {
	"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device",
	"ibv_close_device", "ibv_get_async_event", "ibv_ack_async_event", "ibv_query_device",
	"ibv_query_port", "ibv_query_gid", "ibv_query_qp", "ibv_alloc_pd", "ibv_dealloc_pd",
	"ibv_reg_mr", "ibv_dereg_mr", "ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp",
	"ibv_modify_qp", "ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str",
};

static const char *const optional[][2] = {
	{ "ibv_reg_mr_iova2", "IBVERBS_1.8" },   { "ibv_query_ece", "IBVERBS_1.10" },
	{ "ibv_set_ece", "IBVERBS_1.10" },       { "ibv_reg_dmabuf_mr", "IBVERBS_1.12" },
	{ "ibv_query_port_speed", "IBVERBS_1.16" }, { "rdma_create_id", "RDMACM_1.0" },
	{ "ibv_query_gid_type", "IBVERBS_PRIVATE_34" },
};

static int missing(void *library, const char *name, const char *version)
{
	if (dlvsym(library, name, version))
		return 0;
	fprintf(stderr, "no %s@%s\n", name, version);
	return 1;
}

int main(int argc, char **argv)
{
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int failures = 0;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	for (size_t i = 0; i < sizeof(required) / sizeof(*required); i++)
		failures += missing(library, required[i], "IBVERBS_1.1");
	for (size_t i = 0; i < sizeof(optional) / sizeof(*optional); i++)
		failures += missing(library, optional[i][0], optional[i][1]);
	return failures != 0;
}
