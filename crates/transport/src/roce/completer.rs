//! The completer: responses to completions (IBTA 9.7.3, 9.7.5.2).

use irdma_mem::scatter;
use irdma_wire::aeth::credit_count;
use irdma_wire::{Aeth, NakCode, Operation, Packet, Psn, Syndrome};

use super::packet_room;
use crate::cx::Cx;
use crate::error::DropReason;
use crate::qp::{Qp, QpState};
use crate::wc::WcStatus;

/// Requests on their way after which a receiver that was not ready counts as ready.
const RNR_LIMIT: u32 = 256;

/// How far an acknowledgement reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All of what it covers.
    All,
    /// A READ or atomic before it is unanswered: its response was lost.
    Gap,
}

impl Qp {
    /// A response packet for this queue pair's requester.
    pub(crate) fn handle_response(&mut self, cx: &mut Cx, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let live = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        if !live || !psn.precedes(self.req.sent) || psn.precedes(self.req.una.sub(1)) {
            return cx.drop_packet(DropReason::Stale);
        }
        match (packet.headers.bth.opcode.operation, packet.headers.aeth) {
            (Operation::Ack, Some(aeth)) => self.handle_ack(cx, psn, aeth),
            (Operation::AtomicAck, Some(_)) => {
                let original = packet.headers.atomic_ack.unwrap_or_default();
                self.handle_read_data(cx, psn, &original.to_ne_bytes(), true);
            }
            (Operation::ReadResponse, _) => self.handle_read_data(cx, psn, packet.payload, false),
            _ => cx.drop_packet(DropReason::Stale),
        }
        self.after_progress(cx);
    }

    fn handle_ack(&mut self, cx: &mut Cx, psn: Psn, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::Ack { credit } => {
                self.req.credits = credit_count(credit);
                if self.acknowledge(cx, psn.add(1)) == Reach::Gap {
                    self.implied_nak(cx);
                }
            }
            Syndrome::Reserved(_) => cx.drop_packet(DropReason::Stale),
            // A negative answer covers all that lies before it, as a positive one does.
            _ if self.acknowledge(cx, psn) == Reach::Gap => self.implied_nak(cx),
            Syndrome::Rnr { timer } => self.handle_rnr(cx, psn, timer),
            Syndrome::Nak(code) => self.handle_nak(cx, psn, code),
        }
    }

    fn handle_nak(&mut self, cx: &mut Cx, psn: Psn, code: NakCode) {
        if psn.precedes(self.req.una) || !self.req.outstanding() {
            return cx.drop_packet(DropReason::Stale);
        }
        let status = match code {
            NakCode::PsnSequence => {
                cx.stats.nak_sequence_error += 1;
                return self.go_back(cx);
            }
            NakCode::RemoteAccess => WcStatus::RemAccessErr,
            NakCode::RemoteOperational => WcStatus::RemOpErr,
            NakCode::InvalidRequest | NakCode::InvalidRdRequest | NakCode::Other(_) => {
                WcStatus::RemInvReqErr
            }
        };
        if let Some(wqe) = self.sq.front() {
            tracing::info!(
                "QP {}: WR {}: QP {} refused {} at PSN {psn}: {code:?}; if it is irdma, its log says why",
                self.qpn,
                wqe.wr_id,
                self.attr.dest_qpn,
                wqe.op
            );
        }
        self.fail_front_send(cx, status);
    }

    /// Everything before `to` has arrived, but no READ or atomic is complete without its data.
    fn acknowledge(&mut self, cx: &mut Cx, to: Psn) -> Reach {
        while let Some(front) = self.sq.front() {
            if !front.started() || !self.req.una.precedes(to) {
                break;
            }
            if front.op.is_read_or_atomic() {
                return Reach::Gap;
            }
            let end = front.end();
            let upto = if end.precedes(to) { end } else { to };
            let packets = upto.distance(self.req.una) as u32;
            self.on_progress(upto);
            self.release_in_flight(cx, packets, true);
            if upto == end {
                self.retire_front(cx);
            }
        }
        Reach::All
    }

    fn retire_front(&mut self, cx: &mut Cx) {
        self.complete_front_send(cx, WcStatus::Success);
        let doubled = self.req.after_rnr.map(|most| most * 2);
        self.req.after_rnr = doubled.filter(|most| *most < RNR_LIMIT);
        if let Some(status) = self.sq.front().and_then(|wqe| wqe.failure) {
            self.fail_front_send(cx, status);
        }
    }

    fn on_progress(&mut self, una: Psn) {
        self.req.una = una;
        // Going back rewinds the cursor to `una`; an acknowledgement of what was sent before then
        // overtakes it.
        self.skip_cursor_to_una();
        self.req.rewound_at = None;
        (self.req.retry_left, self.req.timeouts) = (self.attr.retry_cnt, 0);
        self.req.rnr_left = self.attr.rnr_retry;
        self.req.ack_deadline = None;
    }

    fn skip_cursor_to_una(&mut self) {
        let (at, packet) = self.req.cursor;
        if at != 0 {
            return;
        }
        let Some(front) = self.sq.front().filter(|wqe| wqe.started()) else {
            return;
        };
        let done = self.req.una.distance(front.psn);
        if done > 0 && done as u32 > packet {
            let done = done as u32;
            if done >= front.packets {
                self.req.pass(front);
            } else {
                self.req.cursor = (0, done);
            }
        }
    }

    /// READ response or atomic acknowledgement: data for the oldest unanswered request.
    fn handle_read_data(&mut self, cx: &mut Cx, psn: Psn, data: &[u8], atomic: bool) {
        // Responses are in order, so this one acknowledges the SENDs and WRITEs before it.
        if self.acknowledge(cx, psn) == Reach::Gap {
            return self.implied_nak(cx);
        }
        let Some(wqe) = self.sq.front() else {
            return cx.drop_packet(DropReason::Stale);
        };
        if psn != self.req.una
            || !wqe.started()
            || wqe.op.is_atomic() != atomic
            || !wqe.op.is_read_or_atomic()
        {
            return cx.drop_packet(DropReason::Stale);
        }
        let mtu = u64::from(self.attr.path_mtu);
        let offset = psn.distance(wqe.psn) as u64 * mtu;
        let expected = u64::from(wqe.response_len()).saturating_sub(offset).min(mtu);
        if data.len() as u64 != expected {
            tracing::info!(
                "QP {}: WR {}: READ response at PSN {} has {} bytes, {expected} were due",
                self.qpn,
                wqe.wr_id,
                psn.get(),
                data.len()
            );
            return self.fail_front_send(cx, WcStatus::BadRespErr);
        }
        if let Err(error) = scatter(&cx.mem, self.pd(), wqe.sges(), offset, data) {
            tracing::info!("QP {}: WR {}: local protection error: {error}", self.qpn, wqe.wr_id);
            return self.fail_front_send(cx, WcStatus::LocProtErr);
        }
        self.finish_read_packet(cx, psn, data.len() as u32);
    }

    fn finish_read_packet(&mut self, cx: &mut Cx, psn: Psn, len: u32) {
        self.on_progress(psn.add(1));
        let bytes = packet_room(len).min(self.req.read_bytes);
        self.req.read_bytes -= bytes;
        cx.release_reads(bytes);
        while self.req.reads.front().is_some_and(|last| !psn.precedes(*last)) {
            self.req.reads.pop_front();
        }
        if self.sq.front().is_some_and(|wqe| wqe.end() == psn.add(1)) {
            self.retire_front(cx);
        }
    }

    /// After any response: the timer covers what is left, and waiting requests may go on.
    fn after_progress(&mut self, cx: &mut Cx) {
        if self.attr.state == QpState::Err {
            return;
        }
        if !self.req.outstanding() {
            self.req.ack_deadline = None;
        } else if self.req.ack_deadline.is_none() {
            self.arm_ack_timer(cx);
        }
        self.note_drained(cx);
        if !self.sq.is_empty() {
            cx.ready.push(self.index());
        }
    }
}
