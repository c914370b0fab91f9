//! Socket addresses as the kernel lays them out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Size of the largest address here, `struct sockaddr_in6`.
pub(crate) const MAX_LEN: usize = 28;
const V4_LEN: usize = 16;

/// A `struct sockaddr_in` or `sockaddr_in6`.
pub(crate) struct RawAddr {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl RawAddr {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> Self {
        let mut bytes = [0; MAX_LEN];
        let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        match addr {
            SocketAddr::V4(v4) => bytes[4..8].copy_from_slice(&v4.ip().octets()),
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        Self { bytes, len: if addr.is_ipv4() { V4_LEN } else { MAX_LEN } }
    }
}

/// Reads an address of either family that the kernel wrote.
pub(crate) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    match family {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?);
            Some(SocketAddrV6::new(ip, port, word(4)?, word(24)?).into())
        }
        _ => None,
    }
}

/// Joins address and port; `ifindex` is kept where the address means nothing without it.
pub(crate) fn scoped(ip: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
        IpAddr::V6(ip) => {
            let scope = if needs_scope(ip) { ifindex } else { 0 };
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
    }
}

/// Link-local unicast, and multicast of interface or link scope (RFC 4291 2.4, 2.7).
fn needs_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || (ip.is_multicast() && matches!(ip.octets()[1] & 0xf, 1 | 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_kernel_layout() {
        for text in ["10.1.2.3:4791", "[2001:db8::7]:4791", "[fe80::1%9]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(RawAddr::from(addr).as_bytes()), Some(addr));
        }
    }

    #[test]
    fn cut_or_foreign_addresses_are_refused() {
        let addr = RawAddr::from("[::1]:1".parse::<SocketAddr>().unwrap());
        assert_eq!(parse(&addr.as_bytes()[..27]), None);
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[1; 28]), None);
    }

    #[test]
    fn only_link_scopes_keep_the_interface() {
        let scope = |ip: &str| match scoped(ip.parse().unwrap(), 1, 5) {
            SocketAddr::V6(addr) => addr.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let scopes = ["fe80::1", "ff02::1", "ff01::1", "ff0e::1", "2001:db8::1", "::1"].map(scope);
        assert_eq!(scopes, [5, 5, 5, 0, 0, 0]);
    }
}
