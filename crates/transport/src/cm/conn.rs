//! One connection, or attempt at one, and what it waits for.

use std::net::IpAddr;

use irdma_wire::Qpn;
use irdma_wire::cm::ServiceId;
use irdma_wire::mad;

use super::CommId;
use crate::ah::AddressVector;
use crate::time::Instant;

/// A message as it goes out.
pub(super) type Mad = Box<[u8; mad::LEN]>;

/// Code of how long this side, and the peer, may take to answer: 4.3 s.
pub(super) const RESPONSE_TIMEOUT: u8 = 20;
/// How often a message is repeated.
pub(super) const MAX_RETRIES: u8 = 15;
/// Code of the patience that this side asks for while its program thinks: 69 s.
pub(super) const SERVICE_TIMEOUT: u8 = 24;
/// How often a peer is asked again that says that nobody listens, and when: its program may be
/// about to, as perftest's is between its connections and qperf's once it has its port.
pub(super) const EARLY_REFUSALS: u8 = 8;
pub(super) const EARLY_NS: u64 = 50_000_000;
/// Bounds of the time to repeat a message after, where the peer asks for one: 0.27 s to 17 s.
const RESPONSE_TIMEOUTS: (u8, u8) = (16, 22);
/// Bounds of the time that the packets of a connection may be under way: 67 ms to 4.3 s.
const TIMEWAITS: (u8, u8) = (14, 20);

/// 4.096 us * 2^code, in nanoseconds.
pub(super) const fn timeout_ns(code: u8) -> u64 {
    4096 << code
}

/// States of both sides (IBTA 12.9.7). An MRA changes a deadline, not the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Active: asked for a connection.
    ReqSent,
    /// Passive: the program decides.
    ReqRcvd,
    /// Passive: accepted, the peer is not ready yet.
    RepSent,
    /// Active: the peer accepted, the program gets ready.
    RepRcvd,
    /// Both are ready.
    Established,
    /// This side ends the connection.
    DreqSent,
    /// The peer ends the connection, the program has not agreed.
    DreqRcvd,
    /// The connection is over, its packets may still be under way.
    Timewait,
    /// Asked for a queue pair.
    SidrReqSent,
    /// Asked for a queue pair by the peer, the program decides.
    SidrReqRcvd,
    /// Nothing will happen any more.
    Closed,
}

impl State {
    /// Whether the program has yet to decide about a request.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, State::ReqRcvd | State::SidrReqRcvd)
    }

    /// Whether the peer's queue pair is taken: no other connection may have it.
    pub(super) fn is_living(self) -> bool {
        matches!(self, State::ReqRcvd | State::RepSent | State::RepRcvd | State::Established)
    }
}

/// What listeners are found by.
pub(super) type Pair = (ServiceId, Option<IpAddr>);

/// The listener that took a request: pair and token.
pub(super) type Taker = (Pair, u64);

/// What repeated requests are known by: address, GUID (none for a SIDR request) and the peer's id.
pub(super) type RequestKey = (IpAddr, Option<u64>, u32);

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: CommId,
    pub(super) state: State,
    /// The way to the peer.
    pub(super) path: AddressVector,
    pub(super) service: ServiceId,
    /// The peer's id, 0 as long as it is not known.
    pub(super) remote_id: u32,
    /// The GUID of the peer's device.
    pub(super) remote_guid: u64,
    pub(super) remote_qpn: Qpn,
    /// The GUID of this side's device.
    pub(super) local_guid: u64,
    pub(super) local_qpn: Qpn,
    /// Of the peer's newest question: what answers repeat.
    pub(super) transaction_id: u64,
    /// Code of the acknowledgement timeout.
    pub(super) ack_timeout: u8,
    /// Code of the time after which a message is repeated.
    pub(super) response_timeout: u8,
    pub(super) max_retries: u8,
    /// Whether the peer's queue pair is one of an extended connection.
    pub(super) is_xrc: bool,
    /// Who took the request.
    pub(super) taker: Option<Taker>,
    pub(super) request_key: Option<RequestKey>,
    /// What is repeated: by a timer, or when the peer repeats itself.
    pub(super) last: Option<Mad>,
    pub(super) retries_left: u8,
    /// Refusals because nobody listens that are taken for early ones.
    pub(super) early_refusals_left: u8,
    /// The deadline is to ask once more after such a refusal, not for want of an answer.
    pub(super) was_early: bool,
    pub(super) deadline: Option<Instant>,
    /// The program forgot it; it goes once its time is over.
    pub(super) is_orphan: bool,
}

impl Conn {
    /// A connection along `path` about which nothing else is known.
    pub(super) fn new(id: CommId, state: State, path: AddressVector, service: ServiceId) -> Self {
        Conn {
            id,
            state,
            path,
            service,
            remote_id: 0,
            remote_guid: 0,
            remote_qpn: Qpn::default(),
            local_guid: 0,
            local_qpn: Qpn::default(),
            transaction_id: own_transaction(id),
            ack_timeout: 0,
            response_timeout: RESPONSE_TIMEOUT,
            max_retries: MAX_RETRIES,
            is_xrc: false,
            taker: None,
            request_key: None,
            last: None,
            retries_left: 0,
            early_refusals_left: EARLY_REFUSALS,
            was_early: false,
            deadline: None,
            is_orphan: false,
        }
    }

    /// What a peer must not be connected with twice: address, device and queue pair.
    pub(super) fn remote_qp(&self) -> (IpAddr, u64, Qpn) {
        (self.path.dst(), self.remote_guid, self.remote_qpn)
    }

    pub(super) fn response_ns(&self) -> u64 {
        let (least, most) = RESPONSE_TIMEOUTS;
        timeout_ns(self.response_timeout.clamp(least, most))
    }

    /// How long its packets may be under way: the acknowledgement timeout is twice the packet life
    /// time and the peer's delay (IBTA 12.9.8.4).
    pub(super) fn timewait_ns(&self) -> u64 {
        let (least, most) = TIMEWAITS;
        timeout_ns(self.ack_timeout.clamp(least, most))
    }
}

/// The transaction of the messages that this side begins: their lower half is the id as the kernel
/// writes it.
pub(super) fn own_transaction(id: CommId) -> u64 {
    1 << 32 | u64::from(id.0.swap_bytes())
}
