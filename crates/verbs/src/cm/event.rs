//! What an event channel hands out.

use super::Id;
use super::param::{ConnInfo, UdInfo};

/// What happened, numbered as `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// [`Id::resolve_addr`] found device and source address.
    AddrResolved = 0,
    /// It did not.
    AddrError = 1,
    /// [`Id::resolve_route`] is done.
    RouteResolved = 2,
    /// It failed.
    RouteError = 3,
    /// A listener has a new peer.
    ConnectRequest = 4,
    /// The peer accepted; [`Id::establish`] completes the connection.
    ConnectResponse = 5,
    /// The connection could not be made.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refuses; the status is the reason of its REJ (IBTA 12.6.7.2).
    Rejected = 8,
    /// The connection is made, or the way to the datagram peer is known.
    Established = 9,
    /// The connection ended.
    Disconnected = 10,
    /// The device was taken away.
    DeviceRemoval = 11,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// It could not be, or is gone.
    MulticastError = 13,
    /// The address moved to another device.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
}

/// What an event carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// Of a connection; all zeros where the peer said nothing.
    Conn(ConnInfo),
    /// Of datagrams.
    Ud(UdInfo),
}

/// An event; dropping it acknowledges it.
#[derive(Debug)]
pub struct Event {
    kind: EventKind,
    status: i32,
    id: u64,
    listener: Option<u64>,
    param: Param,
    new_id: Option<Id>,
}

impl Event {
    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// 0, a negative errno, or the reason of a refusal.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The cookie of the [`Id`] that it happened to; of a [`EventKind::ConnectRequest`] 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The cookie of the listener, with [`EventKind::ConnectRequest`].
    pub fn listener(&self) -> Option<u64> {
        self.listener
    }

    /// What the peer said.
    pub fn param(&self) -> &Param {
        &self.param
    }

    /// The private data of the peer's message.
    pub fn private(&self) -> &[u8] {
        match &self.param {
            Param::Conn(conn) => &conn.private,
            Param::Ud(ud) => &ud.private,
        }
    }

    /// The new peer's [`Id`], once; one that is left here is refused with the event's end.
    pub fn take_id(&mut self) -> Option<Id> {
        self.new_id.take()
    }
}
