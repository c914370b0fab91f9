//! Deadlines of queue pairs and peers in one lazy heap.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::time::Instant;

/// Who a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    Qp(u16),
    Peer(u32),
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
