//! Lists of queue pairs that have something to send, or wait for something, each listed once.

use std::collections::VecDeque;

/// First in, first served; a queue pair that is listed already keeps its place.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    queue: VecDeque<u16>,
    listed: Vec<bool>,
}

impl ReadyList {
    pub(crate) fn push(&mut self, index: u16) {
        let at = usize::from(index);
        if self.listed.len() <= at {
            self.listed.resize(at + 1, false);
        }
        if !self.listed[at] {
            self.listed[at] = true;
            self.queue.push_back(index);
        }
    }

    pub(crate) fn front(&self) -> Option<u16> {
        self.queue.front().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn remove_front(&mut self) {
        if let Some(index) = self.queue.pop_front() {
            self.listed[usize::from(index)] = false;
        }
    }

    /// Moves the first `count` to the end of `other`.
    pub(crate) fn move_to(&mut self, other: &mut ReadyList, count: usize) {
        for index in self.queue.drain(..count) {
            self.listed[usize::from(index)] = false;
            other.push(index);
        }
    }

    /// Moves the first to the end, so that the others get their turn.
    pub(crate) fn rotate(&mut self) {
        if let Some(index) = self.queue.pop_front() {
            self.queue.push_back(index);
        }
    }
}
