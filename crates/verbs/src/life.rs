//! What keeps an object alive: others that stand on it, and events not acknowledged yet.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use irdma_transport::{Result, VerbsError};

const DEAD: u32 = 1 << 31;

/// Counts the objects that stand on this one; set to dead once, when there are none.
#[derive(Debug, Default)]
pub(crate) struct Life(AtomicU32);

impl Life {
    /// Ends the life. EBUSY while something stands on the object, EINVAL if it ended before.
    pub(crate) fn end(&self, what: &str) -> Result<()> {
        match self.0.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(users) if users & DEAD == 0 => Err(VerbsError::busy(format!(
                "{users} objects still use the {what}; destroy them first"
            ))),
            Err(_) => Err(destroyed(what)),
        }
    }

    /// Ends the life whatever stands on it; false if it ended before.
    pub(crate) fn cut(&self) -> bool {
        self.0.fetch_or(DEAD, Ordering::AcqRel) & DEAD == 0
    }

    /// EINVAL if the life has ended.
    #[inline]
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(destroyed(what)) }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.load(Ordering::Acquire) & DEAD == 0
    }

    /// Alive, and nothing stands on the object.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn hold(&self, what: &str) -> Result<()> {
        let one_more = |users| (users & DEAD == 0).then_some(users + 1);
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(destroyed(what)),
        }
    }

    fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn destroyed(what: &str) -> VerbsError {
    VerbsError::invalid(format!("the {what} was destroyed, or its context closed"))
}

/// An object that others stand on.
pub(crate) trait Alive {
    /// The object's kind, as log lines call it.
    const WHAT: &'static str;

    fn life(&self) -> &Life;
}

/// Standing on an object: it cannot be destroyed meanwhile.
#[derive(Debug)]
pub(crate) struct Use<T: Alive>(Arc<T>);

impl<T: Alive> Use<T> {
    /// EINVAL if the object was destroyed.
    pub(crate) fn of(object: &Arc<T>) -> Result<Self> {
        object.life().hold(T::WHAT)?;
        Ok(Use(Arc::clone(object)))
    }
}

impl<T: Alive> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Alive> Drop for Use<T> {
    fn drop(&mut self) {
        self.0.life().release();
    }
}

/// Events about an object that were handed to the program and not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacked {
    pub(crate) fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Takes up to `count` acknowledgements; more than were handed out count for nothing.
    pub(crate) fn ack(&self, count: u32) {
        let mut left = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(u64::from(count));
        self.changed.notify_all();
    }

    /// Waits until every event is acknowledged (`ibv_ack_cq_events(3)`).
    pub(crate) fn wait(&self) {
        let left = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(left, |left| *left > 0));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use irdma_transport::ErrorKind;

    use super::*;

    #[derive(Debug, Default)]
    struct Thing(Life);

    impl Alive for Thing {
        const WHAT: &'static str = "thing";

        fn life(&self) -> &Life {
            &self.0
        }
    }

    #[test]
    fn an_object_in_use_is_busy_and_a_dead_one_invalid() {
        let thing = Arc::new(Thing::default());
        let using = Use::of(&thing).unwrap();
        assert_eq!(thing.life().end("thing").unwrap_err().kind(), ErrorKind::Busy);
        assert!(thing.life().check("thing").is_ok());
        drop(using);
        thing.life().end("thing").unwrap();
        assert_eq!(thing.life().end("thing").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Use::of(&thing).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(!thing.life().cut());
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let unacked = Arc::new(Unacked::default());
        unacked.add();
        unacked.add();
        let acker = thread::spawn({
            let unacked = Arc::clone(&unacked);
            move || {
                unacked.ack(1);
                thread::sleep(Duration::from_millis(5));
                unacked.ack(1);
            }
        });
        unacked.wait();
        assert_eq!(*unacked.count.lock().unwrap(), 0);
        acker.join().unwrap();
    }
}
