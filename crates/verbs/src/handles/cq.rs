//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use irdma_net::clock;
use irdma_transport as transport;
use irdma_transport::{Arm, Overrun, Result, VerbsError, Wc};

use crate::channel::{AsyncSource, CompChannel, CompChannelInner, Refused, Subject};
use crate::context::ContextInner;
use crate::engine::{Feeders, Lane};
use crate::life::{Alive, Life, Unacked, Use};
use crate::limits::Place;
use crate::log::Logged;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
    _channel: Option<Use<CompChannelInner>>,
    _place: Place,
}

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) cq: Arc<transport::Cq>,
    pub(crate) unacked_comp: Unacked,
    unacked_async: Unacked,
    channel: Option<Arc<CompChannelInner>>,
    feeders: Feeders,
    /// The program asked for an event and has not got it: its polls are the last before it
    /// sleeps, not those of a spinning program.
    armed: AtomicBool,
    /// What [`Cq::wallclock_ns`] adds to a time of the steady clock.
    wallclock_offset: AtomicU64,
    cookie: AtomicU64,
    life: Life,
}

/// What a completion queue is created with (`struct ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInitAttr<'a> {
    /// How many completions can wait.
    pub cqe: u32,
    /// Where completion events go.
    pub channel: Option<&'a CompChannel>,
    /// The completion vector, 0.
    pub comp_vector: u32,
    /// What a full queue does.
    pub overrun: Overrun,
}

impl Alive for CqInner {
    const WHAT: &'static str = "completion queue";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Cq {
    pub(crate) fn create_cq(context: &Arc<ContextInner>, attr: &CqInitAttr<'_>) -> Result<Cq> {
        let CqInitAttr { cqe, channel, comp_vector, overrun } = *attr;
        check_cqe(context, cqe)?;
        if comp_vector != 0 {
            return Err(VerbsError::invalid(format!(
                "comp_vector {comp_vector}: the device has vector 0 only"
            )));
        }
        let held = channel.map(|channel| channel_of(context, channel)).transpose()?;
        let place = context.engine.cqs.take()?;
        let token = context.engine.next_token();
        let inner = Arc::new(CqInner {
            context: Arc::clone(context),
            cq: Arc::new(transport::Cq::with_overrun(token, cqe as usize, overrun)),
            unacked_comp: Unacked::default(),
            unacked_async: Unacked::default(),
            channel: channel.map(|channel| Arc::clone(&channel.0)),
            feeders: Feeders::new(),
            armed: AtomicBool::new(false),
            wallclock_offset: AtomicU64::new(0),
            cookie: AtomicU64::new(0),
            life: Life::default(),
        });
        context.engine.targets.add_cq(&inner);
        Ok(Cq { inner, _channel: held, _place: place })
    }

    /// Moves waiting completions, oldest first, into `out`; returns how many. An empty queue
    /// has the calling thread run the protocol first; EIO if the device is gone.
    #[inline]
    pub fn poll_cq(&self, out: &mut [Wc]) -> Result<usize> {
        let most = out.len();
        let mut places = out.iter_mut();
        self.poll_each(most, |wc| places.next().into_iter().for_each(|place| *place = wc))
    }

    /// As [`Cq::poll_cq`], giving up to `most` completions to `take`, which must not call the
    /// queue.
    #[inline]
    pub fn poll_each(&self, most: usize, take: impl FnMut(Wc)) -> Result<usize> {
        self.inner.poll_each(most, take)
    }

    /// Asks for one event at the next completion: any, or only a solicited or failed one.
    /// Completions already waiting raise nothing: poll after this call.
    pub fn req_notify_cq(&self, solicited_only: bool) -> Result<()> {
        self.inner.req_notify_cq(if solicited_only { Arm::Solicited } else { Arm::Any })
    }

    /// The most completions that can wait.
    pub fn capacity(&self) -> usize {
        self.inner.cq.capacity()
    }

    /// The time of day, in nanoseconds since 1970, of a [`Wc::timestamp_ns`].
    pub fn wallclock_ns(&self, timestamp_ns: u64) -> u64 {
        timestamp_ns.wrapping_add(self.inner.wallclock_offset())
    }

    /// Changes how many completions can wait; none that waits is lost. EINVAL for 0, more than
    /// the limit, or fewer than wait.
    pub fn resize_cq(&self, cqe: u32) -> Result<()> {
        self.inner.resize(cqe).logged("resize_cq")
    }

    /// The number that events name the queue by.
    pub fn set_cookie(&self, cookie: u64) {
        self.inner.cookie.store(cookie, Ordering::Release);
    }

    /// Acknowledges `count` completion events (`ibv_ack_cq_events(3)`).
    pub fn ack_cq_events(&self, count: u32) {
        self.inner.unacked_comp.ack(count);
    }

    /// Acknowledges `count` asynchronous events.
    pub fn ack_async_events(&self, count: u32) {
        self.inner.unacked_async.ack(count);
    }

    /// Destroys the queue, once every event about it is acknowledged. EBUSY while queue pairs
    /// use it.
    pub fn destroy_cq(self) -> std::result::Result<(), Refused<Self>> {
        match self.inner.destroy().logged("destroy_cq") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

fn check_cqe(context: &ContextInner, cqe: u32) -> Result<()> {
    let max = context.device.limits().max_cqe;
    if cqe == 0 || cqe > max {
        return Err(VerbsError::invalid(format!("cqe {cqe}: ask for 1 to {max}")));
    }
    Ok(())
}

fn channel_of(context: &Arc<ContextInner>, channel: &CompChannel) -> Result<Use<CompChannelInner>> {
    if !Arc::ptr_eq(context, &channel.0.context) {
        return Err(VerbsError::invalid("the completion channel belongs to another context"));
    }
    Use::of(&channel.0)
}

impl CqInner {
    #[inline]
    fn poll_each(&self, most: usize, mut take: impl FnMut(Wc)) -> Result<usize> {
        let engine = &self.context.engine;
        engine.check_fork()?;
        let mut count = self.cq.poll_each(most, &mut take);
        if count == 0 && most > 0 {
            self.feeders.each(engine, |lane| lane.progress());
            count = self.cq.poll_each(most, take);
            if count == 0 {
                self.context.check_device()?;
            }
            if count == 0 && self.armed.load(Ordering::Relaxed) {
                return Ok(0);
            }
        }
        self.feeders.each(engine, |lane| lane.note_call(count > 0));
        Ok(count)
    }

    fn resize(&self, cqe: u32) -> Result<()> {
        self.context.check_device()?;
        self.life.check(Self::WHAT)?;
        check_cqe(&self.context, cqe)?;
        self.cq.resize_cq(cqe as usize)
    }

    /// Follows changes of the clocks, but not the noise of reading two of them one after the
    /// other: completions in order have times in order.
    fn wallclock_offset(&self) -> u64 {
        const NOISE_NS: u64 = 1000;
        let known = self.wallclock_offset.load(Ordering::Relaxed);
        let now = clock::realtime_ns().wrapping_sub(clock::monotonic_ns());
        if known.abs_diff(now) < NOISE_NS {
            return known;
        }
        self.wallclock_offset.store(now, Ordering::Relaxed);
        now
    }

    fn req_notify_cq(&self, arm: Arm) -> Result<()> {
        self.context.check_device()?;
        self.cq.req_notify_cq(arm);
        if self.channel.is_some() {
            self.armed.store(true, Ordering::Relaxed);
            self.feeders.each(&self.context.engine, |lane| lane.note_armed());
        }
        Ok(())
    }

    /// An armed completion arrived.
    pub(crate) fn comp_event(self: &Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            channel.queue.push(Arc::downgrade(self));
        }
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    fn destroy(&self) -> Result<()> {
        self.context.engine.check_fork()?;
        self.life.end(Self::WHAT)?;
        self.free_number();
        if let Some(channel) = &self.channel {
            channel.queue.purge(|cq| std::ptr::eq(cq.as_ptr(), self));
        }
        self.context.events.purge(|event| event.is_about(self));
        self.cq.cq_free_rsrc();
        self.unacked_comp.wait();
        self.unacked_async.wait();
        Ok(())
    }
}

impl CqInner {
    /// Gives the queue's number back: nothing is delivered under it any more.
    fn free_number(&self) {
        self.context.engine.targets.remove_cq(self.cq.token());
    }
}

/// Something's part in feeding a completion queue, and with it the queue's channel.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) cq: Use<CqInner>,
    /// The lane, if it is a thread domain's.
    domain: Option<Arc<Lane>>,
}

impl Feed {
    /// EINVAL if the queue was destroyed.
    pub(crate) fn new(cq: &Arc<CqInner>, domain: Option<&Arc<Lane>>) -> Result<Self> {
        let cq = Use::of(cq)?;
        cq.each_feeders(|feeders| feeders.add(domain));
        Ok(Feed { cq, domain: domain.cloned() })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // In a forked child a thread of the parent's may hold what this takes.
        if self.cq.context.engine.check_fork().is_ok() {
            self.cq.each_feeders(|feeders| feeders.remove(self.domain.as_ref()));
        }
    }
}

impl CqInner {
    fn each_feeders(&self, change: impl Fn(&Feeders)) {
        change(&self.feeders);
        self.channel.iter().for_each(|channel| change(&channel.feeders));
    }
}

impl Subject for CqInner {
    fn source(&self) -> AsyncSource {
        AsyncSource::Cq(self.cookie())
    }

    fn unacked(&self) -> &Unacked {
        &self.unacked_async
    }

    fn is_alive(&self) -> bool {
        self.life.is_alive()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if self.context.engine.check_fork().is_ok() {
            self.free_number();
        }
    }
}
