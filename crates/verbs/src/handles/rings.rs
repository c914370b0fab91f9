//! Queue memory that the program gives a queue pair (seed rows 11, 15, 16, 43 and 55).
//!
//! The library keeps the requests; the program's memory shows which of them wait, at the cost of a
//! load: a debugger, or a thread that watches, needs no call.

use std::ops::Range;
use std::sync::Arc;

use irdma_mem::{Access, Buffer, PdId};
use irdma_transport::{ErrorKind, QpCap, RING_ENTRY_LEN, Result, RingPart, Rings, VerbsError};

use super::mr::verbs_error;
use super::{Mr, Pd, Qp, QpInitAttr};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::life::{Alive, Life, Use};
use crate::log::Logged;

/// Sends posted, sends taken, receives posted, receives taken.
const SHADOW_LEN: u64 = 4 * RING_ENTRY_LEN;

/// Memory registered to hold the queues of one queue pair; dropping it ends the registration.
///
/// Its layout, 8 bytes in host order each: the ids of `send_len` send requests, request *n* at
/// entry *n* modulo `send_len`; the ids of `recv_len` receive requests; and four counts, the
/// *shadow*: sends posted, sends taken, receives posted, receives taken.
#[derive(Debug)]
pub struct QueueMr {
    inner: Arc<QueueMrInner>,
    context: Arc<ContextInner>,
}

#[derive(Debug)]
pub(crate) struct QueueMrInner {
    rings: Rings,
    pd: PdId,
    _mrs: Vec<Mr>,
    life: Life,
}

impl Alive for QueueMrInner {
    const WHAT: &'static str = "queue memory";

    fn life(&self) -> &Life {
        &self.life
    }
}

/// A part of a buffer.
pub type Part = (Arc<Buffer>, Range<usize>);

impl Pd {
    /// Registers memory for a queue pair with rings of `send_len` and `recv_len` entries: `parts`
    /// is one part with both rings and the shadow in a row, or three parts for them.
    ///
    /// EINVAL for another number of parts, rings of no entries, parts that are too small or not
    /// aligned to 8 bytes; otherwise as [`Pd::reg_buffer`].
    pub fn reg_queue_mr(&self, parts: &[Part], send_len: u32, recv_len: u32) -> Result<QueueMr> {
        self.try_reg_queue_mr(parts, send_len, recv_len).logged("reg_queue_mr")
    }

    fn try_reg_queue_mr(&self, parts: &[Part], send_len: u32, recv_len: u32) -> Result<QueueMr> {
        let lens = [send_len.into(), recv_len.into()];
        let places = handle_q_mem(parts, lens)?;
        let register =
            |(buffer, range): &Part| self.reg_buffer(buffer, range.clone(), Access::LOCAL_WRITE);
        let mrs = parts.iter().map(register).collect::<Result<Vec<Mr>>>()?;
        let part = |i: usize| RingPart { lkey: mrs[places[i].0].lkey(), addr: places[i].1 };
        let rings = Rings {
            send: part(0),
            recv: part(1),
            shadow: part(2),
            send_len: lens[0],
            recv_len: lens[1],
        };
        let context = Arc::clone(&self.0.context);
        let inner =
            Arc::new(QueueMrInner { rings, pd: self.0.id, _mrs: mrs, life: Life::default() });
        context.queue_mrs().push(Arc::downgrade(&inner));
        Ok(QueueMr { inner, context })
    }

    /// Makes a queue pair whose queues are shown in the memory at `ring_addr`, where a [`QueueMr`]
    /// of this context begins. Its queues are no longer than the rings.
    ///
    /// ENODATA if no queue memory begins there, or another queue pair has it; EINVAL for rings
    /// shorter than the granted queues or of another domain; otherwise as [`Pd::create_qp`].
    pub fn setup_umode_qp(&self, attr: &QpInitAttr<'_>, ring_addr: u64) -> Result<Qp> {
        self.try_setup_umode_qp(attr, ring_addr).logged("setup_umode_qp")
    }

    fn try_setup_umode_qp(&self, attr: &QpInitAttr<'_>, ring_addr: u64) -> Result<Qp> {
        let context = &self.0.context;
        context.check()?;
        let memory = get_pbl(context, ring_addr)?;
        if memory.pd != self.0.id {
            return Err(VerbsError::invalid(format!(
                "the queue memory at {ring_addr:#x} is of another protection domain"
            )));
        }
        let mut qp = self.create_qp(attr)?;
        let (_, cap) = qp.query_qp()?;
        check_lens(&memory.rings, &cap)?;
        setup_virt_qp(&mut qp, memory)?;
        Ok(qp)
    }
}

/// Tells the engine where the queues of a new queue pair are: in one piece, or in three.
fn setup_virt_qp(qp: &mut Qp, memory: Use<QueueMrInner>) -> Result<()> {
    qp.inner.set_rings(memory.rings)?;
    qp.hold_queue_memory(memory);
    Ok(())
}

/// Finds the queue memory that begins at `addr` and takes it for one queue pair. ENODATA.
fn get_pbl(context: &ContextInner, addr: u64) -> Result<Use<QueueMrInner>> {
    let mut list = context.queue_mrs();
    list.retain(|memory| memory.strong_count() > 0);
    let found = list
        .iter()
        .filter_map(std::sync::Weak::upgrade)
        .find(|memory| memory.rings.send.addr == addr && memory.life.is_unused());
    let memory = found.ok_or_else(|| {
        let text = format!(
            "no free queue memory begins at {addr:#x}: register it with reg_queue_mr, for each \
             queue pair its own"
        );
        VerbsError::new(ErrorKind::NoData, text)
    })?;
    Use::of(&memory)
}

/// Where send ring, receive ring and shadow are: the number of the part, and the address.
fn handle_q_mem(parts: &[Part], [send_len, recv_len]: [u64; 2]) -> Result<[(usize, u64); 3]> {
    if send_len == 0 || recv_len == 0 {
        return Err(VerbsError::invalid("a ring has at least one entry"));
    }
    let needed = [send_len * RING_ENTRY_LEN, recv_len * RING_ENTRY_LEN, SHADOW_LEN];
    let starts = parts.iter().map(|(buffer, range)| buffer.part(range).map(|(addr, _)| addr));
    let starts = starts.collect::<std::result::Result<Vec<u64>, _>>().map_err(verbs_error)?;
    let (places, needs) = match parts.len() {
        1 => {
            let recv = starts[0] + needed[0];
            ([(0, starts[0]), (0, recv), (0, recv + needed[1])], vec![needed.iter().sum()])
        }
        3 => ([(0, starts[0]), (1, starts[1]), (2, starts[2])], needed.to_vec()),
        count => {
            return Err(VerbsError::invalid(format!("queue memory of {count} parts: 1 or 3")));
        }
    };
    for (i, (_, range)) in parts.iter().enumerate() {
        if (range.len() as u64) < needs[i] {
            return Err(VerbsError::invalid(format!(
                "part {i} of the queue memory has {} bytes, it needs {}",
                range.len(),
                needs[i]
            )));
        }
        if !starts[i].is_multiple_of(RING_ENTRY_LEN) {
            return Err(VerbsError::invalid(format!("part {i} is not aligned to 8 bytes")));
        }
    }
    Ok(places)
}

fn check_lens(rings: &Rings, cap: &QpCap) -> Result<()> {
    let lens =
        [("send", rings.send_len, cap.max_send_wr), ("receive", rings.recv_len, cap.max_recv_wr)];
    for (what, len, granted) in lens {
        if len < granted.into() {
            return Err(VerbsError::invalid(format!(
                "the {what} ring has {len} entries, the queue is granted {granted}"
            )));
        }
    }
    Ok(())
}

impl QueueMr {
    /// The address that [`Pd::setup_umode_qp`] takes.
    pub fn addr(&self) -> u64 {
        self.inner.rings.send.addr
    }

    /// Where the counts are.
    pub fn shadow_addr(&self) -> u64 {
        self.inner.rings.shadow.addr
    }

    /// Ends the registration. EBUSY while a queue pair stands on it.
    pub fn dereg_mr(self) -> std::result::Result<(), Refused<Self>> {
        match del_memlist(&self.context, &self.inner).logged("dereg_mr") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

/// Takes queue memory off the list. EBUSY while a queue pair stands on it.
fn del_memlist(context: &ContextInner, memory: &Arc<QueueMrInner>) -> Result<()> {
    context.engine.check_fork()?;
    let mut list = context.queue_mrs();
    memory.life.end(QueueMrInner::WHAT)?;
    list.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(memory)));
    Ok(())
}
