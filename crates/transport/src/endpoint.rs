//! One lane's protocol: its queue pairs, its demultiplexer, its timers.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_mem::MemTable;
use irdma_wire::{Gid, Qpn};

use crate::effects::Effect;
use crate::error::Result;
use crate::qp::{AttrMask, QpAttr, QpInit};
use crate::stats::Stats;
use crate::time::Instant;
use crate::wr::{RecvWr, SendWr};

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The slot whose queue pair numbers this endpoint hands out.
    pub slot: u16,
    /// Decides every random choice.
    pub seed: u64,
    /// Queue pairs at once.
    pub max_qp: u32,
    /// Multicast groups at once.
    pub max_mcast_grp: u32,
    /// Bytes of packets that may wait in this side's receive buffer.
    pub recv_window: u32,
    /// Bytes in flight towards a peer whose receive buffer is unknown.
    pub initial_window: u32,
    /// The most bytes in flight towards any peer.
    pub max_window: u32,
    /// The shortest acknowledgement timeout that is armed, in nanoseconds.
    pub min_timeout_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            slot: 1,
            seed: 0,
            max_qp: (1 << 14) - 1,
            max_mcast_grp: 4095,
            recv_window: 64 << 10,
            initial_window: 64 << 10,
            max_window: 1 << 20,
            min_timeout_ns: 4_000_000,
        }
    }
}

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
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handled, or dropped and counted.
    Done,
    /// It belongs to this slot of another process or lane: relay it.
    Foreign(u16),
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

/// The protocol of one lane. Deterministic: inputs, times and the seed decide everything.
///
/// Four kinds of methods: verbs (`create_qp`, `post_send`, ...), inputs (`handle_*`), outputs
/// (`poll_*`) and getters. After any verb or input, drain `poll_transmit` until `None`, then
/// `poll_effect` until `None`, then sleep no longer than `poll_timeout`.
pub struct Endpoint {
    config: Config,
}
