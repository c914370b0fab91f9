//! The signatures of the symbols that work.

use std::ffi::{CStr, c_int, c_void};

use crate::boundary::{
    Count, Ended, In, InOut, List, Made, Object, Out, Owned, Plain, Success, cancellation_point,
    export,
};
use crate::cm::address::Address;
use crate::cm::addrinfo::Answers;
use crate::cm::channel::EventChannel;
use crate::cm::event::Event;
use crate::cm::id::CmId;
use crate::cm::{
    accept, addrinfo, channel, connect, devices, endpoint, event, id, option, qp, resolve, srq,
};
use crate::device::PointerList;
use crate::pd::Pd;
use crate::types::{
    ibv_context, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_conn_param,
    rdma_event_channel,
};
use crate::waited::Source;

cancellation_point! {
    rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event)
        = get_cm_event;
}

export! {
    rdma_create_event_channel() -> Made<EventChannel> = channel::create;
    rdma_destroy_event_channel(channel: Owned<EventChannel>) -> Ended = channel::destroy;
    get_cm_event(channel: Source<EventChannel>, event: Out<'_, *mut rdma_cm_event>) -> Count
        = channel::get_event;
    rdma_ack_cm_event(event: Owned<Event>) -> Success = event::ack;

    rdma_get_devices(num_devices: Option<Out<'_, c_int>>) -> List<ibv_context> = devices::list;
    rdma_free_devices(list: PointerList<ibv_context>) -> Ended = devices::free_list;

    rdma_create_id(
        channel: Option<&Object<EventChannel>>, id: Out<'_, *mut rdma_cm_id>,
        context: *mut c_void, ps: u32,
    ) -> Success = id::create;
    rdma_destroy_id(id: Owned<CmId>) -> Success = id::destroy;
    rdma_migrate_id(id: &Object<CmId>, channel: Option<&Object<EventChannel>>) -> Success
        = id::migrate;
    rdma_get_src_port(id: &Object<CmId>) -> Plain<u16> = id::source_port;
    rdma_get_dst_port(id: &Object<CmId>) -> Plain<u16> = id::destination_port;
    rdma_set_option(
        id: &Object<CmId>, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize,
    ) -> Success = option::set;

    rdma_bind_addr(id: &Object<CmId>, addr: Address) -> Success = resolve::bind_addr;
    rdma_resolve_addr(
        id: &Object<CmId>, src_addr: Option<Address>, dst_addr: Address, timeout_ms: c_int,
    ) -> Success = resolve::resolve_addr;
    rdma_resolve_route(id: &Object<CmId>, timeout_ms: c_int) -> Success = resolve::resolve_route;
    rdma_listen(id: &Object<CmId>, backlog: c_int) -> Success = resolve::listen;

    rdma_connect(id: &Object<CmId>, conn_param: Option<In<rdma_conn_param>>) -> Success
        = connect::connect;
    rdma_establish(id: &Object<CmId>) -> Success = connect::establish;
    rdma_disconnect(id: &Object<CmId>) -> Success = connect::disconnect;
    rdma_notify(id: &Object<CmId>, event: u32) -> Success = connect::notify;
    rdma_init_qp_attr(
        id: &Object<CmId>, qp_attr: InOut<'_, ibv_qp_attr>, qp_attr_mask: Out<'_, c_int>,
    ) -> Success = connect::init_qp_attr;
    rdma_accept(id: &Object<CmId>, conn_param: Option<In<rdma_conn_param>>) -> Success
        = accept::accept;
    rdma_reject(id: &Object<CmId>, private_data: *mut c_void, private_data_len: u8) -> Success
        = accept::reject;

    rdma_create_qp(
        id: &Object<CmId>, pd: Option<&Object<Pd>>, qp_init_attr: InOut<'_, ibv_qp_init_attr>,
    ) -> Success = qp::create;
    rdma_create_qp_ex(id: &Object<CmId>, qp_init_attr: InOut<'_, ibv_qp_init_attr_ex>) -> Success
        = qp::create_ex;
    rdma_destroy_qp(id: &Object<CmId>) -> Ended = qp::destroy;
    rdma_create_srq(
        id: &Object<CmId>, pd: Option<&Object<Pd>>, attr: InOut<'_, ibv_srq_init_attr>,
    ) -> Success = srq::create;
    rdma_create_srq_ex(id: &Object<CmId>, attr: InOut<'_, ibv_srq_init_attr_ex>) -> Success
        = srq::create_ex;
    rdma_destroy_srq(id: &Object<CmId>) -> Ended = srq::destroy;

    rdma_create_ep(
        id: Out<'_, *mut rdma_cm_id>, res: In<rdma_addrinfo>, pd: Option<&Object<Pd>>,
        qp_init_attr: Option<InOut<'_, ibv_qp_init_attr>>,
    ) -> Success = endpoint::create;
    rdma_destroy_ep(id: Owned<CmId>) -> Ended = endpoint::destroy;
    rdma_get_request(listen: &Object<CmId>, id: Out<'_, *mut rdma_cm_id>) -> Success
        = endpoint::get_request;

    rdma_getaddrinfo(
        node: Option<&CStr>, service: Option<&CStr>, hints: Option<In<rdma_addrinfo>>,
        res: Out<'_, *mut rdma_addrinfo>,
    ) -> Count = addrinfo::get;
    rdma_freeaddrinfo(res: Answers) -> Ended = addrinfo::free;
}
