//! Rings in memory that the program gives: an extension of the Rust interface.
//!
//! The driver puts each request that is posted into a ring of the program's own memory, which was
//! registered before and is found by its first address. Here the queues are the library's; a queue
//! pair with rings writes a descriptor of each request to them, so that the program, or a
//! debugger that looks at it, sees what was posted last.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use irdma_mem::{Buffer, QueueKind, QueueMemory, RingUse, total_len};
use irdma_transport::{ErrorKind, QpCap, RecvWr, Result, SendData, SendWr, VerbsError};

use super::mr::verbs_error;
use super::{Pd, PdInner, Qp, QpInitAttr};
use crate::channel::Refused;
use crate::life::Use;
use crate::log::Logged;

/// Bytes of a quantum, the unit of a ring.
pub const QUANTUM: usize = 32;
/// Quanta of the longest ring.
const MAX_QUANTA: u32 = 32_768;
/// Quanta that are never used by requests, of a send and of a receive ring.
const RESERVED: [u32; 2] = [258, 1];
/// Requests of the smallest queue.
const MIN_WR: u32 = 8;

/// Registered memory for the rings of one queue; dropping it deregisters once the queue is gone.
#[derive(Debug)]
pub struct QueueMr {
    memory: Arc<QueueMemory>,
    pd: Use<PdInner>,
}

/// How a ring of `requests` requests is laid out: its quanta, and as a shift those of a request.
///
/// EINVAL above the longest ring.
fn depth(requests: u32, shift: u32, reserved: u32) -> Result<u32> {
    let quanta = u64::from(requests.max(MIN_WR)) << shift;
    let quanta = (quanta + u64::from(reserved)).next_power_of_two();
    if quanta > u64::from(MAX_QUANTA) {
        return Err(VerbsError::invalid(format!(
            "a ring for {requests} requests has {quanta} quanta, the longest has {MAX_QUANTA}"
        )));
    }
    Ok(quanta as u32)
}

/// The size of a request as a shift of quanta, by its elements and inline bytes.
fn wqe_shift(sges: u32, inline: u32) -> u32 {
    match (sges, inline) {
        (0..=1, 0..=8) => 0,
        (0..=3, 0..=39) => 1,
        (0..=7, 0..=101) => 2,
        _ => 3,
    }
}

/// The shapes of both rings: a send request has an element more, for immediate data.
fn shapes(cap: &QpCap) -> [(u32, u32, u32); 2] {
    let send = wqe_shift(cap.max_send_sge + 1, cap.max_inline_data);
    let recv = wqe_shift(cap.max_recv_sge, 0);
    [(cap.max_send_wr, send, RESERVED[0]), (cap.max_recv_wr, recv, RESERVED[1])]
}

/// Bytes of the send and of the receive ring that a queue pair of these sizes needs.
///
/// EINVAL for rings above the longest.
pub fn ring_bytes(cap: &QpCap) -> Result<[usize; 2]> {
    let [send, recv] = shapes(cap).map(|(requests, shift, reserved)| {
        depth(requests, shift, reserved).map(|quanta| quanta as usize * QUANTUM)
    });
    Ok([send?, recv?])
}

impl Pd {
    /// Registers whole pages of buffers for the rings of one queue, and a page more.
    ///
    /// EINVAL for parts that are not whole pages of 4 KiB, or too few of them.
    pub fn reg_queue_memory(
        &self,
        kind: QueueKind,
        parts: Vec<(Arc<Buffer>, Range<usize>)>,
    ) -> Result<QueueMr> {
        let register = || {
            self.0.context.check()?;
            let pd = Use::of(&self.0)?;
            let memory = pd.context.engine.mem.reg_queue_memory(kind, parts);
            Ok(QueueMr { memory: memory.map_err(verbs_error)?, pd })
        };
        register().logged("reg_queue_memory")
    }

    /// As [`Pd::create_qp`], with rings in the queue memory that starts at `rings`. The memory
    /// belongs to this queue pair, also once that is destroyed.
    ///
    /// ENODATA where no unused registration for a queue pair starts there, EINVAL where the rings
    /// are shorter than [`ring_bytes`].
    pub fn create_umode_qp(&self, attr: &QpInitAttr<'_>, rings: u64) -> Result<Qp> {
        let create = || {
            let rings = self.setup_umode_qp(&attr.cap, rings)?;
            let mut qp = self.create_qp(attr)?;
            qp.setup_virt_qp(rings);
            Ok(qp)
        };
        create().logged("create_umode_qp")
    }

    /// Finds the rings for a queue pair of these sizes.
    fn setup_umode_qp(&self, cap: &QpCap, addr: u64) -> Result<Rings> {
        self.0.context.check()?;
        let [send, recv] = ring_bytes(cap)?;
        let mem = &self.0.context.engine.mem;
        let memory = mem.get_pbl(QueueKind::Qp { send, recv }, addr).ok_or_else(|| {
            let text = format!("no rings for a queue pair are registered at {addr:#x}");
            VerbsError::new(ErrorKind::NoData, text)
        })?;
        let [send_shape, recv_shape] = shapes(cap);
        match memory.kind() {
            QueueKind::Qp { send: has_send, recv: has_recv }
                if has_send >= send && has_recv >= recv =>
            {
                let ring = |bytes, (_, shift, _)| Ring::new(bytes, shift);
                let rings = [ring(send, send_shape), ring(recv, recv_shape)];
                Ok(Rings { memory, rings })
            }
            kind => Err(VerbsError::invalid(format!(
                "{kind:?} at {addr:#x}: the queue pair needs {send} and {recv} bytes"
            ))),
        }
    }
}

impl QueueMr {
    /// The first address, which names the rings.
    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// The address where each ring is one piece, otherwise the level of the page list that names
    /// their pages.
    pub fn place(&self) -> std::result::Result<u64, u8> {
        self.memory.place()
    }

    /// Ends the registration. EBUSY while a queue pair stands on it.
    pub fn dereg_mr(self) -> std::result::Result<(), Refused<Self>> {
        let mem = &self.pd.context.engine.mem;
        match mem.del_memlist(&self.memory).map_err(verbs_error).logged("dereg_mr") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl Drop for QueueMr {
    fn drop(&mut self) {
        // In use it is off the list already, and ends with its queue pair.
        let _ = self.pd.context.engine.mem.del_memlist(&self.memory);
    }
}

/// Both rings of a queue pair.
#[derive(Debug)]
pub(crate) struct Rings {
    memory: RingUse,
    rings: [Ring; 2],
}

#[derive(Debug)]
struct Ring {
    slots: u32,
    shift: u32,
    posted: AtomicU32,
}

impl Ring {
    fn new(bytes: usize, shift: u32) -> Self {
        let slots = (bytes / QUANTUM) as u32 >> shift;
        Ring { slots, shift, posted: AtomicU32::new(0) }
    }
}

/// What was posted: 32 bytes, in the host's byte order.
fn descriptor(wr_id: u64, number: u32, len: u64, elements: usize, flags: u32) -> [u8; QUANTUM] {
    let mut out = [0; QUANTUM];
    out[..8].copy_from_slice(&wr_id.to_ne_bytes());
    out[8..16].copy_from_slice(&len.to_ne_bytes());
    out[16..20].copy_from_slice(&(elements as u32).to_ne_bytes());
    out[20..24].copy_from_slice(&flags.to_ne_bytes());
    // Last, so that whoever sees the number sees the rest.
    out[28..].copy_from_slice(&number.to_ne_bytes());
    out
}

impl Rings {
    /// A send request was posted.
    pub(crate) fn sent(&self, wr: &SendWr<'_>) {
        let (len, elements) = match wr.data {
            SendData::Sges(sges) => (total_len(sges), sges.len()),
            SendData::Inline(bytes) => (bytes.len() as u64, 0),
        };
        self.write(0, wr.wr_id, len, elements, wr.flags.bits());
    }

    /// A receive request was posted.
    pub(crate) fn awaited(&self, wr: &RecvWr<'_>) {
        self.write(1, wr.wr_id, total_len(wr.sges), wr.sges.len(), 0);
    }

    fn write(&self, which: usize, wr_id: u64, len: u64, elements: usize, flags: u32) {
        let ring = &self.rings[which];
        let index = ring.posted.fetch_add(1, Ordering::AcqRel);
        let at = ((index % ring.slots) << ring.shift) as usize * QUANTUM;
        let bytes = descriptor(wr_id, index.wrapping_add(1), len, elements, flags);
        self.memory.write(which == 1, at, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed section 2.6, with its example.
    #[test]
    fn rings_are_sized_as_the_driver_sizes_them() {
        for (sges, inline, shift) in [
            (1, 8, 0),
            (1, 9, 1),
            (2, 0, 1),
            (3, 39, 1),
            (4, 0, 2),
            (7, 101, 2),
            (8, 0, 3),
            (1, 102, 3),
        ] {
            assert_eq!(wqe_shift(sges, inline), shift, "{sges} {inline}");
        }
        assert_eq!(depth(1, 1, 258).unwrap(), 512);
        assert_eq!(depth(1, 0, 1).unwrap(), 16);
        assert_eq!(depth(4063, 3, 258).unwrap(), 32_768);
        assert_eq!(depth(4064, 3, 258).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
