//! The `handle` fields of objects, by which kernel drivers name them.

use std::sync::atomic::{AtomicU32, Ordering};

/// A number that no other object of the process has.
pub fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
