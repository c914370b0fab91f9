//! Posting: a request's shape is checked here once, then trusted.

use irdma_mem::{Access, total_len};

use super::{Qp, QpState, QpType, Queue};
use crate::cx::Cx;
use crate::error::{Result, VerbsError};
use crate::wqe::{Wqe, WqeData};
use crate::wr::{RecvWqe, RecvWr, SendData, SendOp, SendWr};

/// The longest message (`max_msg_sz`), 2^31 - 1 bytes.
const MAX_MESSAGE: u64 = (1 << 31) - 1;

impl Qp {
    /// Queues a send request; EINVAL for a wrong shape, ENOMEM when the queue is full.
    ///
    /// Any state takes it, as the driver does: before RTS it waits, in ERR it is flushed.
    /// `srqn` names the peer's shared queue where the connection is extended, and is nothing to
    /// others.
    pub(crate) fn post_send(&mut self, cx: &mut Cx, wr: &SendWr<'_>, srqn: u32) -> Result<()> {
        if self.init.qp_type == QpType::XrcSend && srqn == 0 && !wr.op.is_local() {
            return Err(VerbsError::invalid(format!(
                "post_send: a request on QP {}, of type XrcSend, names the peer's shared queue",
                self.qpn
            )));
        }
        let len = self.check_post_send(cx, wr, 0)?;
        let pushed = self.push_data(&wr.data);
        cx.stats.pushed += u64::from(pushed.is_some());
        let data = pushed.unwrap_or_else(|| WqeData::new(&wr.data));
        self.sq.push_back(Wqe { srqn, ..Wqe::new(wr, data, len) });
        self.show_posted(cx, Queue::Send, wr.wr_id);
        if self.attr.state == QpState::Err {
            self.flush_sends(cx);
        } else {
            cx.ready.push(self.index());
        }
        Ok(())
    }

    /// The length of a send request that would be taken once `ahead` others are queued.
    pub(crate) fn check_post_send(&self, cx: &Cx, wr: &SendWr<'_>, ahead: usize) -> Result<u32> {
        let len = self.check_send(cx, wr)?;
        let used = self.sq.len() + self.sq_unpolled.count() + ahead;
        if used >= self.init.cap.max_send_wr as usize {
            return Err(VerbsError::no_memory(format!(
                "post_send: all {} send requests of QP {} are in use; poll completions first",
                self.init.cap.max_send_wr, self.qpn
            )));
        }
        Ok(len)
    }

    /// Queues a receive request; EINVAL for a wrong shape or with an SRQ, ENOMEM when full.
    pub(crate) fn post_recv(&mut self, cx: &mut Cx, wr: &RecvWr<'_>) -> Result<()> {
        let is_xrc = matches!(self.init.qp_type, QpType::XrcSend | QpType::XrcRecv);
        if self.init.srq.is_some() || is_xrc {
            return Err(VerbsError::invalid(format!(
                "post_recv: QP {} receives through a shared queue, if at all; use post_srq_recv",
                self.qpn
            )));
        }
        if wr.sges.len() > self.init.cap.max_recv_sge as usize {
            return Err(self.too_many_sges("post_recv", wr.sges.len(), self.init.cap.max_recv_sge));
        }
        if self.rq.len() + self.rq_unpolled.count() >= self.init.cap.max_recv_wr as usize {
            return Err(VerbsError::no_memory(format!(
                "post_recv: all {} receive requests of QP {} are in use; poll completions first",
                self.init.cap.max_recv_wr, self.qpn
            )));
        }
        self.rq.push_back(RecvWqe::new(wr));
        self.show_posted(cx, Queue::Recv, wr.wr_id);
        if self.attr.state == QpState::Err {
            self.flush_recvs(cx);
        }
        Ok(())
    }

    fn check_send(&self, cx: &Cx, wr: &SendWr<'_>) -> Result<u32> {
        self.check_operation(wr)?;
        check_local(cx, &wr.op)?;
        let len = match wr.data {
            SendData::Sges(sges) => {
                if sges.len() > self.init.cap.max_send_sge as usize {
                    let max = self.init.cap.max_send_sge;
                    return Err(self.too_many_sges("post_send", sges.len(), max));
                }
                total_len(sges)
            }
            SendData::Inline(bytes) => self.check_inline(&wr.op, bytes.len())?,
        };
        if len > 0 && (wr.op.is_local() || matches!(wr.op, SendOp::Flush { .. })) {
            return Err(VerbsError::invalid(format!(
                "post_send: {len} bytes with {:?}, which has no data; leave out the list",
                wr.op
            )));
        }
        if len > MAX_MESSAGE {
            return Err(VerbsError::invalid(format!(
                "post_send: {len} bytes on QP {}, a message holds {MAX_MESSAGE}",
                self.qpn
            )));
        }
        Ok(len as u32)
    }

    fn check_operation(&self, wr: &SendWr<'_>) -> Result<()> {
        let offered = match self.init.qp_type {
            QpType::Rc | QpType::XrcSend => true,
            QpType::XrcRecv => false,
            QpType::Uc => {
                matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. }) || wr.op.is_local()
            }
            QpType::Ud => matches!(wr.op, SendOp::Send { .. }),
        };
        if !offered {
            return Err(VerbsError::invalid(format!(
                "post_send: {:?} queue pairs do not offer {:?}",
                self.init.qp_type, wr.op
            )));
        }
        if (self.init.qp_type == QpType::Ud) != wr.ud.is_some() {
            return Err(VerbsError::invalid(format!(
                "post_send: QP {} of type {:?}: an address handle belongs to UD, and only there",
                self.qpn, self.init.qp_type
            )));
        }
        Ok(())
    }

    fn check_inline(&self, op: &SendOp, len: usize) -> Result<u64> {
        if matches!(op, SendOp::AtomicWrite { .. }) {
            return Ok(len as u64);
        }
        if !op.is_send() && !matches!(op, SendOp::Write { .. }) {
            return Err(VerbsError::invalid("post_send: only SEND and WRITE carry inline data"));
        }
        if len > self.init.cap.max_inline_data as usize {
            return Err(VerbsError::invalid(format!(
                "post_send: {len} inline bytes, QP {} was created for {}",
                self.qpn, self.init.cap.max_inline_data
            )));
        }
        Ok(len as u64)
    }

    fn too_many_sges(&self, call: &str, count: usize, max: u32) -> VerbsError {
        VerbsError::invalid(format!(
            "{call}: {count} scatter/gather elements, QP {} was created for {max}",
            self.qpn
        ))
    }
}

/// A window needs addresses that its region's key does not count from 0 (seed row 45).
fn check_local(cx: &Cx, op: &SendOp) -> Result<()> {
    let SendOp::BindMw(bind) = op else { return Ok(()) };
    let region = cx.mem.query(bind.lkey);
    if bind.len > 0 && region.is_some_and(|mr| mr.access.contains(Access::ZERO_BASED)) {
        return Err(VerbsError::invalid(format!(
            "post_send: no window can be bound to the zero-based region of key {:#010x}",
            bind.lkey
        )));
    }
    Ok(())
}
