//! Event channels.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::boundary::{Errno, NOT_YET, Object, Out, Owned, PATIENCE, Shape};
use crate::cm::{event, live};
use crate::types::{rdma_cm_event, rdma_event_channel};

/// An event channel.
pub struct EventChannel {
    pub handle: irdma::cm::EventChannel,
    /// Threads that wait for its events.
    waiting: AtomicU32,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for EventChannel {
    type C = rdma_event_channel;
    type Seen = rdma_event_channel;
}

/// `rdma_create_event_channel(3)`.
pub fn create() -> Result<Box<Object<EventChannel>>, Errno> {
    let handle = irdma::cm::EventChannel::create_event_channel()?;
    let c = rdma_event_channel { fd: handle.as_raw_fd() };
    Ok(Object::new(c, EventChannel { handle, waiting: AtomicU32::new(0) }))
}

/// `rdma_destroy_event_channel(3)`; identifiers that are left end with it.
pub fn destroy(channel: Owned<EventChannel>) -> Result<(), Errno> {
    live::close(channel.get());
    // Programs leave threads behind that wait for events when they end; those wait on.
    if channel.get().waiting.load(Ordering::Acquire) == 0 {
        drop(channel.take());
    }
    Ok(())
}

/// `rdma_get_cm_event(3)`, for a while.
pub fn get_event(
    channel: &Object<EventChannel>,
    out: Out<'_, *mut rdma_cm_event>,
) -> Result<c_int, Errno> {
    channel.waiting.fetch_add(1, Ordering::AcqRel);
    let event = channel.handle.get_cm_event_within(PATIENCE);
    channel.waiting.fetch_sub(1, Ordering::AcqRel);
    let Some(event) = event?.and_then(event::digest) else { return Ok(NOT_YET) };
    out.write(Object::hand_out(event));
    Ok(0)
}
