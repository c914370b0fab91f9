//! The sending side: one call, one destination, one batch.
//!
//! UDP checksums stay on: the kernel refuses `UDP_SEGMENT` on sockets without them, and merges no
//! datagrams that carry none. Interfaces that offload them, `lo` and `veth` among them, make them
//! free.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::{bind_error, check_specific, open};
use crate::addr::{self, RawAddr};
use crate::cmsg::Control;
use crate::fd::Fd;
use crate::sys;

/// The most segments that every kernel with `UDP_SEGMENT` takes in one call.
pub const MAX_SEGMENTS: usize = 64;

/// What a sending socket may hold back; the kernel grants up to `net.core.wmem_max`.
const SEND_BUFFER: usize = 4 << 20;

/// An unconnected UDP socket bound to one address and a port of the kernel's choice.
#[derive(Debug)]
pub struct SendSocket {
    fd: Fd,
    local: SocketAddr,
    gso: AtomicBool,
}

impl SendSocket {
    /// Binds to `addr`. `ifindex` is where multicast leaves, and the scope of a link-local
    /// address; 0 lets the kernel choose by `addr`.
    pub fn open(addr: IpAddr, ifindex: u32) -> io::Result<Self> {
        check_specific(addr)?;
        let fd = open(addr)?;
        let wanted = addr::scoped(addr, 0, ifindex);
        rustix::net::bind(&fd, &wanted).map_err(|errno| bind_error(errno, wanted))?;
        match addr {
            IpAddr::V4(ip) => {
                // Where it is missing, `Features::fallbacks` says what that means.
                let _ = sockopt::set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::PROBE);
                sockopt::set_ip_multicast_if_with_ifindex(
                    &fd,
                    &Ipv4Addr::UNSPECIFIED,
                    &ip,
                    ifindex,
                )?;
                sockopt::set_ip_multicast_loop(&fd, true)?;
            }
            IpAddr::V6(_) => {
                let _ = sockopt::set_ipv6_mtu_discover(&fd, Ipv6PathMtuDiscovery::PROBE);
                sockopt::set_ipv6_multicast_if(&fd, ifindex)?;
                sockopt::set_ipv6_multicast_loop(&fd, true)?;
            }
        }
        sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER)?;
        let local = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        let gso = sys::set_option(&fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        Ok(Self { fd, local, gso: AtomicBool::new(gso) })
    }

    /// The UDP source port of everything this socket sends.
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// The address this socket sends from.
    pub fn address(&self) -> IpAddr {
        self.local.ip()
    }

    /// How many segments one call takes: [`MAX_SEGMENTS`], or 1 where the kernel or the route does
    /// not segment.
    pub fn max_segments(&self) -> usize {
        if self.gso.load(Ordering::Relaxed) { MAX_SEGMENTS } else { 1 }
    }

    /// Sends `data` to `dst`, cut into datagrams of `segment_size` bytes (the last may be
    /// shorter); `None` sends one datagram. Over IPv4 segment *i* leaves with identification *i*.
    /// `tos` is the traffic class; `hop_limit` of `None` is the kernel's default.
    ///
    /// Nothing is sent in part. Errors: [`io::ErrorKind::WouldBlock`] when the socket is full;
    /// [`io::ErrorKind::Unsupported`] when the route does not segment, after which
    /// [`Self::max_segments`] is 1; `EMSGSIZE` or `EINVAL` for segments above the interface's MTU.
    pub fn send(
        &self,
        dst: SocketAddr,
        data: &[u8],
        segment_size: Option<u16>,
        tos: u8,
        hop_limit: Option<u8>,
    ) -> io::Result<usize> {
        let batch = segment_size.filter(|&size| data.len() > usize::from(size));
        if let Some(size) = batch {
            self.check_batch(data.len(), size)?;
        }
        let control = self.control(batch, tos, hop_limit);
        let name = RawAddr::from(dst);
        let result =
            sys::sendmsg(&self.fd, name.as_bytes(), &[IoSlice::new(data)], control.as_bytes());
        match result {
            Err(error) if batch.is_some() && error.raw_os_error() == Some(libc::EIO) => {
                self.gso.store(false, Ordering::Relaxed);
                Err(io::Error::new(io::ErrorKind::Unsupported, "the route refuses UDP_SEGMENT"))
            }
            result => result,
        }
    }

    fn check_batch(&self, len: usize, size: u16) -> io::Result<()> {
        let refuse = |kind, text: &str| Err(io::Error::new(kind, text));
        if size == 0 {
            return refuse(io::ErrorKind::InvalidInput, "batch with segments of 0 bytes");
        }
        if len.div_ceil(size.into()) > MAX_SEGMENTS {
            return refuse(io::ErrorKind::InvalidInput, "batch of more than 64 segments");
        }
        if self.max_segments() == 1 {
            return refuse(io::ErrorKind::Unsupported, "batch on a socket without UDP_SEGMENT");
        }
        Ok(())
    }

    fn control(&self, segment_size: Option<u16>, tos: u8, hop_limit: Option<u8>) -> Control<72> {
        let (level, tos_kind, hops_kind) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let mut control = Control::new();
        if let Some(size) = segment_size {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
        if tos != 0 {
            control.push(level, tos_kind, &i32::from(tos).to_ne_bytes());
        }
        if let Some(hops) = hop_limit {
            control.push(level, hops_kind, &i32::from(hops.max(1)).to_ne_bytes());
        }
        control
    }
}

impl AsFd for SendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
