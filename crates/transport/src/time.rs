//! Time as the protocol sees it: a number handed in by the caller.

use std::ops::{Add, Sub};

/// Nanoseconds since an arbitrary zero chosen by the caller; never read from a clock here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The zero of the caller's time line.
    pub const ZERO: Instant = Instant(0);

    /// `ns` nanoseconds after zero.
    pub const fn from_nanos(ns: u64) -> Self {
        Instant(ns)
    }

    /// `ms` milliseconds after zero.
    pub const fn from_millis(ms: u64) -> Self {
        Instant(ms * 1_000_000)
    }

    /// Nanoseconds since zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<u64> for Instant {
    type Output = Instant;
    /// Moves `ns` nanoseconds on; saturates at the end of time.
    fn add(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }
}

impl Sub for Instant {
    type Output = u64;
    /// Nanoseconds from `earlier` to `self`, 0 if `earlier` is later.
    fn sub(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
