//! What the owners of slots say to each other, as bytes.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use crate::named::{self, Delivery};
use crate::udp::RecvMeta;

/// Bytes before the data of the longest message.
pub(super) const MAX_HEADER_LEN: usize = 64;

/// Changes with every change of the layout; other versions are not understood.
const VERSION: u8 = 1;

const RELAY: u8 = 1;
const ANSWER: u8 = 2;
const STALE: u8 = 3;
const REPAIRED: u8 = 4;
const USER: u8 = 5;

/// A message from one slot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A batch of datagrams that reached the wrong process. The drop count stays behind.
    Relay {
        /// How the batch arrived.
        meta: RecvMeta,
        /// The batch.
        data: &'a [u8],
    },
    /// About the steering of one address.
    Steer {
        /// The address, port and scope that the sockets share.
        group: SocketAddr,
        /// What is said.
        message: SteerMessage<'a>,
    },
    /// Something of the floors above.
    User(&'a [u8]),
}

/// What is said about the steering of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerMessage<'a> {
    /// The sender's socket received the probe for this index.
    Answer {
        /// The number of the round of probes.
        round: u32,
        /// The index probed for.
        index: u16,
        /// The slots of the sender's socket, two bytes each, network order.
        slots: &'a [u8],
    },
    /// The table is out of date: a member left or meets foreign traffic.
    Stale,
    /// The sender attached a new table.
    Repaired,
}

impl<'a> Message<'a> {
    /// Sends the message to the `struct sockaddr_un` that `name` holds.
    pub(crate) fn send(&self, fd: impl AsFd, name: &[u8]) -> io::Result<Delivery> {
        let mut header = [0; MAX_HEADER_LEN];
        let (header, data) = self.encode(&mut header);
        named::send(fd, name, &[IoSlice::new(header), IoSlice::new(data)])
    }

    /// The header, written to `space`, and the data that follows it.
    fn encode<'h>(&self, space: &'h mut [u8; MAX_HEADER_LEN]) -> (&'h [u8], &'a [u8]) {
        let mut writer = Writer { space, len: 0 };
        let data = match *self {
            Message::Relay { meta, data } => {
                writer.put(&[RELAY, VERSION, meta.tos, meta.ttl]);
                writer.put(&(meta.stride as u32).to_be_bytes());
                writer.socket(meta.src);
                writer.ip(meta.dst);
                data
            }
            Message::User(data) => {
                writer.put(&[USER, VERSION]);
                data
            }
            Message::Steer { group, message } => {
                let (kind, round, index, data) = match message {
                    SteerMessage::Answer { round, index, slots } => (ANSWER, round, index, slots),
                    SteerMessage::Stale => (STALE, 0, 0, &[][..]),
                    SteerMessage::Repaired => (REPAIRED, 0, 0, &[][..]),
                };
                writer.put(&[kind, VERSION]);
                writer.socket(group);
                writer.put(&round.to_be_bytes());
                writer.put(&index.to_be_bytes());
                data
            }
        };
        let Writer { space, len } = writer;
        (&space[..len], data)
    }

    /// Reads a message; `None` if it is cut short or not understood.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader { rest: bytes };
        let [kind, VERSION] = reader.take()? else { return None };
        match kind {
            RELAY => {
                let [tos, ttl] = reader.take()?;
                let stride = (u32::from_be_bytes(reader.take()?) as usize).max(1);
                let (src, dst) = (reader.socket()?, reader.ip()?);
                let data = reader.rest;
                let meta = RecvMeta { len: data.len(), stride, src, dst, tos, ttl, drops: 0 };
                Some(Message::Relay { meta, data })
            }
            USER => Some(Message::User(reader.rest)),
            ANSWER | STALE | REPAIRED => {
                let group = reader.socket()?;
                let round = u32::from_be_bytes(reader.take()?);
                let index = u16::from_be_bytes(reader.take()?);
                let message = match kind {
                    STALE => SteerMessage::Stale,
                    REPAIRED => SteerMessage::Repaired,
                    _ => SteerMessage::Answer { round, index, slots: reader.rest },
                };
                Some(Message::Steer { group, message })
            }
            _ => None,
        }
    }
}

struct Writer<'h> {
    space: &'h mut [u8; MAX_HEADER_LEN],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.space[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// IPv4 goes as an IPv4-mapped IPv6 address.
    fn ip(&mut self, ip: IpAddr) {
        let mapped = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.put(&mapped.octets());
    }

    fn socket(&mut self, addr: SocketAddr) {
        self.ip(addr.ip());
        self.put(&addr.port().to_be_bytes());
        let scope = if let SocketAddr::V6(addr) = addr { addr.scope_id() } else { 0 };
        self.put(&scope.to_be_bytes());
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    fn ip(&mut self) -> Option<IpAddr> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
    }

    fn socket(&mut self) -> Option<SocketAddr> {
        let ip = self.ip()?;
        let port = u16::from_be_bytes(self.take()?);
        let scope = u32::from_be_bytes(self.take()?);
        Some(match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message<'static>> {
        let meta = RecvMeta {
            len: 5,
            stride: 1024,
            src: "10.0.0.2:49152".parse().unwrap(),
            dst: "10.0.0.1".parse().unwrap(),
            tos: 3,
            ttl: 64,
            drops: 0,
        };
        let group = "[fe80::1%7]:4791".parse().unwrap();
        let answer = SteerMessage::Answer { round: 0x1234_5678, index: 9, slots: &[0, 1, 0, 2] };
        vec![
            Message::Relay { meta, data: b"batch" },
            Message::Relay { meta: RecvMeta { len: 0, ..meta }, data: &[] },
            Message::User(b"anything"),
            Message::Steer { group, message: answer },
            Message::Steer { group, message: SteerMessage::Stale },
            Message::Steer { group, message: SteerMessage::Repaired },
        ]
    }

    #[test]
    fn every_message_is_read_back_as_sent() {
        for message in samples() {
            let mut space = [0; MAX_HEADER_LEN];
            let (header, data) = message.encode(&mut space);
            assert_eq!(Message::decode(&[header, data].concat()), Some(message));
        }
    }

    #[test]
    fn a_header_cut_short_or_of_another_version_is_not_understood() {
        for message in samples() {
            let mut space = [0; MAX_HEADER_LEN];
            let header = message.encode(&mut space).0.to_vec();
            for len in 0..header.len() {
                assert_eq!(Message::decode(&header[..len]), None, "{message:?} cut to {len}");
            }
            let mut other = header.clone();
            other[1] = VERSION + 1;
            assert_eq!(Message::decode(&other), None);
            other[..2].copy_from_slice(&[0, VERSION]);
            assert_eq!(Message::decode(&other), None);
        }
    }
}
