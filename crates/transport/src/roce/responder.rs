//! The responder: request packets to memory, completions and answers (IBTA 9.7.4, 9.7.5.1).
//!
//! The checks run in the specification's order: PSN, operation sequence, permission, resources,
//! length, key. A packet that passes them all is executed; the first that fails decides the answer.

use std::collections::VecDeque;

use irdma_mem::{Access, GrantError, scatter, total_len};
use irdma_wire::{AtomicEth, Headers, NakCode, Operation, Packet, Psn, Reth, Syndrome};

use super::respond::{Kept, Response};
use super::{MAX_MESSAGE, packet_count};
use crate::cx::Cx;
use crate::effects::{EventKind, EventSource};
use crate::error::DropReason;
use crate::qp::{Qp, QpState, Received, XrcSrq};
use crate::wc::{WcOpcode, WcStatus};
use crate::wr::RecvWqe;

/// A message that is arriving.
#[derive(Debug)]
pub(crate) enum Message {
    Send { wqe: RecvWqe, offset: u64 },
    Write { va: u64, rkey: u32, len: u32, offset: u32 },
}

/// What the responder remembers between packets.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    pub(crate) expected: Psn,
    /// Messages completed, modulo 2^24.
    pub(crate) msn: u32,
    /// A NAK was sent for `expected`; what lies ahead of it is dropped silently.
    pub(crate) nak_sent: bool,
    pub(crate) message: Option<Message>,
    /// Answers that are still to be sent, in PSN order.
    pub(crate) queue: VecDeque<Response>,
    /// READs and atomics that a duplicate may ask for again.
    pub(crate) kept: VecDeque<Kept>,
    established: bool,
}

impl Responder {
    pub(crate) fn start(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// The receive request that a message was being placed in.
    pub(crate) fn take_current_recv(&mut self) -> Option<RecvWqe> {
        match self.message.take() {
            Some(Message::Send { wqe, .. }) => Some(wqe),
            _ => None,
        }
    }

    pub(super) fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xFF_FFFF;
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive request: ask the peer to wait.
    Rnr,
    /// Tell the peer, and fail.
    Nak(NakCode, EventKind),
    /// As above, and this receive request ends with a status.
    NakRecv(NakCode, u64, WcStatus),
}

/// What no parsed packet leads to, or is logged.
pub(super) const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, EventKind::QpReqErr);
const FORBIDDEN: Refusal = Refusal::Nak(NakCode::InvalidRequest, EventKind::QpAccessErr);
pub(super) const NO_ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccess, EventKind::QpAccessErr);

pub(super) const UNALIGNED: &str = "its address is no multiple of 8";

impl Qp {
    /// A request packet for this queue pair's responder (RC).
    pub(crate) fn handle_request(&mut self, cx: &mut Cx, packet: &Packet<'_>) {
        self.note_established(cx);
        let psn = packet.headers.bth.psn;
        match psn.distance(self.resp.expected) {
            0 => self.execute(cx, packet),
            ahead if ahead > 0 => self.request_ahead(cx),
            _ => self.duplicate(cx, packet),
        }
        if !self.resp.queue.is_empty() {
            cx.ready.push(self.index());
        }
    }

    /// A packet before the program moved to RTS says that the peer is there (IBTA 11.6.3.1).
    pub(crate) fn note_established(&mut self, cx: &mut Cx) {
        if self.attr.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            cx.event(EventKind::CommEst, EventSource::Qp(self.qpn));
        }
    }

    fn request_ahead(&mut self, cx: &mut Cx) {
        cx.stats.rcvd_out_of_order_packets += 1;
        if self.resp.nak_sent {
            return cx.drop_packet(DropReason::Ahead);
        }
        self.resp.nak_sent = true;
        self.answer(Syndrome::Nak(NakCode::PsnSequence), self.resp.expected);
    }

    fn execute(&mut self, cx: &mut Cx, packet: &Packet<'_>) {
        self.resp.nak_sent = false;
        let psn = self.resp.expected;
        if let Err(refusal) = self.try_execute(cx, packet) {
            return self.refuse(cx, psn, refusal);
        }
        let opcode = packet.headers.bth.opcode;
        if packet.headers.bth.ack_request
            && matches!(opcode.operation, Operation::Send | Operation::Write)
        {
            self.acknowledge_request();
        }
    }

    fn try_execute(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), Refusal> {
        let headers = &packet.headers;
        let opcode = headers.bth.opcode;
        self.select_srq(headers)
            .ok_or_else(|| self.breach("it names no shared queue of the XRC domain"))?;
        let continues = match &self.resp.message {
            None => opcode.starts(),
            Some(Message::Send { .. }) => opcode.operation == Operation::Send && !opcode.starts(),
            Some(Message::Write { .. }) => opcode.operation == Operation::Write && !opcode.starts(),
        };
        if !continues {
            return Err(self.breach("it does not go on with the message that it comes after"));
        }
        match opcode.operation {
            Operation::Send => self.place_send(cx, packet)?,
            Operation::Write => self.place_write(cx, packet)?,
            Operation::ReadRequest => return self.accept_read(cx, headers),
            Operation::CompareSwap | Operation::FetchAdd => {
                return self.execute_atomic(cx, headers);
            }
            Operation::AtomicWrite => return self.execute_atomic_write(cx, packet),
            Operation::Flush => return self.execute_flush(cx, headers),
            _ => return Err(self.breach("its opcode is no request")),
        }
        self.resp.expected = headers.bth.psn.add(1);
        Ok(())
    }

    /// Turns to the shared queue that a request of an extended connection names, if there is one;
    /// a message stays with the one it began with.
    pub(super) fn select_srq(&mut self, headers: &Headers) -> Option<()> {
        let Some(xrcd) = &self.init.xrcd else { return Some(()) };
        let number = headers.xrceth?;
        let srq = xrcd.find(number)?;
        let stays = self.xrc_srq.as_ref().is_some_and(|named| named.number == number);
        if self.resp.message.is_some() && !stays {
            return None;
        }
        self.xrc_srq = Some(XrcSrq::new(&srq));
        Some(())
    }

    /// Packets before the last fill the path MTU, later ones carry at least a byte.
    pub(crate) fn check_payload_len(&self, packet: &Packet<'_>) -> bool {
        let (opcode, len) = (packet.headers.bth.opcode, packet.payload.len());
        let mtu = self.attr.path_mtu as usize;
        match (opcode.starts(), opcode.ends()) {
            (_, false) => len == mtu,
            (false, true) => (1..=mtu).contains(&len),
            (true, true) => len <= mtu,
        }
    }

    fn place_send(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), Refusal> {
        if !self.check_payload_len(packet) {
            return Err(self.wrong_len(packet));
        }
        if self.resp.message.is_none() {
            let wqe = self.take_recv(cx).ok_or(Refusal::Rnr)?;
            self.resp.message = Some(Message::Send { wqe, offset: 0 });
        }
        let Some(Message::Send { wqe, offset }) = &self.resp.message else {
            return Err(INVALID);
        };
        let (wr_id, offset) = (wqe.wr_id, *offset);
        let end = offset + packet.payload.len() as u64;
        let room = total_len(wqe.sges.as_slice());
        if end > room {
            tracing::info!(
                "QP {}: receive {wr_id} has {room} bytes, the peer sends more",
                self.qpn
            );
            return Err(Refusal::NakRecv(NakCode::InvalidRequest, wr_id, WcStatus::LocLenErr));
        }
        scatter(&cx.mem, self.pd(), wqe.sges.as_slice(), offset, packet.payload).map_err(
            |error| {
                tracing::info!("QP {}: receive {wr_id}: local protection error: {error}", self.qpn);
                Refusal::NakRecv(NakCode::RemoteOperational, wr_id, WcStatus::LocProtErr)
            },
        )?;
        if packet.headers.bth.opcode.ends() {
            self.finish_send(cx, &packet.headers, wr_id, end as u32)
        } else {
            if let Some(Message::Send { offset, .. }) = &mut self.resp.message {
                *offset = end;
            }
            Ok(())
        }
    }

    fn finish_send(
        &mut self,
        cx: &mut Cx,
        headers: &Headers,
        wr_id: u64,
        byte_len: u32,
    ) -> Result<(), Refusal> {
        if let Some(key) = headers.ieth {
            cx.mem.invalidate(key, self.pd(), self.qpn.get()).map_err(|error| {
                tracing::info!("QP {}: the peer's invalidate of {key:#010x}: {error}", self.qpn);
                NO_ACCESS
            })?;
            cx.stats.rdma_inv += 1;
        }
        self.resp.message = None;
        self.resp.count_message();
        cx.stats.in_rdma_sends += 1;
        let got = Received {
            opcode: WcOpcode::Recv,
            byte_len,
            imm: headers.imm,
            invalidated: headers.ieth,
            solicited: headers.bth.solicited,
            src_qpn: self.attr.dest_qpn,
            network: None,
        };
        self.complete_recv(cx, wr_id, WcStatus::Success, got);
        Ok(())
    }

    fn place_write(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), Refusal> {
        let headers = &packet.headers;
        self.check_right(Access::REMOTE_WRITE)?;
        let (va, rkey, len, offset) = match (&self.resp.message, headers.reth) {
            (Some(Message::Write { va, rkey, len, offset }), _) => (*va, *rkey, *len, *offset),
            (None, Some(Reth { va, rkey, len })) => (va, rkey, len, 0),
            _ => return Err(INVALID),
        };
        let end = u64::from(offset) + packet.payload.len() as u64;
        let ends = headers.bth.opcode.ends();
        let fits = if ends { end == u64::from(len) } else { end < u64::from(len) };
        if !self.check_payload_len(packet) {
            return Err(self.wrong_len(packet));
        }
        if !fits || len > MAX_MESSAGE {
            return Err(
                self.breach("the packets of a WRITE have not as many bytes as it announced")
            );
        }
        // The receive request that immediate data needs is looked for before memory changes.
        let recv = match headers.imm {
            Some(_) => Some(self.take_recv(cx).ok_or(Refusal::Rnr)?),
            None => None,
        };
        if len > 0
            && let Err(error) = self.write_for_peer(cx, Reth { va, rkey, len }, offset, packet)
        {
            tracing::info!("QP {}: the peer's WRITE: rkey {rkey:#010x}: {error}", self.qpn);
            recv.into_iter().for_each(|wqe| self.give_back_recv(cx, wqe));
            return Err(NO_ACCESS);
        }
        if ends {
            self.finish_write(cx, headers, recv, len);
        } else {
            self.resp.message = Some(Message::Write { va, rkey, len, offset: end as u32 });
        }
        Ok(())
    }

    /// Places a packet of a WRITE. The first one asks for the whole range, so that a message that
    /// may not end does not begin.
    pub(crate) fn write_for_peer(
        &self,
        cx: &Cx,
        reth: Reth,
        offset: u32,
        packet: &Packet<'_>,
    ) -> Result<(), GrantError> {
        let who = (self.pd(), self.qpn.get());
        let need = Access::REMOTE_WRITE;
        let len = packet.payload.len() as u64;
        if offset == 0 && len < u64::from(reth.len) {
            cx.mem.check_for_peer(reth.rkey, (reth.va, reth.len.into()), need, who)?;
        }
        let va = reth.va.wrapping_add(offset.into());
        cx.mem.grant_to_peer(reth.rkey, (va, len), need, who)?.write_at(0, packet.payload);
        Ok(())
    }

    fn finish_write(&mut self, cx: &mut Cx, headers: &Headers, recv: Option<RecvWqe>, len: u32) {
        self.resp.message = None;
        self.resp.count_message();
        cx.stats.in_rdma_writes += 1;
        let Some(wqe) = recv else {
            return;
        };
        let got = Received {
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: len,
            imm: headers.imm,
            invalidated: None,
            solicited: headers.bth.solicited,
            src_qpn: self.attr.dest_qpn,
            network: None,
        };
        self.complete_recv(cx, wqe.wr_id, WcStatus::Success, got);
    }

    fn accept_read(&mut self, cx: &mut Cx, headers: &Headers) -> Result<(), Refusal> {
        let Some(reth) = headers.reth else {
            return Err(INVALID);
        };
        self.check_right(Access::REMOTE_READ)?;
        if reth.len > MAX_MESSAGE {
            return Err(self.breach("a READ of more than 2^31 bytes"));
        }
        self.check_responder_room(cx)?;
        if reth.len > 0 {
            self.check_key(cx, reth.rkey, reth.va, reth.len, Access::REMOTE_READ)?;
        }
        let psn = headers.bth.psn;
        let packets = packet_count(reth.len, self.attr.path_mtu);
        self.resp.expected = psn.add(packets);
        self.resp.count_message();
        cx.stats.in_rdma_reads += 1;
        self.keep(Kept::Read { psn, packets });
        self.resp.queue.push_back(Response::read(psn, packets, reth, self.pd(), self.resp.msn));
        Ok(())
    }

    fn execute_atomic(&mut self, cx: &mut Cx, headers: &Headers) -> Result<(), Refusal> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = headers.atomic else {
            return Err(INVALID);
        };
        self.check_right(Access::REMOTE_ATOMIC)?;
        if !va.is_multiple_of(8) {
            return Err(self.breach(UNALIGNED));
        }
        self.check_responder_room(cx)?;
        let who = (self.pd(), self.qpn.get());
        let grant =
            cx.mem.grant_to_peer(rkey, (va, 8), Access::REMOTE_ATOMIC, who).map_err(|error| {
                tracing::info!("QP {}: the peer's atomic: rkey {rkey:#010x}: {error}", self.qpn);
                NO_ACCESS
            })?;
        // A zero-based region may place an aligned offset at a misaligned address.
        if !grant.is_aligned_8() {
            return Err(self.breach(UNALIGNED));
        }
        let value = match headers.bth.opcode.operation {
            Operation::CompareSwap => grant.compare_swap(compare, swap_or_add),
            _ => grant.fetch_add(swap_or_add),
        };
        drop(grant);
        let psn = headers.bth.psn;
        self.resp.expected = psn.add(1);
        self.resp.count_message();
        cx.stats.rx_atomics += 1;
        let msn = self.resp.msn;
        self.keep(Kept::Atomic { psn, msn, value });
        self.resp.queue.push_back(Response::Atomic { psn, msn, value, again: false });
        Ok(())
    }

    /// The refusal of a request that breaks a rule, which is logged.
    pub(super) fn breach(&self, rule: &str) -> Refusal {
        tracing::info!("QP {}: the peer's request is refused: {rule}", self.qpn);
        INVALID
    }

    fn wrong_len(&self, packet: &Packet<'_>) -> Refusal {
        self.breach(&format!(
            "a packet with {} bytes of data, where path_mtu is {}: both ends need the same path_mtu",
            packet.payload.len(),
            self.attr.path_mtu
        ))
    }

    pub(super) fn check_right(&self, need: Access) -> Result<(), Refusal> {
        if self.attr.access.contains(need) {
            return Ok(());
        }
        tracing::info!(
            "QP {}: the peer's request is refused: qp_access_flags lack {need:?}; add it in INIT",
            self.qpn
        );
        Err(FORBIDDEN)
    }

    /// READs and atomics beyond what was agreed are refused (IBTA 9.7.4.1.5).
    pub(super) fn check_responder_room(&self, cx: &mut Cx) -> Result<(), Refusal> {
        let depth = usize::from(self.attr.max_dest_rd_atomic);
        let busy = self.resp.queue.iter().filter(|r| r.is_counted()).count();
        if depth == 0 || busy >= depth {
            cx.stats.ird_limit_count += 1;
            return Err(self.breach(&format!(
                "more READs and atomics at once than max_dest_rd_atomic {depth}; the peer's \
                 max_rd_atomic must not be larger"
            )));
        }
        Ok(())
    }

    pub(super) fn check_key(
        &self,
        cx: &Cx,
        rkey: u32,
        va: u64,
        len: u32,
        need: Access,
    ) -> Result<(), Refusal> {
        let who = (self.pd(), self.qpn.get());
        cx.mem.check_for_peer(rkey, (va, len.into()), need, who).map_err(|error| {
            tracing::info!("QP {}: the peer's request: rkey {rkey:#010x}: {error}", self.qpn);
            NO_ACCESS
        })
    }

    pub(super) fn keep(&mut self, kept: Kept) {
        let depth = usize::from(self.attr.max_dest_rd_atomic).max(1);
        while self.resp.kept.len() >= depth {
            self.resp.kept.pop_front();
        }
        self.resp.kept.push_back(kept);
    }

    fn refuse(&mut self, cx: &mut Cx, psn: Psn, refusal: Refusal) {
        match refusal {
            Refusal::Rnr => {
                cx.stats.rnr_sent += 1;
                self.resp.nak_sent = true;
                self.answer(Syndrome::Rnr { timer: self.attr.min_rnr_timer }, psn);
            }
            Refusal::Nak(code, event) => {
                self.answer(Syndrome::Nak(code), psn);
                self.enter_error(cx, Some(event));
            }
            Refusal::NakRecv(code, wr_id, status) => {
                self.answer(Syndrome::Nak(code), psn);
                self.resp.message = None;
                self.fail_recv(cx, wr_id, status);
            }
        }
    }
}
