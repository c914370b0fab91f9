//! Socket addresses of C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::boundary::{Errno, FromC, refuse};

/// A `struct sockaddr` of the program, copied; or the family that is none of IP's.
#[derive(Clone, Copy)]
pub struct Address(Result<SocketAddr, u16>);

impl FromC for Address {
    type Raw = *mut libc::sockaddr;

    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: every socket address begins with its family.
        let family = unsafe { raw.cast::<libc::sa_family_t>().read_unaligned() };
        Ok(Address(match i32::from(family) {
            libc::AF_INET => {
                // SAFETY: the family says so.
                Ok(v4(&unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() }))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says so.
                Ok(v6(&unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() }))
            }
            _ => Err(family),
        }))
    }
}

impl FromC for Option<Address> {
    type Raw = *mut libc::sockaddr;

    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: our caller makes the same promise.
        unsafe { Address::from_c(raw) }.map(Some)
    }
}

impl Address {
    /// EINVAL for another family than those of IP.
    pub fn ip(self, call: &str, name: &str) -> Result<SocketAddr, Errno> {
        self.0.map_err(|family| {
            let cause = format!("{name} is of family {family}: only AF_INET and AF_INET6");
            refuse(call, libc::EINVAL, &cause)
        })
    }
}

fn v4(sin: &libc::sockaddr_in) -> SocketAddr {
    let ip = Ipv4Addr::from_bits(u32::from_be(sin.sin_addr.s_addr));
    SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into()
}

fn v6(sin6: &libc::sockaddr_in6) -> SocketAddr {
    let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
    let port = u16::from_be(sin6.sin6_port);
    SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id).into()
}

/// An address as C stores it, and how many of the bytes count.
pub fn store(addr: SocketAddr) -> (libc::sockaddr_storage, usize) {
    // SAFETY: all zeros are a socket address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut storage;
    match addr {
        SocketAddr::V4(addr) => {
            // SAFETY: the storage has room for every kind of address.
            unsafe { place.cast::<libc::sockaddr_in>().write(sockaddr_in(addr)) };
            (storage, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(addr) => {
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(sockaddr_in6(addr)) };
            (storage, size_of::<libc::sockaddr_in6>())
        }
    }
}

fn sockaddr_in(addr: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: addr.ip().to_bits().to_be() },
        sin_zero: [0; 8],
    }
}

fn sockaddr_in6(addr: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: addr.port().to_be(),
        sin6_flowinfo: addr.flowinfo(),
        sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
        sin6_scope_id: addr.scope_id(),
    }
}

/// The port of a stored address in network order, 0 of none.
pub fn port(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage is larger than any address, and any bytes are one.
    match unsafe { Address::from_c((&raw const *storage).cast_mut().cast()) } {
        Ok(Address(Ok(addr))) => addr.port().to_be(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for (text, len) in [("10.1.2.3:7471", 16), ("[fd00::7]:1", 28), ("[fe80::1%3]:65535", 28)] {
            let addr: SocketAddr = text.parse().expect("an address");
            let (mut storage, known) = store(addr);
            assert_eq!((known, port(&storage)), (len, addr.port().to_be()), "{text}");
            // SAFETY: the storage holds an address.
            let back = unsafe { Address::from_c((&raw mut storage).cast()) };
            assert_eq!(back.and_then(|back| back.ip("test", "addr")), Ok(addr));
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: all zeros are a socket address of no family.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: the storage is larger than any address.
        let address = unsafe { Address::from_c((&raw mut storage).cast()) };
        let refused = address.and_then(|address| address.ip("test", "addr"));
        assert_eq!((refused, port(&storage)), (Err(Errno(libc::EINVAL)), 0));
    }
}
