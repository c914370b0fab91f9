/* Prints what the library's functions without a device answer, for comparison between two. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
const char *ibv_wr_opcode_str(int opcode);

static void read_file(const char *dir, const char *file, size_t size)
{
	char buffer[64];
	int length;

	memset(buffer, 'x', sizeof(buffer));
	length = ibv_read_sysfs_file(dir, file, buffer, size);
	printf("%s/%s: %d %.*s\n", dir, file, length, length < 0 ? 0 : length, buffer);
	if (length >= 0)
		printf("ends with %d\n", buffer[length]);
}

int main(int argc, char **argv)
{
	for (int i = -1; i < 40; i++) {
		printf("%d: %d %d %d %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i),
		       mult_to_ibv_rate(i), mbps_to_ibv_rate(i));
		printf("%d: %d %d\n", i, mult_to_ibv_rate(ibv_rate_to_mult(i)),
		       mbps_to_ibv_rate(ibv_rate_to_mbps(i)));
		printf("%d: %s, %s, %s, %s, %s\n", i, ibv_node_type_str(i), ibv_port_state_str(i),
		       ibv_event_type_str(i), ibv_wc_status_str(i), rdma_event_str(i));
	}
	printf("%s %d\n", ibv_get_sysfs_path(), ibv_fork_init());
	if (argc == 2) {
		read_file(argv[1], "line", 64);
		read_file(argv[1], "line", 3);
		read_file(argv[1], "no newline", 64);
		read_file(argv[1], "missing", 64);
	}
	return 0;
}
