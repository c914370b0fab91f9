//! Finding out that this process is a forked child of the one that set a guard up, having children
//! let go of the engine's descriptors, and what belongs to one process.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{clock, fd, sys};

/// The process whose children close the engine's descriptors; 0 before the first is opened.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Has forked children close the descriptors of the engine; to be called before the first is
/// opened. In a child that was made without the C library's knowledge it closes the inherited ones.
pub fn close_in_children() -> io::Result<()> {
    let pid = clock::pid();
    match OWNER.swap(pid, Ordering::AcqRel) {
        0 => sys::at_fork_child(on_fork_child),
        owner if owner != pid => {
            fd::forget_all_in_child();
            Ok(())
        }
        _ => Ok(()),
    }
}

extern "C" fn on_fork_child() {
    fd::forget_all_in_child();
    OWNER.store(clock::pid(), Ordering::Release);
}

/// Tells the process that made it from its forked children.
#[derive(Debug)]
pub struct ForkGuard {
    /// Zeroed by the kernel in a child (`MADV_WIPEONFORK`); absent where that is not supported.
    word: Option<&'static AtomicU32>,
    pid: u32,
}

impl ForkGuard {
    /// Sets a guard up. It keeps one page for the life of the process.
    pub fn new() -> io::Result<Self> {
        let word = sys::wipe_on_fork_word().ok();
        if let Some(word) = word {
            word.store(1, Ordering::Relaxed);
        }
        Ok(Self { word, pid: clock::pid() })
    }

    /// Whether this process is a forked child: one load, or `getpid` on kernels before 4.14.
    #[inline]
    pub fn forked(&self) -> bool {
        match self.word {
            Some(word) => word.load(Ordering::Relaxed) == 0,
            None => clock::pid() != self.pid,
        }
    }
}

/// What belongs to one process, found by process id: a forked child starts with nothing.
///
/// Invariant: a child never takes a lock in its parent's value, which another thread may have held
/// at the fork. The values form a list that only grows, one link a generation.
#[derive(Debug, Default)]
pub struct PerProcess<T>(OnceLock<Box<Link<T>>>);

#[derive(Debug)]
struct Link<T> {
    pid: u32,
    value: T,
    child: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    /// Nobody's yet.
    pub const fn new() -> Self {
        PerProcess(OnceLock::new())
    }

    /// The calling process's, made at its first use.
    pub fn get(&self) -> &T {
        let pid = clock::pid();
        let mut link = self.link(pid);
        while link.pid != pid {
            link = link.child.link(pid);
        }
        &link.value
    }

    fn link(&self, pid: u32) -> &Link<T> {
        self.0.get_or_init(|| Box::new(Link { pid, value: T::default(), child: Self::new() }))
    }

    /// Whether a process that this one was forked from had one.
    pub fn is_inherited(&self) -> bool {
        self.0.get().is_some_and(|first| first.pid != clock::pid())
    }
}
