//! Event channels.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use crate::boundary::{Errno, NOT_YET, Object, Out, Owned, PATIENCE, Shape};
use crate::cm::{event, live};
use crate::types::{rdma_cm_event, rdma_event_channel};
use crate::waited::{Next, Place, Source, Table, Waits};

/// An event channel.
pub struct EventChannel {
    pub handle: irdma::cm::EventChannel,
    place: OnceLock<Place<irdma::cm::EventChannel>>,
}

static CHANNELS: Table<irdma::cm::EventChannel> = Table::new();

impl Waits for EventChannel {
    type Events = irdma::cm::EventChannel;
    const TABLE: &'static Table<irdma::cm::EventChannel> = &CHANNELS;
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
    let channel = Object::new(c, EventChannel { handle, place: OnceLock::new() });
    channel.place.get_or_init(|| CHANNELS.enter(&channel, channel.handle.clone()));
    Ok(channel)
}

/// `rdma_destroy_event_channel(3)`; identifiers that are left end with it.
pub fn destroy(channel: Owned<EventChannel>) -> Result<(), Errno> {
    live::close(channel.get());
    let handle = channel.get().handle.clone();
    drop(channel.take());
    handle.destroy_event_channel();
    Ok(())
}

/// `rdma_get_cm_event(3)`, for a while.
pub fn get_event(
    channel: Source<EventChannel>,
    out: Out<'_, *mut rdma_cm_event>,
) -> Result<c_int, Errno> {
    let event = channel.next(|channel| channel.get_cm_event_within(PATIENCE))?;
    let event = match event {
        Next::Event(event) => event,
        Next::None(later) => return Ok(later),
    };
    let Some(event) = event::digest(event) else { return Ok(NOT_YET) };
    out.write(Object::hand_out(event));
    Ok(0)
}
