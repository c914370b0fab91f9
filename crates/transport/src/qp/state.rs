//! Modify: checked as a whole first, then applied as a whole.

use irdma_mem::Access;
use irdma_wire::{Gid, Qpn};

use super::attr::AttrMask;
use super::{Path, Qp, QpAttr, QpState, QpType, modify};
use crate::cx::Cx;
use crate::effects::{EventKind, EventSource};
use crate::error::{Result, VerbsError};
use crate::rate::Rate;
use crate::roce::{Requester, Responder};

impl Qp {
    /// Changes attributes and state; a refused call changes nothing.
    pub(crate) fn modify_qp(&mut self, cx: &mut Cx, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let mask = modify::useful(self.init.qp_type, mask);
        let from = self.attr.state;
        let to = modify::check(self.init.qp_type, from, attr, mask)?;
        let mut next = self.attr;
        merge(&mut next, attr, mask);
        let path = self.resolve(cx, &next, to, mask)?;
        if path.map(|path| path.peer) != self.path.map(|path| path.peer) {
            self.release_in_flight(cx, u32::MAX, false);
        }
        if next.rate != self.attr.rate {
            self.rate = Rate::new(next.rate);
            cx.ready.push(self.index());
        }
        self.attr = next;
        self.attr.state = from;
        self.path = path;
        self.enter(cx, from, to);
        Ok(())
    }

    /// The path that the new attributes name, where this move sets one.
    fn resolve(
        &self,
        cx: &mut Cx,
        attr: &QpAttr,
        to: QpState,
        mask: AttrMask,
    ) -> Result<Option<Path>> {
        if to == QpState::Reset {
            return Ok(None);
        }
        let sets_path = mask.intersects(AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN);
        if self.init.qp_type == QpType::Ud || !sets_path {
            return Ok(self.path);
        }
        if attr.av.dgid == Gid::default() || attr.av.dgid.is_multicast() {
            return Err(VerbsError::invalid(format!(
                "{to:?} refused: dgid {} is no unicast address; RoCE needs a GRH (is_global = 1)",
                attr.av.dgid
            )));
        }
        let route = cx.locals.route(&attr.av, attr.dest_qpn)?;
        let most = cx.locals.mtu(route.src);
        if attr.path_mtu > most {
            return Err(VerbsError::invalid(format!(
                "{to:?} refused: path_mtu {} does not fit the interface of {}, which carries {most}",
                attr.path_mtu, route.src
            )));
        }
        let peer = cx.peers.find(&route, attr.dest_qpn, &cx.config);
        Ok(Some(Path { route, peer, dest: attr.dest_qpn, mtu: attr.path_mtu }))
    }

    fn enter(&mut self, cx: &mut Cx, from: QpState, to: QpState) {
        match to {
            QpState::Reset => self.reset(cx),
            QpState::Err => {
                self.resp.queue.clear();
                self.enter_error(cx, None);
            }
            _ => {
                self.attr.state = to;
                match (from, to) {
                    (QpState::Init, QpState::Rtr) => self.resp.start(self.attr.rq_psn),
                    (QpState::Rtr, QpState::Rts) => {
                        self.req.start(self.attr.sq_psn, self.attr.retry_cnt, self.attr.rnr_retry);
                    }
                    _ => {}
                }
                cx.ready.push(self.index());
                self.note_drained(cx);
            }
        }
    }

    /// Outstanding requests vanish without completions, as on the hardware.
    fn reset(&mut self, cx: &mut Cx) {
        self.release_windows(cx);
        (self.attr, self.rate) = (QpAttr::default(), None);
        while let Some(wqe) = self.sq.pop_front() {
            self.reclaim_page(wqe);
        }
        self.rq.clear();
        self.xrc_srq = None;
        self.show_taken(cx);
        self.init.send_cq.clean_cqes(self.qpn);
        self.init.recv_cq.clean_cqes(self.qpn);
        self.req = Requester::default();
        self.resp = Responder::default();
    }

    /// Raises SQ_DRAINED once when it was asked for and nothing started is left.
    pub(crate) fn note_drained(&mut self, cx: &mut Cx) {
        let asked = self.attr.state == QpState::Sqd && self.attr.en_sqd_async_notify;
        if asked && !self.req.is_draining(&self.sq) {
            self.attr.en_sqd_async_notify = false;
            cx.event(EventKind::SqDrained, EventSource::Qp(self.qpn));
        }
    }
}

/// Copies the attributes that `mask` names.
fn merge(to: &mut QpAttr, from: &QpAttr, mask: AttrMask) {
    macro_rules! copy {
        ($($bit:ident $field:ident,)*) => {
            $(if mask.contains(AttrMask::$bit) { to.$field = from.$field; })*
        };
    }
    copy! {
        EN_SQD_ASYNC_NOTIFY en_sqd_async_notify,
        PKEY_INDEX pkey_index,
        PORT port,
        QKEY qkey,
        AV av,
        PATH_MTU path_mtu,
        TIMEOUT timeout,
        RETRY_CNT retry_cnt,
        RNR_RETRY rnr_retry,
        RQ_PSN rq_psn,
        MAX_QP_RD_ATOMIC max_rd_atomic,
        MIN_RNR_TIMER min_rnr_timer,
        SQ_PSN sq_psn,
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
        DEST_QPN dest_qpn,
        RATE_LIMIT rate,
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        to.access = from.access
            & (Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT);
    }
    to.dest_qpn = Qpn::new(to.dest_qpn.get());
}
