//! Datagram sockets with abstract Unix names: messages between the processes of one user.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with, sockopt,
};

use crate::cmsg::{self, Control};
use crate::fd::Fd;
use crate::sys;

/// Family, the zero byte of abstract names, the longest name that is a slot's, and slack to notice
/// longer ones.
pub(crate) const NAME_SPACE: usize = 32;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the receiver's queue.
    Sent,
    /// The receiver's queue is full; the message is lost.
    Full,
    /// Nobody has the name.
    Gone,
}

/// A socket that has its name as long as it lives.
#[derive(Debug)]
pub(crate) struct Named {
    fd: Fd,
    uid: u32,
}

/// Who sent a message, and how long it is; that of a refused one is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) len: usize,
    /// The sender's process, as seen from here.
    pub(crate) pid: u32,
    /// Bytes of the sender's address.
    pub(crate) name_len: usize,
}

impl Named {
    /// Takes a name; `None` if another socket has it.
    pub(crate) fn bind(name: &SocketAddrUnix) -> io::Result<Option<Self>> {
        let fd = socket()?;
        sockopt::set_socket_passcred(&fd, true)?;
        match bind(&fd, name) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let uid = rustix::process::getuid().as_raw();
        Ok(Some(Self { fd: Fd::engine(fd)?, uid }))
    }

    /// Takes one message, and its sender's address into `sender`; `None` when there is none. One
    /// of another user's or too long for `buf` is refused.
    pub(crate) fn recv(&self, buf: &mut [u8], sender: &mut [u8]) -> io::Result<Option<Envelope>> {
        let mut control = Control::<64>::new();
        let received = match sys::recvmsg(&self.fd, sender, buf, control.space()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        };
        let owner = credentials(&control, received.control_len).filter(|c| c.uid == self.uid);
        Ok(Some(match owner {
            Some(Credentials { pid, .. }) if !received.truncated => {
                Envelope { len: received.len, pid, name_len: received.name_len }
            }
            _ => Envelope { len: 0, pid: 0, name_len: 0 },
        }))
    }
}

impl AsFd for Named {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket without a name.
pub(crate) fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// Sends a message to the `struct sockaddr_un` that `name` holds.
pub(crate) fn send(fd: impl AsFd, name: &[u8], parts: &[IoSlice<'_>]) -> io::Result<Delivery> {
    match sys::sendmsg(fd, name, parts, &[]) {
        Ok(_) => Ok(Delivery::Sent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Delivery::Full),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Delivery::Gone),
        Err(error) => Err(error),
    }
}

/// Whether a name is bound: connecting to a datagram name sends nothing.
pub(crate) fn answers(socket: impl AsFd, name: &SocketAddrUnix) -> bool {
    !matches!(connect(socket, name), Err(Errno::CONNREFUSED))
}

struct Credentials {
    pid: u32,
    uid: u32,
}

fn credentials<const N: usize>(control: &Control<N>, len: usize) -> Option<Credentials> {
    let of_sender =
        |m: &cmsg::Message<'_>| (m.level, m.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
    let message = control.messages(len).find(of_sender)?;
    let word = |at| Some(u32::from_ne_bytes(*message.value.get(at..)?.first_chunk()?));
    Some(Credentials { pid: word(0)?, uid: word(4)? })
}
