//! Deadlines of queue pairs, peers and connections in one lazy heap.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::time::Instant;

/// Who a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    Qp(u16),
    Peer(u32),
    Cm(u32),
}

/// Wakes each key no later than asked. A later deadline replaces an earlier one lazily: the key is
/// woken at the old time, sees that it is not due, and arms again.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, TimerKey)>>,
    armed: BTreeMap<TimerKey, Instant>,
}

impl Timers {
    pub(crate) fn arm(&mut self, key: TimerKey, at: Instant) {
        match self.armed.get(&key) {
            Some(&earlier) if earlier <= at => {}
            _ => {
                self.armed.insert(key, at);
                self.heap.push(Reverse((at, key)));
                self.drop_stale();
            }
        }
    }

    /// Deadlines that an earlier one replaced stay in the heap; when they are the most, it is
    /// made anew.
    fn drop_stale(&mut self) {
        if self.heap.len() > 2 * self.armed.len() + 64 {
            self.heap = self.armed.iter().map(|(key, at)| Reverse((*at, *key))).collect();
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<TimerKey> {
        while let Some(&Reverse((at, key))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            if self.armed.get(&key) == Some(&at) {
                self.armed.remove(&key);
                return Some(key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TimerKey = TimerKey::Qp(1);
    const B: TimerKey = TimerKey::Peer(1);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn the_earliest_deadline_of_each_key_counts() {
        let mut timers = Timers::default();
        timers.arm(A, at(10));
        timers.arm(B, at(7));
        timers.arm(A, at(5));
        timers.arm(A, at(20));
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!([timers.pop_due(at(9)), timers.pop_due(at(9))], [Some(A), Some(B)]);
        assert_eq!((timers.pop_due(at(99)), timers.next()), (None, None));
    }

    #[test]
    fn replaced_deadlines_do_not_pile_up() {
        let mut timers = Timers::default();
        for round in 0..10_000 {
            timers.arm(A, at(1_000_000 + round));
            timers.arm(A, at(round));
            assert_eq!(timers.pop_due(at(round)), Some(A));
        }
        assert!(timers.heap.len() < 200, "{}", timers.heap.len());
    }
}
