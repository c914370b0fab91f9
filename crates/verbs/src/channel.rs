//! Completion and asynchronous event channels: queues in memory behind pollable descriptors.
//!
//! Invariant: the descriptor counts the events that wait, so it is readable exactly while one
//! does. Both change under the queue's lock.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use irdma_net::wake::EventFd;
use irdma_transport::{ErrorKind, EventKind, Result, VerbsError};

use crate::context::ContextInner;
use crate::engine::Engine;
use crate::handles::{CqInner, QpInner, SrqInner};
use crate::life::{Alive, Life};
use crate::log::Logged;

/// Events in order, with a descriptor to wait on.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    fd: EventFd,
    events: Mutex<VecDeque<E>>,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Result<Self> {
        let fd = EventFd::channel().map_err(|error| {
            let text = format!("event channel: no descriptor: {error}; raise RLIMIT_NOFILE");
            VerbsError::no_memory(text)
        })?;
        Ok(EventQueue { fd, events: Mutex::default() })
    }

    /// Adds an event and makes the descriptor readable.
    pub(crate) fn push(&self, event: E) {
        let mut events = self.lock();
        events.push_back(event);
        self.fd.signal();
    }

    /// Takes the oldest event; `taken` runs before anyone else can see it gone.
    pub(crate) fn try_pop(&self, taken: impl FnOnce(&E)) -> Option<E> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        self.uncount();
        taken(&event);
        Some(event)
    }

    /// Forgets the waiting events of a dying object.
    pub(crate) fn purge(&self, mut dies: impl FnMut(&E) -> bool) {
        let mut events = self.lock();
        events.retain(|event| {
            let dies = dies(event);
            if dies {
                self.uncount();
            }
            !dies
        });
    }

    /// Takes the oldest event, waiting for one as the descriptor's own mode says: EAGAIN with
    /// `O_NONBLOCK`. A waiting caller runs the protocol meanwhile.
    pub(crate) fn get(&self, engine: &Engine, taken: impl Fn(&E)) -> Result<E> {
        loop {
            engine.check_fork()?;
            if let Some(event) = self.try_pop(&taken) {
                return Ok(event);
            }
            if self.is_nonblocking() {
                engine.progress();
                return self.try_pop(&taken).ok_or_else(none_waits);
            }
            engine.wait_readable(self.fd.as_fd(), &|| !self.lock().is_empty());
        }
    }

    fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    fn uncount(&self) {
        // Cannot block: the counter is at least the number of events, which is not 0.
        let _ = self.fd.read();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<E>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn none_waits() -> VerbsError {
    VerbsError::new(ErrorKind::Again, "no event waits and the channel is non-blocking")
}

impl<E> AsFd for EventQueue<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A channel that armed completion queues raise their events on.
#[derive(Debug)]
pub struct CompChannel(pub(crate) Arc<CompChannelInner>);

#[derive(Debug)]
pub(crate) struct CompChannelInner {
    pub(crate) queue: EventQueue<Arc<CqInner>>,
    pub(crate) context: Arc<ContextInner>,
    life: Life,
}

impl Alive for CompChannelInner {
    const WHAT: &'static str = "completion channel";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl CompChannel {
    pub(crate) fn create_comp_channel(context: &Arc<ContextInner>) -> Result<Self> {
        let queue = EventQueue::new()?;
        let context = Arc::clone(context);
        Ok(CompChannel(Arc::new(CompChannelInner { queue, context, life: Life::default() })))
    }

    /// Waits for the next completion event (`ibv_get_cq_event(3)`).
    ///
    /// EAGAIN if the descriptor is non-blocking and none waits.
    pub fn get_cq_event(&self) -> Result<CqEvent> {
        let engine = &self.0.context.engine;
        let cq = self.0.queue.get(engine, |cq| cq.unacked_comp.add())?;
        Ok(CqEvent(Some(cq)))
    }

    /// Destroys the channel. EBUSY while completion queues use it.
    pub fn destroy_comp_channel(self) -> std::result::Result<(), Refused<Self>> {
        let ended = self.0.life.end(CompChannelInner::WHAT).logged("destroy_comp_channel");
        ended.map_err(|error| Refused { handle: self, error })
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.queue.as_fd()
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A destruction that was refused gives the handle back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// The object, unchanged.
    pub handle: T,
    /// Why.
    pub error: VerbsError,
}

/// A completion event; dropping it acknowledges it.
#[derive(Debug)]
pub struct CqEvent(Option<Arc<CqInner>>);

impl CqEvent {
    /// The number given to the completion queue by `set_cookie`.
    pub fn cookie(&self) -> u64 {
        self.0.as_ref().map_or(0, |cq| cq.cookie())
    }

    /// Leaves the acknowledgement to `ack_cq_events`; returns the queue's cookie.
    pub fn into_unacked(mut self) -> u64 {
        self.0.take().map_or(0, |cq| cq.cookie())
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if let Some(cq) = &self.0 {
            cq.unacked_comp.ack(1);
        }
    }
}

/// The object that an asynchronous event is about.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Cq(Arc<CqInner>),
    Qp(Arc<QpInner>),
    Srq(Arc<SrqInner>),
    Port(u8),
    Device,
}

/// The object that an asynchronous event is about, by the cookie of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncSource {
    /// A completion queue.
    Cq(u64),
    /// A queue pair.
    Qp(u64),
    /// A shared receive queue.
    Srq(u64),
    /// A port.
    Port(u8),
    /// The device.
    Device,
}

impl Target {
    fn source(&self) -> AsyncSource {
        match self {
            Target::Cq(cq) => AsyncSource::Cq(cq.cookie()),
            Target::Qp(qp) => AsyncSource::Qp(qp.cookie()),
            Target::Srq(srq) => AsyncSource::Srq(srq.cookie()),
            Target::Port(port) => AsyncSource::Port(*port),
            Target::Device => AsyncSource::Device,
        }
    }

    /// Counts an event as handed out.
    pub(crate) fn delivered(&self) {
        match self {
            Target::Cq(cq) => cq.unacked_async.add(),
            Target::Qp(qp) => qp.unacked.add(),
            Target::Srq(srq) => srq.unacked.add(),
            Target::Port(_) | Target::Device => {}
        }
    }

    fn ack(&self) {
        match self {
            Target::Cq(cq) => cq.unacked_async.ack(1),
            Target::Qp(qp) => qp.unacked.ack(1),
            Target::Srq(srq) => srq.unacked.ack(1),
            Target::Port(_) | Target::Device => {}
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cq(_) => f.write_str("a completion queue"),
            Target::Qp(qp) => write!(f, "QP {}", qp.qpn),
            Target::Srq(_) => f.write_str("a shared receive queue"),
            Target::Port(port) => write!(f, "port {port}"),
            Target::Device => f.write_str("the device"),
        }
    }
}

/// An asynchronous event; dropping it acknowledges it.
#[derive(Debug)]
pub struct AsyncEvent {
    kind: EventKind,
    target: Option<Target>,
}

impl AsyncEvent {
    pub(crate) fn new(kind: EventKind, target: Target) -> Self {
        AsyncEvent { kind, target: Some(target) }
    }

    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// To what.
    pub fn source(&self) -> AsyncSource {
        self.target.as_ref().map_or(AsyncSource::Device, Target::source)
    }

    /// Leaves the acknowledgement to the object's `ack_async_events`.
    pub fn into_unacked(mut self) -> (EventKind, AsyncSource) {
        let source = self.source();
        self.target = None;
        (self.kind, source)
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if let Some(target) = &self.target {
            target.ack();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_an_event_waits() {
        let queue = EventQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.try_pop(|_| ()), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.try_pop(|_| ()), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.try_pop(|_| ()), None);
    }

    #[test]
    fn purged_events_are_gone_from_the_descriptor_too() {
        let queue = EventQueue::new().unwrap();
        (1..=4).for_each(|event| queue.push(event));
        queue.purge(|event| event % 2 == 0);
        assert_eq!((queue.try_pop(|_| ()), queue.try_pop(|_| ())), (Some(1), Some(3)));
        assert!(!readable(&queue));
    }
}
