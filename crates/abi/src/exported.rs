//! The signatures of the symbols that work.

use std::ffi::{CStr, c_int, c_void};

pub use crate::cm::*;

use crate::ah::{Ah, Grh};
use crate::boundary::{
    Buffer, Count, Ended, In, InOut, List, Made, Object, Out, Owned, Part, Partial, Plain, Size,
    Status, Success, Text, cancellation_point, export,
};
use crate::context::Context;
use crate::cq::{CompChannel, Cq};
use crate::device::{Device, PointerList};
use crate::dm::Dm;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::td::Td;
use crate::types::{
    ibv_ah_attr, ibv_alloc_dm_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_init_attr_ex, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input,
    ibv_sge, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td_init_attr,
    ibv_values_ex, ibv_wc, ibv_xrcd_init_attr,
};
use crate::waited::Source;
use crate::xrc::Xrcd;
use crate::{
    ah, context, cq, device, dm, events, fork, import, mr, mw, pd, qp, query, rate, srq, sysfs, td,
    text, xrc,
};

cancellation_point! {
    ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
    ) = get_cq_event;
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) = get_async_event;
}

export! {
    ibv_get_device_list(num_devices: Option<Out<'_, c_int>>) -> List<ibv_device> = device::list;
    ibv_free_device_list(list: PointerList<ibv_device>) -> Ended = device::free_list;
    ibv_get_device_name(device: &'static Object<Device>) -> Text = device::name;
    ibv_get_device_guid(device: &'static Object<Device>) -> Plain<u64> = device::guid;
    ibv_get_device_index(device: &'static Object<Device>) -> Count = device::index;
    ibv_open_device(device: &'static Object<Device>) -> Made<Context> = context::open;
    ibv_import_device(cmd_fd: c_int) -> Made<Context> = import::open_device;
    ibv_import_pd(context: &Object<Context>, pd_handle: u32) -> Made<Pd> = import::pd;
    ibv_unimport_pd(pd: Owned<Pd>) -> Ended = import::unimport_pd;
    ibv_import_mr(pd: &Object<Pd>, mr_handle: u32) -> Made<Mr> = import::mr;
    ibv_unimport_mr(mr: Owned<Mr>) -> Ended = import::unimport_mr;
    ibv_import_dm(context: &Object<Context>, dm_handle: u32) -> Made<Dm> = import::dm;
    ibv_unimport_dm(dm: Owned<Dm>) -> Ended = import::unimport_dm;
    ibv_close_device(context: Owned<Context>) -> Status = context::close;

    ibv_query_device(context: &Object<Context>, device_attr: Out<'_, ibv_device_attr>) -> Status
        = query::device;
    query_device_ex(
        context: &Object<Context>, input: Option<In<ibv_query_device_ex_input>>,
        attr: Partial<'_, ibv_device_attr_ex>, attr_size: usize,
    ) -> Status = query::device_ex;
    query_rt_values(context: &Object<Context>, values: InOut<'_, ibv_values_ex>) -> Status
        = query::rt_values;
    ibv_query_port(
        context: &Object<Context>, port_num: u8, port_attr: Partial<'_, ibv_port_attr>,
    ) -> Status = query::port;
    query_port_ex(
        context: &Object<Context>, port_num: u8, port_attr: Partial<'_, ibv_port_attr>,
        attr_size: usize,
    ) -> Status = query::port_ex;
    ibv_query_port_speed(context: &Object<Context>, port_num: u32, port_speed: Out<'_, u64>)
        -> Status = query::port_speed;
    ibv_query_gid(
        context: &Object<Context>, port_num: u8, index: c_int, gid: Out<'_, ibv_gid>,
    ) -> Success = query::gid;
    _ibv_query_gid_ex(
        context: &Object<Context>, port_num: u32, gid_index: u32,
        entry: Partial<'_, ibv_gid_entry>, flags: u32, entry_size: usize,
    ) -> Status = query::gid_ex;
    _ibv_query_gid_table(
        context: &Object<Context>, entries: Partial<'_, ibv_gid_entry>, max_entries: usize,
        flags: u32, entry_size: usize,
    ) -> Size = query::gid_table;
    ibv_query_gid_type(
        context: &Object<Context>, port_num: u8, index: u32, gid_type: Out<'_, u32>,
    ) -> Success = query::gid_type;
    ibv_query_pkey(
        context: &Object<Context>, port_num: u8, index: c_int, pkey: Out<'_, u16>,
    ) -> Success = query::pkey;
    ibv_get_pkey_index(context: &Object<Context>, port_num: u8, pkey: u16) -> Count
        = query::pkey_index;

    ibv_alloc_pd(context: &Object<Context>) -> Made<Pd> = pd::alloc;
    ibv_dealloc_pd(pd: Owned<Pd>) -> Status = Owned::end;
    alloc_td(context: &Object<Context>, attr: InOut<'_, ibv_td_init_attr>) -> Made<Td> = td::alloc;
    dealloc_td(td: Owned<Td>) -> Status = Owned::end;
    alloc_parent_domain(context: &Object<Context>, attr: InOut<'_, ibv_parent_domain_init_attr>)
        -> Made<Pd> = pd::alloc_parent_domain;

    ibv_reg_mr(pd: &Object<Pd>, addr: *mut c_void, length: usize, access: c_int) -> Made<Mr>
        = mr::reg;
    ibv_reg_mr_iova(
        pd: &Object<Pd>, addr: *mut c_void, length: usize, iova: u64, access: c_int,
    ) -> Made<Mr> = mr::reg_iova;
    ibv_reg_mr_iova2(
        pd: &Object<Pd>, addr: *mut c_void, length: usize, iova: u64, access: u32,
    ) -> Made<Mr> = mr::reg_iova2;
    ibv_rereg_mr(
        mr: &Object<Mr>, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
        access: c_int,
    ) -> Success = mr::rereg;
    ibv_dereg_mr(mr: Owned<Mr>) -> Status = mr::dereg;
    ibv_reg_dmabuf_mr(
        pd: &Object<Pd>, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> Made<Mr> = mr::reg_dmabuf;
    reg_dm_mr(pd: &Object<Pd>, dm: &Object<Dm>, dm_offset: u64, length: usize, access: u32)
        -> Made<Mr> = mr::reg_dm;
    alloc_null_mr(pd: &Object<Pd>) -> Made<Mr> = mr::alloc_null;
    advise_mr(pd: &Object<Pd>, advice: u32, flags: u32, sg_list: *mut ibv_sge, num_sge: u32)
        -> Status = mr::advise;
    alloc_dm(context: &Object<Context>, attr: InOut<'_, ibv_alloc_dm_attr>) -> Made<Dm> = dm::alloc;
    free_dm(dm: Owned<Dm>) -> Status = Owned::end;
    alloc_mw(pd: &Object<Pd>, mw_type: u32) -> Made<Mw> = mw::alloc;
    dealloc_mw(mw: Owned<Mw>) -> Status = mw::dealloc;

    ibv_create_comp_channel(context: &Object<Context>) -> Made<CompChannel> = cq::create_channel;
    ibv_destroy_comp_channel(channel: Owned<CompChannel>) -> Status = Owned::end;
    get_cq_event(
        channel: Source<CompChannel>, cq: Out<'_, *mut ibv_cq>, cq_context: Out<'_, *mut c_void>,
    ) -> Count = cq::get_event;
    ibv_ack_cq_events(cq: &Object<Cq>, nevents: u32) -> Ended = cq::ack_events;

    ibv_create_cq(
        context: &Object<Context>, cqe: c_int, cq_context: *mut c_void,
        channel: Option<&Object<CompChannel>>, comp_vector: c_int,
    ) -> Made<Cq> = cq::create;
    create_cq_ex(context: &Object<Context>, attr: InOut<'_, ibv_cq_init_attr_ex>) -> Made<Cq>
        = cq::create_ex;
    ibv_resize_cq(cq: &Object<Cq>, cqe: c_int) -> Status = cq::resize;
    ibv_destroy_cq(cq: Owned<Cq>) -> Status = Owned::end;

    ibv_create_srq(pd: &Object<Pd>, attr: InOut<'_, ibv_srq_init_attr>) -> Made<Srq> = srq::create;
    create_srq_ex(context: &Object<Context>, attr: InOut<'_, ibv_srq_init_attr_ex>) -> Made<Srq>
        = srq::create_ex;
    get_srq_num(srq: &Object<Srq>, srq_num: Out<'_, u32>) -> Status = srq::number;
    ibv_modify_srq(srq: &Object<Srq>, attr: In<ibv_srq_attr>, mask: c_int) -> Status = srq::modify;
    ibv_query_srq(srq: &Object<Srq>, attr: Out<'_, ibv_srq_attr>) -> Status = srq::query;
    ibv_destroy_srq(srq: Owned<Srq>) -> Status = Owned::end;

    ibv_create_qp(pd: &Object<Pd>, attr: InOut<'_, ibv_qp_init_attr>) -> Made<Qp> = qp::create;
    create_qp_ex(context: &Object<Context>, attr: InOut<'_, ibv_qp_init_attr_ex>) -> Made<Qp>
        = qp::create_ex;
    ibv_qp_to_qp_ex(qp: &Object<Qp>) -> Part<ibv_qp_ex> = qp::to_ex;
    ibv_modify_qp(qp: &Object<Qp>, attr: In<ibv_qp_attr>, mask: c_int) -> Status = qp::modify;
    modify_qp_rate_limit(qp: &Object<Qp>, attr: In<ibv_qp_rate_limit_attr>) -> Status
        = qp::modify_rate;
    ibv_query_qp(
        qp: &Object<Qp>, attr: Partial<'_, ibv_qp_attr>, mask: c_int,
        init_attr: Out<'_, ibv_qp_init_attr>,
    ) -> Status = qp::query;
    ibv_query_qp_data_in_order(qp: &Object<Qp>, op: u32, flags: u32) -> Count = qp::data_in_order;
    ibv_attach_mcast(qp: &Object<Qp>, gid: In<ibv_gid>, lid: u16) -> Status = qp::attach_mcast;
    ibv_detach_mcast(qp: &Object<Qp>, gid: In<ibv_gid>, lid: u16) -> Status = qp::detach_mcast;
    ibv_destroy_qp(qp: Owned<Qp>) -> Status = qp::destroy;
    open_xrcd(context: &Object<Context>, attr: InOut<'_, ibv_xrcd_init_attr>) -> Made<Xrcd>
        = xrc::open;
    close_xrcd(xrcd: Owned<Xrcd>) -> Status = Owned::end;
    open_qp(context: &Object<Context>, attr: InOut<'_, ibv_qp_open_attr>) -> Made<Qp>
        = xrc::open_qp;

    ibv_create_ah(pd: &Object<Pd>, attr: In<ibv_ah_attr>) -> Made<Ah> = ah::create;
    ibv_init_ah_from_wc(
        context: &Object<Context>, port_num: u8, wc: In<ibv_wc>, grh: Option<In<Grh>>,
        ah_attr: Out<'_, ibv_ah_attr>,
    ) -> Success = ah::init_from_wc;
    ibv_create_ah_from_wc(
        pd: &Object<Pd>, wc: In<ibv_wc>, grh: Option<In<Grh>>, port_num: u8,
    ) -> Made<Ah> = ah::create_from_wc;
    ibv_resolve_eth_l2_from_gid(
        context: &Object<Context>, attr: In<ibv_ah_attr>, eth_mac: Out<'_, [u8; 6]>,
        vid: Out<'_, u16>,
    ) -> Status = ah::resolve_eth_l2;
    ibv_destroy_ah(ah: Owned<Ah>) -> Status = Owned::end;

    get_async_event(context: Source<Context>, event: Out<'_, ibv_async_event>) -> Count
        = events::get;
    ibv_ack_async_event(event: In<ibv_async_event>) -> Ended = events::ack;
}

export! {
    ibv_node_type_str(node_type: i32) -> Text = text::node_type;
    ibv_port_state_str(port_state: u32) -> Text = text::port_state;
    ibv_event_type_str(event: u32) -> Text = text::event_type;
    ibv_wc_status_str(status: u32) -> Text = text::wc_status;
    ibv_wr_opcode_str(opcode: u32) -> Text = text::wr_opcode;
    rdma_event_str(event: u32) -> Text = text::cm_event;

    ibv_rate_to_mult(rate: u32) -> Plain<c_int> = rate::to_mult;
    mult_to_ibv_rate(mult: i32) -> Plain<u32> = rate::from_mult;
    ibv_rate_to_mbps(rate: u32) -> Plain<c_int> = rate::to_mbps;
    mbps_to_ibv_rate(mbps: i32) -> Plain<u32> = rate::from_mbps;

    ibv_fork_init() -> Status = fork::init;
    ibv_is_fork_initialized() -> Plain<u32> = fork::status;
    ibv_dontfork_range(base: *mut c_void, size: usize) -> Status = fork::protect_range;
    ibv_dofork_range(base: *mut c_void, size: usize) -> Status = fork::protect_range;

    ibv_get_sysfs_path() -> Text = sysfs::path;
    ibv_read_sysfs_file(dir: &CStr, file: &CStr, buf: Buffer, size: usize) -> Count
        = sysfs::read_file;
}
