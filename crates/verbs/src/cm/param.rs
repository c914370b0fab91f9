//! What connecting takes, and what the peer said.

use irdma_wire::{Gid, Qpn};

use crate::handles::AhAttr;

/// The Q_Key of datagram queue pairs that `rdma_cm` connects.
pub const UD_QKEY: u32 = 0x0123_4567;

/// In [`ConnParam`]: as many as device and peer allow (`RDMA_MAX_RESP_RES`).
pub const MAX_RESOURCES: u8 = 0xff;

/// What one side brings to a connection (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// Bytes for the peer's program: up to 56 to connect, 196 to accept; for datagrams
    /// up to 180 and 136.
    pub private: &'a [u8],
    /// READs and atomics that this side answers at once; [`MAX_RESOURCES`] for as many as the
    /// device can and the peer, where it asked first, wants.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once, or [`MAX_RESOURCES`].
    pub initiator_depth: u8,
    /// Whether the hardware controls the flow; meaningless here, told to the peer.
    pub flow_control: bool,
    /// Retries after a timeout or sequence NAK, 0 to 7; not used to accept.
    pub retry_count: u8,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry_count: u8,
    /// Whether the queue pair receives from a shared queue.
    pub srq: bool,
    /// The queue pair.
    pub qpn: Qpn,
    /// Q_Key of a datagram queue pair that is accepted with; 0 for [`UD_QKEY`].
    pub qkey: u32,
}

/// What the peer of a connection said (`struct rdma_conn_param` of an event).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnInfo {
    /// The private data: the whole field of the message, zero-filled behind what the peer gave.
    pub private: Vec<u8>,
    /// READs and atomics that the peer wants to have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics that the peer answers at once.
    pub initiator_depth: u8,
    /// Whether the peer's hardware controls the flow.
    pub flow_control: bool,
    /// Retries that the peer asks for.
    pub retry_count: u8,
    /// Retries after RNR that the peer asks for.
    pub rnr_retry_count: u8,
    /// Whether the peer receives from a shared queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qpn: Qpn,
}

/// How to send datagrams to a peer (`struct rdma_ud_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdInfo {
    /// The private data, as in [`ConnInfo`].
    pub private: Vec<u8>,
    /// The way to the peer.
    pub ah_attr: AhAttr,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
}

/// The way between two ends (`struct ibv_sa_path_rec`, as far as RoCE has it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The local end.
    pub sgid: Gid,
    /// Its index in the device's table.
    pub sgid_index: u8,
    /// The peer's end.
    pub dgid: Gid,
    /// IPv6 flow label, also spreads UDP source ports.
    pub flow_label: u32,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Exponent of the time that a packet may live, 4.096 us * 2^n.
    pub packet_life_time: u8,
}
