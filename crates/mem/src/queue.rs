//! Memory that a program gives for the rings of a queue ("queue memory" of the driver).
//!
//! It is registered first, found by its first address when the queue is made, and belongs to that
//! one queue for ever.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pbl::{PAGE_SIZES, PageList, copy_user_pgaddrs};
use crate::{Buffer, MemError, MemTable, check_mem_contiguous};

const PAGE: usize = PAGE_SIZES[0] as usize;

/// Whose rings they are, and how long each is, in bytes. Every ring starts on a page of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// A queue pair's.
    Qp {
        /// The send ring.
        send: usize,
        /// The receive ring.
        recv: usize,
    },
    /// A completion queue's.
    Cq(usize),
    /// A shared receive queue's.
    Srq(usize),
}

impl QueueKind {
    fn rings(self) -> [usize; 2] {
        match self {
            QueueKind::Qp { send, recv } => [send, recv],
            QueueKind::Cq(bytes) | QueueKind::Srq(bytes) => [bytes, 0],
        }
    }

    fn same(self, other: QueueKind) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// Registered rings, and the shadow page that follows them.
#[derive(Debug)]
pub struct QueueMemory {
    kind: QueueKind,
    addr: u64,
    parts: Vec<(Arc<Buffer>, Range<usize>)>,
    pages: PageList,
    contiguous: bool,
    in_use: AtomicBool,
}

/// A queue's hold on its rings; they can be deregistered once it is dropped.
#[derive(Debug)]
pub struct RingUse(Arc<QueueMemory>);

impl Drop for RingUse {
    fn drop(&mut self) {
        self.0.in_use.store(false, Ordering::Release);
    }
}

impl std::ops::Deref for RingUse {
    type Target = QueueMemory;

    fn deref(&self) -> &QueueMemory {
        &self.0
    }
}

impl QueueMemory {
    /// Checks the memory for a queue: whole pages, enough for the rings and the shadow page.
    /// Rings whose pages follow each other are named by an address, others by a list.
    fn handle_q_mem(
        kind: QueueKind,
        parts: Vec<(Arc<Buffer>, Range<usize>)>,
    ) -> Result<Self, MemError> {
        let mut pages = Vec::new();
        for (buffer, range) in &parts {
            let addr = buffer.addr().wrapping_add(range.start as u64);
            let len = range.len() as u64;
            let whole = addr.is_multiple_of(PAGE as u64) && range.len().is_multiple_of(PAGE);
            if !whole || range.is_empty() || range.end > buffer.len() {
                return Err(MemError::InvalidLength { addr, len });
            }
            pages.extend(copy_user_pgaddrs(addr, len, PAGE as u64, usize::MAX));
        }
        let addr = pages.first().copied().unwrap_or(0);
        let [first, second] = kind.rings().map(|bytes| bytes.div_ceil(PAGE));
        if pages.len() < first + second + 1 {
            return Err(MemError::InvalidLength { addr, len: (pages.len() * PAGE) as u64 });
        }
        let is_straight = |range: Range<usize>| check_mem_contiguous(&pages[range], PAGE as u64);
        let contiguous = is_straight(0..first) && is_straight(first..first + second);
        let list = PageList::setup_pbles(&pages, PAGE as u64, Vec::new());
        let in_use = AtomicBool::new(false);
        Ok(QueueMemory { kind, addr, parts, pages: list, contiguous, in_use })
    }

    /// The first address, by which a queue finds its rings.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Whose rings they are.
    pub fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Whether each ring is one piece, so that its address says where it is; otherwise a page list
    /// of this level does.
    pub fn place(&self) -> Result<u64, u8> {
        if self.contiguous { Ok(self.addr) } else { Err(self.pages.level()) }
    }

    /// Copies `data`, which does not cross a page, to a byte of the first ring, or of the second.
    ///
    /// # Panics
    /// If it is outside the memory.
    pub fn write(&self, second: bool, at: usize, data: &[u8]) {
        let first = if second { self.kind.rings()[0].next_multiple_of(PAGE) } else { 0 };
        let mut at = first + at;
        for (buffer, range) in &self.parts {
            if at < range.len() {
                return buffer.write(range.start + at, data);
            }
            at -= range.len();
        }
        panic!("{at} bytes past the rings");
    }
}

impl MemTable {
    /// Registers rings for a queue that is made later.
    ///
    /// # Errors
    /// [`MemError::InvalidLength`] for parts that are not whole pages of their buffers, or too few
    /// of them for the rings and one page more.
    pub fn reg_queue_memory(
        &self,
        kind: QueueKind,
        parts: Vec<(Arc<Buffer>, Range<usize>)>,
    ) -> Result<Arc<QueueMemory>, MemError> {
        let memory = Arc::new(QueueMemory::handle_q_mem(kind, parts)?);
        self.control().queues.push(Arc::clone(&memory));
        Ok(memory)
    }

    /// Takes rings off the list of those that wait for a queue of this kind; none where no
    /// registration starts at `addr`, or another queue took it.
    pub fn get_pbl(&self, kind: QueueKind, addr: u64) -> Option<RingUse> {
        let mut control = self.control();
        let queues = &mut control.queues;
        let at = queues.iter().position(|q| q.addr == addr && q.kind.same(kind))?;
        let memory = queues.swap_remove(at);
        memory.in_use.store(true, Ordering::Release);
        Some(RingUse(memory))
    }

    /// Ends a registration of rings.
    ///
    /// # Errors
    /// [`MemError::RingsInUse`] while a queue stands on them.
    pub fn del_memlist(&self, memory: &Arc<QueueMemory>) -> Result<(), MemError> {
        if memory.in_use.load(Ordering::Acquire) {
            return Err(MemError::RingsInUse(memory.addr));
        }
        self.control().queues.retain(|waiting| !Arc::ptr_eq(waiting, memory));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: QueueKind = QueueKind::Qp { send: 2 * PAGE, recv: 100 };

    fn parts(pages: &[usize]) -> Vec<(Arc<Buffer>, Range<usize>)> {
        let buffer = Arc::new(Buffer::zeroed(20 * PAGE));
        let first = (buffer.addr() as usize).next_multiple_of(PAGE) - buffer.addr() as usize;
        let part =
            |page: &usize| (Arc::clone(&buffer), first + page * PAGE..first + (page + 1) * PAGE);
        pages.iter().map(part).collect()
    }

    #[test]
    fn rings_are_found_once_by_their_first_address_and_kind() {
        let table = MemTable::new(1, 8);
        let memory = table.reg_queue_memory(QP, parts(&[0, 1, 2, 3])).unwrap();
        let addr = memory.addr();
        assert!(table.get_pbl(QueueKind::Cq(1), addr).is_none(), "another kind");
        assert!(table.get_pbl(QP, addr + PAGE as u64).is_none(), "inside");
        let used = table.get_pbl(QP, addr).unwrap();
        assert!(table.get_pbl(QP, addr).is_none(), "taken");
        assert_eq!(table.del_memlist(&memory), Err(MemError::RingsInUse(addr)));
        drop(used);
        assert!(table.get_pbl(QP, addr).is_none(), "for one queue only");
        table.del_memlist(&memory).unwrap();
        let other = table.reg_queue_memory(QP, parts(&[0, 1, 2, 3])).unwrap();
        table.del_memlist(&other).unwrap();
        assert!(table.get_pbl(QP, other.addr()).is_none(), "deregistered");
    }

    #[test]
    fn contiguity_of_each_ring_decides_how_it_is_named() {
        let table = MemTable::new(1, 8);
        let place = |pages: &[usize]| {
            let memory = table.reg_queue_memory(QP, parts(pages)).unwrap();
            memory.place().map(|addr| addr == memory.addr())
        };
        assert_eq!(place(&[0, 1, 2, 3]), Ok(true));
        assert_eq!(place(&[0, 1, 9, 5]), Ok(true), "each ring is one piece");
        assert_eq!(place(&[0, 2, 3, 4]), Err(0));
        assert_eq!(place(&[0, 2, 3, 4, 5, 6]), Err(1));
    }

    #[test]
    fn what_is_no_ring_memory_is_refused() {
        let table = MemTable::new(1, 8);
        let refused = |parts| table.reg_queue_memory(QP, parts).is_err();
        assert!(refused(parts(&[0, 1, 2])), "no shadow page");
        assert!(refused(Vec::new()));
        let mut odd = parts(&[0, 1, 2, 3]);
        odd[1].1.end -= 1;
        assert!(refused(odd));
        let mut shifted = parts(&[0, 1, 2, 3]);
        shifted[0].1.start += 8;
        assert!(refused(shifted));
    }

    #[test]
    fn bytes_go_to_their_ring() {
        let table = MemTable::new(1, 8);
        let parts = parts(&[4, 0, 2, 3]);
        let (buffer, first) = (Arc::clone(&parts[0].0), parts[1].1.start);
        let memory = table.reg_queue_memory(QP, parts).unwrap();
        memory.write(false, 8, b"a");
        memory.write(false, PAGE, b"b");
        memory.write(true, 0, b"c");
        let at = |offset: usize| buffer.byte(first + offset);
        assert_eq!((at(4 * PAGE + 8), at(0), at(2 * PAGE)), (b'a', b'b', b'c'));
    }
}
