//! The responder of memory placement extensions: ATOMIC WRITE and FLUSH (IBTA annex A19).
//!
//! Both take a responder resource until they are answered by an empty READ response. WRITEs are
//! placed before the next packet is looked at, so whatever was written is visible already; a
//! fence makes that so for other processors, too. A FLUSH to persistence is answered once the
//! memory's file is written.

use std::sync::atomic::{Ordering, fence};

use irdma_mem::Access;
use irdma_wire::{Headers, NakCode, Packet, Psn, Reth};

use super::respond::{Kept, Response};
use super::responder::{INVALID, NO_ACCESS, Refusal, UNALIGNED};
use crate::cx::Cx;
use crate::effects::EventKind;
use crate::qp::Qp;
use crate::wr::Placement;

/// Bytes of an ATOMIC WRITE.
const WORD: usize = 8;

impl Qp {
    /// 8 bytes at an aligned address, in one store.
    pub(super) fn execute_atomic_write(
        &mut self,
        cx: &mut Cx,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(Reth { va, rkey, len }) = packet.headers.reth else {
            return Err(INVALID);
        };
        if !cx.config.atomic_write {
            return Err(self.breach("this device has no ATOMIC WRITE"));
        }
        self.check_right(Access::REMOTE_WRITE)?;
        if len as usize != WORD || packet.payload.len() != WORD {
            return Err(self.breach("an ATOMIC WRITE of other than 8 bytes"));
        }
        if !va.is_multiple_of(8) {
            return Err(self.breach(UNALIGNED));
        }
        self.check_responder_room(cx)?;
        let who = (self.pd(), self.qpn.get());
        let grant = cx.mem.grant_to_peer(rkey, (va, len.into()), Access::REMOTE_WRITE, who);
        let grant = grant.map_err(|error| {
            tracing::info!("QP {}: the peer's ATOMIC WRITE: rkey {rkey:#010x}: {error}", self.qpn);
            NO_ACCESS
        })?;
        // A zero-based region may place an aligned offset at a misaligned address.
        if !grant.is_aligned_8() {
            return Err(self.breach(UNALIGNED));
        }
        grant.write_at(0, packet.payload);
        drop(grant);
        cx.stats.rx_atomics += 1;
        self.answer_plainly(packet.headers.bth.psn);
        Ok(())
    }

    pub(super) fn execute_flush(&mut self, cx: &mut Cx, headers: &Headers) -> Result<(), Refusal> {
        let (Some(feth), Some(reth)) = (headers.feth, headers.reth) else {
            return Err(INVALID);
        };
        let placement = Placement::from_bits(feth.placement).filter(|asked| !asked.is_empty());
        let need = placement.map(needed).filter(|_| feth.selectivity <= 1);
        let need = need.ok_or_else(|| self.breach("a FLUSH of an unknown kind"))?;
        self.check_right(need)?;
        self.check_responder_room(cx)?;
        // The whole region is named by its key alone.
        let range = (feth.selectivity == 0).then_some((reth.va, u64::from(reth.len)));
        let len = if range.is_some() { reth.len } else { 0 };
        self.check_key(cx, reth.rkey, reth.va, len, need)?;
        if need.contains(Access::FLUSH_PERSISTENT) {
            self.persist(cx, reth.rkey, range)?;
        }
        fence(Ordering::SeqCst);
        self.answer_plainly(headers.bth.psn);
        Ok(())
    }

    /// Waits until the bytes are where they outlive a loss of power.
    fn persist(&self, cx: &Cx, rkey: u32, range: Option<(u64, u64)>) -> Result<(), Refusal> {
        match cx.mem.persist(rkey, range, (self.pd(), self.qpn.get())) {
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::info!("QP {}: rkey {rkey:#010x} cannot be made persistent", self.qpn);
                Err(Refusal::Nak(NakCode::RemoteOperational, EventKind::QpFatal))
            }
            Err(error) => {
                tracing::info!("QP {}: the peer's FLUSH: rkey {rkey:#010x}: {error}", self.qpn);
                Err(NO_ACCESS)
            }
        }
    }

    /// An empty READ response, repeated for a duplicate.
    fn answer_plainly(&mut self, psn: Psn) {
        self.resp.expected = psn.add(1);
        self.resp.count_message();
        self.keep(Kept::Plain { psn });
        self.resp.queue.push_back(Response::read(
            psn,
            1,
            Reth::default(),
            self.pd(),
            self.resp.msn,
        ));
    }
}

fn needed(placement: Placement) -> Access {
    let mut need = Access::empty();
    need.set(Access::FLUSH_GLOBAL, placement.contains(Placement::GLOBAL));
    need.set(Access::FLUSH_PERSISTENT, placement.contains(Placement::PERSISTENT));
    need
}
