//! The only file that touches registered memory; all `unsafe` of the data path is here.
//!
//! Invariant: while an entry of the table has a key, or a [`Grant`] on it exists, the memory of its
//! region is mapped. [`Region::new`] and [`MemTable::map_mr_sg`] are the promise, deregistration
//! ends it. Where pages may go meanwhile, each access asks the [`crate::Probe`] first.
//!
//! Order of writes: whoever sees the last byte of a write sees all of it. The body is copied
//! first; the largest aligned power of two of bytes that ends the range, at most 8, is then
//! stored at once with release order. An aligned write of 2, 4 or 8 bytes is that one store.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

use crate::fast::{Piece, map_pieces};
use crate::mr::Rereg;
use crate::pbl::PageList;
use crate::slot::{Persist, Pin, Shape};
use crate::{Access, Buffer, MemError, MemTable, MrInfo, PdId};

/// Memory that is promised to stay mapped.
pub(crate) struct Region {
    addr: usize,
    len: u64,
}

impl Region {
    /// # Safety
    /// The range stays mapped, writable if it is registered with a writable access, until its
    /// key is retired.
    pub(crate) unsafe fn new(addr: usize, len: u64) -> Result<Self, MemError> {
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
        let (addr, len) = buffer.part(&range)?;
        // SAFETY: the buffer's bytes are mapped and writable while it lives.
        unsafe { Self::new(addr as usize, len) }
    }

    /// As [`Region::of`], also for a range of no bytes, which hardware registers of its own memory.
    pub(crate) fn of_device(buffer: &Buffer, range: Range<usize>) -> Result<Self, MemError> {
        match buffer.part(&range)? {
            (addr, 0) => Ok(Self { addr: addr as usize, len: 0 }),
            _ => Self::of(buffer, range),
        }
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
        let odp = access.contains(Access::ON_DEMAND);
        let shape = if odp { Shape::PROBED } else { Shape::empty() };
        self.register(pd, &region, iova, access, shape, None)
    }

    /// Changes a registration under its key (`ibv_rereg_mr(3)`); what `change` leaves out stays.
    ///
    /// Users of the key see the old or the new registration, never none: this waits until no
    /// [`Grant`] is out.
    ///
    /// # Errors
    /// See [`MemError`]; [`MemError::Busy`] while windows are bound, [`MemError::WrongKind`] for
    /// what [`MemTable::reg_user_mr`] and [`MemTable::reg_phys_mr`] did not make. Nothing has
    /// changed then.
    ///
    /// # Safety
    /// As [`MemTable::reg_user_mr`], for the registration as it is afterwards.
    pub unsafe fn rereg_user_mr(&self, key: u32, change: &Rereg) -> Result<MrInfo, MemError> {
        let region = change.translation.map(|(addr, len, _)| {
            // SAFETY: our caller makes the same promise.
            unsafe { Region::new(addr, len) }
        });
        self.rereg(key, change, region.transpose()?)
    }

    /// Cuts pieces of memory into pages for the next fast registration of `key`
    /// (`ib_map_mr_sg`), and returns how many pieces fit.
    ///
    /// Only the first piece may start, and only the last may end, inside a page; a piece that
    /// continues the one before it is part of it. The mapping ends where that does not hold, or
    /// where the list is full.
    ///
    /// # Errors
    /// [`MemError::WrongKind`] for a key not made by [`MemTable::alloc_mr`],
    /// [`MemError::PageSize`], [`MemError::InvalidLength`] for an empty or wrapping piece,
    /// [`MemError::ListFull`] where not even the first piece fits.
    ///
    /// # Safety
    /// As [`MemTable::reg_user_mr`], for every piece, until the key is invalidated or mapped anew
    /// and registered, or the region deregistered. The pages that a piece only touches are never
    /// accessed beside it.
    pub unsafe fn map_mr_sg(
        &self,
        key: u32,
        pieces: &[Piece],
        page_size: u64,
    ) -> Result<usize, MemError> {
        map_pieces(self, key, pieces, page_size, Vec::new())
    }
}

/// Proof that a range of registered memory may be touched; while it lives the region stays.
///
/// Hold it for one copy only: deregistration waits for it, and a thread that deregisters a
/// region on which it holds a grant waits for ever. Offsets beyond the range are a bug of the
/// caller and panic.
pub struct Grant<'a> {
    _pin: Pin<'a>,
    /// Null where the range is not one piece of memory.
    ptr: *mut u8,
    len: u64,
    /// A list, and the byte of it where the range starts; neither pointer nor list: zeros, and
    /// nothing to be written.
    pages: Option<Box<(Arc<PageList>, u64)>>,
}

/// Where the bytes of a grant are: mapped while its pin lives.
pub(crate) struct Place {
    /// 0 where they are not one piece of memory.
    pub(crate) addr: usize,
    /// A list, and the byte of it where the range starts.
    pub(crate) pages: Option<Box<(Arc<PageList>, u64)>>,
}

impl Place {
    /// Nowhere.
    pub(crate) const NULL: Place = Place { addr: 0, pages: None };
}

impl<'a> Grant<'a> {
    #[inline]
    pub(crate) fn new(pin: Pin<'a>, place: Place, len: u64) -> Self {
        let ptr = std::ptr::with_exposed_provenance_mut(place.addr);
        Grant { _pin: pin, ptr, len, pages: place.pages }
    }
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

    /// Has every byte of the range written to where it lasts.
    pub(crate) fn persist(&self, persist: Persist) -> bool {
        match self.pages.as_deref() {
            None => persist(self.ptr.addr(), self.len as usize),
            Some((list, start)) => {
                list.runs(*start, self.len as usize).all(|(addr, len)| persist(addr, len))
            }
        }
    }

    /// Copies `data` into the range; whoever sees its last byte sees all of it and all that
    /// was written before.
    #[inline]
    pub fn write_at(&self, offset: u64, data: &[u8]) {
        let to = self.at(offset, data.len());
        if self.ptr.is_null() {
            return self.write_runs(offset, data);
        }
        write(to, data);
    }

    /// The runs of a scattered range are written in order.
    #[cold]
    fn write_runs(&self, offset: u64, data: &[u8]) {
        let Some((list, start)) = self.pages.as_deref() else { return };
        let mut at = 0;
        for (addr, len) in list.runs(start + offset, data.len()) {
            write(std::ptr::with_exposed_provenance_mut(addr), &data[at..at + len]);
            at += len;
        }
    }

    /// Copies from the range into `out`; an aligned read of 2, 4 or 8 bytes is one load.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        if self.ptr.is_null() {
            return self.read_runs(offset, out);
        }
        read(from, out);
    }

    #[cold]
    fn read_runs(&self, offset: u64, out: &mut [u8]) {
        let Some((list, start)) = self.pages.as_deref() else { return out.fill(0) };
        let mut at = 0;
        for (addr, len) in list.runs(start + offset, out.len()) {
            read(std::ptr::with_exposed_provenance_mut(addr), &mut out[at..at + len]);
            at += len;
        }
    }

    /// True if the range starts on an 8-byte boundary, as atomics need (IBTA 9.4.5).
    #[inline]
    pub fn is_aligned_8(&self) -> bool {
        self.first_byte().is_some_and(|ptr| ptr.addr().is_multiple_of(8))
    }

    /// Where the range starts; it has a page of its own where it is scattered.
    fn first_byte(&self) -> Option<*mut u8> {
        if !self.ptr.is_null() {
            return Some(self.ptr);
        }
        let (list, start) = self.pages.as_deref()?;
        let (addr, _) = list.runs(*start, 1).next()?;
        Some(std::ptr::with_exposed_provenance_mut(addr))
    }

    /// The word at the start of the range: aligned, so that it lies in one page.
    fn word(&self) -> &AtomicU64 {
        assert!(self.len >= 8, "an atomic on a grant of {}", self.len);
        let ptr = self.first_byte().expect("an atomic needs memory");
        // SAFETY: in range, as just checked; mapped while the pin lives; `atomic_u64` checks the
        // alignment.
        unsafe { atomic_u64(ptr) }
    }

    /// Adds to the word at the start of the range, wrapping; returns what was there.
    ///
    /// # Panics
    /// If the range is not aligned or shorter than 8 bytes.
    pub fn fetch_add(&self, add: u64) -> u64 {
        self.word().fetch_add(add, AcqRel)
    }

    /// Replaces the word at the start of the range if it equals `compare`; returns what was
    /// there.
    ///
    /// # Panics
    /// If the range is not aligned or shorter than 8 bytes.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        match self.word().compare_exchange(compare, swap, AcqRel, Acquire) {
            Ok(old) | Err(old) => old,
        }
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

/// Copies `data` to `to`, which is mapped; the last store has release order.
#[inline]
fn write(to: *mut u8, data: &[u8]) {
    let (body, tail) = data.split_at(data.len() - last_store(to.addr(), data.len()));
    if !body.is_empty() {
        // SAFETY: the grant checked the range, its pin keeps it mapped, and Rust memory that is
        // borrowed as `data` is not registered memory.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) };
    }
    let last = to.wrapping_add(body.len());
    // SAFETY (all four): in range and aligned, as `last_store` says; mapped while the pin lives.
    match *tail {
        [] => (),
        // SAFETY: see above.
        [a] => unsafe { AtomicU8::from_ptr(last) }.store(a, Release),
        [a, b] => {
            let word = u16::from_ne_bytes([a, b]);
            // SAFETY: see above.
            unsafe { AtomicU16::from_ptr(last.cast()) }.store(word, Release);
        }
        [a, b, c, d] => {
            let word = u32::from_ne_bytes([a, b, c, d]);
            // SAFETY: see above.
            unsafe { AtomicU32::from_ptr(last.cast()) }.store(word, Release);
        }
        // SAFETY: see above.
        _ => unsafe { atomic_u64(last) }.store(word(tail), Release),
    }
}

/// Copies from `from`, which is mapped.
#[inline]
fn read(from: *mut u8, out: &mut [u8]) {
    let aligned = from.addr().is_multiple_of(out.len().max(1));
    match out.len() {
        2 if aligned => {
            // SAFETY: in range, as the grant checked, and aligned; mapped while its pin lives.
            let word = unsafe { AtomicU16::from_ptr(from.cast()) };
            copy(out, word.load(Acquire).to_ne_bytes());
        }
        4 if aligned => {
            // SAFETY: in range, as the grant checked, and aligned; mapped while its pin lives.
            let word = unsafe { AtomicU32::from_ptr(from.cast()) };
            copy(out, word.load(Acquire).to_ne_bytes());
        }
        8 if aligned => {
            // SAFETY: in range, as the grant checked; mapped while its pin lives.
            let word = unsafe { atomic_u64(from) };
            copy(out, word.load(Acquire).to_ne_bytes());
        }
        // SAFETY: the grant checked the range, its pin keeps it mapped, and Rust memory that is
        // borrowed as `out` is not registered memory.
        len => unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) },
    }
}

/// # Safety
/// The 8 bytes are mapped while the reference lives.
unsafe fn atomic_u64<'a>(ptr: *mut u8) -> &'a AtomicU64 {
    assert!(ptr.addr().is_multiple_of(8), "8-byte atomic at unaligned {ptr:p}");
    // SAFETY: mapped, as our caller promises, and aligned, as just checked.
    unsafe { AtomicU64::from_ptr(ptr.cast()) }
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
