//! Queue pairs: the object, its creation and its queries.

mod attr;
mod complete;
mod modify;
#[cfg(test)]
mod modify_table;
mod post;
mod push;
mod rings;
mod state;

pub(crate) use complete::Received;
pub(crate) use push::PushPage;
pub(crate) use rings::{Queue, RingState};

pub use attr::{AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};
pub use modify::{Transition, transition};
pub use push::PUSH_PAGE_LEN;
pub use rings::{RING_ENTRY_LEN, RingPart, Rings};

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use irdma_mem::PdId;
use irdma_wire::Qpn;

use crate::batch::Route;
use crate::cq::{Cq, Unpolled};
use crate::cx::Cx;
use crate::flow::PeerId;
use crate::rate::Rate;
use crate::roce::{Requester, Responder};
use crate::srq::Srq;
use crate::timer::TimerKey;
use crate::wqe::Wqe;
use crate::wr::RecvWqe;

/// The connected peer of an RC or UC queue pair, resolved when it goes to RTR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) route: Route,
    pub(crate) peer: PeerId,
    pub(crate) dest: Qpn,
    pub(crate) mtu: u32,
}

/// A shared queue that a request named; the program may destroy it at any time.
#[derive(Clone, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) number: u32,
    pub(crate) pd: PdId,
    pub(crate) srq: Weak<Srq>,
}

impl XrcSrq {
    pub(crate) fn new(srq: &Arc<Srq>) -> Self {
        XrcSrq { number: srq.number(), pd: srq.pd().id(), srq: Arc::downgrade(srq) }
    }
}

/// A queue pair. The requester's and responder's rules live in `roce`.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) attr: QpAttr,
    pub(crate) path: Option<Path>,
    pub(crate) sq: VecDeque<Wqe>,
    pub(crate) rq: VecDeque<RecvWqe>,
    pub(crate) sq_unpolled: Unpolled,
    pub(crate) rq_unpolled: Unpolled,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// The shared queue that the newest request of an extended connection names.
    pub(crate) xrc_srq: Option<XrcSrq>,
    /// Queue memory of the program, where it gave some.
    pub(crate) rings: Option<Box<RingState>>,
    pub(crate) push: PushPage,
    /// The limit that the program set.
    pub(crate) rate: Option<Box<Rate>>,
    /// Multicast attachments; the queue pair cannot be destroyed while there are any.
    pub(crate) attached_count: u32,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: QpInit) -> Self {
        Qp {
            qpn,
            init,
            attr: QpAttr::default(),
            path: None,
            sq: VecDeque::new(),
            rq: VecDeque::new(),
            sq_unpolled: Unpolled::default(),
            rq_unpolled: Unpolled::default(),
            req: Requester::default(),
            resp: Responder::default(),
            xrc_srq: None,
            rings: None,
            push: PushPage::default(),
            rate: None,
            attached_count: 0,
        }
    }

    pub(crate) fn index(&self) -> u16 {
        self.qpn.index()
    }

    /// The domain that keys are checked against; with extended connections that of the shared
    /// queue which the request names (IBTA annex A14).
    pub(crate) fn pd(&self) -> PdId {
        self.xrc_srq.as_ref().map_or_else(|| self.init.pd.id(), |srq| srq.pd)
    }

    /// The shared queue that receives are taken from.
    pub(crate) fn srq(&self) -> Option<Arc<Srq>> {
        match &self.xrc_srq {
            Some(named) => named.srq.upgrade(),
            None => self.init.srq.clone(),
        }
    }

    /// Hands over where receives complete; there is nothing once the shared queue that a request
    /// named is destroyed.
    pub(crate) fn with_recv_cq<R>(&self, then: impl FnOnce(&Cq) -> R) -> Option<R> {
        match &self.xrc_srq {
            Some(named) => named.srq.upgrade()?.cq().map(|cq| then(cq)),
            None => Some(then(&self.init.recv_cq)),
        }
    }

    /// Whether the completion queue of a number is one of the queue pair's.
    pub(crate) fn completes_in(&self, token: u64) -> bool {
        self.init.send_cq.token() == token
            || self.with_recv_cq(Cq::token).is_some_and(|own| own == token)
    }

    /// Whether the rate that the program set lets a packet go now; otherwise the queue pair is
    /// woken when it does.
    pub(crate) fn rate_allows(&mut self, cx: &mut Cx, bytes: usize) -> bool {
        let Some(at) = self.rate.as_mut().and_then(|rate| rate.begin_wait(bytes, cx.now)) else {
            return true;
        };
        cx.timers.arm(TimerKey::Qp(self.index()), at);
        false
    }

    /// A packet of this size goes.
    pub(crate) fn charge_rate(&mut self, cx: &Cx, bytes: usize) {
        if let Some(rate) = &mut self.rate {
            rate.charge(bytes, cx.now);
        }
    }

    pub(crate) fn receives(&self) -> bool {
        matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Attributes as `ibv_query_qp(3)` reports them: PSNs are the live ones.
    pub(crate) fn query_qp(&self) -> (QpAttr, QpInit) {
        let mut attr = self.attr;
        attr.cur_state = attr.state;
        if self.receives() && self.init.qp_type != QpType::Ud {
            attr.rq_psn = self.resp.expected;
        }
        if matches!(attr.state, QpState::Rts | QpState::Sqd) {
            attr.sq_psn = self.req.next;
        }
        attr.sq_draining = attr.state == QpState::Sqd && self.req.is_draining(&self.sq);
        (attr, self.init.clone())
    }
}
