//! A lane's background thread: runs the lane when the program does not. That of the process's own
//! lane follows the interfaces, too.

use std::collections::HashMap;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use irdma_net::clock;
use irdma_net::netdev::Watch;
use irdma_net::wake::{self, EventFd, Interest, Poll, Ready};
use irdma_transport::{EventKind, EventSource};

use super::Role;
use super::handoff::{Memory, Turn};
use super::lane::{Lane, NEVER};
use super::targets::Targets;
use crate::device::Device;
use crate::port::PortAttr;

/// A lane's thread, once something needs it.
#[derive(Debug, Default)]
pub(crate) struct Background {
    progress: Mutex<Option<Progress>>,
    /// It was stopped, and does not start again.
    closed: AtomicBool,
}

impl Lane {
    /// Starts the background thread if it does not run. Without it the program's own calls still
    /// run the protocol, so a failure is logged and no more.
    pub(crate) fn start_background(self: &Arc<Self>) {
        let mut progress = self.running();
        if progress.is_none() && !self.is_closed() {
            match Progress::start(self) {
                Ok(started) => *progress = Some(started),
                Err(error) => tracing::error!("no background thread: {error}"),
            }
        }
    }

    /// Ends the background thread and closes the sockets; who leads the lane lets go of it.
    pub(crate) fn stop(&self) {
        let mut progress = self.running();
        self.background.closed.store(true, Ordering::SeqCst);
        let running = progress.take();
        drop(progress);
        drop(running);
        self.lock().close();
        self.kick();
    }

    /// Whether the lane was stopped.
    pub(super) fn is_closed(&self) -> bool {
        self.background.closed.load(Ordering::SeqCst)
    }

    fn running(&self) -> MutexGuard<'_, Option<Progress>> {
        self.background.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread.
#[derive(Debug)]
struct Progress {
    pid: u32,
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

const WAKE: u64 = 0;
const WATCH: u64 = 1;
const LANE: u64 = 2;

impl Progress {
    fn start(lane: &Arc<Lane>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let watch = match lane.role {
            Role::Home => Watch::open()
                .inspect_err(|error| tracing::warn!("changes of interfaces go unnoticed: {error}"))
                .ok(),
            Role::Domain { .. } => None,
        };
        let (all, aside) = (Poll::new()?, Poll::new()?);
        for poll in [&all, &aside] {
            poll.add(&*lane.wake, WAKE, Interest::Read)?;
            if let Some(watch) = &watch {
                poll.add(watch, WATCH, Interest::Read)?;
            }
        }
        all.add(lane.poll(), LANE, Interest::Read)?;
        let interfaces =
            Interfaces { watch, targets: Arc::clone(&lane.targets), lane: Arc::clone(lane) };
        let worker = Worker {
            stop: Arc::clone(&stop),
            lane: Arc::clone(lane),
            memory: Memory::default(),
            all,
            aside,
            ready: Vec::new(),
            called: false,
            interfaces,
        };
        let thread = thread::Builder::new().name("irdma".into()).spawn(move || run(worker))?;
        let (pid, wake) = (clock::pid(), Arc::clone(&lane.wake));
        Ok(Progress { pid, stop, wake, thread: Some(thread) })
    }
}

/// A panic, a bug of ours, must not end in a device that is silent for ever.
fn run(worker: Worker) {
    let targets = Arc::clone(&worker.interfaces.targets);
    if panic::catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
        tracing::error!("the background thread panicked, a bug of irdma; the devices are unusable");
        targets.notify(EventKind::DeviceFatal, EventSource::Device);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // In a forked child the thread is the parent's, and so is the descriptor; its number may be
        // another's by now.
        if self.pid != clock::pid() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.store(true, Ordering::SeqCst);
        self.wake.signal();
        // The thread itself may drop the last handle of the engine.
        if let Some(thread) = self.thread.take_if(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

struct Worker {
    stop: Arc<AtomicBool>,
    lane: Arc<Lane>,
    memory: Memory,
    /// Wake-ups, interfaces, and the lane's sockets.
    all: Poll,
    /// The same without the lane's sockets, to stand back by.
    aside: Poll,
    ready: Vec<Ready>,
    /// The next run is for packets that arrived, or the first after standing back.
    called: bool,
    interfaces: Interfaces,
}

impl Worker {
    fn run(mut self) {
        if let Err(error) = wake::block_all_signals() {
            tracing::warn!("signals may reach the background thread: {error}");
        }
        if let Err(error) = wake::ask_for_short_slices() {
            tracing::debug!("the background thread may wait for a core: {error}");
        }
        let mut turn = Turn::Run;
        while !self.stop.load(Ordering::SeqCst) {
            turn = match turn {
                Turn::Run => self.work(),
                Turn::StandBack(tick_ns) => self.stand_back(Some(tick_ns)),
                Turn::Park => self.stand_back(None),
            };
        }
    }

    /// Runs the lane, then waits for more.
    fn work(&mut self) -> Turn {
        let hand_off = &self.lane.hand_off;
        let ran = match hand_off.waits_its_turn(&self.memory) {
            true => Some(self.lane.run()),
            false => self.lane.try_run(),
        };
        let Some(found) = ran else {
            return hand_off.on_busy(&mut self.memory);
        };
        let now_ns = clock::monotonic_ns();
        if std::mem::take(&mut self.called) {
            hand_off.on_run(&mut self.memory, now_ns, found);
        }
        let deadline_ns = self.lane.deadline_ns();
        let until_ns =
            hand_off.thread_sleeps(&self.memory, now_ns, deadline_ns, self.lane.grace_ns);
        self.ready.clear();
        if self.lane.deadline_ns() >= deadline_ns {
            let timeout = Some(until_ns.saturating_sub(now_ns)).filter(|_| until_ns != NEVER);
            // A failure counts as a wake-up with nothing to do.
            let _ = self.all.wait(&mut self.ready, timeout);
        }
        hand_off.thread_wakes();
        if self.take_wakes() || self.ready.is_empty() && self.lane.deadline_ns() == NEVER {
            return Turn::Run;
        }
        self.called = !self.ready.is_empty();
        self.lane.hand_off.on_work(&mut self.memory, clock::monotonic_ns())
    }

    fn stand_back(&mut self, tick_ns: Option<u64>) -> Turn {
        let _ = self.aside.wait(&mut self.ready, tick_ns);
        self.called = true;
        if self.take_wakes() {
            return Turn::Run;
        }
        self.lane.hand_off.on_tick(&mut self.memory, clock::monotonic_ns())
    }

    /// Takes wake-ups and follows interfaces; tells whether someone woke the thread.
    fn take_wakes(&mut self) -> bool {
        if self.ready.iter().any(|ready| ready.token == WATCH) {
            self.interfaces.follow();
        }
        let woken = self.ready.iter().any(|ready| ready.token == WAKE);
        if woken {
            let _ = self.lane.wake.read();
        }
        woken
    }
}

/// Follows the interfaces on behalf of the open contexts.
struct Interfaces {
    watch: Option<Watch>,
    targets: Arc<Targets>,
    lane: Arc<Lane>,
}

impl Interfaces {
    /// Takes all changes that wait, then has every context compare what is with what it saw.
    fn follow(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        while let Ok(Some(_)) = watch.next_change() {}
        let mut ports: HashMap<String, Option<PortAttr>> = HashMap::new();
        for context in self.targets.contexts() {
            let name = context.device.name();
            let known = ports.get(name).copied();
            let Some(attr) = known.or_else(|| context.device.find_port().ok()) else {
                continue;
            };
            ports.insert(name.into(), attr);
            match attr {
                Some(attr) => context.follow(attr.state),
                None => context.device_removed(),
            }
        }
        for device in self.targets.cm.devices() {
            let known = ports.get(device.name()).copied();
            if known.or_else(|| device.find_port().ok()) == Some(None) {
                self.targets.cm.remove_device(&mut self.lane.lock(), device.name());
            }
        }
        if self.targets.cm.listens_everywhere() {
            self.open_all();
        }
    }

    /// Listens on all addresses that there are now. What cannot be opened is logged, and costs
    /// only its own traffic.
    fn open_all(&self) {
        for device in Device::list().unwrap_or_default() {
            let _ = self.lane.open_device(&device);
        }
    }
}
