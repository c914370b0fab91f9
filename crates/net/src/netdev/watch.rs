//! Following changes of interfaces and addresses.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::netlink::{Message, Netlink, u32_at};
use super::parse_address;

/// Something about the interfaces changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface appeared, or its state, name, MTU or MAC address changed.
    Link {
        /// The interface's number.
        index: u32,
    },
    /// An interface went away.
    LinkGone {
        /// The number it had.
        index: u32,
    },
    /// An address appeared or became usable.
    Address {
        /// The interface's number.
        index: u32,
        /// The address.
        ip: IpAddr,
        /// Sockets can be bound to it.
        usable: bool,
    },
    /// An address went away.
    AddressGone {
        /// The interface's number.
        index: u32,
        /// The address.
        ip: IpAddr,
    },
    /// Changes were missed: list the interfaces anew.
    Lost,
}

/// A stream of changes; readable (`AsFd`) when there is one.
#[derive(Debug)]
pub struct Watch {
    netlink: Netlink,
    pending: VecDeque<Change>,
}

impl Watch {
    /// Starts watching. Fails where rtnetlink notifications are missing or forbidden; interfaces
    /// can then only be listed again from time to time.
    pub fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Ok(Self { netlink: Netlink::subscribe(groups as u32)?, pending: VecDeque::new() })
    }

    /// The next change; `None` when there is none now.
    pub fn next_change(&mut self) -> io::Result<Option<Change>> {
        while self.pending.is_empty() {
            match self.netlink.receive() {
                Ok(Some(messages)) => self.pending.extend(messages.iter().filter_map(parse)),
                Ok(None) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Some(Change::Lost));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.pending.pop_front())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

fn parse(message: &Message) -> Option<Change> {
    let body = &message.body;
    match message.kind {
        libc::RTM_NEWADDR => {
            let (index, address) = parse_address(body)?;
            Some(Change::Address { index, ip: address.ip, usable: address.usable })
        }
        libc::RTM_DELADDR => {
            let (index, address) = parse_address(body)?;
            Some(Change::AddressGone { index, ip: address.ip })
        }
        // Bridges announce their ports with the same message types and a family of their own.
        libc::RTM_NEWLINK | libc::RTM_DELLINK if i32::from(*body.first()?) != libc::AF_UNSPEC => {
            None
        }
        libc::RTM_NEWLINK => Some(Change::Link { index: u32_at(body, 4) }),
        libc::RTM_DELLINK => Some(Change::LinkGone { index: u32_at(body, 4) }),
        _ => None,
    }
}
