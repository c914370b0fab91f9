//! Finding out that this process is a forked child of the one that set a guard up.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{clock, sys};

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
