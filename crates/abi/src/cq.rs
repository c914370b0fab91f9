//! Completion queues and their event channels.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;

use crate::boundary::{End, Ends, Errno, Kept, NOT_YET, Object, Out, PATIENCE, Shape, set_field};
use crate::context::Context;
use crate::handle;
use crate::types::{ibv_comp_channel, ibv_cq};

/// A completion event channel.
pub struct CompChannel {
    handle: ManuallyDrop<irdma::CompChannel>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for CompChannel {
    type C = ibv_comp_channel;
    type Seen = ibv_comp_channel;
}

impl Ends for CompChannel {
    type Handle = irdma::CompChannel;
    const END: End<irdma::CompChannel> = irdma::CompChannel::destroy_comp_channel;

    fn handle(&self) -> &ManuallyDrop<irdma::CompChannel> {
        &self.handle
    }
}

/// `ibv_create_comp_channel(3)`.
pub fn create_channel(context: &Object<Context>) -> Result<Box<Object<CompChannel>>, Errno> {
    let handle = ManuallyDrop::new(context.handle.create_comp_channel()?);
    let fd = handle.as_raw_fd();
    let c = ibv_comp_channel { context: context.as_seen(), fd, refcnt: 0 };
    Ok(Object::new(c, CompChannel { handle }))
}

/// A completion queue.
pub struct Cq {
    pub handle: ManuallyDrop<irdma::Cq>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Cq {
    type C = ibv_cq;
    type Seen = ibv_cq;
}

impl Ends for Cq {
    type Handle = irdma::Cq;
    const END: End<irdma::Cq> = irdma::Cq::destroy_cq;

    fn handle(&self) -> &ManuallyDrop<irdma::Cq> {
        &self.handle
    }
}

/// `ibv_create_cq(3)`.
pub fn create(
    context: &Object<Context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Option<&Object<CompChannel>>,
    comp_vector: c_int,
) -> Result<Box<Object<Cq>>, Errno> {
    // A negative number is above every limit.
    let handle = context.handle.create_cq(
        cqe as u32,
        channel.map(|channel| &*channel.handle),
        comp_vector as u32,
    )?;
    let mut c = ibv_cq::zeroed();
    c.context = context.as_seen();
    c.channel = channel.map_or(std::ptr::null_mut(), Object::as_seen);
    c.cq_context = cq_context;
    c.handle = handle::next();
    c.cqe = handle.capacity() as c_int;
    let cq = Object::new(c, Cq { handle: ManuallyDrop::new(handle) });
    cq.handle.set_cookie(cq.cookie());
    Ok(cq)
}

/// `ibv_get_cq_event(3)`, for a while.
pub fn get_event(
    channel: &Object<CompChannel>,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> Result<c_int, Errno> {
    let Some(event) = channel.handle.get_cq_event_within(PATIENCE)? else { return Ok(NOT_YET) };
    // SAFETY: the queue's destruction waits until the event is acknowledged.
    let object = unsafe { Kept::<Cq>::from_cookie(event.into_unacked()) };
    cq.write(object.as_seen());
    cq_context.write(object.seen().cq_context);
    Ok(0)
}

/// `ibv_ack_cq_events(3)`.
pub fn ack_events(cq: &Object<Cq>, count: u32) -> Result<(), Errno> {
    // The queue may be gone as soon as the handle knows.
    cq.count(offset_of!(ibv_cq, comp_events_completed), count);
    cq.handle.ack_cq_events(count);
    Ok(())
}

/// `ibv_resize_cq(3)`.
pub fn resize(cq: &Object<Cq>, cqe: c_int) -> Result<(), Errno> {
    cq.handle.resize_cq(cqe as u32)?;
    set_field!(cq, cqe, cqe);
    Ok(())
}
