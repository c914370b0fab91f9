//! Clocks, seeds and process identity.

use std::io;

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, in nanoseconds.
#[inline]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// `CLOCK_REALTIME`, in nanoseconds since 1970.
#[inline]
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

#[inline]
fn nanoseconds(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Eight random bytes from the kernel; fails only where `getrandom(2)` is forbidden.
pub fn seed() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The id of this process in its own namespace, never cached.
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}
