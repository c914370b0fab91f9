//! What the lane tells, handled under its lock: in order, and with nothing in between.

use std::net::SocketAddr;
use std::sync::Arc;

use irdma_transport::cm::{CmEvent, CmEventKind, CommId, ReplyInfo, RequestInfo};
use irdma_transport::{AddressVector, QpType};
use irdma_wire::Qpn;
use irdma_wire::cm::IpHeader;

use super::connect::ack_timeout;
use super::event::{EventKind, Param, Pending};
use super::param::{ConnInfo, UdInfo};
use super::resolve::device_of;
use super::state::{Conn, IdInner, Phase, Remote, State};
use super::table::Table;
use crate::engine::LaneInner;
use crate::handles::AhAttr;
use crate::port::PORT;

/// `ETIMEDOUT`, the status of what was never answered.
const TIMED_OUT: i32 = -110;

/// A new peer.
struct Caller {
    comm: CommId,
    qp_type: QpType,
    path: AddressVector,
    conn: Conn,
    /// Who asks, and then what the program says.
    private: Vec<u8>,
    param: Param,
}

impl Table {
    /// Handles what the lane tells.
    pub(crate) fn handle(&self, lane: &mut LaneInner, event: CmEvent) {
        let comm = event.id;
        let (listener, caller) = match event.kind {
            CmEventKind::Request { listener, request } => (listener, self.caller(comm, request)),
            CmEventKind::SidrRequest { listener, path, private_data, .. } => {
                (listener, datagram_caller(comm, path, private_data))
            }
            kind => {
                if let Some(id) = self.comm(comm) {
                    id.handle(kind);
                }
                return;
            }
        };
        let taken = self.get(listener).is_some_and(|id| id.take_in(self, caller));
        if !taken {
            let now = lane.now();
            lane.endpoint.cm_destroy(now, comm);
        }
    }

    fn caller(&self, comm: CommId, request: RequestInfo) -> Caller {
        let conn = Conn {
            remote: Some(Remote { qpn: request.remote_qpn, starting_psn: request.starting_psn }),
            rq_psn: self.random_psn(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            path_mtu: request.path_mtu,
        };
        let param = Param::Conn(ConnInfo {
            private: user_part(&request.private_data),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
            qpn: request.remote_qpn,
        });
        let RequestInfo { qp_type, path, private_data: private, .. } = request;
        Caller { comm, qp_type, path, conn, private, param }
    }
}

fn datagram_caller(comm: CommId, path: AddressVector, private: Vec<u8>) -> Caller {
    let ud = UdInfo { private: user_part(&private), ..UdInfo::default() };
    let (conn, param) = (Conn::default(), Param::Ud(ud));
    Caller { comm, qp_type: QpType::Ud, path, conn, private, param }
}

/// What the peer's program said.
fn user_part(private: &[u8]) -> Vec<u8> {
    private.get(IpHeader::LEN..).unwrap_or_default().to_vec()
}

impl IdInner {
    /// Makes an identifier of a new peer and tells the program; `false` if the peer is not
    /// wanted.
    fn take_in(self: &Arc<Self>, table: &Table, caller: Caller) -> bool {
        let mut state = self.state();
        let Some(new) = self.admit(table, &state, &caller) else { return false };
        table.add_comm(caller.comm, &new);
        state.waiting += 1;
        let peer = new.state().peer.map_or_else(String::new, |peer| peer.to_string());
        tracing::info!("connection manager: a new peer, {peer}");
        state.channel.push(Pending {
            subject: Arc::clone(self),
            kind: EventKind::ConnectRequest,
            status: 0,
            param: caller.param,
            new: Some(new),
        });
        true
    }

    fn admit(&self, table: &Table, state: &State, caller: &Caller) -> Option<Arc<IdInner>> {
        let local = state.local?;
        let header = IpHeader::parse(&caller.private)
            .inspect_err(|error| tracing::info!("connection manager: refused: {error}"))
            .ok()?;
        let full = state.waiting >= state.backlog;
        if state.phase != Phase::Listening || self.qp_type != caller.qp_type || full {
            tracing::info!(
                "connection manager: refused: a {:?} peer at {local}, where {} of {} wait",
                caller.qp_type,
                state.waiting,
                state.backlog
            );
            return None;
        }
        let channel = Arc::clone(&state.channel);
        let new = table.add(|token| IdInner::new(self.space, self.qp_type, token, channel));
        let mut peers = new.state();
        peers.phase = Phase::Connecting;
        peers.unaccepted = true;
        peers.local = Some(SocketAddr::new(header.dst, local.port()));
        peers.peer = Some(SocketAddr::new(header.src, header.src_port));
        peers.comm = Some(caller.comm);
        peers.path = Some(caller.path);
        peers.conn = caller.conn;
        peers.asked_at = state.bound.clone();
        drop(peers);
        Some(new)
    }

    /// Finds the device of a new peer's connection; called without the lane's lock.
    pub(super) fn find_device(&self, listener: &IdInner) {
        let Some(path) = self.state().path else { return };
        let known = listener.state().peers_device.clone().and_then(|device| {
            let index = device.gids().index_of(path.src())?;
            Some((device, index))
        });
        let Some((device, index)) = known.or_else(|| device_of(path.src()).ok()) else { return };
        listener.state().peers_device = Some(device.clone());
        let mut state = self.state();
        state.device = Some(device);
        state.path = Some(AddressVector { sgid_index: index, ..path });
    }

    /// Something happened to its connection, or attempt.
    fn handle(self: &Arc<Self>, kind: CmEventKind) {
        let mut state = self.state();
        let (kind, status, param) = match kind {
            CmEventKind::Response(reply) => state.on_response(reply),
            CmEventKind::SidrResponse { status, qpn, qkey, path, private_data } => {
                on_sidr_response(&state, status.into(), qpn, qkey, &path, private_data)
            }
            CmEventKind::Established => bare(EventKind::Established, 0),
            CmEventKind::Rejected { reason, private_data } => {
                let conn = ConnInfo { private: private_data, ..ConnInfo::default() };
                (EventKind::Rejected, reason.into(), Param::Conn(conn))
            }
            CmEventKind::Unreachable => bare(EventKind::Unreachable, TIMED_OUT),
            CmEventKind::DisconnectRequested { .. } | CmEventKind::Disconnected { .. } => {
                if std::mem::replace(&mut state.phase, Phase::Disconnected) != Phase::Connecting {
                    return;
                }
                let unanswered = matches!(kind, CmEventKind::Disconnected { answered: false });
                bare(EventKind::Disconnected, if unanswered { TIMED_OUT } else { 0 })
            }
            CmEventKind::TimewaitExit => bare(EventKind::TimewaitExit, 0),
            CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. } => return,
        };
        state.asked_at = None;
        if !state.unaccepted {
            self.tell(&state, kind, status, param);
        }
    }
}

fn bare(kind: EventKind, status: i32) -> (EventKind, i32, Param) {
    (kind, status, Param::Conn(ConnInfo::default()))
}

/// The way that datagrams to a peer take, and its queue pair; or that it does not want any.
fn on_sidr_response(
    state: &State,
    status: i32,
    qpn: Qpn,
    qkey: u32,
    path: &AddressVector,
    private: Vec<u8>,
) -> (EventKind, i32, Param) {
    let sgid_index = state.path.map_or(0, |path| path.sgid_index);
    let ah_attr = ah_attr(path, sgid_index);
    let kind = if status == 0 { EventKind::Established } else { EventKind::Unreachable };
    (kind, status, Param::Ud(UdInfo { private, ah_attr, qpn, qkey }))
}

fn ah_attr(path: &AddressVector, sgid_index: u8) -> AhAttr {
    AhAttr {
        dgid: path.dgid,
        sgid_index,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        port: PORT,
    }
}

impl State {
    /// The peer accepts: what it can do is what counts from now on.
    fn on_response(&mut self, reply: ReplyInfo) -> (EventKind, i32, Param) {
        let life_time = self.packet_life_time();
        let conn = &mut self.conn;
        conn.remote = Some(Remote { qpn: reply.remote_qpn, starting_psn: reply.starting_psn });
        conn.responder_resources = reply.responder_resources;
        conn.initiator_depth = reply.initiator_depth;
        conn.rnr_retry_count = reply.rnr_retry_count;
        conn.ack_timeout = ack_timeout(reply.target_ack_delay, life_time);
        let info = ConnInfo {
            private: reply.private_data,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            retry_count: 0,
            rnr_retry_count: reply.rnr_retry_count,
            srq: reply.srq,
            qpn: reply.remote_qpn,
        };
        (EventKind::ConnectResponse, 0, Param::Conn(info))
    }
}
