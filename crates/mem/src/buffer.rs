//! Memory that the library owns and registers for itself.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::MemError;

const LINE: usize = 64;

#[repr(align(64))]
struct Line([AtomicU8; LINE]);

/// Zeroed memory, aligned to a cache line, that may be registered without `unsafe` code.
///
/// A peer may write to it at any time, so it is read and written a byte at a time.
pub struct Buffer {
    lines: Box<[Line]>,
    len: usize,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:#x}+{})", self.addr(), self.len)
    }
}

impl Buffer {
    /// `len` bytes of zeros.
    pub fn zeroed(len: usize) -> Self {
        let line = || Line(std::array::from_fn(|_| AtomicU8::new(0)));
        Self { lines: std::iter::repeat_with(line).take(len.div_ceil(LINE)).collect(), len }
    }

    /// Process address of the first byte.
    pub fn addr(&self) -> u64 {
        self.lines.as_ptr().expose_provenance() as u64
    }

    /// Process address and length of a part.
    ///
    /// # Errors
    /// [`MemError::InvalidLength`] for one that is not inside the buffer.
    pub fn part(&self, range: &Range<usize>) -> Result<(u64, u64), MemError> {
        let addr = self.addr().wrapping_add(range.start as u64);
        let len = range.len() as u64;
        if range.start > range.end || range.end > self.len {
            return Err(MemError::InvalidLength { addr, len });
        }
        Ok((addr, len))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `offset`; whoever sees the last byte of a placed message sees all of it.
    ///
    /// # Panics
    /// If `offset` is outside the buffer.
    #[inline]
    pub fn byte(&self, offset: usize) -> u8 {
        self.cell(offset).load(Ordering::Acquire)
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.byte(offset + i);
        }
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn write(&self, offset: usize, data: &[u8]) {
        for (i, byte) in data.iter().enumerate() {
            self.cell(offset + i).store(*byte, Ordering::Release);
        }
    }

    #[inline]
    fn cell(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len, "byte {offset} of a buffer of {}", self.len);
        &self.lines[offset / LINE].0[offset % LINE]
    }
}
