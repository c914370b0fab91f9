//! Multicast groups: one socket for each group and interface, bound to the group's address.
//!
//! Invariant: a socket hears its group on its interface and nothing else, whatever other sockets of
//! the host join; the kernel's membership lasts as long as the socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;

use crate::udp::{ROCE_PORT, RecvMeta, RecvSocket, Reuse};

/// A membership in a multicast group, left when dropped.
#[derive(Debug)]
pub struct Membership {
    socket: RecvSocket,
}

impl Membership {
    /// Joins `group` on the interface `ifindex` (not 0). Each membership gets its own copy of every
    /// datagram to the group and the RoCEv2 port.
    ///
    /// Errors: [`io::ErrorKind::InvalidInput`] if `group` is no multicast address or `ifindex` is
    /// 0, `ENODEV` if there is no such interface, [`io::ErrorKind::AddrInUse`] if the kernel's
    /// `rdma_rxe` holds the port.
    pub fn join(group: IpAddr, ifindex: u32) -> io::Result<Self> {
        if !group.is_multicast() || ifindex == 0 {
            let text = format!("join of {group} on interface {ifindex}: not a group or interface");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let socket = RecvSocket::open(group, ROCE_PORT, ifindex, Reuse::Multicast)?;
        match group {
            IpAddr::V4(group) => {
                let any = &Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_add_membership_with_ifindex(&socket, &group, any, ifindex)?;
            }
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, &group, ifindex)?,
        }
        Ok(Self { socket })
    }

    /// The group.
    pub fn group(&self) -> IpAddr {
        self.socket.local().ip()
    }

    /// Takes one batch, as [`RecvSocket::recv`] does; its destination is the group.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Option<RecvMeta>> {
        self.socket.recv(buf)
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::netdev;
    use crate::testing::{address, eventually, in_namespace, ip};
    use crate::udp::SendSocket;

    const LO: u32 = 1;

    fn index_of(name: &str) -> u32 {
        netdev::list().unwrap().iter().find(|i| i.name == name).unwrap().index
    }

    /// Two ends of a link within one namespace, each with an address of both families.
    fn link() -> [u32; 2] {
        ip("link add m0 type veth peer name m1");
        for (end, name) in ["m0", "m1"].into_iter().enumerate() {
            ip(&format!("addr add 10.8.{end}.1/24 dev {name}"));
            ip(&format!("addr add 2001:db8:{end}::1/64 dev {name} nodad"));
            ip(&format!("link set {name} up"));
        }
        ["m0", "m1"].map(index_of)
    }

    fn takes(member: &Membership, expected: &[u8]) {
        let mut buf = [0; 64];
        let meta = member.recv(&mut buf).unwrap().unwrap();
        assert_eq!((&buf[..meta.len], meta.dst), (expected, member.group()));
        assert_eq!(member.recv(&mut buf).unwrap(), None);
    }

    #[test]
    fn every_member_gets_its_own_copy_on_the_loopback_interface() {
        let group = address("239.77.0.1");
        let members = [0; 3].map(|_| Membership::join(group, LO).unwrap());
        let sender = SendSocket::open(address("127.0.0.1"), LO).unwrap();
        sender.send(SocketAddr::new(group, ROCE_PORT), b"to all", None, 0, Some(1)).unwrap();
        for member in &members {
            takes(member, b"to all");
        }
    }

    #[test]
    fn the_kernels_list_shows_a_group_while_a_member_is_there() {
        in_namespace(|| {
            let [m0, _] = link();
            for (group, file, text) in [
                ("239.77.1.2", "/proc/thread-self/net/igmp", "02014DEF"),
                ("ff0e::4d:1", "/proc/thread-self/net/igmp6", "ff0e00000000000000000000004d0001"),
            ] {
                let listed = || std::fs::read_to_string(file).unwrap().contains(text);
                let first = Membership::join(address(group), m0).unwrap();
                let second = Membership::join(address(group), m0).unwrap();
                drop(first);
                assert!(listed());
                drop(second);
                // A child that another test starts may hold a copy for an instant.
                assert!(eventually(Duration::from_secs(1), || !listed()));
            }
        });
    }

    #[test]
    fn a_member_hears_its_interface_and_its_group_only() {
        in_namespace(|| {
            let [m0, m1] = link();
            for (group, other, from) in [
                ("239.77.1.2", "239.77.1.3", "10.8.0.1"),
                ("ff0e::4d:1", "ff0e::4d:2", "2001:db8::1"),
            ] {
                let here = Membership::join(address(group), m0).unwrap();
                let there = Membership::join(address(group), m1).unwrap();
                let stranger = Membership::join(address(other), m0).unwrap();
                let sender = SendSocket::open(address(from), m0).unwrap();
                let dst = SocketAddr::new(address(group), ROCE_PORT);
                let data = b"loops back and crosses";
                // The link's IPv6 multicast route comes up a little after the link.
                let sent = || sender.send(dst, data, None, 0, Some(1)).is_ok();
                assert!(eventually(Duration::from_secs(1), sent));
                takes(&here, data);
                assert_eq!(stranger.recv(&mut [0; 64]).unwrap(), None);
                // The sender's address is one of this namespace's own: the IPv4 stack refuses it
                // when it comes from outside.
                if group.contains(':') {
                    takes(&there, data);
                }
            }
        });
    }

    #[test]
    fn nonsense_is_refused() {
        let kind = |group, ifindex| Membership::join(address(group), ifindex).unwrap_err().kind();
        assert_eq!(kind("10.0.0.1", LO), io::ErrorKind::InvalidInput);
        assert_eq!(kind("239.1.1.1", 0), io::ErrorKind::InvalidInput);
        let error = Membership::join(address("239.1.1.1"), 99_999).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
