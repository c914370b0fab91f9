//! Queue memory that the program gave (seed rows 15 and 16).
//!
//! The requests themselves stay inside; the program's memory shows which of them wait: their ids in
//! rings, and beside them how many were posted and how many of those were taken.

use irdma_mem::{Access, MemTable, PdId};
use irdma_wire::Qpn;

use super::Qp;
use crate::cx::Cx;
use crate::endpoint::Endpoint;
use crate::error::Result;

/// Bytes of a ring's entry, and of each count.
pub const RING_ENTRY_LEN: u64 = 8;

/// A part of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPart {
    /// Its key.
    pub lkey: u32,
    /// Its first address, a multiple of 8.
    pub addr: u64,
}

/// The queue memory of a queue pair; each entry and count is 8 bytes in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Ids of send requests; request *n* is at entry *n* modulo `send_len`.
    pub send: RingPart,
    /// Ids of receive requests.
    pub recv: RingPart,
    /// Counts since creation: sends posted, sends taken, receives posted, receives taken.
    pub shadow: RingPart,
    /// Entries of the send ring.
    pub send_len: u64,
    /// Entries of the receive ring.
    pub recv_len: u64,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Recv,
}

/// What stands in the rings.
#[derive(Debug)]
pub(crate) struct RingState {
    rings: Rings,
    pd: PdId,
    posted: [u64; 2],
    taken: [u64; 2],
}

impl RingState {
    pub(crate) fn new(rings: Rings, pd: PdId) -> Self {
        RingState { rings, pd, posted: [0; 2], taken: [0; 2] }
    }

    fn post(&mut self, mem: &MemTable, queue: Queue, wr_id: u64) {
        let (part, len) = match queue {
            Queue::Send => (self.rings.send, self.rings.send_len),
            Queue::Recv => (self.rings.recv, self.rings.recv_len),
        };
        let posted = &mut self.posted[queue as usize];
        let entry = *posted % len;
        *posted += 1;
        let count = *posted;
        self.store(mem, part, entry, wr_id);
        self.store(mem, self.rings.shadow, 2 * queue as u64, count);
    }

    fn take(&mut self, mem: &MemTable, queue: Queue, waiting: usize) {
        let taken = self.posted[queue as usize] - waiting as u64;
        if std::mem::replace(&mut self.taken[queue as usize], taken) != taken {
            self.store(mem, self.rings.shadow, 2 * queue as u64 + 1, taken);
        }
    }

    /// One aligned store; nothing where the program has taken the memory away.
    fn store(&self, mem: &MemTable, part: RingPart, entry: u64, value: u64) {
        let addr = part.addr + entry * RING_ENTRY_LEN;
        let grant = mem.grant(part.lkey, addr, RING_ENTRY_LEN, Access::LOCAL_WRITE, self.pd);
        if let Ok(grant) = grant {
            grant.write_at(0, &value.to_ne_bytes());
        }
    }
}

impl Endpoint {
    /// Shows the waiting requests of a new queue pair in memory of the program. EINVAL for an
    /// unknown number.
    pub fn set_rings(&mut self, qpn: Qpn, rings: Rings) -> Result<()> {
        let qp = self.qps.find(qpn)?;
        qp.rings = Some(Box::new(RingState::new(rings, qp.pd())));
        Ok(())
    }
}

impl Qp {
    /// Shows a request that was just queued.
    pub(crate) fn show_posted(&mut self, cx: &Cx, queue: Queue, wr_id: u64) {
        if let Some(state) = &mut self.rings {
            state.post(&cx.mem, queue, wr_id);
        }
    }

    /// Shows how many requests were taken by now.
    pub(crate) fn show_taken(&mut self, cx: &Cx) {
        if let Some(state) = &mut self.rings {
            state.take(&cx.mem, Queue::Send, self.sq.len());
            state.take(&cx.mem, Queue::Recv, self.rq.len());
        }
    }
}
