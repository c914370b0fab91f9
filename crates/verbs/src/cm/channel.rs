//! Event channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use irdma_transport::Result;

use super::event::Event;
use crate::channel::EventQueue;

/// Where the events of [`Id`](super::Id)s go; clones are the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(Arc<EventQueue<Event>>);

impl EventChannel {
    /// Makes a channel (`rdma_create_event_channel(3)`); needs no device.
    ///
    /// EINVAL for a bad `IRDMA_*` variable, EMFILE without a descriptor.
    pub fn create_event_channel() -> Result<Self> {
        Ok(EventChannel(Arc::new(EventQueue::new()?)))
    }

    /// Waits for the next event (`rdma_get_cm_event(3)`).
    ///
    /// EAGAIN if the descriptor is non-blocking and none waits, EINTR for a signal whose handler
    /// was installed without `SA_RESTART`, EIO in a forked child.
    pub fn get_cm_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.get_cm_event_within(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// As [`EventChannel::get_cm_event`]; `None` after `patience`.
    pub fn get_cm_event_within(&self, _patience: Duration) -> Result<Option<Event>> {
        Ok(self.0.try_pop(Some))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
