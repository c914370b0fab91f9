//! Events, and what the library does before the program sees one.

use std::time::Duration;

use irdma::cm::{ConnInfo, EventKind, Param, Path, UdInfo};

use crate::ah;
use crate::boundary::{Errno, Kept, Object, Owned, Shape};
use crate::cm::id::{self, CmId};
use crate::cm::states;
use crate::query::mtu;
use crate::types::{
    ibv_gid, ibv_sa_path_rec, rdma_cm_event, rdma_cm_event_param, rdma_conn_param, rdma_ud_param,
};

/// An event; the private data that its structure points to is here.
pub struct Event {
    _inner: irdma::cm::Event,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Event {
    type C = rdma_cm_event;
    type Seen = rdma_cm_event;
}

/// `rdma_ack_cm_event(3)`.
pub fn ack(event: Owned<Event>) -> Result<(), Errno> {
    drop(event.take());
    Ok(())
}

/// The next event of a channel that only one identifier has.
pub fn wait(channel: &irdma::cm::EventChannel) -> Result<Box<Object<Event>>, Errno> {
    loop {
        if let Some(event) = channel.get_cm_event_within(Duration::MAX)?.and_then(digest) {
            return Ok(event);
        }
    }
}

/// Does the library's part of an event; `None` for one that is not for the program.
pub fn digest(mut event: irdma::cm::Event) -> Option<Box<Object<Event>>> {
    if let Some(listener) = event.listener() {
        // SAFETY: a listener's destruction waits until its events are acknowledged.
        let listener = unsafe { Kept::<CmId>::from_cookie(listener) };
        let new = id::adopt(event.take_id()?, &listener).ok()?;
        let mut c = describe(&event);
        c.listen_id = listener.as_seen();
        c.id = Object::hand_out(new);
        return Some(Object::new(c, Event { _inner: event }));
    }
    if event.id() == 0 {
        // Another thread is about to show the program the new peer, who is gone by now.
        return None;
    }
    // SAFETY: an identifier's destruction waits until its events are acknowledged.
    let id = unsafe { Kept::<CmId>::from_cookie(event.id()) };
    let (kind, status) = react(&id, event.kind(), event.status())?;
    let mut c = describe(&event);
    c.id = id.as_seen();
    c.event = kind as u32;
    c.status = status;
    Some(Object::new(c, Event { _inner: event }))
}

/// What the program is told instead of `kind`.
fn react(id: &Object<CmId>, kind: EventKind, status: i32) -> Option<(EventKind, i32)> {
    let or = |done: Result<(), Errno>, failed| match done {
        Ok(()) => (kind, status),
        Err(Errno(code)) => (failed, -code),
    };
    match kind {
        EventKind::AddrResolved => Some(or(id.show(), EventKind::AddrError)),
        EventKind::RouteResolved => {
            id.show_path();
            Some(or(id.show(), EventKind::RouteError))
        }
        EventKind::ConnectResponse if !id.seen().qp.is_null() => {
            Some(match states::connected(id) {
                Ok(()) => (EventKind::Established, status),
                Err(Errno(code)) => (EventKind::ConnectError, -code),
            })
        }
        // The program knows already that there is no connection.
        EventKind::Rejected | EventKind::Disconnected if id.own().failed => None,
        EventKind::Rejected => {
            // What was refused has no work to lose: a queue pair that stays as it is harms nobody.
            let _ = states::to_error(id);
            Some((kind, status))
        }
        _ => Some((kind, status)),
    }
}

/// The structure, without identifiers.
fn describe(event: &irdma::cm::Event) -> rdma_cm_event {
    let mut c = rdma_cm_event::zeroed();
    c.event = event.kind() as u32;
    c.status = event.status();
    c.param = match event.param() {
        Param::Conn(conn) => rdma_cm_event_param { conn: conn_param(conn) },
        Param::Ud(ud) => rdma_cm_event_param { ud: ud_param(ud) },
    };
    c
}

fn conn_param(conn: &ConnInfo) -> rdma_conn_param {
    let mut c = rdma_conn_param::zeroed();
    c.private_data_len = conn.private.len() as u8;
    if !conn.private.is_empty() {
        c.private_data = conn.private.as_ptr().cast();
    }
    c.responder_resources = conn.responder_resources;
    c.initiator_depth = conn.initiator_depth;
    c.flow_control = conn.flow_control.into();
    c.retry_count = conn.retry_count;
    c.rnr_retry_count = conn.rnr_retry_count;
    c.srq = conn.srq.into();
    c.qp_num = conn.qpn.get();
    c
}

fn ud_param(ud: &UdInfo) -> rdma_ud_param {
    let mut c = rdma_ud_param::zeroed();
    c.private_data_len = ud.private.len() as u8;
    if !ud.private.is_empty() {
        c.private_data = ud.private.as_ptr().cast();
    }
    c.ah_attr = ah::attr_of_handle(&ud.ah_attr);
    c.qp_num = ud.qpn.get();
    c.qkey = ud.qkey;
    c
}

/// A path record of the subnet administrator, which RoCE does not have, as the kernel makes one up.
pub fn path_record(path: &Path) -> ibv_sa_path_rec {
    /// The selectors' "exactly" (IBTA 15.2.5.16).
    const EXACTLY: u8 = 2;
    const RATE_10_GBPS: u8 = 3;
    let mut c = ibv_sa_path_rec::zeroed();
    c.sgid = ibv_gid { raw: path.sgid.0 };
    c.dgid = ibv_gid { raw: path.dgid.0 };
    c.flow_label = path.flow_label.to_be();
    c.hop_limit = path.hop_limit;
    c.traffic_class = path.traffic_class;
    c.reversible = 1;
    c.numb_path = 1;
    c.pkey = irdma::DEFAULT_PKEY.to_be();
    c.mtu_selector = EXACTLY;
    c.mtu = if path.mtu == 0 { 0 } else { mtu(path.mtu) as u8 };
    c.rate_selector = EXACTLY;
    c.rate = RATE_10_GBPS;
    c.packet_life_time_selector = EXACTLY;
    c.packet_life_time = path.packet_life_time;
    c
}
