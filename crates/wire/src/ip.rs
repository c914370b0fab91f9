//! IPv4, IPv6 and UDP headers: written for captures and GRHs, read from captures.
//!
//! The kernel writes the headers that really travel; these are what it would write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

use crate::layout::{self, RawIpv4, RawIpv6, RawUdp};

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

pub(crate) const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments flag and fragment offset.
const FRAGMENT: u16 = 0x3FFF;

/// The part of an IPv4 header that differs from packet to packet of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ident {
    /// The identification field.
    pub id: u16,
    /// The don't-fragment flag.
    pub dont_fragment: bool,
}

/// An IPv4 or IPv6 header of a UDP datagram. IPv4 when both addresses are, also when mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Traffic class, IPv4's type of service.
    pub traffic_class: u8,
    /// Hop limit, IPv4's time to live.
    pub hop_limit: u8,
    /// Identification and DF; not on IPv6.
    pub ident: Ident,
    /// Bytes after this header: UDP header and payload.
    pub payload_len: u16,
}

/// Two addresses of one family; IPv4-mapped ones count as IPv4.
#[derive(Clone, Copy)]
pub(crate) enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddressPair {
    #[inline]
    pub(crate) fn new(src: IpAddr, dst: IpAddr) -> AddressPair {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => AddressPair::V4(src, dst),
            (src, dst) => AddressPair::V6(to_v6(src), to_v6(dst)),
        }
    }
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

impl IpHeader {
    /// Writes the header to the front of `out` and returns its length, [`IPV4_LEN`] or
    /// [`IPV6_LEN`].
    ///
    /// # Panics
    /// When `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        match AddressPair::new(self.src, self.dst) {
            AddressPair::V4(src, dst) => layout::put(&self.ipv4(src, dst), out, &mut at),
            AddressPair::V6(src, dst) => layout::put(&self.ipv6(src, dst), out, &mut at),
        }
        at
    }

    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr) -> RawIpv4 {
        let mut raw = RawIpv4 {
            tos: self.traffic_class,
            ttl: self.hop_limit,
            ..RawIpv4::unsummed(src, dst, self.ident, self.payload_len)
        };
        raw.checksum = checksum(&[raw.as_bytes()]).into();
        raw
    }

    /// RFC 8200 section 3; flow label 0.
    fn ipv6(&self, src: Ipv6Addr, dst: Ipv6Addr) -> RawIpv6 {
        RawIpv6 {
            version_class_flow: (6 << 28 | u32::from(self.traffic_class) << 20).into(),
            payload_len: self.payload_len.into(),
            next_header: PROTOCOL_UDP,
            hop_limit: self.hop_limit,
            src: src.octets(),
            dst: dst.octets(),
        }
    }
}

impl RawIpv4 {
    /// A UDP datagram's header (RFC 791 section 3.1) with TOS, TTL and checksum zero.
    pub(crate) fn unsummed(
        src: Ipv4Addr,
        dst: Ipv4Addr,
        ident: Ident,
        payload_len: u16,
    ) -> RawIpv4 {
        RawIpv4 {
            version_ihl: 0x45,
            tos: 0,
            total_len: payload_len.saturating_add(IPV4_LEN as u16).into(),
            id: ident.id.into(),
            fragment: if ident.dont_fragment { DONT_FRAGMENT } else { 0 }.into(),
            ttl: 0,
            protocol: PROTOCOL_UDP,
            checksum: U16::ZERO,
            src: src.octets(),
            dst: dst.octets(),
        }
    }
}

/// A UDP datagram with its IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The IP header; [`emit`](Datagram::emit) derives its `payload_len`.
    pub ip: IpHeader,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The longest result of [`emit`](Datagram::emit).
    pub const HEADERS_LEN: usize = IPV6_LEN + UDP_LEN;

    /// Writes IP and UDP header with right checksums to the front of `out` and returns their
    /// length. The payload is not copied.
    pub fn emit(&self, out: &mut [u8; Datagram::HEADERS_LEN]) -> usize {
        let udp_len = (UDP_LEN + self.payload.len()) as u16;
        let mut at = IpHeader { payload_len: udp_len, ..self.ip }.emit(out);
        layout::put(&self.udp(udp_len), out, &mut at);
        at
    }

    /// RFC 768; the checksum is over the pseudo-header of the family too.
    fn udp(&self, udp_len: u16) -> RawUdp {
        let mut raw = RawUdp {
            src_port: self.src_port.into(),
            dst_port: self.dst_port.into(),
            len: udp_len.into(),
            checksum: U16::ZERO,
        };
        let pseudo = [0, PROTOCOL_UDP, (udp_len >> 8) as u8, udp_len as u8];
        let sum = match AddressPair::new(self.ip.src, self.ip.dst) {
            AddressPair::V4(src, dst) => {
                checksum(&[&src.octets(), &dst.octets(), &pseudo, raw.as_bytes(), self.payload])
            }
            AddressPair::V6(src, dst) => {
                checksum(&[&src.octets(), &dst.octets(), &pseudo, raw.as_bytes(), self.payload])
            }
        };
        // Zero would say that there is no checksum.
        raw.checksum = if sum == 0 { U16::MAX_VALUE } else { sum.into() };
        raw
    }

    /// Reads an IP packet; `None` when it is no whole UDP datagram in one fragment. IPv6
    /// extension headers are not understood. Checksums are not checked.
    pub fn parse(packet: &'a [u8]) -> Option<Datagram<'a>> {
        let (ip, rest) = match packet.first()? >> 4 {
            4 => parse_ipv4(packet)?,
            6 => parse_ipv6(packet)?,
            _ => return None,
        };
        let mut body = rest.get(..ip.payload_len.into())?;
        let udp: &RawUdp = layout::take(&mut body)?;
        let payload = body.get(..usize::from(udp.len).checked_sub(UDP_LEN)?)?;
        Some(Datagram { ip, src_port: udp.src_port.get(), dst_port: udp.dst_port.get(), payload })
    }
}

fn parse_ipv4(packet: &[u8]) -> Option<(IpHeader, &[u8])> {
    let raw: &RawIpv4 = layout::take(&mut &*packet)?;
    let header_len = usize::from(raw.version_ihl & 15) * 4;
    let fragment = raw.fragment.get();
    if header_len < IPV4_LEN || raw.protocol != PROTOCOL_UDP || fragment & FRAGMENT != 0 {
        return None;
    }
    let ip = IpHeader {
        src: IpAddr::from(raw.src),
        dst: IpAddr::from(raw.dst),
        traffic_class: raw.tos,
        hop_limit: raw.ttl,
        ident: Ident { id: raw.id.get(), dont_fragment: fragment & DONT_FRAGMENT != 0 },
        payload_len: raw.total_len.get().checked_sub(header_len as u16)?,
    };
    Some((ip, packet.get(header_len..)?))
}

fn parse_ipv6(packet: &[u8]) -> Option<(IpHeader, &[u8])> {
    let mut rest = packet;
    let raw: &RawIpv6 = layout::take(&mut rest)?;
    if raw.next_header != PROTOCOL_UDP {
        return None;
    }
    let ip = IpHeader {
        src: IpAddr::from(raw.src),
        dst: IpAddr::from(raw.dst),
        traffic_class: (raw.version_class_flow.get() >> 20) as u8,
        hop_limit: raw.hop_limit,
        ident: Ident::default(),
        payload_len: raw.payload_len.get(),
    };
    Some((ip, rest))
}

/// The internet checksum (RFC 1071) over `parts`, of which all but the last have even length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        let (words, odd) = part.as_chunks::<2>();
        sum += words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>();
        sum += odd.first().map_or(0, |&byte| u64::from(byte) << 8);
    }
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}
