//! Just enough of rtnetlink (`netlink(7)`, `rtnetlink(7)`): dumps and notifications.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::fd::Fd;

const HEADER_LEN: usize = 16;
const BUFFER_LEN: usize = 1 << 15;
/// A dump that a change of interfaces interrupted is taken anew this often.
const DUMP_ATTEMPTS: usize = 8;

/// One message without its header.
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
    flags: u16,
}

/// A socket of the routing family.
#[derive(Debug)]
pub(super) struct Netlink(Fd);

impl Netlink {
    /// Opens a socket that asks and waits for answers.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_with(SocketFlags::CLOEXEC, 0)
    }

    /// Opens a non-blocking socket that hears the notifications of `groups` (`RTMGRP_*`).
    pub(super) fn subscribe(groups: u32) -> io::Result<Self> {
        Self::open_with(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)
    }

    fn open_with(flags: SocketFlags, groups: u32) -> io::Result<Self> {
        // Protocol 0 of this family is NETLINK_ROUTE.
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(Fd::engine(fd)?))
    }

    /// All objects of a kind (`RTM_GET*`), of every address family.
    pub(super) fn dump(&self, kind: u16, body_len: usize) -> io::Result<Vec<Message>> {
        for _ in 0..DUMP_ATTEMPTS {
            self.request_dump(kind, body_len)?;
            if let Some(messages) = self.collect_dump()? {
                return Ok(messages);
            }
        }
        Err(io::Error::other("interfaces change too fast to be listed"))
    }

    fn request_dump(&self, kind: u16, body_len: usize) -> io::Result<()> {
        let mut request = vec![0; HEADER_LEN + body_len];
        request[..4].copy_from_slice(&((HEADER_LEN + body_len) as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        rustix::net::send(&self.0, &request, SendFlags::empty())?;
        Ok(())
    }

    /// Reads to the end of a dump; `None` if it was interrupted by a change.
    fn collect_dump(&self) -> io::Result<Option<Vec<Message>>> {
        let mut all = Vec::new();
        let mut interrupted = false;
        loop {
            for message in self.receive()?.unwrap_or_default() {
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok((!interrupted).then_some(all)),
                    libc::NLMSG_ERROR => return Err(error_in(&message.body)),
                    _ => all.push(message),
                }
            }
        }
    }

    /// The messages of one datagram of the kernel; `None` if there is none to be had now.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<Message>>> {
        let mut buf = vec![0; BUFFER_LEN];
        loop {
            match rustix::net::recvfrom(&self.0, &mut buf[..], RecvFlags::empty()) {
                Ok((len, _, Some(from))) if is_kernel(&from) => {
                    return Ok(Some(split(&buf[..len])));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_kernel(from: &rustix::net::SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}

fn error_in(body: &[u8]) -> io::Error {
    let code = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    io::Error::from_raw_os_error(-code)
}

fn split(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_LEN>() {
        let len = u32_at(header, 0) as usize;
        let Some(body) = bytes.get(HEADER_LEN..len) else { break };
        let (kind, flags) = (u16_at(header, 4), u16_at(header, 6));
        messages.push(Message { kind, body: body.to_vec(), flags });
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

/// The attributes in `bytes`: type without flags, and value. A cut one ends the walk.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const TYPE_MASK: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let value = bytes.get(4..len)?;
        let kind = u16_at(bytes, 2) & TYPE_MASK;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The 16-bit value at `at`, or 0 past the end.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b))
}

/// The 32-bit value at `at`, or 0 past the end.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_messages_and_attributes_end_the_walk() {
        let mut bytes = vec![0; 24];
        bytes[..4].copy_from_slice(&24u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&16u16.to_ne_bytes());
        let messages = split(&bytes);
        assert_eq!((messages.len(), messages[0].kind, messages[0].body.len()), (1, 16, 8));
        for len in 0..24 {
            assert_eq!(split(&bytes[..len]).len(), 0);
        }
        assert_eq!(split(&[0; 64]).len(), 0);

        let mut attribute = [6u16, 3, 0x0201].map(u16::to_ne_bytes).concat();
        attribute.extend([0; 2]);
        assert_eq!(attributes(&attribute).collect::<Vec<_>>(), [(3, &[1, 2][..])]);
        for len in 0..6 {
            assert_eq!(attributes(&attribute[..len]).count(), 0);
        }
        assert_eq!(attributes(&[0; 16]).count(), 0);
    }
}
