//! Completion queues: a bounded ring and its one-shot arming.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma_wire::Qpn;

use crate::wc::{Wc, WcStatus};

/// Which completions raise the next event (IBTA 11.4.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// None.
    #[default]
    Off,
    /// Solicited receives and failures.
    Solicited,
    /// Any.
    Any,
}

/// What pushing a completion calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quiet,
    Signal,
    Overflow,
    /// Dropped: the queue overflowed before.
    Dead,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Wc>,
    capacity: usize,
    arm: Arm,
    overflowed: bool,
}

/// A completion queue, shared by queue pairs and by the threads that poll it.
#[derive(Debug)]
pub struct Cq {
    token: u64,
    count: AtomicUsize,
    ring: Mutex<Ring>,
}

impl Cq {
    /// A queue for at least `capacity` completions; `token` comes back in effects.
    pub fn new(token: u64, capacity: usize) -> Self {
        let ring = Ring { capacity, ..Ring::default() };
        Cq { token, count: AtomicUsize::new(0), ring: Mutex::new(ring) }
    }

    /// The number that effects name this queue by.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Completions waiting; a hint that needs no lock.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether nothing waits; a hint that needs no lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most completions that can wait.
    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Moves waiting completions, oldest first, into `out`; returns how many.
    pub fn poll_cq(&self, out: &mut [Wc]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut ring = self.lock();
        let count = out.len().min(ring.entries.len());
        for (slot, wc) in out.iter_mut().zip(ring.entries.drain(..count)) {
            *slot = wc;
        }
        self.count.store(ring.entries.len(), Ordering::Release);
        count
    }

    /// Asks for one event at the next completion that `arm` covers; the wider request wins.
    ///
    /// Completions already waiting raise nothing: arm, then poll again.
    pub fn req_notify_cq(&self, arm: Arm) {
        let mut ring = self.lock();
        ring.arm = ring.arm.max(arm);
    }

    /// Whether an event was asked for and not raised yet.
    pub fn is_armed(&self) -> bool {
        self.lock().arm != Arm::Off
    }

    /// Removes the completions of a dying queue pair, keeping the order of the others.
    pub fn clean_cqes(&self, qpn: Qpn) {
        let mut ring = self.lock();
        ring.entries.retain(|wc| wc.qpn != qpn);
        self.count.store(ring.entries.len(), Ordering::Release);
    }

    /// Adds a completion. A full queue overflows once and takes nothing more.
    pub(crate) fn push(&self, wc: Wc) -> Pushed {
        let mut ring = self.lock();
        if ring.overflowed {
            return Pushed::Dead;
        }
        if ring.entries.len() >= ring.capacity {
            ring.overflowed = true;
            return Pushed::Overflow;
        }
        let wakes = match ring.arm {
            Arm::Off => false,
            Arm::Solicited => wc.solicited || wc.status != WcStatus::Success,
            Arm::Any => true,
        };
        ring.entries.push_back(wc);
        self.count.store(ring.entries.len(), Ordering::Release);
        if wakes {
            ring.arm = Arm::Off;
            return Pushed::Signal;
        }
        Pushed::Quiet
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A panic elsewhere cannot leave the ring half-changed: every change is one call.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
