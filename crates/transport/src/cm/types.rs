//! What programs ask of the connection manager, and what it tells them.

use std::fmt;

use irdma_wire::cm::ServiceId;
use irdma_wire::{Psn, Qpn};

use crate::ah::AddressVector;
use crate::qp::QpType;

/// A local communication id: the endpoint's slot in the top 10 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub(crate) u32);

impl CommId {
    /// The number on the wire.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// What [`Endpoint::cm_connect`](crate::Endpoint::cm_connect) asks the peer for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The service.
    pub service: ServiceId,
    /// [`QpType::Rc`], [`QpType::Uc`] or [`QpType::XrcSend`].
    pub qp_type: QpType,
    /// This side's queue pair.
    pub qpn: Qpn,
    /// The PSN that the peer's first packet shall have: each side chooses the other's.
    pub starting_psn: Psn,
    /// The GUID of this side's device.
    pub ca_guid: u64,
    /// READs and atomics that this side answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at a time.
    pub initiator_depth: u8,
    /// Whether this side honours end-to-end credits.
    pub flow_control: bool,
    /// Retries after a timeout or sequence NAK, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry_count: u8,
    /// Whether this side receives from a shared queue.
    pub srq: bool,
    /// The peer's acknowledgement timeout: 4.096 us * 2^timeout, 0 to 31.
    pub ack_timeout: u8,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The way to the peer; messages take the same.
    pub path: AddressVector,
    /// At most 92 bytes, whatever the service puts first included.
    pub private_data: &'a [u8],
}

/// What [`Endpoint::cm_accept`](crate::Endpoint::cm_accept) answers.
#[derive(Clone, Copy, Debug)]
pub struct ConnectReply<'a> {
    /// This side's queue pair.
    pub qpn: Qpn,
    /// The PSN that the peer's first packet shall have: each side chooses the other's.
    pub starting_psn: Psn,
    /// The GUID of this side's device.
    pub ca_guid: u64,
    /// READs and atomics that this side answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at a time.
    pub initiator_depth: u8,
    /// Whether this side honours end-to-end credits.
    pub flow_control: bool,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry_count: u8,
    /// Whether this side receives from a shared queue.
    pub srq: bool,
    /// The longest time before this side acknowledges: 4.096 us * 2^delay, 0 to 31.
    pub target_ack_delay: u8,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

/// What [`Endpoint::cm_sidr_request`](crate::Endpoint::cm_sidr_request) asks the peer for.
#[derive(Clone, Copy, Debug)]
pub struct SidrRequest<'a> {
    /// The service.
    pub service: ServiceId,
    /// The way to the peer.
    pub path: AddressVector,
    /// At most 216 bytes, whatever the service puts first included.
    pub private_data: &'a [u8],
}

/// What [`Endpoint::cm_sidr_reply`](crate::Endpoint::cm_sidr_reply) answers.
#[derive(Clone, Copy, Debug)]
pub struct SidrReply<'a> {
    /// 0 to accept, else why not (IBTA 12.11.2): 1 service not supported, 2 rejected.
    pub status: u8,
    /// The queue pair that offers the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}

/// A peer asks for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The service it asks for.
    pub service: ServiceId,
    /// What this side's queue pair has to be: [`QpType::Rc`], [`QpType::Uc`] or
    /// [`QpType::XrcRecv`].
    pub qp_type: QpType,
    /// Its queue pair.
    pub remote_qpn: Qpn,
    /// The PSN that this side's first packet shall have.
    pub starting_psn: Psn,
    /// The GUID of its device.
    pub ca_guid: u64,
    /// READs and atomics that it wants answered at a time: its initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that it answers at a time: its responder resources.
    pub initiator_depth: u8,
    /// Whether it honours end-to-end credits.
    pub flow_control: bool,
    /// Retries after a timeout or sequence NAK, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry_count: u8,
    /// Whether it receives from a shared queue.
    pub srq: bool,
    /// This side's acknowledgement timeout: 4.096 us * 2^timeout, 0 to 31.
    pub ack_timeout: u8,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// The way to the peer.
    pub path: AddressVector,
    /// The whole field, [`REQ_PRIVATE_LEN`](irdma_wire::cm::REQ_PRIVATE_LEN) bytes.
    pub private_data: Vec<u8>,
}

/// A peer accepts a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyInfo {
    /// Its queue pair.
    pub remote_qpn: Qpn,
    /// The PSN that this side's first packet shall have.
    pub starting_psn: Psn,
    /// The GUID of its device.
    pub ca_guid: u64,
    /// READs and atomics that it wants answered at a time: its initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that it answers at a time: its responder resources.
    pub initiator_depth: u8,
    /// Whether it honours end-to-end credits.
    pub flow_control: bool,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry_count: u8,
    /// Whether it receives from a shared queue.
    pub srq: bool,
    /// The longest time before it acknowledges: 4.096 us * 2^delay.
    pub target_ack_delay: u8,
    /// The whole field, [`REP_PRIVATE_LEN`](irdma_wire::cm::REP_PRIVATE_LEN) bytes.
    pub private_data: Vec<u8>,
}

/// Something happened to the connection, or attempt, `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// The local id; a request brings a new one.
    pub id: CommId,
    /// What happened.
    pub kind: CmEventKind,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// A peer asks for a connection; `cm_accept` or `cm_reject` is due.
    Request {
        /// The token of the listener.
        listener: u64,
        /// What it asks for.
        request: RequestInfo,
    },
    /// The peer accepted; `cm_establish` is due.
    Response(ReplyInfo),
    /// The peer is ready to use the connection that was accepted.
    Established,
    /// The peer refused, or gave up.
    Rejected {
        /// Why (IBTA 12.6.7.2).
        reason: u16,
        /// The whole field, [`REJ_PRIVATE_LEN`](irdma_wire::cm::REJ_PRIVATE_LEN) bytes.
        private_data: Vec<u8>,
    },
    /// All tries went unanswered.
    Unreachable,
    /// The peer wants to end the connection; `cm_disconnect` is due.
    DisconnectRequested {
        /// The whole field, [`DREQ_PRIVATE_LEN`](irdma_wire::cm::DREQ_PRIVATE_LEN) bytes.
        private_data: Vec<u8>,
    },
    /// The connection is over.
    Disconnected {
        /// Whether the peer agreed: else all tries went unanswered.
        answered: bool,
    },
    /// No packet of the connection can be under way any more.
    TimewaitExit,
    /// A peer asks which queue pair offers a service; `cm_sidr_reply` is due.
    SidrRequest {
        /// The token of the listener.
        listener: u64,
        /// The service it asks for.
        service: ServiceId,
        /// The way to the peer.
        path: AddressVector,
        /// The whole field, [`SIDR_REQ_PRIVATE_LEN`](irdma_wire::cm::SIDR_REQ_PRIVATE_LEN) bytes.
        private_data: Vec<u8>,
    },
    /// The peer answered which queue pair offers the service.
    SidrResponse {
        /// 0 when it accepts, else why not (IBTA 12.11.2).
        status: u8,
        /// The queue pair.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
        /// The way to it.
        path: AddressVector,
        /// The whole field, [`SIDR_REP_PRIVATE_LEN`](irdma_wire::cm::SIDR_REP_PRIVATE_LEN) bytes.
        private_data: Vec<u8>,
    },
}
