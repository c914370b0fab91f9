//! Questions about a device and its port.

use std::ffi::c_int;
use std::mem::size_of;
use std::time::Duration;

use irdma::{DeviceAttr, Gid, PortAttr, Transport};

use crate::boundary::{Errno, In, InOut, Object, Out, Partial, refuse};
use crate::context::Context;
use crate::device::put;
use crate::types::{
    COMPAT_PORT_ATTR_LEN, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ,
    IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE,
    IBV_QPF_GRH_REQUIRED, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
    IBV_VALUES_MASK_RAW_CLOCK, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_odp_caps, ibv_packet_pacing_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};

/// GID types as `ibv_query_gid_type` numbers them, other than `ibv_gid_entry`.
const SYSFS_GID_TYPE_IB: u32 = 0;
const SYSFS_GID_TYPE_ROCE_V2: u32 = 1;

/// `ibv_query_device(3)`.
pub fn device(context: &Object<Context>, attr: Out<'_, ibv_device_attr>) -> Result<(), Errno> {
    attr.write(device_attr(&context.handle.query_device()));
    Ok(())
}

/// `ibv_query_rt_values_ex(3)`: the clock of completion timestamps.
pub fn rt_values(
    context: &Object<Context>,
    mut values: InOut<'_, ibv_values_ex>,
) -> Result<(), Errno> {
    let asked = values.get().comp_mask;
    if asked & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return Err(refuse("ibv_query_rt_values_ex", libc::EINVAL, "comp_mask: only RAW_CLOCK"));
    }
    let mut found = ibv_values_ex::zeroed();
    if asked & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        let now = Duration::from_nanos(context.handle.raw_clock_ns());
        found.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        found.raw_clock.tv_sec = now.as_secs() as libc::time_t;
        found.raw_clock.tv_nsec = now.subsec_nanos().into();
    }
    values.set(found);
    Ok(())
}

/// `ibv_query_device_ex(3)`.
pub fn device_ex(
    context: &Object<Context>,
    input: Option<In<ibv_query_device_ex_input>>,
    mut attr: Partial<'_, ibv_device_attr_ex>,
    size: usize,
) -> Result<(), Errno> {
    if input.is_some_and(|In(input)| input.comp_mask != 0) {
        return Err(refuse("ibv_query_device_ex", libc::EINVAL, "comp_mask has unknown bits"));
    }
    if size < size_of::<ibv_device_attr>() {
        return Err(refuse("ibv_query_device_ex", libc::EINVAL, "the structure is too short"));
    }
    let mut extended = ibv_device_attr_ex::zeroed();
    let device = context.handle.query_device();
    extended.orig_attr = device_attr(&device);
    extended.device_cap_flags_ex = device.device_cap_flags_ex | u64::from(device.device_cap_flags);
    extended.phys_port_cnt_ex = 1;
    if device.on_demand {
        extended.odp_caps = odp_caps();
    }
    extended.xrc_odp_caps = extended.odp_caps.per_transport_caps.rc_odp_caps;
    extended.packet_pacing_caps = pacing_caps(device.limits.max_rate_kbps);
    extended.max_dm_size = device.limits.max_dm_size;
    extended.completion_timestamp_mask = device.timestamp_mask;
    extended.hca_core_clock = device.core_clock_khz.into();
    attr.write(size, &extended);
    Ok(())
}

fn pacing_caps(max_rate_kbps: u32) -> ibv_packet_pacing_caps {
    let paced = 1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD | 1 << IBV_QPT_XRC_SEND;
    match max_rate_kbps {
        0 => ibv_packet_pacing_caps::zeroed(),
        most => ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: most,
            supported_qpts: paced,
        },
    }
}

fn odp_caps() -> ibv_odp_caps {
    let sends = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let writes = sends | IBV_ODP_SUPPORT_WRITE;
    let mut caps = ibv_odp_caps::zeroed();
    caps.general_caps = (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into();
    caps.per_transport_caps.rc_odp_caps = writes | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    caps.per_transport_caps.uc_odp_caps = writes;
    caps.per_transport_caps.ud_odp_caps = sends;
    caps
}

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    let limits = &attr.limits;
    let mut c = ibv_device_attr::zeroed();
    put(&mut c.fw_ver, attr.fw_ver.as_bytes());
    c.node_guid = attr.node_guid.to_be();
    c.sys_image_guid = attr.sys_image_guid.to_be();
    c.max_mr_size = limits.max_mr_size;
    c.page_size_cap = attr.page_size_cap;
    c.vendor_id = attr.vendor_id;
    c.vendor_part_id = attr.vendor_part_id;
    c.hw_ver = attr.hw_ver;
    c.max_qp = int(limits.max_qp);
    c.max_qp_wr = int(limits.max_qp_wr);
    c.device_cap_flags = attr.device_cap_flags;
    c.max_sge = int(limits.max_send_sge.min(limits.max_recv_sge));
    c.max_sge_rd = int(limits.max_sge_rd);
    c.max_cq = int(limits.max_cq);
    c.max_cqe = int(limits.max_cqe);
    c.max_mr = int(limits.max_mr);
    c.max_mw = int(limits.max_mw);
    c.max_pd = int(limits.max_pd);
    c.max_qp_rd_atom = limits.max_qp_rd_atom.into();
    c.max_res_rd_atom = int(u32::from(limits.max_qp_rd_atom) * limits.max_qp);
    c.max_qp_init_rd_atom = limits.max_qp_init_rd_atom.into();
    c.atomic_cap = attr.atomic_cap;
    c.max_mcast_grp = int(limits.max_mcast_grp);
    c.max_mcast_qp_attach = int(limits.max_mcast_qp_attach);
    c.max_total_mcast_qp_attach = int(limits.max_total_mcast_qp_attach);
    c.max_ah = int(limits.max_ah);
    c.max_srq = int(limits.max_srq);
    c.max_srq_wr = int(limits.max_srq_wr);
    c.max_srq_sge = int(limits.max_srq_sge);
    c.max_pkeys = 1;
    c.local_ca_ack_delay = attr.local_ca_ack_delay;
    c.phys_port_cnt = 1;
    c
}

fn int(count: u32) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// The exported `ibv_query_port`, whose callers may have the short structure.
pub fn port(
    context: &Object<Context>,
    port: u8,
    attr: Partial<'_, ibv_port_attr>,
) -> Result<(), Errno> {
    port_ex(context, port, attr, COMPAT_PORT_ATTR_LEN)
}

/// `ibv_query_port(3)` through the context, whose callers say how long their structure is.
pub fn port_ex(
    context: &Object<Context>,
    port: u8,
    mut attr: Partial<'_, ibv_port_attr>,
    size: usize,
) -> Result<(), Errno> {
    attr.write(size, &port_attr(context, &context.handle.query_port(port)?));
    Ok(())
}

fn port_attr(context: &Object<Context>, attr: &PortAttr) -> ibv_port_attr {
    let mut c = ibv_port_attr::zeroed();
    c.state = attr.state as u32;
    c.max_mtu = mtu(attr.max_mtu);
    c.active_mtu = mtu(attr.active_mtu);
    c.gid_tbl_len = int(attr.gid_tbl_len);
    c.port_cap_flags = attr.port_cap_flags;
    c.max_msg_sz = attr.max_msg_sz;
    c.pkey_tbl_len = attr.pkey_tbl_len;
    c.lid = attr.lid;
    c.max_vl_num = 1;
    c.active_width = attr.active_width;
    c.active_speed = attr.active_speed;
    c.phys_state = attr.state.physical();
    c.link_layer = IBV_LINK_LAYER_ETHERNET;
    c.flags = if is_roce(context) { IBV_QPF_GRH_REQUIRED } else { 0 };
    c
}

/// GIDs are addresses of packets on RoCE; an iWARP device has one in name only.
fn is_roce(context: &Object<Context>) -> bool {
    context.handle.device().transport() == Transport::Ib
}

/// `ibv_query_port_speed`, in units of 100 Mb/s.
pub fn port_speed(context: &Object<Context>, port: u32, speed: Out<'_, u64>) -> Result<(), Errno> {
    let attr = context.handle.query_port(port_number(port))?;
    speed.write(lanes(attr.active_width) * lane_speed(attr.active_speed));
    Ok(())
}

/// Lanes of an `active_width`.
fn lanes(width: u8) -> u64 {
    match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    }
}

/// Speed of a lane of an `active_speed`, in units of 100 Mb/s.
fn lane_speed(speed: u8) -> u64 {
    match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        _ => 1000,
    }
}

/// `enum ibv_mtu` of a path MTU in bytes.
pub fn mtu(bytes: u32) -> u32 {
    bytes.ilog2() - 7
}

/// The bytes of an `enum ibv_mtu`.
pub fn mtu_bytes(mtu: u32) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

/// `ibv_query_gid(3)`.
pub fn gid(
    context: &Object<Context>,
    port: u8,
    index: c_int,
    gid: Out<'_, ibv_gid>,
) -> Result<(), Errno> {
    gid.write(ibv_gid { raw: find_gid(context, port, index as u32)?.0 });
    Ok(())
}

/// No index is negative, and a negative one is past every table.
fn find_gid(context: &Object<Context>, port: u8, index: u32) -> Result<Gid, Errno> {
    Ok(context.handle.query_gid(port, index)?)
}

fn port_number(port: u32) -> u8 {
    u8::try_from(port).unwrap_or(u8::MAX)
}

/// `ibv_query_gid_ex(3)`: ENODATA for a place in the table that is empty.
pub fn gid_ex(
    context: &Object<Context>,
    port: u32,
    index: u32,
    mut entry: Partial<'_, ibv_gid_entry>,
    flags: u32,
    size: usize,
) -> Result<(), Errno> {
    check_no_flags("ibv_query_gid_ex", flags)?;
    let gid = find_gid(context, port_number(port), index)?;
    if gid == Gid::default() {
        return Err(refuse("ibv_query_gid_ex", libc::ENODATA, "the address left the interface"));
    }
    entry.write(size, &gid_entry(context, index, gid));
    Ok(())
}

fn check_no_flags(call: &str, flags: u32) -> Result<(), Errno> {
    if flags != 0 {
        return Err(refuse(call, libc::EINVAL, "no flags are defined, pass 0"));
    }
    Ok(())
}

fn gid_entry(context: &Object<Context>, index: u32, gid: Gid) -> ibv_gid_entry {
    let mut entry = ibv_gid_entry::zeroed();
    entry.gid = ibv_gid { raw: gid.0 };
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = if is_roce(context) { IBV_GID_TYPE_ROCE_V2 } else { IBV_GID_TYPE_IB };
    entry.ndev_ifindex = context.handle.device().netdev_index();
    entry
}

/// `ibv_query_gid_table(3)`: the number of entries, or a negative error number. Empty places of
/// the table are left out.
pub fn gid_table(
    context: &Object<Context>,
    mut entries: Partial<'_, ibv_gid_entry>,
    room: usize,
    flags: u32,
    size: usize,
) -> Result<isize, Errno> {
    check_no_flags("ibv_query_gid_table", flags)?;
    let len = context.handle.query_port(1)?.gid_tbl_len;
    let mut present = Vec::new();
    for index in 0..len {
        let gid = find_gid(context, 1, index)?;
        if gid != Gid::default() {
            present.push(gid_entry(context, index, gid));
        }
    }
    if present.len() > room {
        return Err(refuse(
            "ibv_query_gid_table",
            libc::EINVAL,
            "max_entries is too small: use the gid_tbl_len of all ports",
        ));
    }
    for (at, entry) in present.iter().enumerate() {
        entries.write_at(at, size, entry);
    }
    Ok(present.len() as isize)
}

/// `ibv_query_gid_type`, a private function that `ibv_devinfo` uses.
pub fn gid_type(
    context: &Object<Context>,
    port: u8,
    index: u32,
    gid_type: Out<'_, u32>,
) -> Result<(), Errno> {
    find_gid(context, port, index)?;
    gid_type.write(if is_roce(context) { SYSFS_GID_TYPE_ROCE_V2 } else { SYSFS_GID_TYPE_IB });
    Ok(())
}

/// `ibv_query_pkey(3)`, in network order.
pub fn pkey(
    context: &Object<Context>,
    port: u8,
    index: c_int,
    pkey: Out<'_, u16>,
) -> Result<(), Errno> {
    let index = u16::try_from(index).unwrap_or(u16::MAX);
    pkey.write(context.handle.query_pkey(port, index)?.to_be());
    Ok(())
}

/// `ibv_get_pkey_index(3)`.
pub fn pkey_index(context: &Object<Context>, port: u8, pkey: u16) -> Result<c_int, Errno> {
    let len = context.handle.query_port(port)?.pkey_tbl_len;
    for index in 0..len {
        if context.handle.query_pkey(port, index)?.to_be() == pkey {
            return Ok(index.into());
        }
    }
    Err(refuse("ibv_get_pkey_index", libc::EINVAL, "the table holds another P_Key, 0xffff"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_powers_of_two_from_256() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu(bytes), mtu_bytes(code)), (code, Some(bytes)));
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6), mtu_bytes(99)), (None, None, None));
    }
}
