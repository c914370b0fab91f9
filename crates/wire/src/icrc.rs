//! The invariant CRC over a RoCEv2 packet (IBTA annex A17).
//!
//! It is the Ethernet CRC32, stored little-endian, over eight bytes of ones (where the LRH would
//! be), the IP header, the UDP header and the packet without the ICRC; fields that change on the
//! way count as ones. On IPv4 that includes the identification and flags, which a UDP receiver
//! cannot see. CRC is linear, so [`verify`] can solve for them instead.

mod crc32;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use crc32::Method;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

use crate::ip::{AddressPair, IPV4_LEN, Ident, PROTOCOL_UDP, UDP_LEN};
use crate::layout::{RawIcrcPrefix4, RawIcrcPrefix6, RawIpv4, RawIpv6, RawUdp};
use crate::roce::ICRC_LEN;
use crate::{Bth, UDP_PORT};

/// The longest UDP payload over IPv4.
const MAX_LEN: usize = 65_535 - IPV4_LEN - UDP_LEN;
const MIN_LEN: usize = Bth::LEN + ICRC_LEN;
/// Offset of the BTH byte that holds FECN, BECN and reserved bits.
const BTH_VARIANT: usize = 4;
/// The opcode of FLUSH over a reliable connection.
const FLUSH: u8 = 0x1C;

/// What the ICRC covers outside the packet. The destination port is [`UDP_PORT`].
///
/// IPv4-mapped IPv6 addresses stand for the IPv4 packets that carry them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
}

/// What [`verify`] finds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The ICRC is right for the expected identification, or on IPv6 right.
    Good,
    /// The ICRC is right for this IPv4 identification, with DF set or clear.
    GoodUnknownId(u16),
    /// No identification explains the ICRC.
    Bad,
}

/// Writes the ICRC into the last four bytes of `packet`, a whole UDP payload. On IPv4 the packet
/// must leave with identification `id` and DF set; IPv6 ignores `id`.
///
/// # Panics
/// When `packet` is shorter than BTH and ICRC, or longer than a UDP payload can be.
pub fn sign(flow: &FlowKey, id: u16, packet: &mut [u8]) {
    assert!((MIN_LEN..=MAX_LEN).contains(&packet.len()), "no packet has {} bytes", packet.len());
    let crc = compute(flow, Ident { id, dont_fragment: true }, packet);
    let at = packet.len() - ICRC_LEN;
    packet[at..].copy_from_slice(&crc.to_le_bytes());
}

/// As [`sign`], for a FLUSH to Linux `rdma_rxe`: its ICRC runs over all headers a second time,
/// without masking them, and it takes no other.
///
/// # Panics
/// As [`sign`].
pub fn sign_rxe_flush(flow: &FlowKey, id: u16, packet: &mut [u8]) {
    assert!((MIN_LEN..=MAX_LEN).contains(&packet.len()), "no packet has {} bytes", packet.len());
    let crc = compute_twice(flow, Ident { id, dont_fragment: true }, packet);
    let at = packet.len() - ICRC_LEN;
    packet[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Compares the ICRC of a whole UDP payload; a FLUSH may have that of [`sign_rxe_flush`], too.
///
/// `expected_id` is a guess that costs nothing when right: id, DF set. On IPv4 any other
/// identification is found by arithmetic, so that 2^17 of the 2^32 ICRC values are accepted for a
/// given packet; on IPv6 one.
pub fn verify(flow: &FlowKey, expected_id: u16, packet: &[u8]) -> Verdict {
    let expected = Ident { id: expected_id, dont_fragment: true };
    match solve(flow, expected, packet) {
        Some(found) if found == expected => Verdict::Good,
        Some(found) => Verdict::GoodUnknownId(found.id),
        None => Verdict::Bad,
    }
}

/// The IPv4 identification and flag that make the ICRC of a whole UDP payload right; `None` when
/// there are none. On IPv6 the default when the ICRC is right.
pub fn ident(flow: &FlowKey, packet: &[u8]) -> Option<Ident> {
    solve(flow, Ident { id: 0, dont_fragment: flow.is_v4() }, packet)
}

fn solve(flow: &FlowKey, expected: Ident, packet: &[u8]) -> Option<Ident> {
    if !(MIN_LEN..=MAX_LEN).contains(&packet.len()) {
        return None;
    }
    let received = u32::from_le_bytes(*packet.last_chunk().expect("longer than an ICRC"));
    let covered = packet.len() - ICRC_LEN;
    let solved = match received ^ compute(flow, expected, packet) {
        0 => Some(expected),
        difference if flow.is_v4() => explain(difference, covered, expected),
        _ => None,
    };
    if solved.is_some() || packet[0] != FLUSH {
        return solved;
    }
    match received ^ compute_twice(flow, expected, packet) {
        0 => Some(expected),
        difference if flow.is_v4() => explain(difference, 2 * covered, expected),
        _ => None,
    }
}

/// Solves for the identification and flags whose difference from `expected` changes the CRC by
/// `difference`.
///
/// A difference of the four header bytes e, with n bytes from their end to the CRC, changes the
/// CRC by e * x^(8n + 32); the factor is invertible, so e is known exactly. `covered` bytes lie
/// between the UDP header and the CRC.
fn explain(difference: u32, covered: usize, expected: Ident) -> Option<Ident> {
    const DF: u8 = 0x40;
    const AFTER_FLAGS: usize = 12 + UDP_LEN;
    let bytes_back = AFTER_FLAGS + covered + 4;
    let [id_high, id_low, flags, offset] =
        polynomial::divide_by_x8(difference, bytes_back as u16).to_le_bytes();
    if offset != 0 || flags & !DF != 0 {
        return None;
    }
    let id = expected.id ^ u16::from_be_bytes([id_high, id_low]);
    Some(Ident { id, dont_fragment: expected.dont_fragment ^ (flags != 0) })
}

impl FlowKey {
    fn is_v4(&self) -> bool {
        matches!(AddressPair::new(self.src, self.dst), AddressPair::V4(..))
    }
}

/// The CRC over everything but the last four bytes of `packet`.
fn compute(flow: &FlowKey, ident: Ident, packet: &[u8]) -> u32 {
    cover(flow, ident, packet).finalize()
}

/// The CRC that goes on over the packet, unmasked, after everything that [`compute`] covers.
fn compute_twice(flow: &FlowKey, ident: Ident, packet: &[u8]) -> u32 {
    let mut crc = cover(flow, ident, packet);
    crc.update(&packet[..packet.len() - ICRC_LEN]);
    crc.finalize()
}

fn cover(flow: &FlowKey, ident: Ident, packet: &[u8]) -> crc32::Crc32 {
    let (bth, rest) = packet[..packet.len() - ICRC_LEN].split_first_chunk().expect("has a BTH");
    let udp_len = (packet.len() + UDP_LEN) as u16;
    let udp = RawUdp {
        src_port: flow.src_port.into(),
        dst_port: UDP_PORT.into(),
        len: udp_len.into(),
        checksum: U16::MAX_VALUE,
    };
    let mut bth: [u8; Bth::LEN] = *bth;
    bth[BTH_VARIANT] = 0xFF;
    let mut crc = crc32::Crc32::new();
    match AddressPair::new(flow.src, flow.dst) {
        AddressPair::V4(src, dst) => {
            let ip = masked_ipv4(src, dst, ident, udp_len);
            crc.update(RawIcrcPrefix4 { lrh: [0xFF; _], ip, udp, bth }.as_bytes());
        }
        AddressPair::V6(src, dst) => {
            let ip = masked_ipv6(src, dst, udp_len);
            crc.update(RawIcrcPrefix6 { lrh: [0xFF; _], ip, udp, bth }.as_bytes());
        }
    }
    crc.update(rest);
    crc
}

fn masked_ipv4(src: Ipv4Addr, dst: Ipv4Addr, ident: Ident, udp_len: u16) -> RawIpv4 {
    RawIpv4 {
        tos: 0xFF,
        ttl: 0xFF,
        checksum: U16::MAX_VALUE,
        ..RawIpv4::unsummed(src, dst, ident, udp_len)
    }
}

/// Traffic class, flow label and hop limit are ones.
fn masked_ipv6(src: Ipv6Addr, dst: Ipv6Addr, udp_len: u16) -> RawIpv6 {
    RawIpv6 {
        version_class_flow: 0x6FFF_FFFF.into(),
        payload_len: udp_len.into(),
        next_header: PROTOCOL_UDP,
        hop_limit: 0xFF,
        src: src.octets(),
        dst: dst.octets(),
    }
}

/// Polynomials over GF(2) modulo the CRC32 polynomial, in the CRC's reflected bit order: the
/// coefficient of x^31 is bit 0.
mod polynomial {
    const POLY: u32 = 0xEDB8_8320;
    const ONE: u32 = 0x8000_0000;

    /// x^(-8n) for n = 0 to 255.
    static FINE: [u32; 256] = powers(step(ONE, 1));
    /// x^(-8n) for n = 0, 256, ..., 65,280.
    static COARSE: [u32; 256] = powers(step(ONE, 256));

    /// `a` * x^(-8n).
    pub(super) fn divide_by_x8(a: u32, n: u16) -> u32 {
        let [coarse, fine] = n.to_be_bytes();
        multiply(multiply(a, FINE[usize::from(fine)]), COARSE[usize::from(coarse)])
    }

    const fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        let mut bit = 32;
        while bit > 0 {
            bit -= 1;
            product ^= b & (a >> bit & 1).wrapping_neg();
            b = (b >> 1) ^ (POLY & (b & 1).wrapping_neg());
        }
        product
    }

    /// `a` * x^(-8n), one x at a time.
    const fn step(mut a: u32, n: u32) -> u32 {
        let mut bits = 8 * n;
        while bits > 0 {
            a = if a & ONE == 0 { a << 1 } else { (a ^ POLY) << 1 | 1 };
            bits -= 1;
        }
        a
    }

    const fn powers(base: u32) -> [u32; 256] {
        let mut table = [ONE; 256];
        let mut n = 1;
        while n < 256 {
            table[n] = multiply(table[n - 1], base);
            n += 1;
        }
        table
    }
}
