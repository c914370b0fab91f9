//! What an event channel hands out.

use std::sync::Arc;

use super::channel::EventChannel;
use super::id::Id;
use super::param::{ConnInfo, UdInfo};
use super::state::IdInner;

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
    /// The connection ended; the status is `-ETIMEDOUT` if the peer did not answer.
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
    cookie: u64,
    listener: Option<u64>,
    param: Param,
    new_id: Option<Id>,
    subject: Arc<IdInner>,
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
        self.cookie
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

impl Drop for Event {
    fn drop(&mut self) {
        // Before the acknowledgement: whoever waits for it may go on to close the device.
        drop(self.new_id.take());
        self.subject.unacked.ack(1);
    }
}

/// An event that waits in a channel.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Whose acknowledgements count it: the listener of a new peer.
    pub(super) subject: Arc<IdInner>,
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) param: Param,
    pub(super) new: Option<Arc<IdInner>>,
}

impl Pending {
    /// Counts it as handed out, before anyone sees it gone from the channel.
    pub(super) fn taken(self) -> Self {
        self.subject.unacked.add();
        self
    }

    /// Hands it out, with a handle of the new peer's identifier.
    pub(super) fn deliver(self, channel: &EventChannel) -> Event {
        let Pending { subject, kind, status, param, new } = self;
        let cookie = subject.cookie();
        let mut event =
            Event { kind, status, cookie, listener: None, param, new_id: None, subject };
        if let Some(new) = new {
            event.subject.note_delivery();
            new.find_device(&event.subject);
            (event.cookie, event.listener) = (0, Some(cookie));
            event.new_id = Some(Id::of_peer(new, channel));
        }
        event
    }
}
