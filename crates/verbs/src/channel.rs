//! Completion and asynchronous event channels: queues in memory behind pollable descriptors.
//!
//! Invariant: the descriptor counts the events that wait, so it is readable exactly while one
//! does. Both change under the queue's lock.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use irdma_net::clock;
use irdma_net::wake::EventFd;
use irdma_transport::{ErrorKind, EventKind, Result, VerbsError};

use crate::context::ContextInner;
use crate::engine::{Engine, Feeders};
use crate::handles::CqInner;
use crate::life::{Alive, Life, Unacked};
use crate::log::Logged;
use crate::system::system_error;

/// Events in order, with a descriptor to wait on.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    fd: EventFd,
    /// The process that made it: a forked child's descriptor is the same as its parent's.
    owner: u32,
    events: Mutex<Events<E>>,
}

#[derive(Debug)]
struct Events<E> {
    queue: VecDeque<E>,
    /// Why no more will come: the descriptor stays readable, so that nobody waits.
    closed: Option<Closed>,
}

/// Why a queue gets no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The device is gone: EIO.
    Removed,
    /// The object that had the events is destroyed: EBADF.
    Destroyed,
}

impl From<Closed> for VerbsError {
    fn from(closed: Closed) -> VerbsError {
        match closed {
            Closed::Removed => removed(),
            Closed::Destroyed => {
                let cause = "the object was destroyed while a thread waited for its events";
                VerbsError::new(ErrorKind::Destroyed, cause)
            }
        }
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Result<Self> {
        let fd = EventFd::channel().map_err(|error| system_error("event channel", &error))?;
        let events = Events { queue: VecDeque::new(), closed: None };
        Ok(EventQueue { fd, owner: clock::pid(), events: Mutex::new(events) })
    }

    /// Adds an event and makes the descriptor readable.
    pub(crate) fn push(&self, event: E) {
        let mut events = self.lock();
        events.queue.push_back(event);
        self.fd.signal();
    }

    /// Takes the oldest event that `take` makes something of, dropping those before it; `take`
    /// runs before anyone else can see the event gone.
    pub(crate) fn try_pop<T>(&self, take: impl Fn(E) -> Option<T>) -> Option<T> {
        let mut events = self.lock();
        loop {
            let event = events.queue.pop_front()?;
            self.uncount();
            if let Some(taken) = take(event) {
                return Some(taken);
            }
        }
    }

    /// Forgets the waiting events of a dying object.
    pub(crate) fn purge(&self, dies: impl FnMut(&E) -> bool) {
        drop(self.take_all(dies));
    }

    /// Takes the waiting events that `wanted` names, in order; none in a forked child.
    pub(crate) fn take_all(&self, wanted: impl FnMut(&E) -> bool) -> Vec<E> {
        if clock::pid() != self.owner {
            return Vec::new();
        }
        let mut events = self.lock();
        let (taken, kept): (VecDeque<E>, _) = events.queue.drain(..).partition(wanted);
        events.queue = kept;
        taken.iter().for_each(|_| self.uncount());
        taken.into()
    }

    /// Wakes all who wait, now and later: after the events that wait there is the error. What is
    /// destroyed stays so. Nothing happens in a forked child.
    pub(crate) fn close(&self, why: Closed) {
        if clock::pid() != self.owner {
            return;
        }
        let mut events = self.lock();
        if events.closed.is_none() {
            self.fd.signal();
        }
        if events.closed != Some(Closed::Destroyed) {
            events.closed = Some(why);
        }
    }

    /// Takes the oldest event, waiting for one as the descriptor's own mode says: EAGAIN with
    /// `O_NONBLOCK`, EINTR as `read(2)`, the error of a closed queue. A waiting caller runs the
    /// protocol meanwhile, in the lanes that feed the queue; `None` when it has done so for
    /// `patience`.
    pub(crate) fn get<T>(
        &self,
        engine: &Engine,
        feeders: &Feeders,
        patience: Duration,
        take: impl Fn(E) -> Option<T>,
    ) -> Result<Option<T>> {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = clock::monotonic_ns().saturating_add(patience_ns);
        loop {
            engine.check_fork()?;
            if let Some(taken) = self.try_pop(&take) {
                return Ok(Some(taken));
            }
            if let Some(why) = self.lock().closed {
                return Err(why.into());
            }
            if self.is_nonblocking() {
                feeders.each(engine, |lane| lane.progress());
                return self.try_pop(&take).ok_or_else(none_waits).map(Some);
            }
            if clock::monotonic_ns() >= until_ns {
                return Ok(None);
            }
            engine.wait_readable(feeders, self.fd.as_fd(), &|| self.is_readable(), until_ns)?;
        }
    }

    fn is_readable(&self) -> bool {
        let events = self.lock();
        events.closed.is_some() || !events.queue.is_empty()
    }

    fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    fn uncount(&self) {
        // Fails if the program has read from the descriptor itself.
        let _ = self.fd.read();
    }

    fn lock(&self) -> MutexGuard<'_, Events<E>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn none_waits() -> VerbsError {
    VerbsError::new(ErrorKind::Again, "no event waits and the channel is non-blocking")
}

/// What a call on a device that is gone answers.
pub(crate) fn removed() -> VerbsError {
    VerbsError::new(ErrorKind::Io, "the device was removed; destroy its objects and close it")
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
    pub(crate) queue: EventQueue<Weak<CqInner>>,
    pub(crate) context: Arc<ContextInner>,
    pub(crate) feeders: Feeders,
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
        let channel = CompChannelInner {
            queue,
            context: Arc::clone(context),
            feeders: Feeders::new(),
            life: Life::default(),
        };
        let channel = Arc::new(channel);
        context.add_channel(&channel);
        Ok(CompChannel(channel))
    }

    /// Waits for the next completion event (`ibv_get_cq_event(3)`).
    ///
    /// EAGAIN if the descriptor is non-blocking and none waits, EINTR for a signal whose handler
    /// was installed without `SA_RESTART`, EIO once the device is gone.
    pub fn get_cq_event(&self) -> Result<CqEvent> {
        loop {
            if let Some(event) = self.get_cq_event_within(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// As [`CompChannel::get_cq_event`]; `None` after `patience`.
    pub fn get_cq_event_within(&self, patience: Duration) -> Result<Option<CqEvent>> {
        self.events().get_cq_event_within(patience)
    }

    /// The events alone, for a thread that may wait for them longer than the channel lives.
    pub fn events(&self) -> CompEvents {
        CompEvents(Arc::clone(&self.0))
    }

    /// Destroys the channel. EBUSY while completion queues use it.
    pub fn destroy_comp_channel(self) -> std::result::Result<(), Refused<Self>> {
        let ended = self.0.life.end(CompChannelInner::WHAT).logged("destroy_comp_channel");
        match ended {
            Ok(()) => {
                self.0.queue.close(Closed::Destroyed);
                Ok(())
            }
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

/// The events of a [`CompChannel`].
#[derive(Clone, Debug)]
pub struct CompEvents(Arc<CompChannelInner>);

impl CompEvents {
    /// As [`CompChannel::get_cq_event_within`]; EBADF once the channel was ended by
    /// [`CompChannel::destroy_comp_channel`] and has no event left.
    pub fn get_cq_event_within(&self, patience: Duration) -> Result<Option<CqEvent>> {
        let engine = &self.0.context.engine;
        self.0.queue.get(engine, &self.0.feeders, patience, |cq| {
            let cq = cq.upgrade().filter(|cq| cq.is_alive())?;
            cq.unacked_comp.add();
            Some(CqEvent { cookie: cq.cookie(), cq: Some(cq) })
        })
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

/// What events can be about: an object that counts those handed out.
pub(crate) trait Subject: fmt::Debug + Send + Sync {
    /// Kind and cookie.
    fn source(&self) -> AsyncSource;

    /// Asynchronous events handed out and not acknowledged.
    fn unacked(&self) -> &Unacked;

    /// Whether the program may still hear of it: not once its destruction has begun.
    fn is_alive(&self) -> bool;
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

/// An asynchronous event that waits; the object may be destroyed before anyone asks.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) kind: EventKind,
    pub(crate) target: Target,
}

/// What a waiting event is about.
#[derive(Debug)]
pub(crate) enum Target {
    Object(Weak<dyn Subject>),
    Port(u8),
    Device,
}

impl Waiting {
    /// Whether the event is about the object at `address`.
    pub(crate) fn is_about<T>(&self, object: *const T) -> bool {
        match &self.target {
            Target::Object(subject) => std::ptr::addr_eq(subject.as_ptr(), object),
            Target::Port(_) | Target::Device => false,
        }
    }

    /// Hands the event out; `None` if its object is gone, or about to go.
    pub(crate) fn deliver(self) -> Option<AsyncEvent> {
        let (source, subject) = match self.target {
            Target::Object(subject) => {
                let subject = subject.upgrade().filter(|subject| subject.is_alive())?;
                subject.unacked().add();
                (subject.source(), Some(subject))
            }
            Target::Port(port) => (AsyncSource::Port(port), None),
            Target::Device => (AsyncSource::Device, None),
        };
        Some(AsyncEvent { kind: self.kind, source, subject })
    }
}

/// An asynchronous event; dropping it acknowledges it.
#[derive(Debug)]
pub struct AsyncEvent {
    kind: EventKind,
    source: AsyncSource,
    subject: Option<Arc<dyn Subject>>,
}

impl AsyncEvent {
    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// To what.
    pub fn source(&self) -> AsyncSource {
        self.source
    }

    /// Leaves the acknowledgement to the object's `ack_async_events`.
    pub fn into_unacked(mut self) -> (EventKind, AsyncSource) {
        self.subject = None;
        (self.kind, self.source)
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if let Some(subject) = &self.subject {
            subject.unacked().ack(1);
        }
    }
}

/// A completion event; dropping it acknowledges it.
#[derive(Debug)]
pub struct CqEvent {
    cookie: u64,
    cq: Option<Arc<CqInner>>,
}

impl CqEvent {
    /// The number given to the completion queue by `set_cookie`.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Leaves the acknowledgement to `ack_cq_events`; returns the queue's cookie.
    pub fn into_unacked(mut self) -> u64 {
        self.cq = None;
        self.cookie
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if let Some(cq) = &self.cq {
            cq.unacked_comp.ack(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::device::Device;

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
        assert_eq!(queue.try_pop(Some), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.try_pop(Some), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.try_pop(Some), None);
    }

    #[test]
    fn a_closed_queue_hands_out_what_it_has_and_stays_readable() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.close(Closed::Removed);
        assert_eq!(queue.lock().closed, Some(Closed::Removed));
        for why in [Closed::Destroyed, Closed::Removed] {
            queue.close(why);
            assert_eq!(queue.lock().closed, Some(Closed::Destroyed));
        }
        assert_eq!(queue.try_pop(Some), Some(1));
        assert!(readable(&queue) && queue.is_readable());
        assert_eq!(queue.try_pop(Some), None);
    }

    #[test]
    fn a_program_that_reads_the_descriptor_itself_still_gets_its_events() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        rustix::io::read(&queue, &mut [0u8; 8]).unwrap();
        assert_eq!((queue.try_pop(Some), queue.try_pop(Some)), (Some(1), None));
        queue.push(2);
        assert!(readable(&queue));
    }

    #[test]
    fn purged_events_are_gone_from_the_descriptor_too() {
        let queue = EventQueue::new().unwrap();
        (1..=4).for_each(|event| queue.push(event));
        queue.purge(|event| event % 2 == 0);
        assert_eq!((queue.try_pop(Some), queue.try_pop(Some)), (Some(1), Some(3)));
        assert!(!readable(&queue));
    }

    #[test]
    fn an_event_that_comes_behind_a_destruction_is_not_handed_out() {
        let context = Device::list().unwrap().pop().unwrap().open().unwrap();
        let channel = context.create_comp_channel().unwrap();
        rustix::fs::fcntl_setfl(&channel, rustix::fs::OFlags::NONBLOCK).unwrap();
        let cq = context.create_cq(1, Some(&channel), 0).unwrap();
        // Whoever dispatches an event holds the queue for a moment.
        let inner = Arc::clone(&cq.inner);
        cq.destroy_cq().unwrap();
        inner.comp_event();
        assert_eq!(channel.get_cq_event().unwrap_err().kind(), ErrorKind::Again);
        let target = Target::Object(Arc::downgrade(&inner) as _);
        assert!(Waiting { kind: EventKind::CqErr, target }.deliver().is_none());
    }
}
