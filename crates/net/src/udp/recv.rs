//! The receiving side: one call, one source, one batch.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;

use super::{bind_error, check_specific, open};
use crate::addr;
use crate::cmsg::{Control, Messages};
use crate::fd::Fd;
use crate::sys;

/// A buffer of this size holds every batch that the kernel delivers.
pub const BATCH_LEN: usize = 1 << 16;

/// What is enough for a receive buffer, in bytes of the kernel's own accounting.
const ENOUGH_BUFFER: usize = 8 << 20;

/// With whom a receiving socket shares its address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Other processes of this user; each datagram reaches one of them (`SO_REUSEPORT`).
    Group,
    /// Anyone; each datagram that arrives on the given interface reaches all of them
    /// (`SO_REUSEADDR` on a group address).
    Multicast,
}

/// A batch of datagrams of one sender, as one call delivered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Bytes of the whole batch.
    pub len: usize,
    /// Bytes of each datagram but the last, which may be shorter; never 0.
    pub stride: usize,
    /// The sender.
    pub src: SocketAddr,
    /// The address the socket is bound to, the datagrams' destination.
    pub dst: IpAddr,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// Time to live or hop limit on arrival; 0 where the kernel does not tell.
    pub ttl: u8,
    /// Datagrams that this socket lost for want of buffer space, since it was opened, modulo 2^32.
    pub drops: u32,
}

/// A UDP socket that receives on one address.
#[derive(Debug)]
pub struct RecvSocket {
    fd: Fd,
    local: SocketAddr,
    rcvbuf: usize,
}

impl RecvSocket {
    /// Binds to `addr` and `port`; `ifindex` is the scope of a link-local or link-scope address.
    ///
    /// Errors: [`io::ErrorKind::AddrInUse`] when another user or the kernel's `rdma_rxe` holds the
    /// port, [`io::ErrorKind::AddrNotAvailable`] when no interface has the address.
    pub fn open(addr: IpAddr, port: u16, ifindex: u32, reuse: Reuse) -> io::Result<Self> {
        check_specific(addr)?;
        let fd = open(addr)?;
        match reuse {
            Reuse::Group => sockopt::set_socket_reuseport(&fd, true)?,
            Reuse::Multicast => hear_one_group(&fd, addr, ifindex)?,
        }
        ask_for_metadata(&fd, addr);
        let rcvbuf = enlarge_buffer(&fd)?;
        let local = addr::scoped(addr, port, ifindex);
        rustix::net::bind(&fd, &local).map_err(|errno| bind_error(errno, local))?;
        let local = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        Ok(Self { fd, local, rcvbuf })
    }

    /// The granted receive buffer, in bytes of the kernel's own accounting: overhead included.
    pub fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    /// Address and port that this socket is bound to.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Takes one batch into `buf` ([`BATCH_LEN`] bytes hold any); `None` when there is none.
    /// A batch longer than `buf` is dropped.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Option<RecvMeta>> {
        let mut name = [0; addr::MAX_LEN];
        let mut control = Control::<128>::new();
        loop {
            let received = match sys::recvmsg(&self.fd, &mut name, buf, control.space()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                result => result?,
            };
            let Some(src) = addr::parse(&name[..received.name_len]) else { continue };
            if !received.truncated {
                let messages = control.messages(received.control_len);
                return Ok(Some(self.meta(received.len, src, messages)));
            }
        }
    }

    fn meta(&self, len: usize, src: SocketAddr, messages: Messages<'_>) -> RecvMeta {
        let dst = self.local.ip();
        let mut meta = RecvMeta { len, stride: len.max(1), src, dst, tos: 0, ttl: 0, drops: 0 };
        for message in messages {
            match (message.level, message.kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => meta.stride = message.int().max(1) as usize,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    meta.ttl = message.int() as u8
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    meta.tos = message.int() as u8
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => meta.drops = message.int(),
                _ => {}
            }
        }
        meta
    }
}

impl AsFd for RecvSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Shuts out what other sockets of the host joined: IPv4 checks the interface of a membership,
/// IPv6 only the group. The options may be missing (and binding to an interface forbidden before
/// Linux 5.7); then such datagrams come through.
fn hear_one_group(fd: &Fd, group: IpAddr, ifindex: u32) -> io::Result<()> {
    sockopt::set_socket_reuseaddr(fd, true)?;
    let (level, name) = match group {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
    };
    let _ = sys::set_option(fd, level, name, 0);
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, ifindex as i32);
    Ok(())
}

/// Asks for what [`RecvMeta`] tells, and on IPv6 for datagrams without checksum, which peers send
/// (RFC 6935). What a kernel does not offer stays 0, or is not received.
fn ask_for_metadata(fd: &Fd, addr: IpAddr) {
    let of_family = match addr {
        IpAddr::V4(_) => {
            [(libc::IPPROTO_IP, libc::IP_RECVTTL), (libc::IPPROTO_IP, libc::IP_RECVTOS)]
        }
        IpAddr::V6(_) => [
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        ],
    };
    let of_all = [
        (libc::SOL_UDP, libc::UDP_GRO),
        (libc::SOL_UDP, libc::UDP_NO_CHECK6_RX),
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    ];
    for (level, name) in of_family.into_iter().chain(of_all) {
        let _ = sys::set_option(fd, level, name, 1);
    }
}

/// Gets the largest receive buffer: up to `net.core.rmem_max`, and past it where the process may.
fn enlarge_buffer(fd: &Fd) -> io::Result<usize> {
    sockopt::set_socket_recv_buffer_size(fd, i32::MAX as usize)?;
    // The kernel reports twice what was asked for.
    if sockopt::socket_recv_buffer_size(fd)? < ENOUGH_BUFFER {
        let _ = sockopt::set_socket_recv_buffer_size_force(fd, ENOUGH_BUFFER / 2);
    }
    Ok(sockopt::socket_recv_buffer_size(fd)?)
}
