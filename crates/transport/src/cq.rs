//! Completion queues: a bounded ring and its one-shot arming.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use irdma_wire::Qpn;

use crate::error::{Result, VerbsError};
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

/// Completions of one work queue that the program has not polled: their requests still count as
/// outstanding (IBTA 10.8.5.1), so that a queue that is full stops a program before its completion
/// queue overflows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unpolled(Arc<AtomicUsize>);

impl Unpolled {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn add(&self) -> Held {
        self.0.fetch_add(1, Ordering::AcqRel);
        Held(Arc::clone(&self.0))
    }
}

/// One of the counted completions; dropped with it.
#[derive(Debug)]
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct Entry {
    wc: Wc,
    _held: Held,
}

/// What a full queue does with one more completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overrun {
    /// Loses it, says so once, and takes nothing more.
    #[default]
    Fails,
    /// Overwrites the oldest: the program promised that it does not happen
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    Overwrites,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Entry>,
    /// The rings of before each resize, oldest first, as long as something waits in them.
    retired: VecDeque<VecDeque<Entry>>,
    capacity: usize,
    overrun: Overrun,
    arm: Arm,
    overflowed: bool,
}

impl Ring {
    fn len(&self) -> usize {
        self.retired.iter().map(VecDeque::len).sum::<usize>() + self.entries.len()
    }

    /// Takes the oldest completion: of the oldest ring that has one (seed row 62).
    fn poll_one(&mut self) -> Option<Wc> {
        let Some(oldest) = self.retired.front_mut() else {
            return self.entries.pop_front().map(process_cqe);
        };
        let entry = oldest.pop_front();
        self.process_resize_list();
        entry.map(process_cqe)
    }

    /// Takes up to `most` completions without locking (seed row 63).
    #[inline]
    fn __poll_cq(&mut self, most: usize, mut take: impl FnMut(Wc)) -> usize {
        let mut count = 0;
        while count < most
            && let Some(wc) = self.poll_one()
        {
            take(wc);
            count += 1;
        }
        count
    }

    /// Frees the oldest retired rings as far as they are drained; returns how many (seed row 26).
    fn process_resize_list(&mut self) -> usize {
        let before = self.retired.len();
        while let Some(drained) = self.retired.iter().position(VecDeque::is_empty) {
            self.free_cqbuf(drained);
        }
        before - self.retired.len()
    }

    /// Frees one retired ring (seed row 25).
    fn free_cqbuf(&mut self, at: usize) {
        self.retired.remove(at);
    }
}

/// Hands out what waited in a ring; its queue pair has the place back (seed row 61).
fn process_cqe(entry: Entry) -> Wc {
    entry.wc
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
        Self::with_overrun(token, capacity, Overrun::Fails)
    }

    /// As [`Cq::new`], with a say in what happens when the queue is full.
    pub fn with_overrun(token: u64, capacity: usize, overrun: Overrun) -> Self {
        let ring = Ring { capacity, overrun, ..Ring::default() };
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
        let count = ring.__poll_cq(most, take);
        self.count.store(ring.len(), Ordering::Release);
        count
    }

    /// Ends the queue: what waits is gone, and so are its rings (seed row 24).
    pub fn cq_free_rsrc(&self) {
        let mut ring = self.lock();
        ring.entries = VecDeque::new();
        ring.retired = VecDeque::new();
        self.count.store(0, Ordering::Release);
    }

    /// Changes the size. What waits is kept and comes first; EINVAL when it is more than
    /// `capacity` (`ibv_resize_cq(3)`, seed row 29).
    pub fn resize_cq(&self, capacity: usize) -> Result<()> {
        let mut ring = self.lock();
        let waiting = ring.len();
        if waiting > capacity {
            return Err(VerbsError::invalid(format!(
                "resize_cq: {waiting} completions wait in CQ {}, more than {capacity}; poll them \
                 first",
                self.token
            )));
        }
        if capacity != ring.capacity {
            let old = std::mem::take(&mut ring.entries);
            ring.retired.push_back(old);
            ring.process_resize_list();
            ring.capacity = capacity;
        }
        Ok(())
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
        ring.retired.iter_mut().for_each(|old| old.retain(|entry| entry.wc.qpn != qpn));
        ring.process_resize_list();
        ring.entries.retain(|entry| entry.wc.qpn != qpn);
        self.count.store(ring.len(), Ordering::Release);
    }

    /// Adds a completion, counted in `unpolled` until it is polled. A full queue overflows once and
    /// takes nothing more.
    pub(crate) fn push(&self, wc: Wc, unpolled: &Unpolled) -> Pushed {
        let mut ring = self.lock();
        if ring.overflowed {
            return Pushed::Dead;
        }
        if ring.len() >= ring.capacity {
            match ring.overrun {
                Overrun::Fails => {
                    ring.overflowed = true;
                    return Pushed::Overflow;
                }
                Overrun::Overwrites => drop(ring.poll_one()),
            }
        }
        let wakes = match ring.arm {
            Arm::Off => false,
            Arm::Solicited => wc.solicited || wc.status != WcStatus::Success,
            Arm::Any => true,
        };
        ring.entries.push_back(Entry { wc, _held: unpolled.add() });
        self.count.store(ring.len(), Ordering::Release);
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
    use crate::error::ErrorKind;

    fn wc(wr_id: u64, qpn: u32) -> Wc {
        Wc { wr_id, qpn: Qpn::new(qpn), ..Wc::default() }
    }

    fn push(cq: &Cq, wc: Wc) -> Pushed {
        cq.push(wc, &Unpolled::default())
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
            assert_eq!(push(&cq, wc(wr_id, 1)), Pushed::Quiet);
        }
        let mut out = [Wc::default(); 2];
        assert_eq!((cq.poll_cq(&mut out), out.map(|wc| wc.wr_id)), (2, [0, 1]));
        assert_eq!((ids(&cq), ids(&cq)), (vec![2], vec![]));
    }

    #[test]
    fn an_overflow_is_said_once_and_loses_only_what_came_after() {
        let cq = Cq::new(1, 2);
        let pushed = [0, 1, 2, 3].map(|wr_id| push(&cq, wc(wr_id, 1)));
        assert_eq!(pushed, [Pushed::Quiet, Pushed::Quiet, Pushed::Overflow, Pushed::Dead]);
        assert_eq!(ids(&cq), [0, 1]);
        assert_eq!(push(&cq, wc(4, 1)), Pushed::Dead);
    }

    #[test]
    fn completions_count_until_they_are_polled_cleaned_or_lost() {
        let (cq, first, second) = (Cq::new(1, 3), Unpolled::default(), Unpolled::default());
        (0..2).for_each(|n| assert_eq!(cq.push(wc(n, 1), &first), Pushed::Quiet));
        cq.push(wc(2, 2), &second);
        assert_eq!(cq.push(wc(3, 2), &second), Pushed::Overflow);
        assert_eq!((first.count(), second.count()), (2, 1));
        assert_eq!(cq.poll_cq(&mut [Wc::default()]), 1);
        assert_eq!((first.count(), second.count()), (1, 1));
        cq.clean_cqes(Qpn::new(2));
        assert_eq!((first.count(), second.count()), (1, 0));
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
            assert_eq!(push(&cq, completion) == Pushed::Signal, wakes, "{arms:?}");
            let armed = !wakes && !arms.is_empty();
            assert_eq!(push(&cq, failed) == Pushed::Signal, armed, "an event disarms: {arms:?}");
        }
    }

    #[test]
    fn the_completions_of_one_queue_pair_can_go() {
        let cq = Cq::new(1, 8);
        for (wr_id, qpn) in [(0, 1), (1, 2), (2, 1), (3, 3)] {
            push(&cq, wc(wr_id, qpn));
        }
        cq.clean_cqes(Qpn::new(1));
        assert_eq!((cq.len(), ids(&cq)), (2, vec![1, 3]));
    }

    #[test]
    fn a_resize_keeps_what_waits_and_refuses_to_lose_it() {
        let cq = Cq::new(1, 4);
        (0..4).for_each(|n| assert_eq!(push(&cq, wc(n.into(), n)), Pushed::Quiet));
        assert_eq!(cq.resize_cq(3).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!((cq.capacity(), cq.len()), (4, 4));
        cq.resize_cq(6).unwrap();
        (4..6).for_each(|n| assert_eq!(push(&cq, wc(n.into(), n)), Pushed::Quiet));
        cq.clean_cqes(Qpn::new(2));
        cq.resize_cq(5).unwrap();
        assert_eq!((cq.len(), ids(&cq)), (5, vec![0, 1, 3, 4, 5]));
        (6..11).for_each(|n| assert_eq!(push(&cq, wc(n.into(), n)), Pushed::Quiet));
        assert_eq!(push(&cq, wc(11, 11)), Pushed::Overflow);
    }

    fn retired(cq: &Cq) -> usize {
        cq.lock().retired.len()
    }

    #[test]
    fn drained_rings_are_freed_as_soon_as_they_are() {
        let cq = Cq::new(1, 4);
        push(&cq, wc(0, 1));
        for capacity in 5..9 {
            cq.resize_cq(capacity).unwrap();
            push(&cq, wc(capacity as u64, 1));
        }
        assert_eq!(retired(&cq), 4);
        assert_eq!(cq.poll_cq(&mut [Wc::default(); 2]), 2);
        assert_eq!((retired(&cq), ids(&cq)), (2, vec![6, 7, 8]));
        assert_eq!(retired(&cq), 0);
        cq.resize_cq(4).unwrap();
        assert_eq!(retired(&cq), 0, "an empty ring has nothing to keep it for");
    }

    #[test]
    fn a_resize_to_the_same_size_changes_nothing() {
        let cq = Cq::new(1, 4);
        push(&cq, wc(0, 1));
        cq.resize_cq(4).unwrap();
        assert_eq!(retired(&cq), 0);
    }

    #[test]
    fn nothing_is_left_in_a_destroyed_queue() {
        let (cq, unpolled) = (Cq::new(1, 4), Unpolled::default());
        cq.push(wc(0, 1), &unpolled);
        cq.resize_cq(8).unwrap();
        cq.push(wc(1, 1), &unpolled);
        cq.cq_free_rsrc();
        assert_eq!((cq.len(), retired(&cq), unpolled.count()), (0, 0, 0));
    }

    #[test]
    fn an_ignored_overrun_loses_the_oldest() {
        let cq = Cq::with_overrun(1, 2, Overrun::Overwrites);
        (0..5).for_each(|n| assert_eq!(push(&cq, wc(n, 1)), Pushed::Quiet));
        assert_eq!(ids(&cq), [3, 4]);
    }
}
