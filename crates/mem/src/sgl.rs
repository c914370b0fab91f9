//! Scatter/gather lists: a work request's bytes, spread over regions.

use thiserror::Error;

use crate::{Access, Grant, GrantError, MemTable, PdId};

/// One element of a scatter/gather list, laid out as `struct ibv_sge`. Length 0 means no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, as the key knows it.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// A key does not allow the use of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("sge[{index}] lkey {lkey:#010x}: {error}")]
pub struct SglError {
    /// Position of the element in its list.
    pub index: usize,
    /// The element's key.
    pub lkey: u32,
    /// What is wrong with it.
    pub error: GrantError,
}

/// Bytes of the whole list.
pub fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `out.len()` bytes of the list, from byte `offset` on, into `out`.
///
/// # Errors
/// [`SglError`]; `out` then holds the bytes of the elements before the bad one.
///
/// # Panics
/// If the list is shorter than that.
pub fn gather(
    table: &MemTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    out: &mut [u8],
) -> Result<(), SglError> {
    for piece in Pieces::new(sges, offset, out.len()) {
        piece.grant(table, Access::empty(), pd)?.read_at(0, &mut out[piece.at..][..piece.len]);
    }
    Ok(())
}

/// Copies `data` over the list, from byte `offset` on; all keys are checked before the first
/// byte is written, and the bytes are written in order.
///
/// # Errors
/// [`SglError`]; nothing is written then, unless a key is changed or ended during the call.
///
/// # Panics
/// If the list is shorter than that.
pub fn scatter(
    table: &MemTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
) -> Result<(), SglError> {
    let pieces = || Pieces::new(sges, offset, data.len());
    if pieces().nth(1).is_some() {
        for piece in pieces() {
            piece.grant(table, Access::LOCAL_WRITE, pd)?;
        }
    }
    for piece in pieces() {
        let grant = piece.grant(table, Access::LOCAL_WRITE, pd)?;
        grant.write_at(0, &data[piece.at..][..piece.len]);
    }
    Ok(())
}

/// The part of one element that a copy touches.
struct Piece {
    index: usize,
    lkey: u32,
    va: u64,
    /// Where the piece stands in the copied bytes.
    at: usize,
    len: usize,
}

impl Piece {
    #[inline]
    fn grant<'t>(
        &self,
        table: &'t MemTable,
        need: Access,
        pd: PdId,
    ) -> Result<Grant<'t>, SglError> {
        table.grant(self.lkey, self.va, self.len as u64, need, pd).map_err(|error| SglError {
            index: self.index,
            lkey: self.lkey,
            error,
        })
    }
}

/// Cuts a range of the list into one piece an element, none of them empty.
struct Pieces<'a> {
    sges: std::iter::Enumerate<std::slice::Iter<'a, Sge>>,
    /// Bytes of the list still to pass over.
    skip: u64,
    /// Bytes of the range cut so far, and its length.
    at: usize,
    len: usize,
}

impl<'a> Pieces<'a> {
    #[inline]
    fn new(sges: &'a [Sge], offset: u64, len: usize) -> Self {
        Self { sges: sges.iter().enumerate(), skip: offset, at: 0, len }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        while self.at < self.len {
            let left = self.len - self.at;
            let Some((index, sge)) = self.sges.next() else {
                panic!("the list ends {left} bytes too early");
            };
            let length = u64::from(sge.length);
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            let len = (length - self.skip).min(left as u64) as usize;
            let va = sge.addr.wrapping_add(self.skip);
            let piece = Piece { index, lkey: sge.lkey, va, at: self.at, len };
            self.skip = 0;
            self.at += len;
            return Some(piece);
        }
        None
    }
}
