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
    /// How many of the oldest entries came before a resize: they take no room.
    retired: usize,
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
        let most = out.len();
        let mut places = out.iter_mut();
        self.poll_each(most, |wc| places.next().into_iter().for_each(|place| *place = wc))
    }

    /// Gives up to `most` waiting completions, oldest first, to `take`; returns how many. The
    /// queue is locked meanwhile.
    #[inline]
    pub fn poll_each(&self, most: usize, take: impl FnMut(Wc)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut ring = self.lock();
        let count = most.min(ring.entries.len());
        ring.entries.drain(..count).for_each(take);
        ring.retired = ring.retired.saturating_sub(count);
        self.count.store(ring.entries.len(), Ordering::Release);
        count
    }

    /// Changes the size. Waiting completions are kept, also more than `capacity`, and come first
    /// (`ibv_resize_cq(3)`, seed row 29).
    pub fn resize_cq(&self, capacity: usize) {
        let mut ring = self.lock();
        ring.retired = ring.entries.len();
        ring.capacity = capacity;
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
        let old = ring.retired.min(ring.entries.len());
        ring.retired = ring.entries.range(..old).filter(|wc| wc.qpn != qpn).count();
        ring.entries.retain(|wc| wc.qpn != qpn);
        self.count.store(ring.entries.len(), Ordering::Release);
    }

    /// Adds a completion. A full queue overflows once and takes nothing more.
    pub(crate) fn push(&self, wc: Wc) -> Pushed {
        let mut ring = self.lock();
        if ring.overflowed {
            return Pushed::Dead;
        }
        if ring.entries.len() - ring.retired >= ring.capacity {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn wc(wr_id: u64, qpn: u32) -> Wc {
        Wc { wr_id, qpn: Qpn::new(qpn), ..Wc::default() }
    }

    fn ids(cq: &Cq) -> Vec<u64> {
        let mut out = [Wc::default(); 16];
        let count = cq.poll_cq(&mut out);
        out[..count].iter().map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn completions_come_out_in_order_and_once() {
        let cq = Cq::new(1, 4);
        for wr_id in 0..3 {
            assert_eq!(cq.push(wc(wr_id, 1)), Pushed::Quiet);
        }
        let mut out = [Wc::default(); 2];
        assert_eq!((cq.poll_cq(&mut out), out.map(|wc| wc.wr_id)), (2, [0, 1]));
        assert_eq!((ids(&cq), ids(&cq)), (vec![2], vec![]));
    }

    #[test]
    fn an_overflow_is_said_once_and_loses_only_what_came_after() {
        let cq = Cq::new(1, 2);
        let pushed = [0, 1, 2, 3].map(|wr_id| cq.push(wc(wr_id, 1)));
        assert_eq!(pushed, [Pushed::Quiet, Pushed::Quiet, Pushed::Overflow, Pushed::Dead]);
        assert_eq!(ids(&cq), [0, 1]);
        assert_eq!(cq.push(wc(4, 1)), Pushed::Dead);
    }

    #[test]
    fn arming_is_one_shot_and_the_wider_request_wins() {
        let solicited = Wc { solicited: true, ..wc(1, 1) };
        let failed = Wc { status: WcStatus::WrFlushErr, ..wc(1, 1) };
        for (arms, completion, wakes) in [
            (vec![], solicited, false),
            (vec![Arm::Solicited], wc(1, 1), false),
            (vec![Arm::Solicited], solicited, true),
            (vec![Arm::Solicited], failed, true),
            (vec![Arm::Any], wc(1, 1), true),
            (vec![Arm::Solicited, Arm::Any], wc(1, 1), true),
            (vec![Arm::Any, Arm::Solicited], wc(1, 1), true),
        ] {
            let cq = Cq::new(1, 8);
            arms.iter().for_each(|arm| cq.req_notify_cq(*arm));
            assert_eq!(cq.push(completion) == Pushed::Signal, wakes, "{arms:?}");
            let armed = !wakes && !arms.is_empty();
            assert_eq!(cq.push(failed) == Pushed::Signal, armed, "an event disarms: {arms:?}");
        }
    }

    #[test]
    fn the_completions_of_one_queue_pair_can_go() {
        let cq = Cq::new(1, 8);
        for (wr_id, qpn) in [(0, 1), (1, 2), (2, 1), (3, 3)] {
            cq.push(wc(wr_id, qpn));
        }
        cq.clean_cqes(Qpn::new(1));
        assert_eq!((cq.len(), ids(&cq)), (2, vec![1, 3]));
    }

    #[test]
    fn a_resize_keeps_more_than_fits() {
        let cq = Cq::new(1, 4);
        for n in 0..4 {
            cq.push(wc(n.into(), n));
        }
        cq.resize_cq(1);
        assert_eq!((cq.push(wc(4, 9)), cq.capacity()), (Pushed::Quiet, 1));
        cq.clean_cqes(Qpn::new(2));
        assert_eq!(ids(&cq), [0, 1, 3, 4]);
        assert_eq!(cq.push(wc(5, 9)), Pushed::Quiet);
        assert_eq!(cq.push(wc(6, 9)), Pushed::Overflow);
    }
}
