//! Endpoints: identifiers that are resolved or bound, and have their queue pair, from one call.

use std::net::SocketAddr;
use std::ptr;

use crate::boundary::In;
use crate::boundary::{Errno, InOut, Object, Out, Owned, arg, refuse, set_field};
use crate::cm::address::Address;
use crate::cm::addrinfo::connect_data;
use crate::cm::id::{self, CmId};
use crate::cm::{event, qp, resolve, srq};
use crate::pd::Pd;
use crate::types::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id,
};

const CREATE: &str = "rdma_create_ep";
const TIMEOUT_MS: i32 = 2000;

/// What an endpoint uses later.
#[derive(Clone, Default)]
pub struct Template {
    /// A queue pair for each peer of a listener.
    attr: Option<ibv_qp_init_attr>,
    /// Goes in front of the program's private data when it connects.
    pub private: Vec<u8>,
}

/// `rdma_create_ep(3)`.
pub fn create(
    out: Out<'_, *mut rdma_cm_id>,
    In(info): In<rdma_addrinfo>,
    pd: Option<&Object<Pd>>,
    attr: Option<InOut<'_, ibv_qp_init_attr>>,
) -> Result<(), Errno> {
    let (space, qp_type) = (info.ai_port_space as u32, info.ai_qp_type as u32);
    let id = id::make(CREATE, None, ptr::null_mut(), space, qp_type)?;
    let made = if info.ai_flags & RAI_PASSIVE != 0 {
        passive(&id, &info, pd, attr)
    } else {
        active(&id, &info, pd, attr)
    };
    match made {
        Ok(()) => {
            out.write(Object::hand_out(id));
            Ok(())
        }
        Err(errno) => {
            // The program never saw it.
            let _ = id::destroy(Owned::new(id));
            Err(errno)
        }
    }
}

fn passive(
    id: &Object<CmId>,
    info: &rdma_addrinfo,
    pd: Option<&Object<Pd>>,
    attr: Option<InOut<'_, ibv_qp_init_attr>>,
) -> Result<(), Errno> {
    if let Some(source) = source(info)? {
        id.handle.bind_addr(source)?;
        id.show()?;
    }
    let attr = attr.map(|attr| ibv_qp_init_attr { qp_type: id.seen().qp_type, ..attr.get() });
    id.own().template = Some(Template { attr, private: Vec::new() });
    if let Some(pd) = pd {
        set_field!(id, pd, pd.as_seen());
    }
    Ok(())
}

fn active(
    id: &Object<CmId>,
    info: &rdma_addrinfo,
    pd: Option<&Object<Pd>>,
    attr: Option<InOut<'_, ibv_qp_init_attr>>,
) -> Result<(), Errno> {
    // SAFETY: the program promises an address that `rdma_getaddrinfo` found.
    let destination = unsafe { arg::<Address>(CREATE, "res->ai_dst_addr", info.ai_dst_addr) }?;
    let destination = destination.ip(CREATE, "res->ai_dst_addr")?;
    let patience = id::milliseconds(TIMEOUT_MS);
    id.handle.resolve_addr(source(info)?, destination, patience)?;
    id.complete()?;
    resolve::resolve_route(id, TIMEOUT_MS)?;
    if let Some(mut attr) = attr {
        let mut asked = ibv_qp_init_attr { qp_type: id.seen().qp_type, ..attr.get() };
        qp::make(id, pd, &mut asked)?;
        attr.set(asked);
    }
    id.own().template = Some(Template { attr: None, private: connect_data(info) });
    Ok(())
}

fn source(info: &rdma_addrinfo) -> Result<Option<SocketAddr>, Errno> {
    const NAME: &str = "res->ai_src_addr";
    // SAFETY: as of the destination.
    let source = unsafe { arg::<Option<Address>>(CREATE, NAME, info.ai_src_addr) }?;
    source.map(|source| source.ip(CREATE, NAME)).transpose()
}

/// `rdma_destroy_ep(3)`, with all that was made for it.
pub fn destroy(id: Owned<CmId>) -> Result<(), Errno> {
    let object = id.get();
    if !object.seen().qp.is_null() {
        qp::destroy(object)?;
    }
    if !object.seen().srq.is_null() {
        srq::destroy(object)?;
    }
    id::destroy(id)
}

/// `rdma_get_request(3)`: the next peer of a listener that waits for its events by itself.
pub fn get_request(listener: &Object<CmId>, out: Out<'_, *mut rdma_cm_id>) -> Result<(), Errno> {
    const CALL: &str = "rdma_get_request";
    if !listener.is_synchronous() {
        let cause = "the identifier has an event channel: call rdma_get_cm_event";
        return Err(refuse(CALL, libc::EINVAL, cause));
    }
    listener.forget_event();
    let event = listener.next_event()?;
    let seen = event.seen();
    if seen.event != RDMA_CM_EVENT_CONNECT_REQUEST || seen.status != 0 {
        let cause = format!("event {} with status {} came", seen.event, seen.status);
        set_field!(listener, event, Object::hand_out(event));
        let code = if seen.status == 0 { libc::EINVAL } else { seen.status.abs() };
        return Err(refuse(CALL, code, &cause));
    }
    // SAFETY: the event's identifier is new, and nobody else has it.
    let id = unsafe { arg::<&Object<CmId>>(CALL, "event->id", seen.id) }?;
    match equip(id, listener) {
        Ok(()) => {
            set_field!(id, event, Object::hand_out(event));
            out.write(id.as_seen());
            Ok(())
        }
        Err(errno) => {
            // The program never sees the new peer; its end refuses it.
            drop(event);
            // SAFETY: as above.
            let _ = unsafe { arg::<Owned<CmId>>(CALL, "event->id", seen.id) }.and_then(id::destroy);
            Err(errno)
        }
    }
}

/// Makes the queue pair that the listener's endpoint was given a pattern for.
fn equip(id: &Object<CmId>, listener: &Object<CmId>) -> Result<(), Errno> {
    let attr = listener.own().template.as_ref().and_then(|template| template.attr);
    let Some(mut attr) = attr else { return Ok(()) };
    // SAFETY: `id->pd` of the listener is the program's, which lives, or none.
    let pd = unsafe { arg::<Option<&Object<Pd>>>(CREATE, "id->pd", listener.seen().pd) }?;
    qp::make(id, pd, &mut attr)
}

impl Object<CmId> {
    fn next_event(&self) -> Result<Box<Object<event::Event>>, Errno> {
        let channel = self.own().channel().ok_or(Errno(libc::EINVAL))?;
        event::wait(&channel)
    }
}
