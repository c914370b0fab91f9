//! The headers as they lie in a packet: unaligned, big-endian, no padding.
//!
//! Three-byte fields share a word with the byte before them, which comes out as its top byte.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header layout: any bytes are a value, any value is bytes.
pub(crate) trait Layout:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned
{
}

macro_rules! layout {
    ($(struct $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name { $(pub $field: $type,)* }
        impl Layout for $name {}
    )* };
}

layout! {
    struct RawBth { opcode: u8, flags: u8, pkey: U16, fecn_becn_qpn: U32, ack_psn: U32, }
    struct RawDeth { qkey: U32, src_qpn: U32, }
    struct RawFeth { word: U32, }
    struct RawReth { va: U64, rkey: U32, len: U32, }
    struct RawAtomicEth { va: U64, rkey: U32, swap_or_add: U64, compare: U64, }
    struct RawAeth { syndrome_msn: U32, }
    struct RawAtomicAckEth { original: U64, }
    struct RawImmDt { bytes: [u8; 4], }
    struct RawIeth { rkey: U32, }
}

/// Takes a header off the front of `bytes`; `None` when there are too few left.
pub(crate) fn take<T: Layout>(bytes: &mut &[u8]) -> Option<T> {
    let (header, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(header)
}

/// Writes a header at `*at` and moves `*at` past it.
///
/// Panics when it does not fit.
pub(crate) fn put<T: Layout>(header: &T, out: &mut [u8], at: &mut usize) {
    let bytes = header.as_bytes();
    out[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}
