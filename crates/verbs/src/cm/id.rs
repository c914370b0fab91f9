//! Communication identifiers: what a socket is to TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use irdma_transport::{AttrMask, QpAttr, QpState, QpType, Result, VerbsError};
use irdma_wire::cm::PortSpace;

use super::channel::EventChannel;
#[allow(unused_imports, reason = "documentation links to it")]
use super::event::EventKind;
use super::param::{ConnParam, Path};
use super::state::{IdInner, Phase, State};
use crate::device::Device;
use crate::engine::{Engine, Lane};
use crate::log::Logged;
use crate::port::PORT;
use crate::process::EngineUse;

/// The largest acknowledgement timeout: the field has 5 bits.
const MAX_TIMEOUT: u8 = 31;

/// A communication identifier (`struct rdma_cm_id`). Dropping it ends it without waiting.
#[derive(Debug)]
pub struct Id {
    pub(super) inner: Arc<IdInner>,
    engine: Arc<EngineUse>,
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
        Self::try_create(channel, space, qp_type).logged("create_id")
    }

    fn try_create(channel: Option<&EventChannel>, space: PortSpace, qp_type: QpType) -> Result<Id> {
        if !matches!(qp_type, QpType::Rc | QpType::Uc | QpType::Ud) {
            return Err(VerbsError::invalid(format!("queue pairs of type {qp_type:?}")));
        }
        let channel = match channel {
            Some(channel) => channel.clone(),
            None => EventChannel::create_event_channel()?,
        };
        channel.engine.check_fork()?;
        let EventChannel { queue, engine } = channel;
        let inner = engine.targets.cm.add(|token| IdInner::new(space, qp_type, token, queue));
        Ok(Id { inner, engine })
    }

    /// The handle of a new peer's identifier.
    pub(super) fn of_peer(inner: Arc<IdInner>, channel: &EventChannel) -> Id {
        Id { inner, engine: Arc::clone(&channel.engine) }
    }

    /// Where its events go.
    pub fn channel(&self) -> EventChannel {
        let queue = Arc::clone(&self.inner.state().channel);
        EventChannel { queue, engine: Arc::clone(&self.engine) }
    }

    /// The number that events name it by.
    pub fn set_cookie(&self, cookie: u64) {
        self.inner.set_cookie(cookie);
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
        self.inner.state().local
    }

    /// The peer's address and port, once known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.state().peer
    }

    /// The device, once an address of it is bound or resolved.
    pub fn device(&self) -> Option<Device> {
        self.inner.state().device.clone()
    }

    /// The port of the device, 1; 0 as long as there is none.
    pub fn port(&self) -> u8 {
        self.inner.state().device.as_ref().map_or(0, |_| PORT)
    }

    /// The way to the peer, once the route is resolved or the peer has asked.
    pub fn path(&self) -> Option<Path> {
        let state = self.inner.state();
        let known =
            matches!(state.phase, Phase::RouteResolved | Phase::Connecting | Phase::Disconnected);
        state.path.filter(|_| known).map(|av| Path {
            sgid: av.sgid,
            sgid_index: av.sgid_index,
            dgid: av.dgid,
            flow_label: av.flow_label,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
            mtu: state.conn.path_mtu,
            packet_life_time: state.packet_life_time(),
        })
    }

    /// Binds to a local address and port (`rdma_bind_addr(3)`): 0.0.0.0 or :: for all addresses,
    /// of both kinds unless [`Id::set_afonly`]; port 0 for a free one.
    ///
    /// EINVAL if it is bound, EADDRINUSE for a port that another one has, EADDRNOTAVAIL for an
    /// address that no interface has, ENODEV for one that no device has.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<()> {
        self.try_bind(addr).logged("bind_addr")
    }

    /// Finds the device and the source address towards `dst` (`rdma_resolve_addr(3)`), binding to
    /// `src` if that is not done; an unspecified `dst` is this host. Ends with
    /// [`EventKind::AddrResolved`], or [`EventKind::AddrError`] where the source is no device's.
    /// `timeout` limits what takes no time here.
    ///
    /// EINVAL in another state or for addresses of two kinds, ENETUNREACH or EHOSTUNREACH without
    /// a route, and what [`Id::bind_addr`] answers.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        _timeout: Duration,
    ) -> Result<()> {
        self.try_resolve_addr(src, dst).logged("resolve_addr")
    }

    /// Settles the way to the peer (`rdma_resolve_route(3)`). Ends with
    /// [`EventKind::RouteResolved`]. EINVAL unless the address is resolved.
    pub fn resolve_route(&self, _timeout: Duration) -> Result<()> {
        self.try_resolve_route().logged("resolve_route")
    }

    /// Waits for peers (`rdma_listen(3)`), who come as [`EventKind::ConnectRequest`]; up to
    /// `backlog` of them may wait for the program, 0 for 1024. Binds to a free port of 0.0.0.0 if
    /// that is not done.
    ///
    /// EINVAL in another state, EADDRINUSE if another one listens there.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.try_listen(backlog).logged("listen")
    }

    /// Asks the peer for a connection, or for datagrams for its queue pair (`rdma_connect(3)`).
    /// Ends with [`EventKind::ConnectResponse`] (datagrams: [`EventKind::Established`]),
    /// [`EventKind::Rejected`] or [`EventKind::Unreachable`].
    ///
    /// EINVAL unless the route is resolved, for too much private data, or resources above the
    /// device's.
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        self.try_connect(param).logged("connect")
    }

    /// Accepts a peer (`rdma_accept(3)`). Ends with [`EventKind::Established`], which datagrams do
    /// not have.
    ///
    /// EINVAL unless it is a new peer's, for too much private data, or resources above the
    /// device's.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        self.try_accept(param).logged("accept")
    }

    /// Refuses a peer, or its answer (`rdma_reject(3)`), with up to 148 bytes, datagrams 136.
    /// EINVAL in another state.
    pub fn reject(&self, private: &[u8]) -> Result<()> {
        self.try_reject(private).logged("reject")
    }

    /// Tells the peer that its answer arrived (`rdma_establish(3)`); the queue pair must be ready
    /// to receive by then. EINVAL unless [`EventKind::ConnectResponse`] came.
    pub fn establish(&self) -> Result<()> {
        self.try_establish().logged("establish")
    }

    /// Ends a connection, or agrees to its end (`rdma_disconnect(3)`). Ends with
    /// [`EventKind::Disconnected`]; of one that has ended, or of an attempt, nothing happens.
    /// EINVAL without any.
    pub fn disconnect(&self) -> Result<()> {
        self.try_disconnect().logged("disconnect")
    }

    /// Passes on that the queue pair raised [`CommEst`](irdma_transport::EventKind::CommEst),
    /// which counts as the peer's confirmation (`rdma_notify(3)`). EINVAL for another event or
    /// state.
    pub fn notify(&self, event: irdma_transport::EventKind) -> Result<()> {
        self.try_notify(event).logged("notify")
    }

    /// How to move the connection's queue pair to `state`: INIT, RTR or RTS
    /// (`rdma_init_qp_attr(3)`). EINVAL for other states, or when the peer has not said enough.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask)> {
        self.try_init_qp_attr(state).logged("init_qp_attr")
    }

    /// Has its events go to `channel`, those that wait included (`rdma_migrate_id(3)`). Waits
    /// until the events that were handed out are acknowledged.
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        self.engine.check_fork().logged("migrate")?;
        let mut state = self.inner.state();
        for event in state.channel.take_all(|event| Arc::ptr_eq(&event.subject, &self.inner)) {
            channel.queue.push(event);
        }
        state.channel = Arc::clone(&channel.queue);
        drop(state);
        self.inner.unacked.wait();
        Ok(())
    }

    /// The TOS or traffic class of the connection (`RDMA_OPTION_ID_TOS`), for routes that are
    /// resolved from now on.
    pub fn set_tos(&self, tos: u8) {
        self.inner.state().options.tos = tos;
    }

    /// Shares the port with others that do the same, as long as none listens
    /// (`RDMA_OPTION_ID_REUSEADDR`). EINVAL once bound.
    pub fn set_reuseaddr(&self, reuse: bool) -> Result<()> {
        self.with_idle("set_reuseaddr", |state| state.options.reuseaddr = reuse)
    }

    /// Keeps a bind to 0.0.0.0 or :: to addresses of its kind (`RDMA_OPTION_ID_AFONLY`). EINVAL
    /// once bound.
    pub fn set_afonly(&self, only: bool) -> Result<()> {
        self.with_idle("set_afonly", |state| state.options.afonly = only)
    }

    fn with_idle(&self, call: &str, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.inner.state();
        state.check(Phase::Idle, call).logged(call)?;
        change(&mut state);
        Ok(())
    }

    /// The acknowledgement timeout of the connection, 4.096 us * 2^timeout
    /// (`RDMA_OPTION_ID_ACK_TIMEOUT`). EINVAL above 31 or for datagrams.
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<()> {
        if timeout > MAX_TIMEOUT || self.inner.is_datagram() {
            let refused = format!("timeout {timeout}: 0 to {MAX_TIMEOUT}, and not for datagrams");
            return Err(VerbsError::invalid(refused)).logged("set_ack_timeout");
        }
        self.inner.state().options.ack_timeout = Some(timeout);
        Ok(())
    }

    /// Ends it (`rdma_destroy_id(3)`), once every event about it is acknowledged: a peer that
    /// waits for an answer is refused, a connection ends, its events that wait are dropped.
    pub fn destroy(self) {
        self.end();
        if self.engine.check_fork().is_ok() {
            self.inner.unacked.wait();
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The lane. EIO in a forked child.
    pub(super) fn lane(&self) -> Result<Arc<Lane>> {
        self.engine.check_fork()?;
        self.engine.lane()
    }

    /// Ends it for the peer, as [`Id::destroy`] does, without waiting; nothing happens to it
    /// afterwards. So end those that a C program has when it exits, or destroys their channel.
    pub fn abandon(&self) {
        self.end();
    }

    fn end(&self) {
        if self.engine.check_fork().is_err() {
            return;
        }
        let cm = &self.engine.targets.cm;
        match self.engine.lane_if_open() {
            Some(lane) => self.inner.end(Some(&mut lane.lock()), cm),
            None => self.inner.end(None, cm),
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.end();
    }
}
