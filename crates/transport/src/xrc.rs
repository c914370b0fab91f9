//! Extended reliable connections (IBTA annex A14): one receiving queue pair serves all shared
//! receive queues of its domain, which each request names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{ErrorKind, Result, VerbsError};
use crate::srq::Srq;

/// A domain of extended reliable connections.
#[derive(Debug, Default)]
pub struct Xrcd {
    srqs: Mutex<BTreeMap<u32, Weak<Srq>>>,
}

impl Xrcd {
    /// Lets requests name the queue by its number.
    ///
    /// EOVERFLOW for a number that another queue has, or 0, which requests without one carry: the
    /// next queue to be created has the next number.
    pub fn add(&self, srq: &Arc<Srq>) -> Result<()> {
        let mut srqs = self.lock();
        let number = srq.number();
        let is_taken = srqs.get(&number).is_some_and(|other| other.strong_count() > 0);
        if number == 0 || is_taken {
            let text = format!("create_srq: number {number:#x} cannot be had; create it again");
            return Err(VerbsError::new(ErrorKind::Overflow, text));
        }
        srqs.insert(number, Arc::downgrade(srq));
        Ok(())
    }

    /// No request reaches the queue afterwards.
    pub fn remove(&self, srq: &Srq) {
        let mut srqs = self.lock();
        if srqs.get(&srq.number()).is_some_and(|known| std::ptr::eq(known.as_ptr(), srq)) {
            srqs.remove(&srq.number());
        }
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.lock().get(&number).and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Srq>>> {
        self.srqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
