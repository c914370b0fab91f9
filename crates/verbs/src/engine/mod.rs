//! The engine: one a process, made at the first open device, ended with the last.
//!
//! Memory only, until a queue pair is made: then it claims a slot; sockets and the background
//! thread follow when a queue pair leaves RESET.

mod capture;
mod checksum;
mod early;
mod handoff;
#[cfg(test)]
mod handoff_model;
#[cfg(test)]
mod handoff_tests;
mod lane;
mod progress;
mod relay;
mod sockets;
mod targets;
mod traffic;

/// What the hand-off is built of; its model replaces them.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
}

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use irdma_mem::MemTable;
use irdma_net::clock;
use irdma_net::fork::ForkGuard;
use irdma_net::wake;
use irdma_transport::{ErrorKind, PdTable, Result, Rng, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use lane::{Lane, LaneGuard, LaneInner};
pub(crate) use traffic::Counters;

use crate::config::Config;
use crate::device::Device;
use crate::handles::AhTable;
use crate::limits::Quota;
use crate::pages::{persist, populate};
use crate::stats::HwStats;
use crate::system::system_error;
use handoff::HandOff;
use lane::NEVER;
use progress::Progress;
use targets::Targets;

/// How often it is looked whether peers have been told.
const PARTING_STEP: Duration = Duration::from_millis(1);

/// What all contexts of a process share.
pub(crate) struct Engine {
    pub(crate) mem: Arc<MemTable>,
    pub(crate) pds: PdTable,
    pub(crate) cqs: Quota,
    pub(crate) srqs: Quota,
    pub(crate) ahs: Quota,
    pub(crate) ah_table: Arc<AhTable>,
    pub(crate) targets: Arc<Targets>,
    /// Device memory that is taken.
    pub(crate) dm_bytes: Arc<AtomicU64>,
    config: Config,
    fork: &'static ForkGuard,
    seed: u64,
    tokens: AtomicU64,
    hand_off: Arc<HandOff>,
    lane: OnceLock<Arc<Lane>>,
    /// Also held while the lane is being opened.
    progress: Mutex<Option<Progress>>,
}

impl Engine {
    pub(crate) fn new(config: Config, fork: &'static ForkGuard) -> Result<Arc<Self>> {
        let seed = match config.seed {
            Some(seed) => seed,
            None => clock::seed().map_err(|error| system_error("no random seed", &error))?,
        };
        let mut rng = Rng::new(seed);
        let limits = config.profile.limits();
        let mem = MemTable::new(rng.next_u64(), limits.max_mr);
        mem.set_probe(populate);
        mem.set_persist(persist);
        Ok(Arc::new(Engine {
            mem: Arc::new(mem),
            dm_bytes: Arc::default(),
            pds: PdTable::new(limits.max_pd),
            cqs: Quota::new("completion queues", limits.max_cq),
            srqs: Quota::new("shared receive queues", limits.max_srq),
            ahs: Quota::new("address handles", limits.max_ah),
            ah_table: Arc::default(),
            targets: Arc::new(Targets::new(rng.next_u64())),
            hand_off: Arc::new(HandOff::new(config.stand_back_ns)),
            config,
            fork,
            seed: rng.next_u64(),
            tokens: AtomicU64::new(1),
            lane: OnceLock::new(),
            progress: Mutex::new(None),
        }))
    }

    /// EIO in a forked child, where everything inherited is dead.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.fork.forked() {
            return Err(inherited());
        }
        Ok(())
    }

    /// A number that names an object in effects.
    pub(crate) fn next_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// The lane; opened at the first call.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>> {
        if let Some(lane) = self.lane.get() {
            return Ok(Arc::clone(lane));
        }
        let _opening = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = self.lane.get() {
            return Ok(Arc::clone(lane));
        }
        checksum::choose();
        let (mem, hand_off) = (Arc::clone(&self.mem), Arc::clone(&self.hand_off));
        let lane = Lane::open(&self.config, self.seed, mem, hand_off, Arc::clone(&self.targets))
            .map_err(|error| system_error("no slot on the RoCEv2 port", &error))?;
        Ok(Arc::clone(self.lane.get_or_init(|| Arc::new(lane))))
    }

    /// The lane, if it was opened.
    pub(crate) fn lane_if_open(&self) -> Option<&Lane> {
        self.lane.get().map(|lane| &**lane)
    }

    /// A device was taken away: tells those who connect over it.
    pub(crate) fn remove_device(&self, name: &str) {
        if let Some(lane) = self.lane_if_open() {
            self.targets.cm.remove_device(&mut lane.lock(), name);
        }
    }

    /// Starts the background thread if it does not run. Without it the program's own calls still
    /// run the protocol, so a failure is logged and no more.
    pub(crate) fn start_background(&self) {
        let Ok(lane) = self.lane() else { return };
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_none() {
            let (hand_off, targets) = (Arc::clone(&self.hand_off), Arc::clone(&self.targets));
            let grace_ns = self.config.min_timeout_ns;
            match Progress::start(lane, hand_off, targets, grace_ns) {
                Ok(started) => *progress = Some(started),
                Err(error) => tracing::error!("no background thread: {error}"),
            }
        }
    }

    /// Sends what peers are still to be told about connections, for at most `patience`.
    pub(crate) fn part(&self, patience: Duration) {
        let Some(lane) = self.lane.get() else { return };
        let until_ns = clock::monotonic_ns() + patience.as_nanos() as u64;
        // The background thread receives what makes room at the peers.
        while lane.lock().endpoint.cm_has_outgoing() && clock::monotonic_ns() < until_ns {
            thread::sleep(PARTING_STEP);
        }
    }

    /// Ends the background thread and closes the sockets.
    pub(crate) fn stop(&self) {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.check_fork().is_err() {
            // The thread is the parent's, and so are the descriptors; they are closed here, and
            // their numbers may be another's by now.
            std::mem::forget(progress);
            return;
        }
        drop(progress);
        if let Some(lane) = self.lane.get() {
            lane.lock().close();
        }
    }

    /// Opens the sockets of a source address, if they are not open.
    pub(crate) fn open_address(&self, device: &Device, addr: IpAddr) -> Result<()> {
        let lane = self.lane()?;
        if lane.lock().has_local(addr) {
            return Ok(());
        }
        self.start_background();
        lane.open_address(device, addr)
    }

    /// Opens the sockets of every address that a device has; an error if none can be opened.
    pub(crate) fn open_device(&self, device: &Device) -> Result<()> {
        let lane = self.lane()?;
        self.start_background();
        lane.open_device(device)
    }

    /// A poll came back empty: gives the lane a turn.
    #[inline]
    pub(crate) fn progress(&self) {
        if let Some(lane) = self.lane.get() {
            lane.progress();
        }
    }

    /// The program posted or polled; `found` unless a poll came back empty.
    #[inline]
    pub(crate) fn note_call(&self, found: bool) {
        if self.lane.get().is_some() {
            self.hand_off.note_call(clock::monotonic_ns(), found);
        }
    }

    /// The program asked for a completion event.
    pub(crate) fn note_armed(&self) {
        if let Some(lane) = self.lane.get()
            && self.hand_off.note_armed()
        {
            lane.wake.signal();
        }
    }

    /// Waits until `fd` is readable or `waits` says so; runs the lane meanwhile. May return
    /// early. EINTR for a signal whose handler is to interrupt calls.
    pub(crate) fn wait_readable(
        &self,
        fd: BorrowedFd<'_>,
        waits: &dyn Fn() -> bool,
        until_ns: u64,
    ) -> Result<()> {
        match self.lane.get().filter(|_| self.hand_off.enter_leader()) {
            Some(lane) => {
                let result = self.lead(lane, fd, waits, until_ns);
                if self.hand_off.leave_leader() {
                    lane.wake.signal();
                } else {
                    // Deadlines that were set meanwhile were told to the leader alone.
                    lane.wake_for(lane.deadline_ns());
                }
                result
            }
            None => wait(&mut [PollFd::new(&fd, PollFlags::IN)], until_ns),
        }
    }

    fn lead(
        &self,
        lane: &Lane,
        fd: BorrowedFd<'_>,
        waits: &dyn Fn() -> bool,
        until_ns: u64,
    ) -> Result<()> {
        loop {
            // If another thread runs the lane, its effects make `fd` readable all the same.
            lane.try_run();
            if waits() {
                return Ok(());
            }
            let deadline_ns = lane.deadline_ns();
            self.hand_off.leader_sleeps(deadline_ns);
            if lane.deadline_ns() < deadline_ns {
                continue;
            }
            let fds =
                &mut [PollFd::new(&fd, PollFlags::IN), PollFd::new(lane.poll(), PollFlags::IN)];
            wait(fds, deadline_ns.min(until_ns))?;
            self.hand_off.leader_sleeps(0);
            if !fds[0].revents().is_empty() || clock::monotonic_ns() >= until_ns {
                return Ok(());
            }
        }
    }

    /// The counters of this process, as they are now.
    pub(crate) fn get_hw_stats(&self) -> HwStats {
        match self.lane.get().filter(|_| self.check_fork().is_ok()) {
            Some(lane) => lane.lock().stats(),
            None => HwStats::alloc_hw_port_stats(self.config.profile),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("lane", &self.lane).finish_non_exhaustive()
    }
}

/// Waits until a descriptor is ready or the deadline has come; a signal ends the wait early.
/// EINTR for one whose handler is to interrupt calls, as `read(2)` would answer.
fn wait(fds: &mut [PollFd<'_>], deadline_ns: u64) -> Result<()> {
    let left_ns = deadline_ns.saturating_sub(clock::monotonic_ns());
    let timeout = Timespec {
        tv_sec: (left_ns / 1_000_000_000) as i64,
        tv_nsec: (left_ns % 1_000_000_000) as i64,
    };
    match poll(fds, Some(&timeout).filter(|_| deadline_ns != NEVER)) {
        Err(rustix::io::Errno::INTR) if wake::signals_interrupt() => {
            Err(VerbsError::new(ErrorKind::Interrupted, "a signal handler ran during the wait"))
        }
        _ => Ok(()),
    }
}

fn inherited() -> VerbsError {
    VerbsError::new(
        ErrorKind::Io,
        "the object was inherited through fork, its device belongs to the parent; open the \
         device anew in the child",
    )
}
