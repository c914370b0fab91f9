//! The only file that touches registered memory; all `unsafe` of the data path is here.
//!
//! Invariant: while a [`Slot`] has a key, or a [`Grant`] on it exists, the memory of its region
//! is mapped. [`Region::new`] is the promise, [`Slot::retire`] ends it.
//!
//! Order of writes: whoever sees the last byte of a write sees all of it. The body is copied
//! first; the largest aligned power of two of bytes that ends the range, at most 8, is then
//! stored at once with release order. An aligned write of 2, 4 or 8 bytes is that one store.

use std::ops::Range;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::{Access, Buffer, GrantError, MemError, MemTable, MrInfo, PdId, Rights, get_mr_access};

/// Memory that is promised to stay mapped.
pub(crate) struct Region {
    addr: usize,
    len: u64,
}

impl Region {
    /// # Safety
    /// The range stays mapped, writable if it is registered with a writable access, until its
    /// key is retired.
    unsafe fn new(addr: usize, len: u64) -> Result<Self, MemError> {
        let wraps = addr.checked_add(len as usize).is_none() || len > isize::MAX as u64;
        if len == 0 || wraps {
            return Err(MemError::InvalidLength { addr: addr as u64, len });
        }
        if addr == 0 {
            return Err(MemError::Fault);
        }
        Ok(Self { addr, len })
    }

    /// The caller keeps `buffer` alive until the key is retired.
    pub(crate) fn of(buffer: &Buffer, range: Range<usize>) -> Result<Self, MemError> {
        let addr = buffer.addr().wrapping_add(range.start as u64);
        let len = range.end.saturating_sub(range.start) as u64;
        if range.end > buffer.len() {
            return Err(MemError::InvalidLength { addr, len });
        }
        // SAFETY: the buffer's bytes are mapped and writable while it lives.
        unsafe { Self::new(addr as usize, len) }
    }

    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl MemTable {
    /// Registers `len` bytes at the process address `addr`, known to keys as `iova`
    /// (`ibv_reg_mr(3)`); with [`Access::ZERO_BASED`] `iova` counts as 0.
    ///
    /// # Errors
    /// See [`MemError`]; a refused call leaves no trace.
    ///
    /// # Safety
    /// The memory stays mapped, writable if `access` holds a write or atomic flag, until
    /// [`MemTable::dereg_mr`] has returned `Ok` for its key. The program may read and write it
    /// at any time, but holds no reference whose rules a write by a peer would break.
    pub unsafe fn reg_user_mr(
        &self,
        pd: PdId,
        addr: usize,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrInfo, MemError> {
        // SAFETY: our caller makes the same promise.
        let region = unsafe { Region::new(addr, len) }?;
        self.register(pd, region, iova, access, None)
    }
}

/// One entry of the key table, on a cache line of its own.
///
/// `state` is the key in its high half (0: none) and the number of pins in its low half, so
/// that one atomic addition both pins the entry and tells whether the key is the right one.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    state: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
    rights: AtomicU32,
}

const PIN: u64 = 1;
const KEY_SHIFT: u32 = 32;
const PIN_MASK: u64 = (1 << KEY_SHIFT) - 1;

impl Slot {
    /// Makes a key valid for a region.
    pub(crate) fn publish(&self, key: u32, pd: PdId, region: Region, iova: u64, access: Access) {
        self.addr.store(region.addr as u64, Relaxed);
        self.len.store(region.len, Relaxed);
        self.iova.store(iova, Relaxed);
        self.pd.store(pd.0, Relaxed);
        self.access.store(access.bits(), Relaxed);
        self.rights.store(get_mr_access(access).bits(), Relaxed);
        // Added, not stored: a late user of an old key may have the entry pinned for a moment.
        self.state.fetch_add(u64::from(key) << KEY_SHIFT, Release);
    }

    /// Makes the key invalid and waits until no grant is out; false if the key is not valid.
    pub(crate) fn retire(&self, key: u32) -> bool {
        let clear = |state: u64| ((state >> KEY_SHIFT) as u32 == key).then_some(state & PIN_MASK);
        if self.state.fetch_update(AcqRel, Relaxed, clear).is_err() {
            return false;
        }
        self.wait_until_free();
        true
    }

    /// Looks for a moment before it sleeps, because copies are short.
    fn wait_until_free(&self) {
        let is_held = || self.state.load(Acquire) != 0;
        if (0..100).all(|_| is_held()) {
            let guard = LAST_PIN.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(LAST_PIN.1.wait_while(guard, |()| is_held()));
        }
    }

    /// What is registered under `key`.
    pub(crate) fn info(&self, key: u32) -> Option<MrInfo> {
        let _pin = self.pin(key)?;
        Some(MrInfo {
            lkey: key,
            rkey: key,
            pd: PdId(self.pd.load(Relaxed)),
            addr: self.addr.load(Relaxed) as usize,
            len: self.len.load(Relaxed),
            iova: self.iova.load(Relaxed),
            access: Access::from_bits_retain(self.access.load(Relaxed)),
        })
    }

    /// Checks key, protection domain, rights and range, in this order.
    #[inline]
    pub(crate) fn grant(
        &self,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
        pd: PdId,
    ) -> Result<Grant<'_>, GrantError> {
        let pin = self.pin(key).ok_or(GrantError::UnknownKey)?;
        if self.pd.load(Relaxed) != pd.0 {
            return Err(GrantError::ForeignPd);
        }
        let rights = Rights::from_bits_retain(self.rights.load(Relaxed));
        if !rights.contains(get_mr_access(need)) {
            return Err(missing(need, rights));
        }
        let offset = self.offset(key, va, len)?;
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.addr.load(Relaxed) as usize);
        Ok(Grant { _pin: pin, ptr: base.wrapping_add(offset as usize), len })
    }

    #[inline]
    fn offset(&self, key: u32, va: u64, len: u64) -> Result<u64, GrantError> {
        let start = self.iova.load(Relaxed);
        let region_len = self.len.load(Relaxed);
        if len == 0 {
            return Ok(0);
        }
        match va.checked_sub(start) {
            Some(offset) if len <= region_len && offset <= region_len - len => Ok(offset),
            _ => Err(GrantError::Bounds { key, start, region_len, va, len }),
        }
    }

    /// Holds the entry in place if it has this key.
    #[inline]
    fn pin(&self, key: u32) -> Option<Pin<'_>> {
        let has_key = |state: u64| (state >> KEY_SHIFT) as u32 == key;
        // A look first: wrong keys must not keep a retiring thread waiting.
        if !has_key(self.state.load(Relaxed)) {
            return None;
        }
        let state = self.state.fetch_add(PIN, Acquire);
        let pin = Pin(self);
        has_key(state).then_some(pin)
    }
}

#[cold]
fn missing(need: Access, rights: Rights) -> GrantError {
    let missing = need.iter().filter(|flag| !rights.contains(get_mr_access(*flag))).collect();
    GrantError::Access { missing }
}

/// Where a retiring thread sleeps until the last pin is gone.
static LAST_PIN: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

struct Pin<'a>(&'a Slot);

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        // No key and this pin only: somebody may be waiting for it.
        if self.0.state.fetch_sub(PIN, Release) == PIN {
            wake_retiring();
        }
    }
}

/// The lock makes sure that whoever saw the pin is asleep by now, or looks again.
#[cold]
fn wake_retiring() {
    drop(LAST_PIN.0.lock().unwrap_or_else(PoisonError::into_inner));
    LAST_PIN.1.notify_all();
}

/// Proof that a range of registered memory may be touched; while it lives the region stays.
///
/// Hold it for one copy only: deregistration waits for it, and a thread that deregisters a
/// region on which it holds a grant waits for ever. Offsets beyond the range are a bug of the
/// caller and panic.
pub struct Grant<'a> {
    _pin: Pin<'a>,
    ptr: *mut u8,
    len: u64,
}

impl Grant<'_> {
    /// Length of the range in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a range of no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `data` into the range; whoever sees its last byte sees all of it and all that
    /// was written before.
    #[inline]
    pub fn write_at(&self, offset: u64, data: &[u8]) {
        let to = self.at(offset, data.len());
        let (body, tail) = data.split_at(data.len() - last_store(to.addr(), data.len()));
        if !body.is_empty() {
            // SAFETY: `at` checked the range, the pin keeps it mapped, and Rust memory that is
            // borrowed as `data` is not registered memory.
            unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) };
        }
        let last = offset + body.len() as u64;
        match *tail {
            [] => (),
            [a] => self.atomic_u8(last).store(a, Release),
            [a, b] => self.atomic_u16(last).store(u16::from_ne_bytes([a, b]), Release),
            [a, b, c, d] => {
                self.atomic_u32(last).store(u32::from_ne_bytes([a, b, c, d]), Release);
            }
            _ => self.atomic_u64(last).store(word(tail), Release),
        }
    }

    /// Copies from the range into `out`; an aligned read of 2, 4 or 8 bytes is one load.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        let aligned = from.addr().is_multiple_of(out.len().max(1));
        match out.len() {
            2 if aligned => copy(out, self.atomic_u16(offset).load(Acquire).to_ne_bytes()),
            4 if aligned => copy(out, self.atomic_u32(offset).load(Acquire).to_ne_bytes()),
            8 if aligned => copy(out, self.atomic_u64(offset).load(Acquire).to_ne_bytes()),
            // SAFETY: `at` checked the range, the pin keeps it mapped, and Rust memory that is
            // borrowed as `out` is not registered memory.
            len => unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) },
        }
    }

    /// True if the range starts on an 8-byte boundary, as atomics need (IBTA 9.4.5).
    #[inline]
    pub fn is_aligned_8(&self) -> bool {
        self.ptr.addr().is_multiple_of(8)
    }

    /// Adds to the word at the start of the range, wrapping; returns what was there.
    ///
    /// # Panics
    /// If the range is not aligned or shorter than 8 bytes.
    pub fn fetch_add(&self, add: u64) -> u64 {
        self.atomic_u64(0).fetch_add(add, AcqRel)
    }

    /// Replaces the word at the start of the range if it equals `compare`; returns what was
    /// there.
    ///
    /// # Panics
    /// If the range is not aligned or shorter than 8 bytes.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        match self.atomic_u64(0).compare_exchange(compare, swap, AcqRel, Acquire) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Stores a word, in host byte order, at the start of the range, aligned or not.
    pub fn store_u64(&self, value: u64) {
        self.write_at(0, &value.to_ne_bytes());
    }

    fn atomic_u64(&self, offset: u64) -> &AtomicU64 {
        let ptr = self.aligned(offset, 8).cast();
        // SAFETY: in range and aligned, as just checked; mapped while the pin lives.
        unsafe { AtomicU64::from_ptr(ptr) }
    }

    fn atomic_u32(&self, offset: u64) -> &AtomicU32 {
        let ptr = self.aligned(offset, 4).cast();
        // SAFETY: in range and aligned, as just checked; mapped while the pin lives.
        unsafe { AtomicU32::from_ptr(ptr) }
    }

    fn atomic_u16(&self, offset: u64) -> &AtomicU16 {
        let ptr = self.aligned(offset, 2).cast();
        // SAFETY: in range and aligned, as just checked; mapped while the pin lives.
        unsafe { AtomicU16::from_ptr(ptr) }
    }

    fn atomic_u8(&self, offset: u64) -> &AtomicU8 {
        let ptr = self.at(offset, 1);
        // SAFETY: in range, as just checked; mapped while the pin lives.
        unsafe { AtomicU8::from_ptr(ptr) }
    }

    #[inline]
    fn aligned(&self, offset: u64, size: usize) -> *mut u8 {
        let ptr = self.at(offset, size);
        assert!(ptr.addr().is_multiple_of(size), "{size}-byte atomic at unaligned {ptr:p}");
        ptr
    }

    #[inline]
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let len = len as u64;
        assert!(
            len <= self.len && offset <= self.len - len,
            "{len} bytes at {offset} of a grant of {}",
            self.len
        );
        self.ptr.wrapping_add(offset as usize)
    }
}

/// Size of the store that ends a write: the largest power of two up to 8 that fits in the
/// write and is aligned where it must stand.
#[inline]
fn last_store(to: usize, len: usize) -> usize {
    let end_alignment = 1 << (to + len).trailing_zeros().min(3);
    match len {
        0 => 0,
        1 => 1,
        2..4 => end_alignment.min(2),
        4..8 => end_alignment.min(4),
        _ => end_alignment,
    }
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

#[inline]
fn copy<const N: usize>(out: &mut [u8], bytes: [u8; N]) {
    out.copy_from_slice(&bytes);
}

#[cfg(test)]
mod litmus;

#[cfg(test)]
impl Grant<'_> {
    /// A write without the order that `write_at` keeps: what the litmus test must catch.
    fn write_plain(&self, data: &[u8]) {
        let to = self.at(0, data.len());
        // SAFETY: as in `write_at`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(3);

    fn register(table: &MemTable, addr: usize, len: u64) -> Result<MrInfo, MemError> {
        // SAFETY: the memory the tests register outlives the table; refused calls touch none.
        unsafe { table.reg_user_mr(PD, addr, len, 0x1000, Access::LOCAL_WRITE) }
    }

    #[test]
    fn user_memory_is_reached_through_its_key() {
        let mut memory = [7u8; 64];
        let addr = (&raw mut memory).expose_provenance();
        let table = MemTable::new(1, 16);
        let mr = register(&table, addr + 8, 48).unwrap();
        assert_eq!((mr.addr, mr.len, mr.iova), (addr + 8, 48, 0x1000));
        assert_eq!(table.query(mr.lkey), Some(mr));

        let grant = table.grant(mr.lkey, 0x1001, 4, Access::LOCAL_WRITE, PD).unwrap();
        grant.write_at(0, b"ABCD");
        drop(grant);
        table.dereg_mr(mr.lkey).unwrap();
        assert_eq!(&memory[8..14], b"\x07ABCD\x07");
    }

    #[test]
    fn impossible_user_memory_is_refused() {
        let table = MemTable::new(1, 16);
        let invalid = |addr: usize, len| Err(MemError::InvalidLength { addr: addr as u64, len });
        for (addr, len) in [(0x1000, 0), (usize::MAX - 8, 9), (0x1000, u64::MAX), (8, 1 << 63)] {
            assert_eq!(register(&table, addr, len), invalid(addr, len));
        }
        assert_eq!(register(&table, 0, 1), Err(MemError::Fault));
        assert!(table.is_empty());
    }

    #[test]
    fn the_last_store_holds_the_last_byte_and_an_aligned_word_is_one_store() {
        for to in 64..80usize {
            for len in 1..40usize {
                let size = last_store(to, len);
                assert!(size <= len && (to + len).is_multiple_of(size), "{to} {len} {size}");
                let larger = size * 2;
                let could_be_larger = larger <= len.min(8) && (to + len).is_multiple_of(larger);
                assert!(!could_be_larger, "{to} {len} {size}");
            }
            for word in [2, 4, 8usize] {
                assert!(!to.is_multiple_of(word) || last_store(to, word) == word);
            }
        }
    }
}
