//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use irdma_mem::PdId;

use crate::error::{ErrorKind, Result, VerbsError};

/// A protection domain; whoever stands on it holds a clone of its `Arc`.
#[derive(Debug)]
pub struct Pd {
    id: PdId,
}

impl Pd {
    /// The number that memory regions and queue pairs are compared by.
    pub fn id(&self) -> PdId {
        self.id
    }
}

/// Hands out protection domains up to a limit.
#[derive(Debug)]
pub struct PdTable {
    next: AtomicU32,
    live: AtomicU32,
    max: u32,
}

impl PdTable {
    /// A table for at most `max` domains at once.
    pub fn new(max: u32) -> Self {
        // The first three numbers are reserved, as on the hardware.
        PdTable { next: AtomicU32::new(3), live: AtomicU32::new(0), max }
    }

    /// Takes a number. EOVERFLOW when `max` domains are in use.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>> {
        let taken = self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < self.max).then_some(n + 1)
        });
        if taken.is_err() {
            return Err(VerbsError::new(
                ErrorKind::Overflow,
                format!("alloc_pd: all {} protection domains are in use", self.max),
            ));
        }
        let id = PdId(self.next.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(Pd { id }))
    }

    /// Gives the domain back. EBUSY, and the domain with it, while any object stands on it.
    pub fn dealloc_pd(&self, pd: Arc<Pd>) -> std::result::Result<(), (Arc<Pd>, VerbsError)> {
        match Arc::try_unwrap(pd) {
            Ok(_) => {
                self.live.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
            Err(pd) => {
                let users = Arc::strong_count(&pd) - 1;
                let error = VerbsError::busy(format!(
                    "dealloc_pd: {users} objects still use the domain; destroy them first"
                ));
                Err((pd, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_differ_and_their_number_is_limited() {
        let table = PdTable::new(2);
        let (a, b) = (table.alloc_pd().unwrap(), table.alloc_pd().unwrap());
        assert_ne!(a.id(), b.id());
        assert_eq!(table.alloc_pd().unwrap_err().errno(), 75);
        table.dealloc_pd(b).unwrap();
        let c = table.alloc_pd().unwrap();
        assert_ne!(a.id(), c.id());
    }

    #[test]
    fn a_domain_in_use_stays() {
        let table = PdTable::new(2);
        let pd = table.alloc_pd().unwrap();
        let user = Arc::clone(&pd);
        let (pd, error) = table.dealloc_pd(pd).unwrap_err();
        assert_eq!(error.errno(), 16);
        drop(user);
        table.dealloc_pd(pd).unwrap();
    }
}
