//! Unreliable connections, receiving side (IBTA 9.8): a lost packet costs its whole message.

use irdma_mem::{Access, scatter, total_len};
use irdma_wire::{Operation, Packet, Reth};

use super::MAX_MESSAGE;
use super::responder::Message;
use crate::cx::Cx;
use crate::error::DropReason;
use crate::qp::{Qp, Received};
use crate::wc::{WcOpcode, WcStatus};

impl Qp {
    /// A packet for an unreliable connection.
    pub(crate) fn handle_uc(&mut self, cx: &mut Cx, packet: &Packet<'_>) {
        self.note_established(cx);
        let bth = &packet.headers.bth;
        if bth.psn != self.resp.expected {
            cx.stats.rcvd_out_of_order_packets += 1;
            self.abandon_message(cx);
        }
        self.resp.expected = bth.psn.add(1);
        if bth.opcode.starts() {
            self.abandon_message(cx);
        } else if !self.continues_uc(packet) {
            self.abandon_message(cx);
            return cx.drop_packet(DropReason::Sequence);
        }
        if let Err(reason) = self.place_uc(cx, packet) {
            self.abandon_message(cx);
            cx.drop_packet(reason);
        }
    }

    fn continues_uc(&self, packet: &Packet<'_>) -> bool {
        let operation = packet.headers.bth.opcode.operation;
        match &self.resp.message {
            None => false,
            Some(Message::Send { .. }) => operation == Operation::Send,
            Some(Message::Write { .. }) => operation == Operation::Write,
        }
    }

    /// The receive request of a broken message serves the next one.
    fn abandon_message(&mut self, cx: &Cx) {
        if let Some(Message::Send { wqe, .. }) = self.resp.message.take() {
            self.give_back_recv(cx, wqe);
        }
    }

    fn place_uc(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.check_payload_len(packet) {
            return Err(DropReason::Length);
        }
        match packet.headers.bth.opcode.operation {
            Operation::Send => self.place_uc_send(cx, packet),
            _ => self.place_uc_write(cx, packet),
        }
    }

    fn place_uc_send(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), DropReason> {
        let (wqe, offset) = match self.resp.message.take() {
            Some(Message::Send { wqe, offset }) => (wqe, offset),
            _ => (self.take_recv(cx).ok_or(DropReason::NoReceive)?, 0),
        };
        let end = offset + packet.payload.len() as u64;
        let fits = end <= total_len(wqe.sges.as_slice());
        let placed =
            fits.then(|| scatter(&cx.mem, self.pd(), wqe.sges.as_slice(), offset, packet.payload));
        let status = match placed {
            None => WcStatus::LocLenErr,
            Some(Err(error)) => {
                tracing::info!("QP {}: receive {}: {error}", self.qpn, wqe.wr_id);
                WcStatus::LocProtErr
            }
            Some(Ok(())) => WcStatus::Success,
        };
        if status != WcStatus::Success {
            self.fail_recv(cx, wqe.wr_id, status);
        } else if packet.headers.bth.opcode.ends() {
            cx.stats.in_rdma_sends += 1;
            self.complete_uc(cx, packet, wqe.wr_id, WcOpcode::Recv, end as u32);
        } else {
            self.resp.message = Some(Message::Send { wqe, offset: end });
        }
        Ok(())
    }

    fn place_uc_write(&mut self, cx: &mut Cx, packet: &Packet<'_>) -> Result<(), DropReason> {
        let headers = &packet.headers;
        if !self.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(DropReason::Access);
        }
        let (va, rkey, len, offset) = match (self.resp.message.take(), headers.reth) {
            (Some(Message::Write { va, rkey, len, offset }), _) => (va, rkey, len, offset),
            (None, Some(Reth { va, rkey, len })) => (va, rkey, len, 0),
            _ => return Err(DropReason::Sequence),
        };
        let end = u64::from(offset) + packet.payload.len() as u64;
        let ends = headers.bth.opcode.ends();
        let fits = if ends { end == u64::from(len) } else { end < u64::from(len) };
        if !fits || len > MAX_MESSAGE {
            return Err(DropReason::Length);
        }
        if len > 0 {
            self.write_for_peer(cx, Reth { va, rkey, len }, offset, packet)
                .map_err(|_| DropReason::Access)?;
        }
        if !ends {
            self.resp.message = Some(Message::Write { va, rkey, len, offset: end as u32 });
            return Ok(());
        }
        cx.stats.in_rdma_writes += 1;
        if headers.imm.is_some() {
            let wqe = self.take_recv(cx).ok_or(DropReason::NoReceive)?;
            self.complete_uc(cx, packet, wqe.wr_id, WcOpcode::RecvRdmaWithImm, len);
        }
        Ok(())
    }

    fn complete_uc(
        &self,
        cx: &mut Cx,
        packet: &Packet<'_>,
        wr_id: u64,
        opcode: WcOpcode,
        len: u32,
    ) {
        let got = Received {
            opcode,
            byte_len: len,
            imm: packet.headers.imm,
            invalidated: None,
            solicited: packet.headers.bth.solicited,
            src_qpn: self.attr.dest_qpn,
            network: None,
        };
        self.complete_recv(cx, wr_id, WcStatus::Success, got);
    }
}
