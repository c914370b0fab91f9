//! Which way the kernel sends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

/// Any; nothing is sent.
const PORT: u16 = 4791;

/// The address that packets to `dst` leave from: `src` where that is given. The scope of a
/// link-local `dst` counts.
///
/// Fails with the kernel's error where there is no route, and with
/// [`io::ErrorKind::AddrNotAvailable`] for a `src` that no interface has.
pub fn source_for(dst: SocketAddr, src: Option<SocketAddr>) -> io::Result<IpAddr> {
    let family = if dst.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mut src) = src {
        src.set_port(0);
        bind(&socket, &src)?;
    }
    let mut dst = dst;
    dst.set_port(PORT);
    connect(&socket, &dst)?;
    let local = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok(local.ip())
}

/// Whether an interface has the address.
pub fn is_local(addr: SocketAddr) -> io::Result<bool> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut addr = addr;
    addr.set_port(0);
    match bind(&socket, &addr) {
        Err(rustix::io::Errno::ADDRNOTAVAIL) => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

/// The loopback address of the other address's family.
pub fn loopback_like(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{address, in_namespace, ip};

    fn source(dst: &str, src: Option<&str>) -> io::Result<IpAddr> {
        let socket = |ip: &str| SocketAddr::new(address(ip), 9);
        source_for(socket(dst), src.map(socket))
    }

    #[test]
    fn the_route_decides_the_source_unless_it_is_given() {
        in_namespace(|| {
            ip("addr add 10.1.0.1/24 dev lo");
            ip("link add port-r0 type veth peer name port-r1");
            ip("link set port-r1 up");
            ip("link set port-r0 up");
            ip("addr add 10.2.0.1/24 dev port-r0");
            assert_eq!(source("10.2.0.9", None).unwrap(), address("10.2.0.1"));
            assert_eq!(source("10.2.0.1", None).unwrap(), address("10.2.0.1"));
            assert_eq!(source("10.2.0.9", Some("10.1.0.1")).unwrap(), address("10.1.0.1"));
            assert_eq!(source("::1", None).unwrap(), address("::1"));
            let unreachable = source("10.3.0.1", None).unwrap_err();
            assert_eq!(unreachable.raw_os_error(), Some(libc::ENETUNREACH));
            let foreign = source("10.2.0.9", Some("10.3.0.1")).unwrap_err();
            assert_eq!(foreign.raw_os_error(), Some(libc::EADDRNOTAVAIL));
        });
    }

    #[test]
    fn an_address_is_local_if_an_interface_has_it() {
        in_namespace(|| {
            let is = |ip| is_local(SocketAddr::new(address(ip), 4791)).unwrap();
            assert!(is("127.0.0.1") && is("::1") && !is("10.1.0.1"));
        });
    }
}
