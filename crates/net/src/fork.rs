//! Finding out that this process is a forked child of the one that set a guard up, and having
//! children let go of the engine's descriptors.

use std::io;
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
