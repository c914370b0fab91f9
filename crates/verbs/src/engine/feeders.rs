//! Which lanes feed a completion queue or a channel: those that a thread runs that polls or waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Engine, Lane};

/// The lanes that feed something. What nothing feeds counts as fed by the process's own lane.
///
/// Invariant: a thread that polls what one thread domain alone feeds touches no other lane.
#[derive(Debug)]
pub(crate) struct Feeders {
    /// How many in the process's own lane feed it.
    home: AtomicUsize,
    /// How many lanes of thread domains do: what a poll looks at first.
    domains: AtomicUsize,
    /// These lanes, and how many in each feed it.
    lanes: RwLock<Vec<(Arc<Lane>, usize)>>,
}

impl Feeders {
    pub(crate) const fn new() -> Self {
        let (home, domains) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Feeders { home, domains, lanes: RwLock::new(Vec::new()) }
    }

    /// One more feeds it: in the lane of a thread domain, or in the process's own.
    pub(crate) fn add(&self, domain: Option<&Arc<Lane>>) {
        let Some(lane) = domain else {
            self.home.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        match lanes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, lane)) {
            Some((_, count)) => *count += 1,
            None => lanes.push((Arc::clone(lane), 1)),
        }
        self.domains.store(lanes.len(), Ordering::Relaxed);
    }

    /// One of those that [`Feeders::add`] counted feeds it no longer.
    pub(crate) fn remove(&self, domain: Option<&Arc<Lane>>) {
        let Some(lane) = domain else {
            self.home.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = lanes.iter().position(|(known, _)| Arc::ptr_eq(known, lane)) {
            lanes[at].1 -= 1;
            if lanes[at].1 == 0 {
                lanes.swap_remove(at);
            }
        }
        self.domains.store(lanes.len(), Ordering::Relaxed);
    }

    /// Calls `with` for each lane, as far as they are open.
    #[inline]
    pub(crate) fn each(&self, engine: &Engine, mut with: impl FnMut(&Arc<Lane>)) {
        if self.domains.load(Ordering::Relaxed) == 0 {
            engine.lane_if_open().into_iter().for_each(with);
            return;
        }
        if self.home.load(Ordering::Relaxed) > 0 {
            engine.lane_if_open().into_iter().for_each(&mut with);
        }
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().for_each(|(lane, _)| with(lane));
    }
}
