//! Asynchronous events.

use std::ffi::c_int;
use std::mem::offset_of;

use irdma::AsyncSource;

use crate::boundary::{Errno, FromC, In, Kept, NOT_YET, Object, Out, PATIENCE, Shape};
use crate::context::Context;
use crate::cq::Cq;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::types::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    ibv_async_event, ibv_async_event_element, ibv_cq, ibv_qp, ibv_srq,
};
use crate::waited::{Next, Source};

/// `ibv_get_async_event(3)`, for a while.
pub fn get(context: Source<Context>, out: Out<'_, ibv_async_event>) -> Result<c_int, Errno> {
    let event = context.next(|events| events.get_async_event_within(PATIENCE))?;
    let event = match event {
        Next::Event(event) => event,
        Next::None(later) => return Ok(later),
    };
    if event.source() == AsyncSource::Qp(0) {
        // Of a queue pair of an XRC domain whose maker has let go of it; dropped, it is
        // acknowledged.
        return Ok(NOT_YET);
    }
    let (kind, source) = event.into_unacked();
    let element = match source {
        AsyncSource::Cq(cookie) => ibv_async_event_element { cq: object::<Cq>(cookie).as_seen() },
        AsyncSource::Qp(cookie) => ibv_async_event_element { qp: object::<Qp>(cookie).as_seen() },
        AsyncSource::Srq(cookie) => {
            ibv_async_event_element { srq: object::<Srq>(cookie).as_seen() }
        }
        AsyncSource::Port(port) => ibv_async_event_element { port_num: port.into() },
        AsyncSource::Device => ibv_async_event_element::zeroed(),
    };
    out.write(ibv_async_event { element, event_type: kind as u32 });
    Ok(0)
}

/// The object that an event not yet acknowledged is about.
fn object<S: Shape>(cookie: u64) -> Kept<S> {
    // SAFETY: the object's destruction waits until the event is acknowledged.
    unsafe { Kept::from_cookie(cookie) }
}

/// `ibv_ack_async_event(3)`.
pub fn ack(In(event): In<ibv_async_event>) -> Result<(), Errno> {
    match event.event_type {
        IBV_EVENT_CQ_ERR => {
            // SAFETY: events of this type have a completion queue.
            let cq = named::<Cq>(unsafe { event.element.cq })?;
            cq.count(offset_of!(ibv_cq, async_events_completed), 1);
            cq.handle.ack_async_events(1);
        }
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: events of these types have a shared receive queue.
            let srq = named::<Srq>(unsafe { event.element.srq })?;
            srq.count(offset_of!(ibv_srq, events_completed), 1);
            srq.handle.ack_async_events(1);
        }
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: events of these types have a queue pair.
            let qp = named::<Qp>(unsafe { event.element.qp })?;
            qp.count(offset_of!(ibv_qp, events_completed), 1);
            qp.handle.ack_async_events(1);
        }
        // Ports and devices outlive their events.
        _ => {}
    }
    Ok(())
}

/// The object that the program's event points to.
fn named<'a, S: Shape>(pointer: *mut S::Seen) -> Result<&'a Object<S>, Errno> {
    // SAFETY: the program promises an event of `ibv_get_async_event`, whose object lives at least
    // until this acknowledgement.
    unsafe { <&Object<S>>::from_c(pointer) }
}
