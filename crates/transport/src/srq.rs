//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cq::Cq;
use crate::error::{Result, VerbsError};
use crate::pd::Pd;
use crate::wr::{RecvWqe, RecvWr};

/// Attributes of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receive requests that can wait.
    pub max_wr: u32,
    /// Scatter elements of each request.
    pub max_sge: u32,
    /// The low-water mark that raises one event, 0 for none.
    pub srq_limit: u32,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<RecvWqe>,
    limit: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    token: u64,
    pd: Arc<Pd>,
    max_wr: u32,
    max_sge: u32,
    /// Where the receives of extended connections complete.
    cq: Option<Arc<Cq>>,
    queue: Mutex<Queue>,
}

impl Srq {
    /// A queue of `attr.max_wr` requests of `attr.max_sge` elements; the initial limit is ignored.
    pub fn create_srq(token: u64, pd: Arc<Pd>, attr: SrqAttr) -> Result<Self> {
        if attr.max_wr == 0 {
            return Err(VerbsError::invalid("create_srq: max_wr is 0; ask for at least 1"));
        }
        let queue = Mutex::new(Queue::default());
        Ok(Srq { token, pd, max_wr: attr.max_wr, max_sge: attr.max_sge, cq: None, queue })
    }

    /// A queue for extended reliable connections, whose receives complete in `cq`.
    ///
    /// EINVAL as [`Srq::create_srq`].
    pub fn create_xrc_srq(token: u64, pd: Arc<Pd>, attr: SrqAttr, cq: Arc<Cq>) -> Result<Self> {
        Ok(Srq { cq: Some(cq), ..Self::create_srq(token, pd, attr)? })
    }

    /// The number that requests of extended connections name the queue by, 24 bits.
    pub fn number(&self) -> u32 {
        self.token as u32 & 0xFF_FFFF
    }

    /// Where the receives of extended connections complete.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// The number that effects name this queue by.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Current attributes.
    pub fn query_srq(&self) -> SrqAttr {
        SrqAttr { max_wr: self.max_wr, max_sge: self.max_sge, srq_limit: self.lock().limit }
    }

    /// Arms the low-water mark. EINVAL above the queue's size.
    pub fn modify_srq(&self, srq_limit: u32) -> Result<()> {
        if srq_limit > self.max_wr {
            return Err(VerbsError::invalid(format!(
                "modify_srq: srq_limit {srq_limit} is above the queue's {} requests",
                self.max_wr
            )));
        }
        self.lock().limit = srq_limit;
        Ok(())
    }

    /// Adds a receive request. EINVAL with too many elements, ENOMEM when full.
    pub fn post_srq_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(VerbsError::invalid(format!(
                "post_srq_recv: {} scatter elements, the queue takes {}",
                wr.sges.len(),
                self.max_sge
            )));
        }
        let mut queue = self.lock();
        if queue.entries.len() >= self.max_wr as usize {
            return Err(VerbsError::no_memory(format!(
                "post_srq_recv: all {} requests are in use; poll completions first",
                self.max_wr
            )));
        }
        queue.entries.push_back(RecvWqe::new(wr));
        Ok(())
    }

    /// Takes the oldest request; the flag says that the low-water mark was crossed just now.
    pub(crate) fn pop(&self) -> Option<(RecvWqe, bool)> {
        let mut queue = self.lock();
        let wqe = queue.entries.pop_front()?;
        let crossed = queue.limit != 0 && queue.entries.len() < queue.limit as usize;
        if crossed {
            queue.limit = 0;
        }
        Some((wqe, crossed))
    }

    /// Puts back a request that was taken and not used; it is the next to be taken.
    pub(crate) fn give_back(&self, wqe: RecvWqe) {
        self.lock().entries.push_front(wqe);
    }

    /// Ends the queue: requests that wait vanish without completions, and none is taken any more.
    pub fn srq_free_rsrc(&self) {
        *self.lock() = Queue::default();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use irdma_mem::Sge;

    use super::*;
    use crate::pd::PdTable;

    fn srq(max_wr: u32) -> Result<Srq> {
        let pd = PdTable::new(8).alloc_pd()?;
        Srq::create_srq(1, pd, SrqAttr { max_wr, max_sge: 1, srq_limit: 9 })
    }

    fn post(srq: &Srq, wr_id: u64) -> Result<()> {
        srq.post_srq_recv(&RecvWr { wr_id, sges: &[Sge::default()] })
    }

    #[test]
    fn requests_come_out_in_order_up_to_the_limit() {
        let srq = srq(2).unwrap();
        post(&srq, 1).unwrap();
        post(&srq, 2).unwrap();
        assert_eq!(post(&srq, 3).unwrap_err().errno(), 12);
        let two = RecvWr { wr_id: 4, sges: &[Sge::default(); 2] };
        assert_eq!(srq.post_srq_recv(&two).unwrap_err().errno(), 22);
        let taken = [srq.pop(), srq.pop(), srq.pop()];
        assert_eq!(taken.map(|taken| taken.map(|(wqe, _)| wqe.wr_id)), [Some(1), Some(2), None]);
    }

    #[test]
    fn the_limit_is_crossed_once_for_each_arming() {
        let srq = srq(8).unwrap();
        (0..8).for_each(|wr_id| post(&srq, wr_id).unwrap());
        assert_eq!(srq.query_srq().srq_limit, 0, "the limit of creation is ignored");
        assert_eq!(srq.modify_srq(9).unwrap_err().errno(), 22);
        srq.modify_srq(7).unwrap();
        let crossed = [(); 4].map(|()| srq.pop().unwrap().1);
        assert_eq!((crossed, srq.query_srq().srq_limit), ([false, true, false, false], 0));
        srq.modify_srq(7).unwrap();
        assert!(srq.pop().unwrap().1, "armed below the limit, it is crossed at once");
    }

    #[test]
    fn what_waits_in_a_destroyed_queue_is_gone() {
        let srq = srq(2).unwrap();
        post(&srq, 1).unwrap();
        srq.modify_srq(2).unwrap();
        srq.srq_free_rsrc();
        assert!(srq.pop().is_none());
        assert_eq!(srq.query_srq().srq_limit, 0);
    }

    #[test]
    fn an_empty_queue_is_refused() {
        assert_eq!(srq(0).unwrap_err().errno(), 22);
    }
}
