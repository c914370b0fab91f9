//! The engine: one a process, made at the first open device, ended with the last.
//!
//! Memory only, until a queue pair is made: then it claims a slot; sockets and the background
//! thread follow when a queue pair leaves RESET. A thread domain has the same once more, from its
//! first queue pair on: to other lanes, of this process or another, it is a process like any.

mod addresses;
mod capture;
mod checksum;
mod counts;
mod domains;
mod early;
mod feeders;
mod groups;
mod handoff;
#[cfg(test)]
mod handoff_model;
#[cfg(test)]
mod handoff_tests;
mod lane;
mod lead;
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use irdma_mem::MemTable;
use irdma_net::clock;
use irdma_net::fork::ForkGuard;
use irdma_transport::{ErrorKind, PdTable, Result, Rng, VerbsError};

pub(crate) use feeders::Feeders;
pub(crate) use groups::{Attachment, Groups};
pub(crate) use lane::{Lane, LaneGuard, LaneInner};
pub(crate) use traffic::Counters;

use crate::config::Config;
use crate::device::Device;
use crate::handles::AhTable;
use crate::limits::Quota;
use crate::pages::{persist, populate};
use crate::system::system_error;
use capture::Tap;
use domains::Domains;
use targets::Targets;

/// How often it is looked whether peers have been told.
const PARTING_STEP: Duration = Duration::from_millis(1);

/// Whose a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The process's own: what is in no thread domain, and the connection manager.
    Home,
    /// That of a thread domain: the `number`-th, in the process whose own lane has slot `home`.
    Domain { number: u64, home: u16 },
}

/// What the lanes of a process share.
struct Shared {
    config: Config,
    mem: Arc<MemTable>,
    targets: Arc<Targets>,
    /// Opened with the first lane.
    tap: OnceLock<Option<Arc<Tap>>>,
}

/// What all contexts of a process share.
pub(crate) struct Engine {
    pub(crate) mem: Arc<MemTable>,
    pub(crate) pds: PdTable,
    pub(crate) qps: Quota,
    pub(crate) groups: Arc<Groups>,
    pub(crate) cqs: Quota,
    pub(crate) srqs: Quota,
    pub(crate) ahs: Quota,
    pub(crate) ah_table: Arc<AhTable>,
    pub(crate) targets: Arc<Targets>,
    /// Device memory that is taken.
    pub(crate) dm_bytes: Arc<AtomicU64>,
    shared: Shared,
    fork: &'static ForkGuard,
    seed: u64,
    tokens: AtomicU64,
    /// The process's own lane.
    lane: OnceLock<Arc<Lane>>,
    /// Also held while a lane is being opened or ended.
    domains: Mutex<Domains>,
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
        let (mem, targets) = (Arc::new(mem), Arc::new(Targets::new(rng.next_u64())));
        let shared = Shared {
            config,
            mem: Arc::clone(&mem),
            targets: Arc::clone(&targets),
            tap: OnceLock::new(),
        };
        Ok(Arc::new(Engine {
            mem,
            qps: Quota::new("queue pairs", limits.max_qp),
            groups: Arc::new(Groups::new(limits)),
            dm_bytes: Arc::default(),
            pds: PdTable::new(limits.max_pd),
            cqs: Quota::new("completion queues", limits.max_cq),
            srqs: Quota::new("shared receive queues", limits.max_srq),
            ahs: Quota::new("address handles", limits.max_ah),
            ah_table: Arc::default(),
            targets,
            shared,
            fork,
            seed: rng.next_u64(),
            tokens: AtomicU64::new(1),
            lane: OnceLock::new(),
            domains: Mutex::default(),
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

    /// The process's own lane; opened at the first call.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>> {
        if let Some(lane) = self.lane.get() {
            return Ok(Arc::clone(lane));
        }
        let _opening = self.domains();
        if let Some(lane) = self.lane.get() {
            return Ok(Arc::clone(lane));
        }
        checksum::choose();
        let lane = Lane::open(&self.shared, self.seed, Role::Home)
            .map_err(|error| system_error("no slot on the RoCEv2 port", &error))?;
        Ok(Arc::clone(self.lane.get_or_init(|| Arc::new(lane))))
    }

    /// The process's own lane, if it was opened.
    #[inline]
    pub(crate) fn lane_if_open(&self) -> Option<&Arc<Lane>> {
        self.lane.get()
    }

    /// A device was taken away: tells those who connect over it.
    pub(crate) fn remove_device(&self, name: &str) {
        if let Some(lane) = self.lane_if_open() {
            self.targets.cm.remove_device(&mut lane.lock(), name);
        }
    }

    /// Starts the background thread of the process's own lane if it does not run.
    pub(crate) fn start_background(&self) {
        if let Ok(lane) = self.lane() {
            lane.start_background();
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

    /// Ends the background threads and closes the sockets.
    pub(crate) fn stop(&self) {
        // In a forked child they are the parent's.
        if self.check_fork().is_ok() {
            self.lanes().iter().rev().for_each(|lane| lane.stop());
        }
    }

    /// Opens the sockets of a source address in the process's own lane, if they are not open.
    pub(crate) fn open_address(&self, device: &Device, addr: IpAddr) -> Result<()> {
        let lane = self.lane()?;
        if lane.lock().has_local(addr) {
            return Ok(());
        }
        lane.start_background();
        lane.open_address(device, addr)
    }

    /// As [`Engine::open_address`], for every address that a device has; an error if none can be
    /// opened.
    pub(crate) fn open_device(&self, device: &Device) -> Result<()> {
        let lane = self.lane()?;
        lane.start_background();
        lane.open_device(device)
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

fn inherited() -> VerbsError {
    VerbsError::new(
        ErrorKind::Io,
        "the object was inherited through fork, its device belongs to the parent; open the \
         device anew in the child",
    )
}
