//! Global identifiers, which RoCEv2 fills with IP addresses.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A 16-byte global identifier: an IPv6 address, or an IPv4 address mapped into one
/// (IBTA annex A17).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address; an IPv4-mapped GID gives the IPv4 address.
    pub fn to_ip(self) -> IpAddr {
        self.v6().to_canonical()
    }

    /// Whether it maps an IPv4 address.
    pub fn is_v4(self) -> bool {
        self.v6().to_ipv4_mapped().is_some()
    }

    /// Whether it names a multicast group: `ff00::/8` or a mapped `224.0.0.0/4`.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Gid(ip.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.v6(), f)
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Gid, AddrParseError> {
        text.parse::<Ipv6Addr>().map(|ip| Gid(ip.octets()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_and_text_round_trip() {
        for (ip, text, v4, multicast) in [
            ("10.77.0.2", "::ffff:10.77.0.2", true, false),
            ("239.1.2.1", "::ffff:239.1.2.1", true, true),
            ("fd77::2", "fd77::2", false, false),
            ("ff0e::102", "ff0e::102", false, true),
            ("::", "::", false, false),
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            let gid = Gid::from(ip);
            assert_eq!(gid.to_string(), text);
            assert_eq!(text.parse::<Gid>().unwrap(), gid);
            assert_eq!(gid.to_ip(), ip);
            assert_eq!((gid.is_v4(), gid.is_multicast()), (v4, multicast), "{gid}");
        }
        assert!("10.77.0.2".parse::<Gid>().is_err());
    }
}
