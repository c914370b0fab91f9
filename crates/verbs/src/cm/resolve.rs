//! Addresses: binding to one's own, listening, finding the way to the peer's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use irdma_net::port::{PortName, ephemeral_port};
use irdma_net::route;
use irdma_transport::{AddressVector, ErrorKind, Result, VerbsError};
use irdma_wire::Gid;
use irdma_wire::cm::ServiceId;

use super::event::EventKind;
use super::id::Id;
use super::ports::Held;
use super::state::{Phase, State};
use crate::device::Device;
use crate::engine::Lane;
use crate::handles::is_link_scoped;
use crate::port::PORT;
use crate::system::system_error;

/// What is asked for where nothing else is: the kernel's limit on new peers that wait.
const MAX_BACKLOG: u32 = 1024;
/// What the kernel sets on unicast.
const HOP_LIMIT: u8 = 64;

impl Id {
    pub(super) fn try_bind(&self, addr: SocketAddr) -> Result<()> {
        self.engine().check_fork()?;
        self.bind(&mut self.inner.state(), addr)?;
        if let Err(error) = self.watch_port() {
            let state = &mut *self.inner.state();
            (state.local, state.bound, state.device) = (None, None, None);
            state.phase = Phase::Idle;
            return Err(error);
        }
        // Programs tell their peers the port before they listen, and then it must not take long.
        // What cannot be opened now is refused when it is needed.
        let _ = self.lane().map(|lane| self.open_local(&lane, addr.ip()));
        Ok(())
    }

    /// Takes in the requests for its port, which are refused unless it listens.
    fn watch_port(&self) -> Result<()> {
        let Some(held) = self.inner.state().bound.clone() else { return Ok(()) };
        let watched = self.lane()?.lock().watch_port(held.port());
        watched.map_err(|error| system_error("no port", &error))
    }

    fn bind(&self, state: &mut State, addr: SocketAddr) -> Result<()> {
        state.check(Phase::Idle, "bind_addr")?;
        let device = match addr.ip().is_unspecified() {
            true => None,
            false => Some(local_device(addr)?),
        };
        let (local, bound) = self.take_port(state, addr)?;
        (state.local, state.bound) = (Some(local), bound);
        state.device = device;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Takes the port of `addr`, or a free one for 0. One that is to be shared is taken by whoever
    /// listens.
    fn take_port(
        &self,
        state: &State,
        addr: SocketAddr,
    ) -> Result<(SocketAddr, Option<Arc<Held>>)> {
        let ports = &self.engine().targets.cm.ports;
        let (space, scope) = (self.inner.space as u16, state.scope(addr.ip()));
        let name = PortName { space, port: addr.port(), scope };
        if addr.port() != 0 && state.options.reuseaddr {
            ports.check_free(name)?;
            return Ok((addr, None));
        }
        let held = match addr.port() {
            0 => ports.bind_any(space, scope, self.engine().targets.cm.random())?,
            _ => ports.bind(name)?,
        };
        let mut local = addr;
        local.set_port(held.port().name().port);
        Ok((local, Some(held)))
    }

    pub(super) fn try_listen(&self, backlog: u32) -> Result<()> {
        let lane = self.lane()?;
        let mut state = self.inner.state();
        if state.phase == Phase::Idle {
            self.bind(&mut state, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        state.check(Phase::Bound, "listen")?;
        let Some(local) = state.local else { return Err(unbound()) };
        self.take_shared_port(&mut state, local)?;
        drop(state);
        self.watch_port()?;
        self.start_listening(&lane, local, backlog)?;
        self.open_local(&lane, local.ip()).inspect_err(|_| self.stop_listening(&lane))
    }

    fn take_shared_port(&self, state: &mut State, local: SocketAddr) -> Result<()> {
        if state.bound.is_none() {
            let (space, scope) = (self.inner.space as u16, state.scope(local.ip()));
            let name = PortName { space, port: local.port(), scope };
            state.bound = Some(self.engine().targets.cm.ports.bind(name)?);
        }
        Ok(())
    }

    /// Opens what requests arrive at.
    fn open_local(&self, lane: &Lane, addr: IpAddr) -> Result<()> {
        if !addr.is_unspecified() {
            let (device, _) = device_of(addr)?;
            return self.engine().open_address(&device, addr);
        }
        self.engine().start_background();
        for device in Device::list()? {
            device.mode().check_roce("connection management yet")?;
            // What cannot be opened is logged, and costs only its own traffic.
            let _ = lane.open_device(&device);
        }
        Ok(())
    }

    fn start_listening(&self, lane: &Lane, local: SocketAddr, backlog: u32) -> Result<()> {
        let mut lane = lane.lock();
        let mut state = self.inner.state();
        state.check(Phase::Bound, "listen")?;
        let service = ServiceId::rdma_ip(self.inner.space, local.port());
        let addr = Some(local.ip()).filter(|_| !state.is_wildcard() || state.options.afonly);
        lane.endpoint.cm_listen(self.inner.token, service, addr)?;
        state.backlog = if (1..MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        state.phase = Phase::Listening;
        if state.is_wildcard() {
            self.engine().targets.cm.note_everywhere(true);
        }
        Ok(())
    }

    fn stop_listening(&self, lane: &Lane) {
        let mut lane = lane.lock();
        let mut state = self.inner.state();
        // It may have ended meanwhile, or its device be gone.
        if state.phase != Phase::Listening {
            return;
        }
        lane.endpoint.cm_unlisten(self.inner.token);
        if state.is_wildcard() {
            self.engine().targets.cm.note_everywhere(false);
        }
        state.phase = Phase::Bound;
    }

    pub(super) fn try_resolve_addr(&self, src: Option<SocketAddr>, dst: SocketAddr) -> Result<()> {
        self.engine().check_fork()?;
        let mut state = self.inner.state();
        if state.phase == Phase::Idle {
            self.bind_client(&mut state, src, dst)?;
        }
        state.check(Phase::Bound, "resolve_addr")?;
        let Some(local) = state.local else { return Err(unbound()) };
        if local.is_ipv4() != dst.is_ipv4() {
            return Err(VerbsError::invalid(format!(
                "resolve_addr: {local} and {dst} are of different IP versions"
            )));
        }
        let dst = here_if_unspecified(dst);
        let src = Some(local).filter(|local| !local.ip().is_unspecified());
        let source = route::source_for(dst, src).map_err(|error| no_route(dst, &error))?;
        drop(state);
        self.watch_port()?;
        self.settle_addr(source, dst)
    }

    /// Binds to the given source, without a port of its own if none is given.
    fn bind_client(
        &self,
        state: &mut State,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<()> {
        let src = src.unwrap_or(match dst {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => SocketAddrV6::new([0; 8].into(), 0, 0, 0).into(),
        });
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(VerbsError::invalid(format!(
                "resolve_addr: {src} and {dst} are of different IP versions"
            )));
        }
        if src.port() != 0 {
            return self.bind(state, src);
        }
        if !src.ip().is_unspecified() {
            state.device = Some(local_device(src)?);
        }
        let mut local = src;
        local.set_port(ephemeral_port(self.engine().targets.cm.random()));
        (state.local, state.phase) = (Some(local), Phase::Bound);
        Ok(())
    }

    /// Finds the device of the source address, and opens it for the peer's answers.
    fn settle_addr(&self, source: IpAddr, dst: SocketAddr) -> Result<()> {
        let found = device_of(source).and_then(|(device, index)| {
            device.mode().check_roce("connection management yet")?;
            self.engine().open_address(&device, source)?;
            Ok((device, index))
        });
        let mut state = self.inner.state();
        state.check(Phase::Bound, "resolve_addr")?;
        match found {
            Ok((device, index)) => {
                state.path = Some(way(&device, source, index, dst.ip(), state.options.tos));
                state.device = Some(device);
                state.local = state.local.map(|local| with_ip(local, source));
                state.peer = Some(dst);
                state.phase = Phase::AddrResolved;
                self.inner.tell_only(&state, EventKind::AddrResolved, 0);
            }
            Err(error) => {
                tracing::info!("resolve_addr to {dst}: {error}");
                self.inner.tell_only(&state, EventKind::AddrError, -error.errno());
            }
        }
        Ok(())
    }

    pub(super) fn try_resolve_route(&self) -> Result<()> {
        self.engine().check_fork()?;
        let mut state = self.inner.state();
        state.check(Phase::AddrResolved, "resolve_route")?;
        let Some(device) = state.device.clone() else { return Err(unbound()) };
        state.conn.path_mtu = device.query_port(PORT)?.active_mtu;
        let tos = state.options.tos;
        state.path = state.path.map(|path| AddressVector { traffic_class: tos, ..path });
        state.phase = Phase::RouteResolved;
        self.inner.tell_only(&state, EventKind::RouteResolved, 0);
        Ok(())
    }
}

/// The device that has an address now, and the address's index there. ENODEV without one.
pub(super) fn device_of(addr: IpAddr) -> Result<(Device, u8)> {
    let found = Device::list()?.into_iter().find_map(|device| {
        let index = device.gids().index_of(addr)?;
        Some((device, index))
    });
    found.ok_or_else(|| {
        let text = format!("{addr} belongs to no RDMA device; `irdma devices` lists them");
        VerbsError::new(ErrorKind::NoDevice, text)
    })
}

/// The device of an address to bind to.
fn local_device(addr: SocketAddr) -> Result<Device> {
    let local = route::is_local(addr).map_err(|error| no_route(addr, &error))?;
    if !local {
        let text = format!("no interface has address {}", addr.ip());
        return Err(VerbsError::new(ErrorKind::AddressNotAvailable, text));
    }
    let (device, _) = device_of(addr.ip())?;
    device.mode().check_roce("connection management yet")?;
    Ok(device)
}

/// The way from a device's address to a peer.
pub(super) fn way(
    device: &Device,
    source: IpAddr,
    sgid_index: u8,
    dst: IpAddr,
    tos: u8,
) -> AddressVector {
    AddressVector {
        dgid: Gid::from(dst),
        sgid_index,
        sgid: Gid::from(source),
        flow_label: 0,
        traffic_class: tos,
        hop_limit: HOP_LIMIT,
        sl: 0,
        scope: if is_link_scoped(dst) { device.netdev_index() } else { 0 },
    }
}

fn with_ip(mut addr: SocketAddr, ip: IpAddr) -> SocketAddr {
    addr.set_ip(ip);
    addr
}

/// The kernel's rule: no address at all is this host.
fn here_if_unspecified(dst: SocketAddr) -> SocketAddr {
    match dst.ip().is_unspecified() {
        true => with_ip(dst, route::loopback_like(dst.ip())),
        false => dst,
    }
}

fn no_route(dst: SocketAddr, error: &io::Error) -> VerbsError {
    system_error(&format!("no way to {}", dst.ip()), error)
}

fn unbound() -> VerbsError {
    VerbsError::invalid("the identifier is not bound")
}
