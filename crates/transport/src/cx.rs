//! What any step of the protocol may touch besides its own queue pair.

use std::collections::VecDeque;
use std::sync::Arc;

use irdma_mem::MemTable;
use irdma_wire::Qpn;

use crate::cq::{Cq, Pushed, Unpolled};
use crate::effects::{Effect, EventKind, EventSource};
use crate::endpoint::Config;
use crate::error::DropReason;
use crate::flow::Peers;
use crate::locals::Locals;
use crate::ready::ReadyList;
use crate::srq::Srq;
use crate::stats::Stats;
use crate::time::Instant;
use crate::timer::Timers;
use crate::wc::{Wc, WcStatus};

pub(crate) struct Cx {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) mem: Arc<MemTable>,
    pub(crate) stats: Stats,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ready: ReadyList,
    pub(crate) timers: Timers,
    pub(crate) peers: Peers,
    pub(crate) locals: Locals,
    /// Bytes of READ responses that were asked for and have not arrived.
    pub(crate) reads_in_flight: u32,
    /// Queue pairs that wait for room in `reads_in_flight`.
    pub(crate) read_waiters: ReadyList,
    /// Completion queues, by token, that overflowed just now: their queue pairs are to fail.
    pub(crate) dead_cqs: Vec<u64>,
    /// Queue pairs that lost a completion: they are to fail.
    pub(crate) failing: Vec<Qpn>,
}

impl Cx {
    pub(crate) fn drop_packet(&mut self, reason: DropReason) {
        self.stats.drop_packet(reason);
    }

    pub(crate) fn event(&mut self, kind: EventKind, source: EventSource) {
        self.effects.push_back(Effect::Async(kind, source));
    }

    /// A shared receive queue fell below its limit, which is 0 from now on.
    pub(crate) fn srq_event(&mut self, srq: &Srq) {
        self.event(EventKind::SrqLimitReached, EventSource::Srq(srq.token()));
    }

    /// Delivers a completion and notes the event that it calls for.
    pub(crate) fn push_wc(&mut self, cq: &Cq, mut wc: Wc, unpolled: &Unpolled) {
        wc.timestamp_ns = self.now.as_nanos();
        let flushed = wc.status == WcStatus::WrFlushErr;
        match cq.push(wc, unpolled) {
            Pushed::Quiet => {}
            Pushed::Signal => self.effects.push_back(Effect::CqEvent(cq.token())),
            Pushed::Overflow => {
                tracing::info!(
                    "CQ {} overflowed at {} completions: poll it more often or create it larger",
                    cq.token(),
                    cq.capacity()
                );
                self.event(EventKind::CqErr, EventSource::Cq(cq.token()));
                self.dead_cqs.push(cq.token());
                self.failing.push(wc.qpn);
            }
            // Queue pairs that came to use the queue later fail with their first completion.
            Pushed::Dead if flushed => {}
            Pushed::Dead => self.failing.push(wc.qpn),
        }
    }

    /// Whether the responses to one more READ fit into this side's receive buffer. A single one
    /// always does.
    pub(crate) fn has_room_for_reads(&self, bytes: u32) -> bool {
        let total = self.reads_in_flight.saturating_add(bytes);
        self.reads_in_flight == 0 || total <= self.config.recv_window / 2
    }

    /// Gives back room for READ responses and wakes who waits for it.
    pub(crate) fn release_reads(&mut self, bytes: u32) {
        self.reads_in_flight = self.reads_in_flight.saturating_sub(bytes);
        let room = (self.config.recv_window / 2).saturating_sub(self.reads_in_flight);
        let count = match (self.reads_in_flight, room) {
            // Nothing is on its way that would wake the others later.
            (0, _) => self.read_waiters.len(),
            (_, 0) => 0,
            (_, room) => self.read_waiters.len().min(room as usize / 1024 + 1),
        };
        self.read_waiters.move_to(&mut self.ready, count);
    }
}
