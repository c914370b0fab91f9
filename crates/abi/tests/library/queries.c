/* Devices, ports, GIDs and partition keys, and how many bytes the answers have. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "expect.h"

#define GUARD 0xaa
#define DRIVER_OPS 664 /* where vendors' libraries look behind an ibv_device */

static void devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count), **again = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_device_attr attr;
	struct ibv_device *first;

	expect(list && again && count > 0 && !list[count]);
	for (int i = 0; i < count; i++) {
		struct ibv_device *device = list[i];

		expect(device == again[i]);
		expect(device->node_type == IBV_NODE_CA && device->transport_type == IBV_TRANSPORT_IB);
		expect(!strcmp(ibv_get_device_name(device), device->name));
		expect(strstr(device->ibdev_path, device->name));
		expect(ibv_get_device_guid(device) && ibv_get_device_index(device) == -1);
		expect(*(void **)((char *)device + DRIVER_OPS));
	}
	first = list[0];
	ibv_free_device_list(again);
	context = ibv_open_device(first);
	ibv_free_device_list(list);
	expect(context && context->device == first && context->num_comp_vectors == 1);
	expect(!ibv_query_device(context, &attr));
	expect(attr.node_guid == ibv_get_device_guid(context->device) && attr.phys_port_cnt == 1);
	expect(!ibv_close_device(context));
}

static int untouched(const unsigned char *bytes, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (bytes[i] != GUARD)
			return 0;
	return 1;
}

static void sizes(struct ibv_context *context)
{
	int (*old_query_port)(struct ibv_context *, uint8_t, void *) =
		(int (*)(struct ibv_context *, uint8_t, void *))dlsym(RTLD_DEFAULT, "ibv_query_port");
	struct verbs_context *verbs = verbs_get_ctx(context);
	unsigned char bytes[1024];
	struct ibv_port_attr port;
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input unknown = { .comp_mask = 1 };

	memset(bytes, GUARD, sizeof bytes);
	expect(old_query_port && !old_query_port(context, 1, bytes));
	expect(untouched(bytes, 48, sizeof bytes));
	memset(bytes, GUARD, sizeof bytes);
	expect(!verbs->query_port(context, 1, (struct ibv_port_attr *)bytes, 100));
	expect(!untouched(bytes, 99, 100) && untouched(bytes, 100, sizeof bytes));
	expect(!ibv_query_port(context, 1, &port) && port.link_layer == IBV_LINK_LAYER_ETHERNET);
	expect(!memcmp(bytes, &port, sizeof port));

	memset(bytes, GUARD, sizeof bytes);
	expect(!verbs->query_device_ex(context, NULL, (struct ibv_device_attr_ex *)bytes,
				       sizeof ex.orig_attr + 4));
	expect(untouched(bytes, sizeof ex.orig_attr + 4, sizeof bytes));
	expect(verbs->query_device_ex(context, NULL, &ex, 8) == EINVAL);
	expect(!ibv_query_device_ex(context, NULL, &ex) && ex.comp_mask == 0);
	expect((uint32_t)ex.device_cap_flags_ex == ex.orig_attr.device_cap_flags && ex.phys_port_cnt_ex == 1);
	expect(ibv_query_device_ex(context, &unknown, &ex) == EINVAL);
}

static void gids(struct ibv_context *context)
{
	int (*query_gid_type)(struct ibv_context *, uint8_t, unsigned int, int *) =
		(int (*)(struct ibv_context *, uint8_t, unsigned int, int *))dlvsym(
			RTLD_DEFAULT, "ibv_query_gid_type", "IBVERBS_PRIVATE_34");
	struct ibv_gid_entry entry, table[4];
	struct ibv_port_attr port;
	union ibv_gid gid;
	int type = -1;

	expect(!ibv_query_port(context, 1, &port) && port.gid_tbl_len >= 1 && port.gid_tbl_len <= 4);
	expect(ibv_query_gid_table(context, table, 4, 0) == port.gid_tbl_len);
	for (uint32_t i = 0; i < (uint32_t)port.gid_tbl_len; i++) {
		expect(!ibv_query_gid(context, 1, (int)i, &gid));
		expect(!ibv_query_gid_ex(context, 1, i, &entry, 0));
		expect(!memcmp(&gid, &entry.gid, sizeof gid) && !memcmp(&entry, &table[i], sizeof entry));
		expect(entry.gid_index == i && entry.port_num == 1);
		expect(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex);
	}
	expect(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
	expect(ibv_query_gid_table(context, table, 4, 1) == -EINVAL);
	expect(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	expect(ibv_query_gid_ex(context, 257, 0, &entry, 0) == EINVAL);
	expect(query_gid_type && !query_gid_type(context, 1, 0, &type) && type == 1);
	expect(query_gid_type(context, 1, 200, &type) == -1);
}

static void keys(struct ibv_context *context)
{
	__be16 pkey;

	expect(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == 0xffff);
	expect(ibv_get_pkey_index(context, 1, pkey) == 0);
	expect(ibv_get_pkey_index(context, 1, 0x1234) == -1);
}

int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
				uint8_t eth_mac[6], uint16_t *vid);

static void ethernet(struct ibv_context *context)
{
	int (*port_speed)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	uint8_t mac[6], group[6] = { 0x01, 0x00, 0x5e, 1, 2, 3 };
	uint64_t speed = 0;
	uint16_t vid = 0;

	expect(port_speed && !port_speed(context, 1, &speed) && speed >= 25);
	expect(port_speed(context, 2, &speed) == EINVAL);
	memcpy(attr.grh.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377\357\001\002\003", 16);
	expect(!ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid));
	expect(!memcmp(mac, group, 6) && vid == 0xffff);
	expect(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
	expect(!ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vid) && !mac[0] && !mac[5]);
}

int main(void)
{
	struct ibv_context *context = open_loopback();

	devices();
	sizes(context);
	gids(context);
	keys(context);
	ethernet(context);
	expect(!ibv_close_device(context));
	return 0;
}
