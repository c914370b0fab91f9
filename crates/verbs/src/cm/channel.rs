//! Event channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use irdma_transport::Result;

use super::event::{Event, Pending};
use crate::channel::{Closed, EventQueue};
use crate::engine::Feeders;
use crate::log::Logged;
use crate::process::EngineUse;

/// Where the events of [`Id`](super::Id)s go; clones are the same channel.
///
/// The descriptor is readable while an event waits, and works with `poll(2)`, `select(2)` and
/// `O_NONBLOCK`.
#[derive(Clone, Debug)]
pub struct EventChannel {
    pub(super) queue: Arc<EventQueue<Pending>>,
    pub(super) engine: Arc<EngineUse>,
}

impl EventChannel {
    /// Makes a channel (`rdma_create_event_channel(3)`); needs no device.
    ///
    /// EINVAL for a bad `IRDMA_*` variable, EMFILE without a descriptor.
    pub fn create_event_channel() -> Result<Self> {
        Self::try_create().logged("create_event_channel")
    }

    fn try_create() -> Result<Self> {
        let engine = Arc::new(EngineUse::open()?);
        Ok(EventChannel { queue: Arc::new(EventQueue::new()?), engine })
    }

    /// Waits for the next event (`rdma_get_cm_event(3)`).
    ///
    /// EAGAIN if the descriptor is non-blocking and none waits, EINTR for a signal whose handler
    /// was installed without `SA_RESTART`, EIO in a forked child, EBADF once the channel is
    /// destroyed.
    pub fn get_cm_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.get_cm_event_within(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// Ends the channel and all its clones (`rdma_destroy_event_channel(3)`): whoever waits for an
    /// event, or comes to, gets EBADF once none is left.
    pub fn destroy_event_channel(self) {
        self.queue.close(Closed::Destroyed);
    }

    /// As [`EventChannel::get_cm_event`]; `None` after `patience`.
    pub fn get_cm_event_within(&self, patience: Duration) -> Result<Option<Event>> {
        // The connection manager is in the process's own lane.
        let taken = |pending: Pending| Some(pending.taken());
        let pending = self.queue.get(&self.engine, &Feeders::new(), patience, taken)?;
        Ok(pending.map(|pending| pending.deliver(self)))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
