//! Unconnected UDP sockets that carry batches of equal datagrams.
//!
//! Invariant: a sending socket never connects and always sets DF, so that over IPv4 the kernel
//! gives a datagram sent alone the identification 0, and the segments of one batch 0, 1, 2 and so
//! on. The invariant checksum of RoCEv2 covers that field.

mod features;
mod recv;
mod send;

pub use features::Features;
pub use recv::{BATCH_LEN, RecvMeta, RecvSocket, Reuse};
pub use send::{MAX_SEGMENTS, SendSocket};

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::fd::Fd;

/// The UDP port of RoCEv2 (IBTA A17.2).
pub const ROCE_PORT: u16 = 4791;

/// Opens a non-blocking UDP socket of the family of `addr`; IPv6 sockets leave IPv4 alone.
pub(crate) fn open(addr: IpAddr) -> io::Result<Fd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::DGRAM, flags, None)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    Fd::engine(fd)
}

/// Refuses addresses that name no interface: packets are signed with the address they leave from.
fn check_specific(addr: IpAddr) -> io::Result<()> {
    if !addr.is_unspecified() {
        return Ok(());
    }
    let text = format!("socket on {addr}: a wildcard address; name one of an interface");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Names the socket in the error of a refused bind.
fn bind_error(error: rustix::io::Errno, addr: SocketAddr) -> io::Error {
    use rustix::io::Errno;
    let remedy = match error {
        Errno::ADDRINUSE => {
            "held by a program that is not irdma, another user's, or the kernel's rdma_rxe: `irdma \
             devices` and `ss -ulnp 'sport = :4791'` tell; stop it, or use another address or \
             network namespace"
        }
        Errno::ADDRNOTAVAIL => "no interface has this address, or it is still tentative",
        _ => "refused by the kernel",
    };
    io::Error::new(io::Error::from(error).kind(), format!("UDP bind to {addr}: {error} ({remedy})"))
}

#[cfg(test)]
mod tests;
