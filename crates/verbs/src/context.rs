//! An open device: the root of the objects that a program makes on it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use irdma_net::clock;
use irdma_transport::{EventKind, Result};
use irdma_wire::{Gid, Qpn};

use crate::channel::{
    AsyncEvent, Closed, CompChannel, CompChannelInner, EventQueue, Target, Waiting, removed,
};
use crate::device::{Device, DeviceAttr};
use crate::engine::{Engine, Feeders};
use crate::handles::{
    Cq, CqInitAttr, Dm, DmAttr, MrInner, MwInner, Pd, QpInner, QueueMrInner, Td, Xrcd, XrcdFlags,
    XrcdInner,
};
use crate::life::{Alive, Life};
use crate::log::Logged;
use crate::page::CounterPage;
use crate::port::{PORT, PortAttr, PortState, port_ibevent};
use crate::process::Process;
use crate::stats::HwStats;

/// An open device.
#[derive(Debug)]
pub struct Context(Arc<ContextInner>);

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(crate) device: Device,
    pub(crate) engine: Arc<Engine>,
    pub(crate) events: EventQueue<Waiting>,
    life: Life,
    /// The program is being told, or was, that the device goes.
    leaves: AtomicBool,
    /// The device is gone: only destroying goes on.
    removed: AtomicBool,
    open: Mutex<Open>,
    /// Registered queue memory.
    queue_mrs: Mutex<Vec<Weak<QueueMrInner>>>,
    seen: Mutex<Seen>,
    xrcds: Mutex<Vec<Weak<XrcdInner>>>,
}

/// The port as the program was last told.
#[derive(Clone, Debug)]
struct Seen {
    state: PortState,
    addresses: Vec<IpAddr>,
}

/// What closing the context, or losing the device, has to end.
#[derive(Debug, Default)]
struct Open {
    channels: Vec<Weak<CompChannelInner>>,
    qps: HashMap<Qpn, Weak<QpInner>>,
    mrs: HashMap<u32, Weak<MrInner>>,
    mws: HashMap<u32, Weak<MwInner>>,
}

impl Alive for ContextInner {
    const WHAT: &'static str = "context";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Context {
    /// Opens `device`; starts neither thread nor socket. ENODEV for one that was removed.
    pub(crate) fn alloc_ucontext(device: &Device) -> Result<Context> {
        let state = device.open_port().logged("open_device")?.state;
        let events = EventQueue::new().logged("open_device")?;
        let engine = Process::current().open_engine().logged("open_device")?;
        let inner = Arc::new(ContextInner {
            device: device.clone(),
            engine,
            events,
            life: Life::default(),
            leaves: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            open: Mutex::default(),
            queue_mrs: Mutex::default(),
            xrcds: Mutex::default(),
            seen: Mutex::new(Seen { state, addresses: device.gids().addresses() }),
        });
        inner.engine.targets.add_context(&inner);
        Ok(Context(inner))
    }

    /// Closes the device. Queue pairs, windows and regions that are still there end with it; their
    /// handles answer EINVAL from now on.
    pub fn dealloc_ucontext(self) {
        self.0.close();
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// See [`Device::query_device`].
    pub fn query_device(&self) -> DeviceAttr {
        self.0.device.query_device()
    }

    /// See [`Device::query_port`].
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.0.device.query_port(port)
    }

    /// See [`Device::query_gid`].
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid> {
        self.0.device.query_gid(port, index)
    }

    /// See [`Device::query_pkey`].
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        self.0.device.query_pkey(port, index)
    }

    /// The counters of this process, as they are now.
    pub fn get_hw_stats(&self) -> HwStats {
        self.0.engine.get_hw_stats()
    }

    /// Names the page of counters for [`Context::mmap`]; worth nothing once the last context of
    /// the process is closed.
    pub fn mmap_key(&self) -> u64 {
        self.0.engine.targets.page.key()
    }

    /// Gives a page of this process's counters, which the engine keeps up to date; `len` is 4096.
    /// EINVAL for another key or size.
    pub fn mmap(&self, key: u64, len: usize) -> Result<CounterPage> {
        self.usable().and_then(|context| context.engine.targets.page.mmap(key, len)).logged("mmap")
    }

    /// Makes a protection domain. EOVERFLOW at the limit.
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.usable().and_then(Pd::alloc_pd).logged("alloc_pd")
    }

    /// Makes a completion queue for at least `cqe` entries, whose events go to `channel`.
    ///
    /// EINVAL for 0 or more than the limit, a channel of another context, or `comp_vector` other
    /// than 0.
    pub fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        comp_vector: u32,
    ) -> Result<Cq> {
        self.create_cq_ex(&CqInitAttr { cqe, channel, comp_vector, ..CqInitAttr::default() })
    }

    /// As [`Context::create_cq`], with everything that can be asked for.
    pub fn create_cq_ex(&self, attr: &CqInitAttr<'_>) -> Result<Cq> {
        self.usable().and_then(|context| Cq::create_cq(context, attr)).logged("create_cq")
    }

    /// Makes a thread domain: the promise that what stands on it is used by one thread at a time.
    pub fn alloc_td(&self) -> Result<Td> {
        self.usable().map(Td::alloc_td).logged("alloc_td")
    }

    /// The clock of [`Wc::timestamp_ns`](crate::Wc::timestamp_ns) now, in nanoseconds
    /// (`ibv_query_rt_values_ex(3)`): `CLOCK_MONOTONIC`.
    pub fn raw_clock_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    /// Takes device memory (`ibv_alloc_dm(3)`), zeroed.
    ///
    /// EINVAL for a length of 0 or an alignment above 2^12, ENOMEM where not as much is left of
    /// [`crate::Limits::max_dm_size`], EOPNOTSUPP where the profile has none. A forked child may
    /// take some, too: it is memory, and needs nothing of the parent's.
    pub fn alloc_dm(&self, attr: DmAttr) -> Result<Dm> {
        let alive = match self.0.is_removed() {
            true => Err(removed()),
            false => self.0.life.check(ContextInner::WHAT),
        };
        alive.and_then(|()| Dm::alloc_dm(&self.0, attr)).logged("alloc_dm")
    }

    /// Opens a domain of extended reliable connections (`ibv_open_xrcd(3)`): that of a file, by
    /// its inode, or one without a name. Handles of one file in one context share the domain; it
    /// is not shared between processes.
    ///
    /// EINVAL without [`XrcdFlags::CREAT`] and file, or with [`XrcdFlags::EXCL`] where there is
    /// one; EAGAIN without `CREAT` where there is none.
    pub fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, flags: XrcdFlags) -> Result<Xrcd> {
        self.usable().and_then(|context| Xrcd::open_xrcd(context, file, flags)).logged("open_xrcd")
    }

    /// Makes a completion channel.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        self.usable().and_then(CompChannel::create_comp_channel).logged("create_comp_channel")
    }

    /// The descriptor that is readable while an asynchronous event waits.
    pub fn async_fd(&self) -> RawFd {
        self.0.events.as_fd().as_raw_fd()
    }

    /// Waits for the next asynchronous event (`ibv_get_async_event(3)`).
    ///
    /// EAGAIN if the descriptor is non-blocking and none waits, EINTR for a signal whose handler
    /// was installed without `SA_RESTART`, EIO after `DeviceFatal` of a device that is gone.
    pub fn get_async_event(&self) -> Result<AsyncEvent> {
        loop {
            if let Some(event) = self.get_async_event_within(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// As [`Context::get_async_event`]; `None` after `patience`.
    pub fn get_async_event_within(&self, patience: Duration) -> Result<Option<AsyncEvent>> {
        self.async_events().get_async_event_within(patience)
    }

    /// The events alone, for a thread that may wait for them longer than the context is open.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents(Arc::clone(&self.0))
    }

    fn usable(&self) -> Result<&Arc<ContextInner>> {
        self.0.check()?;
        Ok(&self.0)
    }
}

/// The asynchronous events of a [`Context`].
#[derive(Clone, Debug)]
pub struct AsyncEvents(Arc<ContextInner>);

impl AsyncEvents {
    /// As [`Context::get_async_event_within`]; EBADF once the context was closed by
    /// [`Context::dealloc_ucontext`] and has no event left.
    pub fn get_async_event_within(&self, patience: Duration) -> Result<Option<AsyncEvent>> {
        let engine = &self.0.engine;
        engine.start_background();
        self.0.events.get(engine, &Feeders::new(), patience, Waiting::deliver)
    }
}

impl ContextInner {
    /// EIO in a forked child and on a device that is gone, EINVAL once the context is closed.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_device()?;
        self.life.check(ContextInner::WHAT)
    }

    /// EIO in a forked child, or if the device is gone.
    #[inline]
    pub(crate) fn check_device(&self) -> Result<()> {
        self.engine.check_fork()?;
        if self.is_removed() { Err(removed()) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    pub(crate) fn queue_mrs(&self) -> MutexGuard<'_, Vec<Weak<QueueMrInner>>> {
        self.queue_mrs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_channel(&self, channel: &Arc<CompChannelInner>) {
        let channels = &mut self.open().channels;
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Arc::downgrade(channel));
    }

    /// Queues an event for the program.
    pub(crate) fn notify(&self, kind: EventKind, target: Target) {
        self.events.push(Waiting { kind, target });
    }

    pub(crate) fn add_qp(&self, qp: &Arc<QpInner>) {
        self.open().qps.insert(qp.qpn, Arc::downgrade(qp));
        // What was made while the device went is not among what was cut then.
        if self.is_removed() {
            qp.flush();
        }
    }

    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        self.open().qps.remove(&qpn);
    }

    pub(crate) fn add_mr(&self, mr: &Arc<MrInner>) {
        self.open().mrs.insert(mr.key(), Arc::downgrade(mr));
        if self.is_removed() {
            mr.cut();
        }
    }

    pub(crate) fn remove_mr(&self, key: u32) {
        self.open().mrs.remove(&key);
    }

    pub(crate) fn add_mw(&self, first_rkey: u32, mw: &Arc<MwInner>) {
        self.open().mws.insert(first_rkey, Arc::downgrade(mw));
        if self.is_removed() {
            mw.cut();
        }
    }

    pub(crate) fn remove_mw(&self, first_rkey: u32) {
        self.open().mws.remove(&first_rkey);
    }

    /// Tells the program what has changed about the port since it was last told.
    pub(crate) fn follow(&self, state: PortState) {
        if self.leaves.load(Ordering::Acquire) {
            return;
        }
        let now = Seen { state, addresses: self.device.gids().addresses() };
        let before = std::mem::replace(&mut *self.seen(), now.clone());
        if before.addresses != now.addresses {
            self.engine.follow_addresses(&self.device);
            self.notify(EventKind::GidChange, Target::Port(PORT));
        }
        if before.state != now.state {
            self.notify(port_ibevent(now.state), Target::Port(PORT));
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device is gone: tells the program, then cuts it off.
    pub(crate) fn device_removed(&self) {
        if !self.life.is_alive() || self.leaves.swap(true, Ordering::AcqRel) {
            return;
        }
        let before = std::mem::replace(&mut self.seen().state, PortState::Down);
        if before != PortState::Down {
            self.notify(port_ibevent(PortState::Down), Target::Port(PORT));
        }
        self.notify(EventKind::DeviceFatal, Target::Device);
        self.disassociate_ucontext();
    }

    /// Cuts the program off from a device that is gone: requests are flushed, memory can no more be
    /// reached, calls answer EIO, and whoever waits for an event comes back. What the program
    /// made stays valid until it destroys it.
    fn disassociate_ucontext(&self) {
        if self.engine.check_fork().is_err() {
            return;
        }
        self.removed.store(true, Ordering::SeqCst);
        let (qps, mws, mrs, channels) = self.open().all();
        qps.iter().for_each(|qp| qp.flush());
        mws.iter().for_each(|mw| mw.cut());
        mrs.iter().for_each(|mr| mr.cut());
        channels.iter().for_each(|channel| channel.queue.close(Closed::Removed));
        self.events.close(Closed::Removed);
    }

    /// Ends everything that is still there: nothing of this context is reachable from the network
    /// afterwards.
    fn close(&self) {
        if !self.life.cut() || self.engine.check_fork().is_err() {
            return;
        }
        let (qps, mws, mrs, _) = self.open().all();
        qps.iter().for_each(|qp| qp.cut());
        mws.iter().for_each(|mw| mw.cut());
        mrs.iter().for_each(|mr| mr.cut());
        self.events.close(Closed::Destroyed);
        Process::current().close_engine(&self.engine);
    }

    pub(crate) fn xrcds(&self) -> MutexGuard<'_, Vec<Weak<XrcdInner>>> {
        self.xrcds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Objects =
    (Vec<Arc<QpInner>>, Vec<Arc<MwInner>>, Vec<Arc<MrInner>>, Vec<Arc<CompChannelInner>>);

impl Open {
    /// The objects, to be dealt with without the lock.
    fn all(&self) -> Objects {
        (
            self.qps.values().filter_map(Weak::upgrade).collect(),
            self.mws.values().filter_map(Weak::upgrade).collect(),
            self.mrs.values().filter_map(Weak::upgrade).collect(),
            self.channels.iter().filter_map(Weak::upgrade).collect(),
        )
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.close();
    }
}
