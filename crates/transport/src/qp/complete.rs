//! Completions, and what an error does to a queue pair (IBTA 10.3.1, 10.8.3).

use super::{Qp, QpState};
use crate::cx::Cx;
use crate::effects::{EventKind, EventSource};
use crate::wc::{Network, Wc, WcFlags, WcOpcode, WcStatus};
use crate::wqe::Wqe;
use crate::wr::{RecvWqe, SendFlags};

/// What a received message adds to its completion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) src_qpn: irdma_wire::Qpn,
    /// The IP header in front of a datagram.
    pub(crate) network: Option<Network>,
}

/// The event that goes with a failure (seed section 2.7).
fn event_for(status: WcStatus) -> EventKind {
    match status {
        WcStatus::LocProtErr | WcStatus::RemAccessErr | WcStatus::MwBindErr => {
            EventKind::QpAccessErr
        }
        WcStatus::RemInvReqErr => EventKind::QpReqErr,
        _ => EventKind::QpFatal,
    }
}

impl Qp {
    /// Completes the oldest send request; success is reported only where asked for.
    pub(crate) fn complete_front_send(&mut self, cx: &mut Cx, status: WcStatus) {
        if let Some(wqe) = self.sq.pop_front() {
            self.req.on_front_popped(&wqe);
            self.push_send_wc(cx, &wqe, status);
            self.reclaim_page(wqe);
            self.show_taken(cx);
        }
    }

    fn push_send_wc(&self, cx: &mut Cx, wqe: &Wqe, status: WcStatus) {
        let signaled = self.init.sq_sig_all || wqe.flags.contains(SendFlags::SIGNALED);
        if status == WcStatus::Success && !signaled {
            return;
        }
        let wc = Wc {
            wr_id: wqe.wr_id,
            status,
            opcode: wqe.wc_opcode(),
            byte_len: wqe.len,
            qpn: self.qpn,
            ..Wc::default()
        };
        cx.push_wc(&self.init.send_cq, wc, &self.sq_unpolled);
    }

    /// Reports a receive request; the completion of one whose shared queue is destroyed is lost
    /// with it.
    pub(crate) fn complete_recv(&self, cx: &mut Cx, wr_id: u64, status: WcStatus, got: Received) {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, got.network.is_some());
        flags.set(WcFlags::WITH_IMM, got.imm.is_some());
        flags.set(WcFlags::WITH_INV, got.invalidated.is_some());
        let wc = Wc {
            wr_id,
            status,
            opcode: got.opcode,
            byte_len: got.byte_len,
            imm: got.imm.unwrap_or_default(),
            invalidated_rkey: got.invalidated.unwrap_or_default(),
            qpn: self.qpn,
            src_qpn: got.src_qpn,
            flags,
            network: got.network,
            solicited: got.solicited,
            ..Wc::default()
        };
        self.with_recv_cq(|cq| cx.push_wc(cq, wc, &self.rq_unpolled));
    }

    /// The next receive request, from the shared queue where there is one.
    pub(crate) fn take_recv(&mut self, cx: &mut Cx) -> Option<RecvWqe> {
        let Some(srq) = self.srq() else {
            let wqe = self.rq.pop_front();
            self.show_taken(cx);
            return wqe;
        };
        let (wqe, crossed) = srq.pop()?;
        if crossed {
            cx.srq_event(&srq);
        }
        Some(wqe)
    }

    /// Puts back a receive request that was not used, for the next message. It is gone where its
    /// shared queue is.
    pub(crate) fn give_back_recv(&mut self, cx: &Cx, wqe: RecvWqe) {
        match self.srq() {
            Some(srq) => srq.give_back(wqe),
            None if self.xrc_srq.is_some() => {}
            None => self.rq.push_front(wqe),
        }
        self.show_taken(cx);
    }

    /// The oldest send request failed: report it, flush the rest, raise the event.
    pub(crate) fn fail_front_send(&mut self, cx: &mut Cx, status: WcStatus) {
        self.complete_front_send(cx, status);
        self.resp.queue.retain(|response| !response.holds_resource());
        self.enter_error(cx, Some(event_for(status)));
    }

    /// A receive request failed: report it, flush the rest, raise the event.
    pub(crate) fn fail_recv(&mut self, cx: &mut Cx, wr_id: u64, status: WcStatus) {
        let got = Received { opcode: WcOpcode::Recv, ..Received::default() };
        self.complete_recv(cx, wr_id, status, got);
        self.enter_error(cx, Some(event_for(status)));
    }

    /// Moves to ERR and flushes both queues. A NAK that is already queued still goes out.
    pub(crate) fn enter_error(&mut self, cx: &mut Cx, event: Option<EventKind>) {
        let entered = self.attr.state != QpState::Err;
        self.attr.state = QpState::Err;
        if let Some(kind) = event.filter(|_| entered) {
            cx.event(kind, EventSource::Qp(self.qpn));
        }
        self.release_windows(cx);
        self.flush_sends(cx);
        self.flush_recvs(cx);
        if entered && self.init.srq.is_some() {
            cx.event(EventKind::QpLastWqeReached, EventSource::Qp(self.qpn));
        }
    }

    pub(crate) fn flush_sends(&mut self, cx: &mut Cx) {
        while !self.sq.is_empty() {
            self.complete_front_send(cx, WcStatus::WrFlushErr);
        }
        self.req.on_flushed();
    }

    /// A shared queue keeps its requests: they belong to the other queue pairs too. The one that a
    /// message was being placed in is flushed with the queue pair.
    pub(crate) fn flush_recvs(&mut self, cx: &mut Cx) {
        let current = self.resp.take_current_recv().into_iter();
        let waiting: Vec<RecvWqe> = current.chain(self.rq.drain(..)).collect();
        self.show_taken(cx);
        for wqe in waiting {
            let got = Received { opcode: WcOpcode::Recv, ..Received::default() };
            self.complete_recv(cx, wqe.wr_id, WcStatus::WrFlushErr, got);
        }
    }

    /// Gives back what this queue pair holds of windows shared with others.
    pub(crate) fn release_windows(&mut self, cx: &mut Cx) {
        let reads = std::mem::take(&mut self.req.read_bytes);
        cx.release_reads(reads);
        self.release_in_flight(cx, u32::MAX, false);
    }

    /// Takes `packets` out of the peer's window; `acked` ones let it grow.
    pub(crate) fn release_in_flight(&mut self, cx: &mut Cx, packets: u32, acked: bool) {
        let packets = packets.min(self.req.in_flight);
        self.req.in_flight -= packets;
        if let Some(path) = &self.path
            && packets > 0
        {
            cx.peers.release(path.peer, packets * path.mtu, acked, &mut cx.ready);
        }
    }
}
