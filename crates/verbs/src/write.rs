//! Writing to files and terminals with locks held.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// Writes all of `bytes`. The C library's `write` is a cancellation point (`pthreads(7)`): a
/// program's thread could end in it, with every lock that it holds.
pub(crate) fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
