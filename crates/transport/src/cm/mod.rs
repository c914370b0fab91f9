//! The IB connection manager (IBTA 12): who connects queue pairs, over QP1.
//!
//! A program asks by `cm_*` verbs of [`Endpoint`](crate::Endpoint) and is told by
//! [`CmEvent`]s. Each connection, and each attempt at one, has a [`CommId`] until it is destroyed.

mod active;
mod conn;
mod messages;
mod passive;
mod receive;
mod sidr;
mod table;
mod types;
mod verbs;

pub use types::{
    CmEvent, CmEventKind, CommId, ConnectReply, ConnectRequest, ReplyInfo, RequestInfo, SidrReply,
    SidrRequest,
};

use std::collections::VecDeque;

use irdma_wire::cm::{About, CmMessage};
use irdma_wire::{
    Bth, Deth, Headers, Opcode, Operation, Position, Psn, Qpn, Service, mad, wire_len,
};

use crate::ah::AddressVector;
use crate::batch::{Batch, Route};
use crate::cx::Cx;
use crate::effects::Effect;
use crate::error::DropReason;
use crate::rng::Rng;
use crate::roce::{Fill, packet_room};
use crate::time::Instant;
use crate::timer::TimerKey;
use conn::{Mad, State};
use table::Table;

/// The place of QP1 in lists of queue pairs: no queue pair of a slot has index 0.
pub(crate) const INDEX: u16 = 0;
/// Answers that may wait to be sent; who gets none asks again.
const MAX_ANSWERS: usize = 1024;

/// The connection manager of one endpoint.
pub(crate) struct Cm {
    table: Table,
    psn: Psn,
    /// What peers' messages call for. It waits for no room at the receiver, and for nothing else
    /// that does: it comes as fast as the peer asks, and it is the peer that was clocked.
    answers: VecDeque<Outgoing>,
    /// What this side begins: it waits for room at the receiver.
    requests: VecDeque<Outgoing>,
}

struct Outgoing {
    path: AddressVector,
    mad: Mad,
}

impl Cm {
    pub(crate) fn new(slot: u16, rng: &mut Rng) -> Self {
        Cm {
            table: Table::new(slot, rng.next_u64()),
            psn: Psn::new(rng.next_u64() as u32),
            answers: VecDeque::new(),
            requests: VecDeque::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }

    /// Whether messages wait to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.answers.is_empty() || !self.requests.is_empty()
    }

    /// Adds the next message to the batch, which it has for itself: a receiver's kernel steers a
    /// merged batch by its first message.
    pub(crate) fn fill(&mut self, cx: &mut Cx, batch: &mut Batch<'_>) -> Fill {
        loop {
            let is_answer = !self.answers.is_empty();
            let queue = if is_answer { &mut self.answers } else { &mut self.requests };
            let Some(Outgoing { path, mad }) = queue.front() else { return Fill::Idle };
            let Ok(route) = cx.locals.route(path, Qpn::GSI) else {
                // The address is gone: what matters is repeated, in vain.
                queue.pop_front();
                continue;
            };
            let headers = headers(self.psn);
            let size = wire_len(headers.bth.opcode, mad.len());
            if !batch.is_empty() || !batch.has_room(size, &route) {
                return Fill::Full;
            }
            if !is_answer && !reserve(cx, &route, size) {
                return Fill::Idle;
            }
            let filled = batch.push(&route, &headers, mad.len(), |out| {
                out.copy_from_slice(&mad[..]);
                Ok::<_, std::convert::Infallible>(())
            });
            debug_assert!(filled.is_ok());
            batch.close();
            self.psn = self.psn.add(1);
            queue.pop_front();
        }
    }

    fn send(&mut self, cx: &mut Cx, path: AddressVector, mad: Mad) {
        self.requests.push_back(Outgoing { path, mad });
        cx.ready.push(INDEX);
    }

    fn reply(&mut self, cx: &mut Cx, path: AddressVector, mad: Mad) {
        self.answers.push_back(Outgoing { path, mad });
        cx.ready.push(INDEX);
    }

    /// Sends what a peer's message calls for, unless peers call for too much.
    fn answer(&mut self, cx: &mut Cx, path: AddressVector, mad: Mad) -> Result<(), DropReason> {
        if self.answers.len() >= MAX_ANSWERS {
            return Err(DropReason::Backlog);
        }
        self.reply(cx, path, mad);
        Ok(())
    }

    /// As [`Cm::answer`], with the message that was last sent for this connection.
    fn answer_again(&mut self, cx: &mut Cx, id: CommId) -> Result<(), DropReason> {
        let conn = self.table.get_mut(id).ok_or(DropReason::Stale)?;
        let mad = conn.last.clone().ok_or(DropReason::Duplicate)?;
        let path = conn.path;
        self.answer(cx, path, mad)
    }

    /// Enters a state with a message of `transaction` that is sent once now, and kept for a peer
    /// that repeats itself.
    fn enter_with(
        &mut self,
        cx: &mut Cx,
        id: CommId,
        state: State,
        transaction: u64,
        message: &CmMessage,
    ) {
        if let Some((path, mad)) = self.enter_keeping(id, state, transaction, message) {
            self.send(cx, path, mad);
        }
    }

    /// As [`Cm::enter_with`], with the last answer that the peer waits for: nothing repeats it
    /// unless the peer does, and the program may exit next.
    fn enter_answering(
        &mut self,
        cx: &mut Cx,
        id: CommId,
        state: State,
        transaction: u64,
        message: &CmMessage,
    ) {
        if let Some((path, mad)) = self.enter_keeping(id, state, transaction, message) {
            self.reply(cx, path, mad);
        }
    }

    fn enter_keeping(
        &mut self,
        id: CommId,
        state: State,
        transaction: u64,
        message: &CmMessage,
    ) -> Option<(AddressVector, Mad)> {
        let mad: Mad = Box::new(message.emit(transaction));
        let conn = self.table.get_mut(id)?;
        conn.last = Some(mad.clone());
        conn.deadline = None;
        let path = conn.path;
        self.table.enter(id, state);
        Some((path, mad))
    }

    /// As [`Cm::enter_with`], and the message is repeated until the state is left.
    fn enter_repeating(
        &mut self,
        cx: &mut Cx,
        id: CommId,
        state: State,
        transaction: u64,
        message: &CmMessage,
    ) {
        self.enter_with(cx, id, state, transaction, message);
        if let Some(conn) = self.table.get_mut(id) {
            conn.retries_left = conn.max_retries;
            conn.was_early = false;
            let at = cx.now + conn.response_ns();
            arm(cx, conn, at);
        }
    }

    /// Enters a state in which nothing is sent.
    fn enter_silently(&mut self, id: CommId, state: State) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.last = None;
            conn.deadline = None;
        }
        self.table.enter(id, state);
    }

    /// The connection is over; what was sent last is kept for a peer that repeats itself.
    fn enter_timewait(&mut self, cx: &mut Cx, id: CommId) {
        self.table.enter(id, State::Timewait);
        if let Some(conn) = self.table.get_mut(id) {
            let at = cx.now + conn.timewait_ns();
            arm(cx, conn, at);
        }
    }

    /// As [`Cm::enter_timewait`], with nothing to say to the peer any more.
    fn finish(&mut self, cx: &mut Cx, id: CommId) {
        self.enter_silently(id, State::Timewait);
        self.enter_timewait(cx, id);
    }

    /// The deadline of a connection may be over.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Cx, id: u32) {
        let id = CommId(id);
        let Some(conn) = self.table.get_mut(id) else { return };
        let Some(deadline) = conn.deadline else { return };
        if deadline > cx.now {
            return arm(cx, conn, deadline);
        }
        conn.deadline = None;
        if conn.state == State::Timewait {
            return self.exit_timewait(cx, id);
        }
        if !std::mem::take(&mut conn.was_early) {
            if conn.retries_left == 0 {
                return self.give_up(cx, id);
            }
            conn.retries_left -= 1;
            cx.stats.rto += 1;
            tracing::info!(
                "CM {id}: no answer from {} for service {} in {:?}, {} more tries; is its host up, \
                 and UDP 4791 open?",
                conn.path.dst(),
                conn.service,
                conn.state,
                conn.retries_left
            );
        }
        let at = cx.now + conn.response_ns();
        arm(cx, conn, at);
        if let Some(mad) = conn.last.clone() {
            let path = conn.path;
            self.send(cx, path, mad);
        }
    }

    fn exit_timewait(&mut self, cx: &mut Cx, id: CommId) {
        if self.table.get_mut(id).is_some_and(|conn| conn.is_orphan) {
            return self.table.remove(id);
        }
        self.table.enter(id, State::Closed);
        tell(cx, id, CmEventKind::TimewaitExit);
    }

    /// All tries are used up.
    fn give_up(&mut self, cx: &mut Cx, id: CommId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        tracing::info!(
            "CM {id}: {} has not answered for service {} in {:?}: given up",
            conn.path.dst(),
            conn.service,
            conn.state
        );
        let own = conn::own_transaction(id);
        match conn.state {
            State::ReqSent => {
                let message = messages::rej_timeout(conn, About::Req);
                self.enter_with(cx, id, State::Closed, own, &message);
            }
            State::RepSent => {
                let message = messages::rej_timeout(conn, About::Rep);
                let transaction = conn.transaction_id;
                self.enter_with(cx, id, State::Closed, transaction, &message);
            }
            State::DreqSent => {
                self.finish(cx, id);
                return tell(cx, id, CmEventKind::Disconnected { answered: false });
            }
            _ => self.enter_silently(id, State::Closed),
        }
        tell(cx, id, CmEventKind::Unreachable);
    }
}

/// Takes room at the receiver, or waits for it.
fn reserve(cx: &mut Cx, route: &Route, size: usize) -> bool {
    let peer = cx.peers.find(route, Qpn::GSI, &cx.config);
    let Cx { peers, timers, now, .. } = cx;
    peers.reserve_datagram(peer, packet_room(size as u32), INDEX, *now, timers)
}

fn arm(cx: &mut Cx, conn: &mut conn::Conn, at: Instant) {
    conn.deadline = Some(at);
    cx.timers.arm(TimerKey::Cm(conn.id.0), at);
}

/// The peer says that nobody listens: whether it is asked once more, a moment later.
fn ask_again(cx: &mut Cx, conn: &mut conn::Conn) -> bool {
    let again = conn.early_refusals_left > 0;
    if again {
        conn.early_refusals_left -= 1;
        conn.was_early = true;
        let at = cx.now + conn::EARLY_NS;
        arm(cx, conn, at);
    }
    again
}

fn tell(cx: &mut Cx, id: CommId, kind: CmEventKind) {
    cx.effects.push_back(Effect::Cm(Box::new(CmEvent { id, kind })));
}

/// Every message asks for an acknowledgement that never comes, as the kernel's do.
fn headers(psn: Psn) -> Headers {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut bth = Bth::new(opcode, Qpn::GSI, psn);
    bth.ack_request = true;
    Headers { deth: Some(Deth { qkey: mad::QKEY, src_qpn: Qpn::GSI }), ..Headers::new(bth) }
}
