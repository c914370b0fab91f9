//! Extended reliable connections (IBTA annex A14): one receiving queue pair serves all shared
//! receive queues of its domain, which each request names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::srq::Srq;

/// A domain of extended reliable connections.
#[derive(Debug, Default)]
pub struct Xrcd {
    srqs: Mutex<BTreeMap<u32, Weak<Srq>>>,
}

impl Xrcd {
    /// Lets requests name the queue by its number.
    pub fn add(&self, srq: &Arc<Srq>) {
        self.lock().insert(srq.number(), Arc::downgrade(srq));
    }

    /// No request reaches the queue afterwards.
    pub fn remove(&self, number: u32) {
        self.lock().remove(&number);
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.lock().get(&number).and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Srq>>> {
        self.srqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
