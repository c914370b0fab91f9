//! How commands end: exit statuses that they share, and output that nobody reads any more.

use std::io::{self, Write};
use std::process::ExitCode;

/// There is no device to use, or no process to ask.
pub const NOTHING_THERE: u8 = 3;

/// Writes `text` to standard output; the exit status says whether that worked. A reader that has
/// seen enough is no failure.
pub fn print(text: &str) -> ExitCode {
    match write(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("irdma: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `text` to standard output at once.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
