//! What a device can hold at once, by profile.

use irdma_mem::MAX_FAST_REG_PAGES;
use irdma_transport::{ErrorKind, Result, VerbsError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The limits that a device reports and keeps: the advertised value works, one more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests outstanding in one work queue.
    pub max_qp_wr: u32,
    /// Gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter elements of a receive request.
    pub max_recv_sge: u32,
    /// Scatter elements of a READ.
    pub max_sge_rd: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Memory windows; 0 where the device has none.
    pub max_mw: u32,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Pages of a fast registration.
    pub max_fast_reg_page_list_len: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests outstanding in a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter elements of a request in a shared receive queue.
    pub max_srq_sge: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// READs and atomics that a queue pair answers at once.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair has outstanding at once.
    pub max_qp_init_rd_atom: u8,
    /// Entries of a port's GID table.
    pub max_gids: u32,
    /// The highest rate that a queue pair can be limited to, in kilobits a second; 0 where it
    /// cannot be limited.
    pub max_rate_kbps: u32,
}

/// Everything that software can do.
pub const FULL: Limits = Limits {
    max_qp: (1 << 14) - 2,
    max_qp_wr: 1 << 15,
    max_send_sge: 32,
    max_recv_sge: 32,
    max_sge_rd: 32,
    max_inline_data: 1024,
    max_cq: 1 << 16,
    max_cqe: (1 << 20) - 2,
    max_mr: (1 << 18) - 1,
    max_mr_size: 1 << 45,
    max_mw: (1 << 18) - 1,
    max_dm_size: 16 << 20,
    max_fast_reg_page_list_len: MAX_FAST_REG_PAGES,
    max_pd: (1 << 18) - 3,
    max_srq: 1 << 14,
    max_srq_wr: (1 << 15) - 1,
    max_srq_sge: 32,
    max_ah: 1 << 18,
    max_mcast_grp: 4095,
    max_mcast_qp_attach: 8,
    max_total_mcast_qp_attach: 4095 * 8,
    max_qp_rd_atom: 128,
    max_qp_init_rd_atom: 128,
    max_gids: 255,
    max_rate_kbps: 400_000_000,
};

/// The E810 family (seed 2.2). Counts that the hardware grants are those that software has room
/// for; multicast groups are those that can be used, where the driver advertises more.
pub const GEN2: Limits = Limits {
    max_qp_wr: 4063,
    max_send_sge: 13,
    max_recv_sge: 13,
    max_sge_rd: 13,
    max_inline_data: 101,
    max_cq: (1 << 16) - 3,
    max_srq: 0,
    max_srq_sge: 13,
    max_mw: 0,
    max_dm_size: 0,
    max_qp_rd_atom: 127,
    max_qp_init_rd_atom: 255,
    max_gids: 32,
    max_rate_kbps: 0,
    ..FULL
};

/// The IPU generation (seed 2.2), counts as in [`GEN2`].
pub const GEN3: Limits = Limits {
    max_send_sge: 14,
    max_recv_sge: 14,
    max_sge_rd: 14,
    max_inline_data: 216,
    max_srq: (1 << 14) - 1,
    max_srq_sge: 14,
    max_mw: FULL.max_mw,
    max_qp_rd_atom: 64,
    max_qp_init_rd_atom: 64,
    ..GEN2
};

/// Counts objects of one kind.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    max: u32,
    used: Arc<AtomicU32>,
}

/// The right to exist of one object; gives its place back when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicU32>);

impl Quota {
    pub(crate) fn new(what: &'static str, max: u32) -> Self {
        Quota { what, max, used: Arc::default() }
    }

    /// Takes a place. EOVERFLOW when there is none.
    pub(crate) fn take(&self) -> Result<Place> {
        let one_more = |used| (used < self.max).then_some(used + 1);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Place(Arc::clone(&self.used))),
            Err(_) => Err(VerbsError::new(
                ErrorKind::Overflow,
                format!("all {} {} are in use; destroy some first", self.max, self.what),
            )),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_gives_its_maximum_and_no_more() {
        let quota = Quota::new("places", 2);
        let first = quota.take().unwrap();
        let _second = quota.take().unwrap();
        assert_eq!(quota.take().unwrap_err().kind(), ErrorKind::Overflow);
        drop(first);
        assert!(quota.take().is_ok());
    }
}
