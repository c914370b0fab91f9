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
    struct RawXrcEth { srqn: U32, }
    struct RawFeth { word: U32, }
    struct RawReth { va: U64, rkey: U32, len: U32, }
    struct RawAtomicEth { va: U64, rkey: U32, swap_or_add: U64, compare: U64, }
    struct RawAeth { syndrome_msn: U32, }
    struct RawAtomicAckEth { original: U64, }
    struct RawImmDt { bytes: [u8; 4], }
    struct RawIeth { rkey: U32, }
    struct RawIpv4 {
        version_ihl: u8, tos: u8, total_len: U16, id: U16, fragment: U16,
        ttl: u8, protocol: u8, checksum: U16, src: [u8; 4], dst: [u8; 4],
    }
    struct RawIpv6 {
        version_class_flow: U32, payload_len: U16, next_header: u8, hop_limit: u8,
        src: [u8; 16], dst: [u8; 16],
    }
    struct RawUdp { src_port: U16, dst_port: U16, len: U16, checksum: U16, }
    struct RawIcrcPrefix4 { lrh: [u8; 8], ip: RawIpv4, udp: RawUdp, bth: [u8; 12], }
    struct RawIcrcPrefix6 { lrh: [u8; 8], ip: RawIpv6, udp: RawUdp, bth: [u8; 12], }
    struct RawControl {
        magic: [u8; 4], version: u8, kind: u8, reserved: U16, token: U64,
        receive_window_bytes: U32, src_slot: U16, reserved2: U16,
    }
}

/// Takes a header off the front of `bytes`; `None` when there are too few left.
pub(crate) fn take<'a, T: Layout>(bytes: &mut &'a [u8]) -> Option<&'a T> {
    let (header, rest) = T::ref_from_prefix(bytes).ok()?;
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
