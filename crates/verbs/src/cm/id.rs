//! Communication identifiers: what a socket is to TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use irdma_transport::{AttrMask, QpAttr, QpState, QpType, Result, VerbsError};

use super::channel::EventChannel;
#[allow(unused_imports, reason = "named by links")]
use super::event::EventKind;
use super::param::{ConnParam, Path, PortSpace};
use crate::device::Device;

/// A communication identifier (`struct rdma_cm_id`). Dropping it ends it without waiting.
#[derive(Debug)]
pub struct Id {
    inner: Arc<IdInner>,
}

#[derive(Debug)]
struct IdInner {
    channel: EventChannel,
    space: PortSpace,
    qp_type: QpType,
    cookie: AtomicU64,
}

impl Id {
    /// Makes an identifier whose events go to `channel`, or without one to a channel of its own
    /// ([`Id::channel`]). Of [`PortSpace::Udp`] it is for datagrams, of others for reliable
    /// connections.
    pub fn create(channel: Option<&EventChannel>, space: PortSpace) -> Result<Id> {
        let qp_type = match space {
            PortSpace::Udp => QpType::Ud,
            PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
        };
        Id::create_for(channel, space, qp_type)
    }

    /// As [`Id::create`], for queue pairs of a type: [`QpType::Rc`], [`QpType::Uc`] or
    /// [`QpType::Ud`]. EINVAL for others.
    pub fn create_for(
        channel: Option<&EventChannel>,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<Id> {
        let channel = match channel {
            Some(channel) => channel.clone(),
            None => EventChannel::create_event_channel()?,
        };
        let inner = IdInner { channel, space, qp_type, cookie: AtomicU64::new(0) };
        Ok(Id { inner: Arc::new(inner) })
    }

    /// Where its events go.
    pub fn channel(&self) -> EventChannel {
        self.inner.channel.clone()
    }

    /// The number that events name it by.
    pub fn set_cookie(&self, cookie: u64) {
        self.inner.cookie.store(cookie, Ordering::Release);
    }

    /// What its port belongs to.
    pub fn port_space(&self) -> PortSpace {
        self.inner.space
    }

    /// The type of its queue pair.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// The local address and port, once bound; the address is unspecified for all.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// The peer's address and port, once known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// The device, once an address of it is bound or resolved.
    pub fn device(&self) -> Option<Device> {
        None
    }

    /// The port of the device, 1; 0 as long as there is none.
    pub fn port(&self) -> u8 {
        0
    }

    /// The way to the peer, once resolved: GIDs, source index, traffic class, hop limit.
    pub fn path(&self) -> Option<Path> {
        None
    }

    /// Binds to a local address and port (`rdma_bind_addr(3)`): 0.0.0.0 or :: for all addresses,
    /// port 0 for a free one.
    ///
    /// EINVAL if it is bound, EADDRINUSE for a port that another one has, EADDRNOTAVAIL for an
    /// address that no interface has, ENODEV for one that no device has.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<()> {
        let _ = (addr,);
        Err(unfinished())
    }

    /// Finds the device and the source address towards `dst` (`rdma_resolve_addr(3)`), binding to
    /// `src` if that is not done. Ends with [`EventKind::AddrResolved`] or
    /// [`EventKind::AddrError`].
    ///
    /// EINVAL in another state or for addresses of two kinds, ENETUNREACH or EHOSTUNREACH without
    /// a route, and what [`Id::bind_addr`] answers.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let _ = (src, dst, timeout);
        Err(unfinished())
    }

    /// Settles the way to the peer (`rdma_resolve_route(3)`). Ends with
    /// [`EventKind::RouteResolved`]. EINVAL unless the address is resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let _ = (timeout,);
        Err(unfinished())
    }

    /// Waits for peers (`rdma_listen(3)`), who come as [`EventKind::ConnectRequest`]; up to
    /// `backlog` of them may wait for the program, 0 for 1024. Binds to a free port of 0.0.0.0 if
    /// that is not done.
    ///
    /// EINVAL in another state, EADDRINUSE if another one listens there.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let _ = (backlog,);
        Err(unfinished())
    }

    /// Asks the peer for a connection, or with [`PortSpace::Udp`] for its queue pair
    /// (`rdma_connect(3)`). Ends with [`EventKind::ConnectResponse`] (datagrams:
    /// [`EventKind::Established`]), [`EventKind::Rejected`] or [`EventKind::Unreachable`].
    ///
    /// EINVAL unless the route is resolved, for too much private data, or resources above the
    /// device's.
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        let _ = (param,);
        Err(unfinished())
    }

    /// Accepts a peer (`rdma_accept(3)`). Ends with [`EventKind::Established`]; not for datagrams.
    ///
    /// EINVAL unless it is a new peer's, for too much private data, or resources above the
    /// device's or the peer's.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        let _ = (param,);
        Err(unfinished())
    }

    /// Refuses a peer, or its answer (`rdma_reject(3)`), with up to 148 bytes, datagrams 136.
    /// EINVAL in another state.
    pub fn reject(&self, private: &[u8]) -> Result<()> {
        let _ = (private,);
        Err(unfinished())
    }

    /// Tells the peer that its answer arrived (`rdma_establish(3)`); the queue pair must be ready
    /// to receive by then. EINVAL unless [`EventKind::ConnectResponse`] came.
    pub fn establish(&self) -> Result<()> {
        Err(unfinished())
    }

    /// Ends a connection, or agrees to its end (`rdma_disconnect(3)`). Ends with
    /// [`EventKind::Disconnected`]. EINVAL without a connection.
    pub fn disconnect(&self) -> Result<()> {
        Err(unfinished())
    }

    /// Passes on that the queue pair raised [`CommEst`](irdma_transport::EventKind::CommEst): it
    /// counts as the peer's confirmation (`rdma_notify(3)`). EINVAL for another event or state.
    pub fn notify(&self, event: irdma_transport::EventKind) -> Result<()> {
        let _ = (event,);
        Err(unfinished())
    }

    /// How to move the connection's queue pair to `state`: INIT, RTR or RTS
    /// (`rdma_init_qp_attr(3)`). EINVAL for other states, or when the peer has not said enough.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        let _ = (state,);
        Err(unfinished())
    }

    /// Has its events go to `channel`, those that wait included (`rdma_migrate_id(3)`). Waits
    /// until the events that were handed out are acknowledged.
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        let _ = (channel,);
        Err(unfinished())
    }

    /// The TOS or traffic class of the connection (`RDMA_OPTION_ID_TOS`).
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        let _ = (tos,);
        Err(unfinished())
    }

    /// Shares the address with others that do not listen (`RDMA_OPTION_ID_REUSEADDR`). EINVAL
    /// once bound.
    pub fn set_reuseaddr(&self, reuse: bool) -> Result<()> {
        let _ = (reuse,);
        Err(unfinished())
    }

    /// Leaves IPv4 out of a bind to `::` (`RDMA_OPTION_ID_AFONLY`). EINVAL once bound.
    pub fn set_afonly(&self, only: bool) -> Result<()> {
        let _ = (only,);
        Err(unfinished())
    }

    /// The acknowledgement timeout of the connection, 4.096 us * 2^timeout
    /// (`RDMA_OPTION_ID_ACK_TIMEOUT`). EINVAL above 31 or for datagrams.
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<()> {
        let _ = (timeout,);
        Err(unfinished())
    }

    /// Ends it (`rdma_destroy_id(3)`), once every event about it is acknowledged: a peer that
    /// waits for an answer is refused, a connection ends, its events that wait are dropped.
    pub fn destroy(self) {}
}

fn unfinished() -> VerbsError {
    VerbsError::unsupported("connection management is not available")
}
