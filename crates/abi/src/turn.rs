//! What a program begins in one call and ends in another: a poll of an extended completion
//! queue, a batch of requests.

use std::cell::UnsafeCell;
use std::hint;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A value that one thread at a time works on, from one call to a later one.
pub struct Turn<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only who has the turn touches the value.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The turn; dropped, it is the next thread's.
pub struct Taken<'a, T>(&'a Turn<T>);

impl<T> Turn<T> {
    pub fn new(value: T) -> Self {
        Turn { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the turn. Turns are short; but who has it may have lost its core.
    #[inline]
    pub fn take(&self) -> Taken<'_, T> {
        const SPINS: u32 = 100;
        let mut tries = 0;
        while self.taken.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries < SPINS { hint::spin_loop() } else { thread::yield_now() }
        }
        Taken(self)
    }

    /// The turn that an earlier call kept; `None` if nobody has it.
    ///
    /// # Safety
    /// If anybody has the turn, it is the calling thread.
    #[inline]
    pub unsafe fn resume(&self) -> Option<Taken<'_, T>> {
        self.taken.load(Ordering::Relaxed).then_some(Taken(self))
    }
}

impl<T> Taken<'_, T> {
    /// Keeps the turn for later calls.
    #[inline]
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread has the turn.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_kept_until_it_is_dropped() {
        let turn = Turn::new(0);
        // SAFETY: there is one thread.
        let resume = || unsafe { turn.resume() };
        assert!(resume().is_none());
        let mut taken = turn.take();
        *taken += 1;
        taken.keep();
        assert_eq!(resume().map(|taken| *taken), Some(1));
        assert!(resume().is_none());
    }

    #[test]
    fn threads_wait_for_each_other() {
        let turn = Turn::new(0);
        let work = || (0..1000).for_each(|_| *turn.take() += 1);
        thread::scope(|scope| {
            scope.spawn(work);
            scope.spawn(work);
        });
        assert_eq!(*turn.take(), 2000);
    }
}
