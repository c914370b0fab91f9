//! Messages that arrive: whose they are, and which connection they are about.

use irdma_wire::cm::{About, CmError, CmMessage, Drep, Dreq, Rej, reason};
use irdma_wire::mad::{MadError, MadHeader};
use irdma_wire::{Opcode, Operation, Packet, Position, Qpn, Service, mad};

use super::conn::{Conn, State};
use super::messages::{drep, way_back};
use super::{Cm, CmEventKind, CommId, ask_again, conn, tell};
use crate::cx::Cx;
use crate::error::DropReason;
use crate::io::{Disposition, Meta};

type Handled = Result<(), DropReason>;

impl Cm {
    /// Whether somebody else is to take a datagram to QP1. What is not well-formed nobody else
    /// wants.
    pub(crate) fn steer(&self, meta: &Meta, packet: &Packet<'_>) -> Option<Disposition> {
        let (_, message) = CmMessage::parse(packet.payload).ok()?;
        let (service, key) = match &message {
            CmMessage::Req(req) => (req.service, (meta.src, Some(req.ca_guid), req.local_id)),
            CmMessage::SidrReq(req) => (req.service, (meta.src, None, req.request_id)),
            _ => {
                let slot = CommId(message.remote_id()?).slot();
                let is_ours = [self.table.slot(), 0, Qpn::MULTICAST.slot()].contains(&slot);
                return (!is_ours).then_some(Disposition::Foreign(slot));
            }
        };
        let is_ours = self.table.of_request(&key).is_some()
            || self.table.listener(service, meta.dst).is_some();
        (!is_ours).then_some(Disposition::Unclaimed(service))
    }

    /// A datagram to QP1 that is for this endpoint, or that nobody else takes.
    pub(crate) fn receive(&mut self, cx: &mut Cx, meta: &Meta, packet: &Packet<'_>) {
        if let Err(reason) = self.try_receive(cx, meta, packet) {
            cx.drop_packet(reason);
        }
    }

    fn try_receive(&mut self, cx: &mut Cx, meta: &Meta, packet: &Packet<'_>) -> Handled {
        const SEND: Opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
        let deth = packet.headers.deth.filter(|_| packet.headers.bth.opcode == SEND);
        let deth = deth.ok_or(DropReason::Service)?;
        if deth.qkey != mad::QKEY {
            return Err(DropReason::QKey);
        }
        if deth.src_qpn != Qpn::GSI {
            return Err(DropReason::Source);
        }
        let (header, message) = CmMessage::parse(packet.payload).map_err(drop_reason)?;
        match message {
            CmMessage::Req(req) => self.on_req(cx, meta, &header, &req),
            CmMessage::Mra(mra) => self.on_mra(cx, meta, &mra),
            CmMessage::Rej(rej) => self.on_rej(cx, meta, &rej),
            CmMessage::Rep(rep) => self.on_rep(cx, meta, &header, &rep),
            CmMessage::Rtu(rtu) => self.on_rtu(cx, meta, &rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(cx, meta, &header, &dreq),
            CmMessage::Drep(drep) => self.on_drep(cx, meta, &drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(cx, meta, &header, &req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(cx, meta, &rep),
        }
    }

    /// The connection that a message with this side's id `id` is about. It must come from the
    /// connection's peer.
    pub(super) fn find(&mut self, meta: &Meta, id: u32) -> Result<&mut Conn, DropReason> {
        let conn = self.table.get_mut(CommId(id)).ok_or(DropReason::Stale)?;
        if (conn.path.dst(), conn.path.src()) != (meta.src, meta.dst) {
            return Err(DropReason::Source);
        }
        Ok(conn)
    }

    /// As [`Cm::find`], where the peer's id is known, and must be `remote_id`.
    pub(super) fn find_both(
        &mut self,
        meta: &Meta,
        id: u32,
        remote_id: u32,
    ) -> Result<&mut Conn, DropReason> {
        let conn = self.find(meta, id)?;
        if conn.remote_id != remote_id {
            return Err(DropReason::Stale);
        }
        Ok(conn)
    }

    fn on_rej(&mut self, cx: &mut Cx, meta: &Meta, rej: &Rej) -> Handled {
        let conn = self.find_rejected(meta, rej)?;
        let nobody_listens = rej.reason == reason::INVALID_SERVICE_ID;
        if conn.state == State::ReqSent && nobody_listens && ask_again(cx, conn) {
            return Ok(());
        }
        let (id, state, peer, service) = (conn.id, conn.state, conn.path.dst(), conn.service);
        match state {
            State::ReqSent | State::ReqRcvd | State::RepSent | State::RepRcvd => {
                self.enter_silently(id, State::Closed);
            }
            State::Established => {
                self.finish(cx, id);
            }
            State::DreqSent => {
                self.finish(cx, id);
                tell(cx, id, CmEventKind::Disconnected { answered: true });
                return Ok(());
            }
            _ => return Err(DropReason::Stale),
        }
        tracing::info!(
            "CM {id}: {peer} rejects service {service} in {state:?}: reason {}, {}",
            rej.reason,
            reason::text(rej.reason)
        );
        let private_data = rej.private_data.to_vec();
        tell(cx, id, CmEventKind::Rejected { reason: rej.reason, private_data });
        Ok(())
    }

    /// Who gives up waiting may not know this side's id, and who refuses may have none.
    fn find_rejected(&mut self, meta: &Meta, rej: &Rej) -> Result<&mut Conn, DropReason> {
        if rej.reason == reason::TIMEOUT && rej.remote_id == 0 {
            let mut guid = [0; 8];
            guid.copy_from_slice(&rej.info[..8]);
            let key = (meta.src, Some(u64::from_be_bytes(guid)), rej.local_id);
            let id = self.table.of_request(&key).ok_or(DropReason::Stale)?;
            let conn = self.find(meta, id.0)?;
            let waits = matches!(conn.state, State::ReqRcvd | State::RepSent);
            return if waits { Ok(conn) } else { Err(DropReason::Stale) };
        }
        let conn = self.find(meta, rej.remote_id)?;
        let knows_no_better =
            rej.local_id == 0 && matches!(conn.state, State::ReqSent | State::RepSent);
        let is_first = conn.remote_id == 0 && conn.state == State::ReqSent;
        if knows_no_better || is_first || conn.remote_id == rej.local_id {
            return Ok(conn);
        }
        Err(DropReason::Stale)
    }

    fn on_dreq(&mut self, cx: &mut Cx, meta: &Meta, header: &MadHeader, dreq: &Dreq) -> Handled {
        let conn = match self.find_both(meta, dreq.remote_id, dreq.local_id) {
            Ok(conn) => conn,
            // It knows a connection that this side does not: let it have its end.
            Err(DropReason::Stale) => return self.answer_drep(cx, meta, header, dreq),
            Err(reason) => return Err(reason),
        };
        if conn.local_qpn != dreq.remote_qpn {
            return Err(DropReason::Stale);
        }
        let id = conn.id;
        match conn.state {
            State::Established | State::RepSent | State::RepRcvd => {
                conn.transaction_id = header.transaction_id;
                self.enter_silently(id, State::DreqRcvd);
                let private_data = dreq.private_data.to_vec();
                tell(cx, id, CmEventKind::DisconnectRequested { private_data });
                Ok(())
            }
            // Both sides want the end, and now both know.
            State::DreqSent => {
                let message = drep(dreq.remote_id, dreq.local_id, &[]);
                let transaction = header.transaction_id;
                self.enter_answering(cx, id, State::Timewait, transaction, &message);
                self.enter_timewait(cx, id);
                tell(cx, id, CmEventKind::Disconnected { answered: true });
                Ok(())
            }
            State::Timewait if conn.last.is_some() => self.answer_again(cx, id),
            State::Timewait | State::Closed => self.answer_drep(cx, meta, header, dreq),
            State::DreqRcvd => Err(DropReason::Duplicate),
            _ => Err(DropReason::State),
        }
    }

    fn answer_drep(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        header: &MadHeader,
        dreq: &Dreq,
    ) -> Handled {
        let message = drep(dreq.remote_id, dreq.local_id, &[]);
        self.answer(cx, way_back(meta), Box::new(message.emit(header.transaction_id)))
    }

    fn on_drep(&mut self, cx: &mut Cx, meta: &Meta, drep: &Drep) -> Handled {
        let conn = self.find_both(meta, drep.remote_id, drep.local_id)?;
        let id = conn.id;
        match conn.state {
            State::DreqSent => {}
            // Both sides asked.
            State::Timewait => return Ok(()),
            _ => return Err(DropReason::Stale),
        }
        self.finish(cx, id);
        tell(cx, id, CmEventKind::Disconnected { answered: true });
        Ok(())
    }

    /// Ends a connection whose peer has forgotten it: its queue pair asks for another one
    /// (IBTA 12.9.8.3.1).
    pub(super) fn end_stale(&mut self, cx: &mut Cx, id: CommId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        if conn.state == State::Established {
            tracing::info!(
                "CM {id}: QP {} of {} begins another connection: this one is over",
                conn.remote_qpn,
                conn.path.dst()
            );
            self.disconnect(cx, id, &[]);
        }
    }

    /// Asks the peer to end an established connection.
    pub(super) fn disconnect(&mut self, cx: &mut Cx, id: CommId, private_data: &[u8]) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let message = super::messages::dreq(conn, private_data);
        let own = conn::own_transaction(id);
        self.enter_repeating(cx, id, State::DreqSent, own, &message);
    }

    /// Refuses a message of a peer that this side has no id for.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        header: &MadHeader,
        remote_id: u32,
        (about, reason): (About, u16),
    ) -> Handled {
        let message = super::messages::rej((0, remote_id), about, reason, &[]);
        self.answer(cx, way_back(meta), Box::new(message.emit(header.transaction_id)))
    }
}

fn drop_reason(error: CmError) -> DropReason {
    match error {
        CmError::Mad(MadError::Length(_)) => DropReason::Length,
        CmError::Class(_) => DropReason::Service,
        _ => DropReason::Malformed,
    }
}
