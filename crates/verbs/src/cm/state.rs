//! What an identifier knows and where it stands.
//!
//! Lock order: lane, then state, then channel. What the lane tells is handled under its lock, so
//! that it comes in order; a call that uses the lane takes it before it looks at the state.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use irdma_net::port::Scope;
use irdma_transport::cm::CommId;
use irdma_transport::{AddressVector, QpType, Result, VerbsError};
use irdma_wire::cm::PortSpace;
use irdma_wire::{Psn, Qpn};

use super::event::{EventKind, Param, Pending};
use super::param::ConnInfo;
use super::ports::Held;
use super::table::Table;
use crate::channel::EventQueue;
use crate::device::Device;
use crate::engine::LaneInner;
use crate::life::Unacked;

/// Exponent of the time that a packet may live in a RoCE network, as the kernel assumes.
pub(super) const PACKET_LIFE_TIME: u8 = 16;

/// Where an identifier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// A connection is being made, or there is one.
    Connecting,
    Disconnected,
    /// Its device is gone.
    Removed,
    Ended,
}

#[derive(Debug)]
pub(crate) struct IdInner {
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    /// Names it in the tables.
    pub(super) token: u64,
    cookie: AtomicU64,
    pub(super) unacked: Unacked,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) channel: Arc<EventQueue<Pending>>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) device: Option<Device>,
    /// The port that it is bound to.
    pub(super) bound: Option<Arc<Held>>,
    /// A peer's identifier that the program has not accepted: it hears of nothing.
    pub(super) unaccepted: bool,
    /// The listener's port, while the peer may ask anew.
    pub(super) asked_at: Option<Arc<Held>>,
    pub(super) options: Options,
    pub(super) comm: Option<CommId>,
    pub(super) path: Option<AddressVector>,
    pub(super) conn: Conn,
    /// New peers that wait for the program, and how many may.
    pub(super) waiting: u32,
    pub(super) backlog: u32,
    /// The device that was found for the last new peer.
    pub(super) peers_device: Option<Device>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) reuseaddr: bool,
    pub(super) afonly: bool,
    pub(super) tos: u8,
    pub(super) ack_timeout: Option<u8>,
}

/// What both sides have said about the connection, as its queue pair needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conn {
    pub(super) remote: Option<Remote>,
    /// The PSN that the peer's first packet shall have: each side chooses the other's.
    pub(super) rq_psn: Psn,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: u8,
    /// In bytes.
    pub(super) path_mtu: u32,
}

/// The peer's queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) qpn: Qpn,
    /// The PSN that it wants first.
    pub(super) starting_psn: Psn,
}

impl IdInner {
    pub(super) fn new(
        space: PortSpace,
        qp_type: QpType,
        token: u64,
        channel: Arc<EventQueue<Pending>>,
    ) -> Self {
        let state = State {
            phase: Phase::Idle,
            channel,
            local: None,
            peer: None,
            device: None,
            bound: None,
            unaccepted: false,
            asked_at: None,
            options: Options::default(),
            comm: None,
            path: None,
            conn: Conn::default(),
            waiting: 0,
            backlog: 0,
            peers_device: None,
        };
        IdInner {
            space,
            qp_type,
            token,
            cookie: AtomicU64::new(0),
            unacked: Unacked::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    pub(super) fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Release);
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new peer was handed to the program.
    pub(super) fn note_delivery(&self) {
        self.state().waiting -= 1;
    }

    /// Ends it: nothing names it any more, and peers that the program has not seen yet end with
    /// it. Without a lane there never was a peer.
    pub(super) fn end(self: &Arc<Self>, mut lane: Option<&mut LaneInner>, table: &Table) {
        let mut state = self.state();
        let phase = std::mem::replace(&mut state.phase, Phase::Ended);
        if phase == Phase::Ended {
            return;
        }
        table.remove(self.token);
        if let Some(lane) = &mut lane {
            state.leave(self.token, phase, lane, table);
        }
        if let Some(bound) = state.bound.take() {
            bound.unbind();
        }
        let waiting = state.channel.take_all(|event| Arc::ptr_eq(&event.subject, self));
        drop(state);
        for new in waiting.into_iter().filter_map(|event| event.new) {
            new.end(lane.as_deref_mut(), table);
        }
    }

    /// A device is gone. If it stands on it, peers are told as when it ends.
    pub(super) fn device_removed(
        self: &Arc<Self>,
        lane: &mut LaneInner,
        table: &Table,
        name: &str,
    ) {
        let mut state = self.state();
        let stands = state.device.as_ref().is_some_and(|device| device.name() == name);
        if !stands || matches!(state.phase, Phase::Removed | Phase::Ended) {
            return;
        }
        let phase = std::mem::replace(&mut state.phase, Phase::Removed);
        state.leave(self.token, phase, lane, table);
        if !state.unaccepted {
            self.tell_only(&state, EventKind::DeviceRemoval, 0);
        }
    }

    /// Tells the program what happened.
    pub(super) fn tell(
        self: &Arc<Self>,
        state: &State,
        kind: EventKind,
        status: i32,
        param: Param,
    ) {
        let peer = state.peer.map_or_else(|| "none".into(), |peer| peer.to_string());
        tracing::info!("connection manager: {kind:?}, status {status}, peer {peer}");
        let subject = Arc::clone(self);
        state.channel.push(Pending { subject, kind, status, param, new: None });
    }

    /// As [`IdInner::tell`], of something that the peer said nothing about.
    pub(super) fn tell_only(self: &Arc<Self>, state: &State, kind: EventKind, status: i32) {
        self.tell(state, kind, status, Param::Conn(ConnInfo::default()));
    }
}

impl State {
    /// Leaves the tables, and tells a peer that waits.
    fn leave(&mut self, token: u64, phase: Phase, lane: &mut LaneInner, table: &Table) {
        if phase == Phase::Listening {
            lane.endpoint.cm_unlisten(token);
            if self.is_wildcard() {
                table.note_everywhere(false);
            }
        }
        if let Some(comm) = self.comm.take() {
            table.remove_comm(comm);
            let now = lane.now();
            lane.endpoint.cm_destroy(now, comm);
        }
        self.asked_at = None;
    }

    /// Whether it is bound to all addresses, those to come among them.
    pub(super) fn is_wildcard(&self) -> bool {
        self.local.is_some_and(|local| local.ip().is_unspecified())
    }

    /// EINVAL unless it stands at `phase`.
    pub(super) fn check(&self, phase: Phase, call: &str) -> Result<()> {
        if self.phase != phase {
            return Err(VerbsError::invalid(format!(
                "{call}: the identifier is {:?}, not {phase:?}",
                self.phase
            )));
        }
        Ok(())
    }

    /// The connection, or attempt. EINVAL without one.
    pub(super) fn comm(&self, call: &str) -> Result<CommId> {
        let live = matches!(self.phase, Phase::Connecting | Phase::Disconnected);
        self.comm.filter(|_| live).ok_or_else(|| {
            VerbsError::invalid(format!("{call}: the identifier is {:?}, without peer", self.phase))
        })
    }

    /// The device and the way to the peer. EINVAL without them.
    pub(super) fn way(&self) -> Result<(Device, AddressVector)> {
        let way = self.device.clone().zip(self.path);
        way.ok_or_else(|| VerbsError::invalid("the identifier's device is gone"))
    }

    /// Which requests are for it.
    pub(super) fn scope(&self, addr: IpAddr) -> Scope {
        match addr {
            addr if !addr.is_unspecified() => Scope::Address(addr),
            _ if !self.options.afonly => Scope::Any,
            IpAddr::V4(_) => Scope::V4,
            IpAddr::V6(_) => Scope::V6,
        }
    }

    pub(super) fn packet_life_time(&self) -> u8 {
        self.options.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1))
    }
}
