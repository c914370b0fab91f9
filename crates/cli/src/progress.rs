//! One line on a terminal that says what is being done; nothing in a pipe.

use std::io::{self, IsTerminal, Write};

/// A line on standard error that is written over and over; gone when dropped.
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shows lines only where standard error is a terminal.
    pub fn new() -> Self {
        Progress { shown: io::stderr().is_terminal() }
    }

    /// Puts `text` in place of the line before.
    pub fn show(&self, text: &str) {
        if self.shown {
            // Nothing is lost with a progress line.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
