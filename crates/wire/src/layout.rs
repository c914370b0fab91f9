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
    struct RawMad {
        base_version: u8, class: u8, class_version: u8, method: u8, status: U16,
        class_specific: U16, transaction_id: U64, attribute_id: U16, reserved: U16,
        attribute_modifier: U32,
    }
    struct RawCmPath {
        local_lid: U16, remote_lid: U16, local_gid: [u8; 16], remote_gid: [u8; 16],
        flow_label_rate: U32, traffic_class: u8, hop_limit: u8, sl: u8, ack_timeout: u8,
    }
    struct RawReq {
        local_id: U32, reserved: U32, service: U64, ca_guid: U64, reserved2: U32, qkey: U32,
        qpn_resources: U32, eecn_depth: U32, remote_eecn_flags: U32, psn_flags: U32, pkey: U16,
        mtu_rnr: u8, retries_srq: u8, primary: RawCmPath, alternate: RawCmPath,
        private_data: [u8; 92],
    }
    struct RawMra {
        local_id: U32, remote_id: U32, about: u8, service_timeout: u8, private_data: [u8; 222],
    }
    struct RawRej {
        local_id: U32, remote_id: U32, about: u8, info_len: u8, reason: U16, info: [u8; 72],
        private_data: [u8; 148],
    }
    struct RawRep {
        local_id: U32, remote_id: U32, qkey: U32, qpn: U32, eecn: U32, psn: U32, resources: u8,
        depth: u8, delay_flags: u8, rnr_srq: u8, ca_guid: U64, private_data: [u8; 196],
    }
    struct RawRtu { local_id: U32, remote_id: U32, private_data: [u8; 224], }
    struct RawDreq { local_id: U32, remote_id: U32, remote_qpn: U32, private_data: [u8; 220], }
    struct RawSidrReq {
        request_id: U32, pkey: U16, reserved: U16, service: U64, private_data: [u8; 216],
    }
    struct RawSidrRep {
        request_id: U32, status: u8, info_len: u8, reserved: U16, qpn: U32, service: U64,
        qkey: U32, info: [u8; 72], private_data: [u8; 136],
    }
    struct RawCmIpHeader {
        version: u8, ip_version: u8, src_port: U16, src: [u8; 16], dst: [u8; 16],
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
