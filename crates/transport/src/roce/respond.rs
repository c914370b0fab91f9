//! Answers: acknowledgements coalesced, READ responses and atomics kept for duplicates
//! (IBTA 9.7.5.1).

use irdma_mem::{Access, PdId};
use irdma_wire::aeth::CREDIT_UNLIMITED;
use irdma_wire::{
    Aeth, Bth, Headers, NakCode, Opcode, Operation, Packet, Position, Psn, Reth, Service, Syndrome,
    wire_len,
};

use super::{Fill, MAX_MESSAGE, packet_count, packet_room};
use crate::batch::Batch;
use crate::cx::Cx;
use crate::effects::EventKind;
use crate::error::DropReason;
use crate::qp::{Path, Qp, QpState, QpType};

/// An answer that is still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Ack { psn: Psn, msn: u32, syndrome: Syndrome },
    Atomic { psn: Psn, msn: u32, value: u64, again: bool },
    Read { psn: Psn, packets: u32, done: u32, reth: Reth, pd: PdId, msn: u32, again: bool },
}

impl Response {
    pub(crate) fn read(psn: Psn, packets: u32, reth: Reth, pd: PdId, msn: u32) -> Self {
        Response::Read { psn, packets, done: 0, reth, pd, msn, again: false }
    }

    /// The same answer for a duplicate.
    fn again(self) -> Self {
        match self {
            Response::Read { psn, packets, done, reth, pd, msn, .. } => {
                Response::Read { psn, packets, done, reth, pd, msn, again: true }
            }
            other => other,
        }
    }

    /// READs and atomics take a responder resource until they are answered.
    pub(crate) fn holds_resource(&self) -> bool {
        !matches!(self, Response::Ack { .. })
    }

    /// One that the requester still counts as outstanding; answers to duplicates may outlive that.
    pub(crate) fn is_counted(&self) -> bool {
        matches!(self, Response::Atomic { again: false, .. } | Response::Read { again: false, .. })
    }

    /// The last PSN that it answers.
    fn last(&self) -> Psn {
        match *self {
            Response::Ack { psn, .. } | Response::Atomic { psn, .. } => psn,
            Response::Read { psn, packets, .. } => psn.add(packets - 1),
        }
    }

    /// The next PSN that it will answer.
    fn next(&self) -> Psn {
        match *self {
            Response::Ack { psn, .. } | Response::Atomic { psn, .. } => psn,
            Response::Read { psn, done, .. } => psn.add(done),
        }
    }
}

/// A READ or atomic that a duplicate request may ask for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Read {
        psn: Psn,
        packets: u32,
    },
    Atomic {
        psn: Psn,
        msn: u32,
        value: u64,
    },
    /// A FLUSH or ATOMIC WRITE, answered without data.
    Plain {
        psn: Psn,
    },
}

impl Qp {
    /// Queues an acknowledgement of everything received.
    pub(crate) fn acknowledge_request(&mut self) {
        self.answer(Syndrome::Ack { credit: CREDIT_UNLIMITED }, self.resp.expected.sub(1));
    }

    /// Queues an answer, or replaces the one that waits: the newer one, of either sign, covers all
    /// that the older one did (IBTA 9.7.5.1.1). So the queue cannot grow beyond what READs and
    /// atomics are in it.
    pub(crate) fn answer(&mut self, syndrome: Syndrome, psn: Psn) {
        let answer = Response::Ack { psn, msn: self.resp.msn, syndrome };
        match self.resp.queue.back_mut() {
            Some(back @ Response::Ack { .. }) => *back = answer,
            _ => self.resp.queue.push_back(answer),
        }
    }

    /// A negative answer waits to be sent; it covers duplicates, too.
    fn refusal_waits(&self) -> bool {
        let back = self.resp.queue.back();
        back.is_some_and(|back| match back {
            Response::Ack { syndrome, .. } => !matches!(syndrome, Syndrome::Ack { .. }),
            _ => false,
        })
    }

    /// A request that was executed before: answer it again, never execute it again.
    pub(crate) fn duplicate(&mut self, cx: &mut Cx, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        match packet.headers.bth.opcode.operation {
            Operation::Send | Operation::Write if self.refusal_waits() => {}
            Operation::Send | Operation::Write => self.acknowledge_request(),
            // The others need memory, which is that of the shared queue's domain.
            _ if self.select_srq(&packet.headers).is_none() => {
                cx.drop_packet(DropReason::Duplicate);
            }
            Operation::ReadRequest => match packet.headers.reth {
                Some(reth) => self.repeat_read(cx, psn, reth),
                None => cx.drop_packet(DropReason::Duplicate),
            },
            Operation::CompareSwap | Operation::FetchAdd => self.repeat_atomic(cx, psn),
            Operation::Flush | Operation::AtomicWrite => self.repeat_plain(cx, psn),
            _ => cx.drop_packet(DropReason::Duplicate),
        }
    }

    /// A duplicate READ may ask for the rest of the first one only (IBTA 9.7.5.1.2).
    fn repeat_read(&mut self, cx: &mut Cx, psn: Psn, reth: Reth) {
        if reth.len > MAX_MESSAGE || !self.attr.access.contains(Access::REMOTE_READ) {
            return cx.drop_packet(DropReason::Duplicate);
        }
        let packets = packet_count(reth.len, self.attr.path_mtu);
        let inside = self.resp.kept.iter().any(|kept| match *kept {
            Kept::Read { psn: first, packets: all } => {
                let skip = psn.distance(first);
                skip >= 0 && skip as u32 + packets <= all
            }
            Kept::Atomic { .. } | Kept::Plain { .. } => false,
        });
        if !inside {
            return cx.drop_packet(DropReason::Duplicate);
        }
        if let Some(path) = &self.path {
            cx.peers.on_response_loss(path.peer, cx.now);
        }
        let msn = self.resp.msn;
        let read = Response::read(psn, packets, reth, self.pd(), msn);
        self.answer_again(cx, read.again());
    }

    fn repeat_atomic(&mut self, cx: &mut Cx, psn: Psn) {
        let found = self.resp.kept.iter().find_map(|kept| match *kept {
            Kept::Atomic { psn: own, msn, value } if own == psn => Some((msn, value)),
            _ => None,
        });
        let Some((msn, value)) = found else {
            return cx.drop_packet(DropReason::Duplicate);
        };
        self.answer_again(cx, Response::Atomic { psn, msn, value, again: true });
    }

    fn repeat_plain(&mut self, cx: &mut Cx, psn: Psn) {
        if !self.resp.kept.contains(&Kept::Plain { psn }) {
            return cx.drop_packet(DropReason::Duplicate);
        }
        let empty = Response::read(psn, 1, Reth::default(), self.pd(), self.resp.msn);
        self.answer_again(cx, empty.again());
    }

    /// Whether the answer to `psn` has not been sent yet.
    fn is_still_queued(&self, psn: Psn) -> bool {
        self.resp.queue.iter().any(|response| {
            response.holds_resource()
                && !psn.precedes(response.next())
                && !response.last().precedes(psn)
        })
    }

    /// Queues a repeated answer at its place in PSN order, in place of what it covers. No more
    /// wait than the peer may ask for at once.
    fn answer_again(&mut self, cx: &mut Cx, answer: Response) {
        let (first, last) = (answer.next(), answer.last());
        if self.is_still_queued(first) {
            return;
        }
        let queue = &mut self.resp.queue;
        queue.retain(|other| other.last().precedes(first) || last.precedes(other.next()));
        let waiting = queue.iter().filter(|other| other.holds_resource()).count();
        if waiting > usize::from(self.attr.max_dest_rd_atomic) {
            return cx.drop_packet(DropReason::Duplicate);
        }
        let at = queue.iter().position(|other| first.precedes(other.next()));
        queue.insert(at.unwrap_or(queue.len()), answer);
    }

    /// Adds answers to the batch until they, or it, are exhausted.
    pub(crate) fn fill_responses(&mut self, cx: &mut Cx, batch: &mut Batch<'_>) -> Fill {
        let Some(path) = self.path else {
            self.resp.queue.clear();
            return Fill::Idle;
        };
        while let Some(&response) = self.resp.queue.front() {
            let (headers, len) = self.response_headers(&path, &response);
            if !batch.has_room(wire_len(headers.bth.opcode, len), &path.route) {
                return Fill::Full;
            }
            if matches!(response, Response::Read { .. }) && !self.reserve_response(cx, &path, len) {
                return Fill::Idle;
            }
            let sent = match response {
                Response::Read { done, reth, pd, .. } => {
                    let offset = u64::from(done) * u64::from(path.mtu);
                    self.push_read(cx, batch, &path, &headers, (reth, pd), offset, len)
                }
                _ => batch.push(&path.route, &headers, 0, |_| Ok::<_, ()>(())).is_ok(),
            };
            if !sent {
                self.read_access_lost(cx, headers.bth.psn);
                continue;
            }
            self.response_sent(response);
        }
        Fill::Idle
    }

    fn reserve_response(&self, cx: &mut Cx, path: &Path, len: usize) -> bool {
        let Cx { peers, timers, now, .. } = cx;
        let room = packet_room(len as u32);
        peers.reserve_response(path.peer, room, self.index(), *now, timers)
    }

    fn response_sent(&mut self, response: Response) {
        match (response, self.resp.queue.front_mut()) {
            (Response::Read { packets, .. }, Some(Response::Read { done, .. }))
                if *done + 1 < packets =>
            {
                *done += 1;
            }
            _ => {
                self.resp.queue.pop_front();
            }
        }
    }

    /// The key is checked for each packet, because the region may go at any time.
    #[allow(clippy::too_many_arguments, reason = "one packet is these seven things")]
    fn push_read(
        &self,
        cx: &Cx,
        batch: &mut Batch<'_>,
        path: &Path,
        headers: &Headers,
        (reth, pd): (Reth, PdId),
        offset: u64,
        len: usize,
    ) -> bool {
        if len == 0 {
            return batch.push(&path.route, headers, 0, |_| Ok::<_, ()>(())).is_ok();
        }
        let va = reth.va.wrapping_add(offset);
        let who = (pd, self.qpn.get());
        let grant = cx.mem.grant_to_peer(reth.rkey, (va, len as u64), Access::REMOTE_READ, who);
        grant.is_ok_and(|grant| {
            let fill = |out: &mut [u8]| {
                grant.read_at(0, out);
                Ok::<_, ()>(())
            };
            batch.push(&path.route, headers, len, fill).is_ok()
        })
    }

    /// The region went away between request and answer.
    fn read_access_lost(&mut self, cx: &mut Cx, psn: Psn) {
        self.resp.queue.clear();
        self.answer(Syndrome::Nak(NakCode::RemoteAccess), psn);
        if self.attr.state != QpState::Err {
            self.enter_error(cx, Some(EventKind::QpAccessErr));
        }
    }

    fn response_headers(&self, path: &Path, response: &Response) -> (Headers, usize) {
        let service = match self.init.qp_type {
            QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        };
        let header = |operation, position, psn, syndrome, msn| {
            let opcode = Opcode::new(service, operation, position);
            let mut headers = Headers::new(Bth::new(opcode, path.dest, psn));
            headers.aeth = opcode.has_aeth().then_some(Aeth { syndrome, msn });
            headers
        };
        let good = Syndrome::Ack { credit: CREDIT_UNLIMITED };
        match *response {
            Response::Ack { psn, msn, syndrome } => {
                (header(Operation::Ack, Position::Only, psn, syndrome, msn), 0)
            }
            Response::Atomic { psn, msn, value, .. } => {
                let mut headers = header(Operation::AtomicAck, Position::Only, psn, good, msn);
                headers.atomic_ack = Some(value);
                (headers, 0)
            }
            Response::Read { psn, packets, done, reth, msn, .. } => {
                let position = match (done == 0, done + 1 == packets) {
                    (true, true) => Position::Only,
                    (true, false) => Position::First,
                    (false, true) => Position::Last,
                    (false, false) => Position::Middle,
                };
                let offset = u64::from(done) * u64::from(path.mtu);
                let len = (u64::from(reth.len) - offset).min(path.mtu.into()) as usize;
                (header(Operation::ReadResponse, position, psn.add(done), good, msn), len)
            }
        }
    }
}
