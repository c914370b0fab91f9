//! What goes into an endpoint with a datagram, and what comes out.

use std::net::IpAddr;

use irdma_wire::cm::ServiceId;

/// Where a datagram came from and how it was marked.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Source address.
    pub src: IpAddr,
    /// Source port, part of the ICRC.
    pub src_port: u16,
    /// Destination address: a local one, or a group.
    pub dst: IpAddr,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Position in its receive batch: the likely IPv4 identification.
    pub index: u16,
    /// Interface that a multicast datagram arrived on, 0 for unicast.
    pub ifindex: u32,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handled, or dropped and counted.
    Done,
    /// It belongs to this slot of another process or lane: relay it.
    Foreign(u16),
    /// It asks for this service, and nobody here listens for it: relay it to who does, or hand it
    /// back with [`handle_unclaimed`](crate::Endpoint::handle_unclaimed).
    Unclaimed(ServiceId),
}

/// What counts against windows; nothing when the endpoint is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Bytes of reliable requests that are sent and not acknowledged.
    pub request_bytes: u64,
    /// Bytes of READ responses and atomic results that were asked for and have not arrived.
    pub read_bytes: u64,
}

/// One batch to send: `len / segment` datagrams, the last possibly shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Source address; names the local address whose socket sends.
    pub src: IpAddr,
    /// Which of that address's source ports, an index into what `add_local` was given.
    pub port: usize,
    /// Destination address, always to UDP port 4791.
    pub dst: IpAddr,
    /// Interface index of a link-local destination, 0 otherwise.
    pub scope: u32,
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of each datagram.
    pub segment: usize,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit, 0 for the system's default.
    pub hop_limit: u8,
}
