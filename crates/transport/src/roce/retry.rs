//! Going back: timeouts, sequence NAKs, RNR, and their budgets (IBTA 9.7.5.2.7, 9.9.2).

use std::time::Duration;

use irdma_wire::Psn;
use irdma_wire::aeth::rnr_timer_ns;

use crate::cx::Cx;
use crate::qp::{Qp, QpState};
use crate::timer::TimerKey;
use crate::wc::WcStatus;

/// 4.096 us * 2^code.
fn timeout_ns(code: u8) -> u64 {
    4096 << u32::from(code)
}

impl Qp {
    /// A peer that stays silent gets up to four times the timeout, as IBTA 9.7.6.1.3 allows: it
    /// may be waiting for a processor.
    pub(crate) fn arm_ack_timer(&mut self, cx: &mut Cx) {
        if self.attr.timeout == 0 {
            return;
        }
        let least = timeout_ns(self.attr.timeout).max(cx.config.min_timeout_ns);
        let at = cx.now + (least << self.req.timeouts.saturating_sub(1).min(2));
        self.req.ack_deadline = Some(at);
        cx.timers.arm(TimerKey::Qp(self.index()), at);
    }

    /// One of this queue pair's deadlines may be due.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Cx) {
        match self.rate.as_mut().map(|rate| rate.handle_timeout(cx.now)) {
            Some(Ok(true)) => cx.ready.push(self.index()),
            Some(Err(at)) => cx.timers.arm(TimerKey::Qp(self.index()), at),
            _ => {}
        }
        if !self.init.qp_type.is_acknowledged()
            || !matches!(self.attr.state, QpState::Rts | QpState::Sqd)
        {
            return;
        }
        if self.req.rnr_until.is_some_and(|at| at <= cx.now) {
            self.req.rnr_until = None;
            cx.ready.push(self.index());
        }
        if self.req.ack_deadline.is_some_and(|at| at <= cx.now) {
            self.req.ack_deadline = None;
            self.ack_timeout(cx);
        }
        for at in [self.req.rnr_until, self.req.ack_deadline].into_iter().flatten() {
            cx.timers.arm(TimerKey::Qp(self.index()), at);
        }
    }

    fn ack_timeout(&mut self, cx: &mut Cx) {
        // What waits for the peer's window was not sent again yet and cannot be late.
        let waits = self.req.in_flight == 0 && self.req.reads.is_empty();
        if !self.req.outstanding() || self.req.rnr_until.is_some() || waits {
            return;
        }
        cx.stats.rto += 1;
        self.req.timeouts = self.req.timeouts.saturating_add(1);
        self.req.rewound_at = None;
        self.go_back(cx);
    }

    /// A response shows that an earlier one was lost.
    pub(crate) fn implied_nak(&mut self, cx: &mut Cx) {
        cx.stats.nak_sequence_error_implied += 1;
        self.go_back(cx);
    }

    /// Sends again from the oldest unacknowledged PSN, once for each gap, within the budget.
    pub(crate) fn go_back(&mut self, cx: &mut Cx) {
        if self.req.rewound_at == Some(self.req.una) {
            return;
        }
        if self.req.retry_left == 0 {
            if let Some(wqe) = self.sq.front() {
                let peer = self.path.map_or_else(String::new, |path| path.route.dst.to_string());
                tracing::info!(
                    "QP {}: WR {}: no answer from QP {} at {peer} to {} tries, {:.1?} or more apart: \
                     is it gone, on another device of its host, or UDP 4791 blocked?",
                    self.qpn,
                    wqe.wr_id,
                    self.attr.dest_qpn,
                    u32::from(self.attr.retry_cnt) + 1,
                    Duration::from_nanos(timeout_ns(self.attr.timeout))
                );
            }
            return self.fail_front_send(cx, WcStatus::RetryExcErr);
        }
        self.req.retry_left -= 1;
        if let Some(path) = &self.path {
            cx.peers.on_loss(path.peer, cx.now);
        }
        self.rewind(cx);
        self.req.rewound_at = Some(self.req.una);
        self.req.ack_deadline = None;
        self.arm_ack_timer(cx);
        cx.ready.push(self.index());
    }

    /// Moves the cursor back to the oldest unacknowledged PSN.
    fn rewind(&mut self, cx: &mut Cx) {
        let front = self.sq.front().filter(|wqe| wqe.started());
        let packet = front.map_or(0, |wqe| self.req.una.distance(wqe.psn).max(0) as u32);
        self.req.cursor = (0, packet);
        (self.req.receives_ahead, self.req.unasked) = (0, 0);
        self.req.reads.clear();
        self.release_windows(cx);
    }

    /// The peer has no receive request: wait as long as it asks, then send again.
    pub(crate) fn handle_rnr(&mut self, cx: &mut Cx, psn: Psn, timer: u8) {
        if psn != self.req.una || !self.req.outstanding() {
            return;
        }
        cx.stats.rnr_received += 1;
        if self.req.rnr_left == 0 {
            if let Some(wqe) = self.sq.front() {
                tracing::info!(
                    "QP {}: WR {}: the peer had no receive request after {} retries",
                    self.qpn,
                    wqe.wr_id,
                    self.attr.rnr_retry
                );
            }
            return self.fail_front_send(cx, WcStatus::RnrRetryExcErr);
        }
        if self.attr.rnr_retry < 7 {
            self.req.rnr_left -= 1;
        }
        self.rewind(cx);
        let until = cx.now + rnr_timer_ns(timer);
        self.req.rnr_until = Some(until);
        self.req.after_rnr = Some(1);
        self.req.ack_deadline = None;
        cx.timers.arm(TimerKey::Qp(self.index()), until);
    }
}
