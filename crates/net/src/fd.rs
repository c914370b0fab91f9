//! Descriptors of the engine, and how a forked child lets go of them.
//!
//! Invariant: a set bit in the registry is a descriptor number that this process's engine owns.
//! The registry is a static bitmap, so the child's handler neither allocates nor locks.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

const REGISTRY_BITS: usize = 1 << 20;
const WORD_BITS: usize = u64::BITS as usize;

static REGISTRY: [AtomicU64; REGISTRY_BITS / WORD_BITS] =
    [const { AtomicU64::new(0) }; REGISTRY_BITS / WORD_BITS];
/// Counts the forks that this process is the child of; older handles no longer own a number.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Engine descriptors start here, where the kernel allows it: programs that use `select(2)` need
/// the numbers below 1024 for themselves.
const FIRST_ENGINE_FD: RawFd = 1024;

/// An owned descriptor, closed when dropped by a raw system call.
#[derive(Debug)]
pub struct Fd {
    fd: ManuallyDrop<OwnedFd>,
    /// `None`: not registered, a forked child keeps it.
    epoch: Option<u32>,
}

impl Fd {
    /// Takes over a descriptor of the engine: moves it out of the range of `select(2)` where the
    /// limit on open files allows it, and has forked children close it.
    pub fn engine(fd: OwnedFd) -> io::Result<Self> {
        let fd = move_high(fd);
        let number = fd.as_raw_fd() as usize;
        if number >= REGISTRY_BITS {
            return Err(io::Error::other(format!(
                "descriptor {number} is past the registry of {REGISTRY_BITS}: lower RLIMIT_NOFILE"
            )));
        }
        let epoch = EPOCH.load(Ordering::Acquire);
        REGISTRY[number / WORD_BITS].fetch_or(1 << (number % WORD_BITS), Ordering::AcqRel);
        Ok(Self { fd: ManuallyDrop::new(fd), epoch: Some(epoch) })
    }

    /// Takes over a descriptor that the program sees: it keeps its number, and forked children
    /// keep it.
    pub fn visible(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), epoch: None }
    }

    /// Whether a fork took this handle's descriptor away.
    pub fn is_forgotten(&self) -> bool {
        self.epoch.is_some_and(|epoch| epoch != EPOCH.load(Ordering::Acquire))
    }
}

fn move_high(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() >= FIRST_ENGINE_FD {
        return fd;
    }
    // Fails when RLIMIT_NOFILE is at or below the first number; the low one serves as well.
    match rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_ENGINE_FD) {
        Ok(high) => {
            sys::close(ManuallyDrop::new(fd).as_raw_fd());
            high
        }
        Err(_) => fd,
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let raw = self.fd.as_raw_fd();
        if self.is_forgotten() {
            return;
        }
        if self.epoch.is_some() {
            let (word, bit) = (raw as usize / WORD_BITS, 1 << (raw as usize % WORD_BITS));
            REGISTRY[word].fetch_and(!bit, Ordering::AcqRel);
        }
        sys::close(raw);
    }
}

/// Closes every engine descriptor that a forked child inherited; async-signal-safe.
///
/// To be called in the child before it opens anything of the engine: by `pthread_atfork`'s child
/// handler, or late when [`crate::fork::ForkGuard`] shows that the handler was skipped. Handles
/// from before the fork stay harmless: they refer to closed numbers and close nothing on drop.
pub fn forget_all_in_child() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
    for (index, word) in REGISTRY.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::AcqRel);
        while bits != 0 {
            sys::close((index * WORD_BITS + bits.trailing_zeros() as usize) as RawFd);
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::fork::ForkGuard;
    use crate::sys::testing::in_forked_child;

    fn counter() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn is_open(fd: RawFd) -> bool {
        rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).is_ok()
    }

    #[test]
    fn engine_descriptors_leave_the_range_of_select() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let (engine, visible) = (Fd::engine(counter()).unwrap(), Fd::visible(counter()));
        assert!(limit.current.is_some_and(|l| l <= 1024) || engine.as_raw_fd() >= 1024);
        assert!(visible.as_raw_fd() < 1024);
    }

    #[test]
    fn a_dropped_handle_closes_its_descriptor() {
        for fd in [Fd::engine(counter()).unwrap(), Fd::visible(counter())] {
            let raw = fd.as_raw_fd();
            assert!(is_open(raw));
            drop(fd);
            assert!(!is_open(raw) || raw < 1024);
        }
    }

    #[test]
    fn a_child_closes_engine_descriptors_and_keeps_visible_ones() {
        let (engine, visible) = (Fd::engine(counter()).unwrap(), Fd::visible(counter()));
        let guard = ForkGuard::new().unwrap();
        let verdict = in_forked_child(|| {
            let write = |fd: &Fd| rustix::io::write(fd, &1u64.to_ne_bytes());
            let inherited = guard.forked() && write(&engine).is_ok();
            forget_all_in_child();
            let forgotten = engine.is_forgotten() && !visible.is_forgotten();
            inherited && forgotten && write(&engine).is_err() && write(&visible).is_ok()
        });
        assert!(verdict);
        assert!(!guard.forked() && !engine.is_forgotten());
        assert_eq!(rustix::io::write(&engine, &1u64.to_ne_bytes()), Ok(8));
    }

    #[test]
    fn a_stale_handle_never_closes_a_number_that_was_given_out_again() {
        let engine = Fd::engine(counter()).unwrap();
        let raw = engine.as_raw_fd();
        let verdict = in_forked_child(move || {
            forget_all_in_child();
            let Ok(fresh) = eventfd(0, EventfdFlags::CLOEXEC) else { return false };
            let Ok(fresh) = rustix::io::fcntl_dupfd_cloexec(&fresh, raw) else { return false };
            let same = fresh.as_raw_fd() == raw;
            drop(engine);
            same && rustix::io::write(&fresh, &1u64.to_ne_bytes()).is_ok()
        });
        assert!(verdict);
    }
}
