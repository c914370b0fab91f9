//! What a step of the protocol asks the caller to do once its lock is released.

use std::fmt;
use std::net::IpAddr;

use irdma_wire::Qpn;

use crate::cm::CmEvent;

/// An asynchronous event, numbered as `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// A completion queue overflowed.
    CqErr = 0,
    /// A queue pair failed.
    QpFatal = 1,
    /// The peer sent a request that the queue pair cannot take.
    QpReqErr = 2,
    /// The peer, or a local key, violated access rights.
    QpAccessErr = 3,
    /// A packet arrived before the queue pair was ready to send.
    CommEst = 4,
    /// A draining send queue is empty.
    SqDrained = 5,
    /// The device is gone.
    DeviceFatal = 8,
    /// The port came up.
    PortActive = 9,
    /// The port went down.
    PortErr = 10,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A queue pair in error took its last receive from a shared queue.
    QpLastWqeReached = 16,
    /// The table of GIDs changed.
    GidChange = 18,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// A completion queue, by token.
    Cq(u64),
    /// A queue pair.
    Qp(Qpn),
    /// A shared receive queue, by token.
    Srq(u64),
    /// A port, numbered from 1.
    Port(u8),
    /// The whole device.
    Device,
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventSource::Cq(token) => write!(f, "CQ {token}"),
            EventSource::Qp(qpn) => write!(f, "QP {qpn}"),
            EventSource::Srq(token) => write!(f, "SRQ {token}"),
            EventSource::Port(port) => write!(f, "port {port}"),
            EventSource::Device => f.write_str("the device"),
        }
    }
}

#[allow(missing_docs, reason = "the variant's text names its fields")]
/// Work for the caller, in order, after the lock is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The armed completion queue with this token has something.
    CqEvent(u64),
    /// Tell the program.
    Async(EventKind, EventSource),
    /// Tell the program about a connection.
    Cm(Box<CmEvent>),
    /// A first queue pair joined this group on this interface.
    JoinGroup { group: IpAddr, ifindex: u32 },
    /// The last queue pair left this group.
    LeaveGroup { group: IpAddr, ifindex: u32 },
}
