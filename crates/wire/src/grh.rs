//! The 40 bytes before the payload that a UD receive finds (IBTA annex A17).
//!
//! Over IPv6 they are the packet's IPv6 header, over IPv4 twenty zero bytes and its IPv4 header.

use crate::ip::{IPV4_LEN, IPV6_LEN, IpHeader};

/// Bytes of a GRH.
pub const LEN: usize = IPV6_LEN;

/// The GRH of a datagram with this IP header.
pub fn emit(header: &IpHeader) -> [u8; LEN] {
    let mut grh = [0; LEN];
    if header.emit(&mut grh) == IPV4_LEN {
        grh.copy_within(..IPV4_LEN, LEN - IPV4_LEN);
        grh[..LEN - IPV4_LEN].fill(0);
    }
    grh
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::ip::{Ident, checksum};

    fn header(src: &str, dst: &str) -> IpHeader {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        IpHeader {
            src: ip(src),
            dst: ip(dst),
            traffic_class: 0xBA,
            hop_limit: 63,
            ident: Ident { id: 0x1234, dont_fragment: true },
            payload_len: 0x0120,
        }
    }

    #[test]
    fn ipv4_follows_twenty_zero_bytes() {
        let grh = emit(&header("10.77.0.2", "239.1.2.1"));
        assert_eq!(grh[..20], [0; 20]);
        let fields = *b"\x45\xBA\x01\x34\x12\x34\x40\0\x3F\x11";
        assert_eq!(grh[20..30], fields);
        assert_eq!(grh[32..], *b"\x0A\x4D\0\x02\xEF\x01\x02\x01");
        assert_eq!(checksum(&[&grh[20..]]), 0, "the sum over a header with its checksum is zero");
        assert_ne!(grh[30..32], [0, 0]);
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped = header("::ffff:10.77.0.2", "::ffff:10.77.0.3");
        assert_eq!(emit(&mapped), emit(&header("10.77.0.2", "10.77.0.3")));
    }

    #[test]
    fn ipv6_fills_it() {
        let grh = emit(&header("fd77::2", "ff0e::102"));
        assert_eq!(grh[..8], *b"\x6B\xA0\0\0\x01\x20\x11\x3F");
        assert_eq!(grh[8..24], *b"\xFD\x77\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
        assert_eq!(grh[24..], *b"\xFF\x0E\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02");
    }
}
