//! The requester: send queue to request packets (IBTA 9.7.2, 9.7.3).

use std::collections::VecDeque;

use irdma_wire::{AtomicEth, Bth, Feth, Headers, Opcode, Operation, Position, Psn, Reth, Service};

use super::{Fill, packet_count, packet_room};
use crate::batch::Batch;
use crate::cx::Cx;
use crate::qp::{Path, Qp, QpState, QpType};
use crate::time::Instant;
use crate::wc::WcStatus;
use crate::wqe::Wqe;
use crate::wr::{SendFlags, SendOp};

/// PSNs that may be outstanding: well below half of the PSN space, IBTA 9.7.2.
const MAX_OUTSTANDING: u32 = 1 << 22;

/// What the requester remembers between packets.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// The next PSN that no request has yet.
    pub(crate) next: Psn,
    /// The oldest PSN that is not acknowledged.
    pub(crate) una: Psn,
    /// One past the newest PSN that was ever asked for; below it a packet is a retransmission.
    pub(crate) sent: Psn,
    /// What is sent next: a position in the send queue, and a packet of that request.
    pub(crate) cursor: (usize, u32),
    /// The last PSN of each READ or atomic request that is on its way.
    pub(crate) reads: VecDeque<Psn>,
    /// Bytes of READ responses on their way.
    pub(crate) read_bytes: u32,
    /// Packets that count in the peer's window.
    pub(crate) in_flight: u32,
    /// Packets since the last one that asked for an acknowledgement.
    pub(crate) unasked: u32,
    /// Receive requests that the peer has, where it says so.
    pub(crate) credits: Option<u32>,
    /// Requests before the cursor that take a receive request of the peer each.
    pub(crate) receives_ahead: u32,
    pub(crate) retry_left: u8,
    /// Timeouts since the peer acknowledged something.
    pub(crate) timeouts: u8,
    pub(crate) rnr_left: u8,
    pub(crate) rnr_until: Option<Instant>,
    /// After an RNR, how many requests may be on their way: one at first, twice as many with each
    /// that completes. What is sent beyond the peer's receive requests is thrown away.
    pub(crate) after_rnr: Option<u32>,
    pub(crate) ack_deadline: Option<Instant>,
    /// The `una` whose gap was already answered by going back.
    pub(crate) rewound_at: Option<Psn>,
}

impl Requester {
    pub(crate) fn start(&mut self, psn: Psn, retry_cnt: u8, rnr_retry: u8) {
        (self.next, self.una, self.sent) = (psn, psn, psn);
        (self.retry_left, self.rnr_left) = (retry_cnt, rnr_retry);
    }

    pub(crate) fn on_front_popped(&mut self, wqe: &Wqe) {
        match self.cursor.0.checked_sub(1) {
            Some(index) => {
                self.cursor.0 = index;
                self.receives_ahead -= u32::from(wqe.op.takes_receive());
            }
            None => self.cursor = (0, 0),
        }
    }

    /// Moves the cursor behind `wqe`, which it stood in.
    pub(crate) fn pass(&mut self, wqe: &Wqe) {
        self.cursor = (self.cursor.0 + 1, 0);
        self.receives_ahead += u32::from(wqe.op.takes_receive());
    }

    /// The send queue is empty and nothing more is sent.
    pub(crate) fn on_flushed(&mut self) {
        self.reads.clear();
        (self.rnr_until, self.ack_deadline) = (None, None);
        self.una = self.next;
    }

    /// Whether a request was started and is not complete.
    pub(crate) fn is_draining(&self, sq: &VecDeque<Wqe>) -> bool {
        sq.front().is_some_and(Wqe::started)
    }

    pub(crate) fn outstanding(&self) -> bool {
        self.una.precedes(self.sent)
    }
}

/// Why no request packet can be made now.
enum Stop {
    /// Until an input, a post or a timer changes something.
    Wait,
    /// The request at the cursor failed locally.
    Failed(WcStatus),
}

/// One request packet, decided but not built.
struct Plan {
    headers: Headers,
    offset: u64,
    payload_len: usize,
    /// PSNs that it covers.
    span: u32,
    /// Bytes that its READ response will have.
    read_bytes: u32,
    /// Packets that it takes of the peer's window.
    cost: u32,
    ends: bool,
}

impl Qp {
    /// Adds request packets to the batch until one of them is exhausted.
    pub(crate) fn fill_requests(&mut self, cx: &mut Cx, batch: &mut Batch<'_>) -> Fill {
        let Some(path) = self.path else {
            return Fill::Idle;
        };
        loop {
            if self.run_local_operation(cx) {
                continue;
            }
            let plan = match self.plan(cx) {
                Ok(plan) => plan,
                Err(Stop::Wait) => return Fill::Idle,
                Err(Stop::Failed(status)) => {
                    self.defer_failure(cx, status);
                    return Fill::Idle;
                }
            };
            let size = irdma_wire::wire_len(plan.headers.bth.opcode, plan.payload_len);
            let again = plan.headers.bth.psn.precedes(self.req.sent);
            if !batch.has_room(size, &path.route) || again && !batch.is_empty() {
                return Fill::Full;
            }
            if !self.rate_allows(cx, size) || !self.reserve(cx, &path, &plan) {
                return Fill::Idle;
            }
            self.charge_rate(cx, size);
            if let Err(status) = self.send_packet(cx, &path, plan, batch) {
                self.defer_failure(cx, status);
                return Fill::Idle;
            }
            if again {
                cx.stats.retrans_segs += 1;
                batch.close();
            }
        }
    }

    /// Executes a request that has no packet; such a request waits for all earlier ones.
    fn run_local_operation(&mut self, cx: &mut Cx) -> bool {
        let Some(op) = self.sq.front().map(|wqe| wqe.op).filter(SendOp::is_local) else {
            return false;
        };
        if self.req.cursor.0 != 0 || !self.may_start() {
            return false;
        }
        match self.execute_local(cx, op) {
            WcStatus::Success => self.complete_front_send(cx, WcStatus::Success),
            failure => self.fail_front_send(cx, failure),
        }
        true
    }

    fn execute_local(&self, cx: &mut Cx, op: SendOp) -> WcStatus {
        let (pd, qpn) = (self.pd(), self.qpn.get());
        match op {
            SendOp::BindMw(bind) => match cx.mem.bind_mw(&bind, pd, qpn) {
                Ok(()) => cx.stats.rdma_bnd += 1,
                Err(error) => {
                    tracing::info!("QP {}: bind of window {:#010x}: {error}", self.qpn, bind.rkey);
                    return WcStatus::MwBindErr;
                }
            },
            SendOp::RegMr { key, new_key, access } => {
                if let Err(error) = cx.mem.fast_register(key, new_key, access, pd) {
                    tracing::info!("QP {}: registration of {key:#010x}: {error}", self.qpn);
                    return WcStatus::MwBindErr;
                }
            }
            SendOp::LocalInvalidate { key } => match cx.mem.invalidate(key, pd, qpn) {
                Ok(()) => cx.stats.rdma_inv += 1,
                Err(error) => {
                    tracing::info!("QP {}: local invalidate of {key:#010x}: {error}", self.qpn);
                    return WcStatus::LocProtErr;
                }
            },
            _ => return WcStatus::LocQpOpErr,
        }
        WcStatus::Success
    }

    /// New requests are started in RTS only; SQD finishes what was started.
    fn may_start(&self) -> bool {
        self.attr.state == QpState::Rts
    }

    /// Decides the packet at the cursor.
    fn plan(&mut self, cx: &mut Cx) -> Result<Plan, Stop> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) || self.req.rnr_until.is_some() {
            return Err(Stop::Wait);
        }
        let (at, packet) = self.req.cursor;
        let wqe = self.sq.get(at).ok_or(Stop::Wait)?;
        if self.req.after_rnr.is_some_and(|most| at >= most as usize) {
            return Err(Stop::Wait);
        }
        if wqe.failure.is_some() || wqe.op.is_local() {
            return Err(Stop::Wait);
        }
        if !wqe.started() {
            self.start_wqe(cx, at)?;
        }
        let wqe = &self.sq[at];
        if wqe.op.is_read_or_atomic() { self.plan_read(cx, packet) } else { self.plan_data(packet) }
    }

    /// Checks what holds a request back, then gives it its PSNs.
    fn start_wqe(&mut self, cx: &mut Cx, at: usize) -> Result<(), Stop> {
        if !self.may_start() {
            return Err(Stop::Wait);
        }
        let mtu = self.attr.path_mtu;
        let wqe = &self.sq[at];
        let fails = |status, why: &str| {
            tracing::info!("QP {}: WR {}: {} fails: {why}", self.qpn, wqe.wr_id, wqe.op);
            Err(Stop::Failed(status))
        };
        if wqe.op.is_word() && wqe.len != 8 {
            return fails(WcStatus::LocLenErr, "it takes 8 bytes");
        }
        let reads = wqe.op.is_read_or_atomic();
        if reads && self.attr.max_rd_atomic == 0 {
            let why =
                "max_rd_atomic is 0; set it in RTS, and max_dest_rd_atomic at the peer in RTR";
            return fails(WcStatus::LocQpOpErr, why);
        }
        if wqe.flags.contains(SendFlags::FENCE) && !self.req.reads.is_empty() {
            return Err(Stop::Wait);
        }
        let packets = packet_count(wqe.len, mtu);
        let used = self.req.next.distance(self.req.una) as u32;
        if used + packets.min(MAX_OUTSTANDING) > MAX_OUTSTANDING && used > 0 {
            return Err(Stop::Wait);
        }
        let chunk = (cx.config.recv_window / 4 / packet_room(mtu)).clamp(1, 256);
        let next = self.req.next;
        let wqe = &mut self.sq[at];
        (wqe.psn, wqe.packets, wqe.read_chunk) = (next, packets, chunk);
        self.req.next = next.add(packets);
        Ok(())
    }

    /// A SEND or WRITE packet.
    fn plan_data(&self, packet: u32) -> Result<Plan, Stop> {
        let wqe = &self.sq[self.req.cursor.0];
        if packet == 0 && wqe.op.takes_receive() && self.lacks_credit() {
            return Err(Stop::Wait);
        }
        let mtu = self.attr.path_mtu;
        let offset = u64::from(packet) * u64::from(mtu);
        let payload_len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as usize;
        let ends = packet + 1 == wqe.packets;
        let mut headers = self.request_headers(wqe, packet, position(packet, wqe.packets));
        headers.bth.solicited = ends && wqe.flags.contains(SendFlags::SOLICITED);
        Ok(Plan { headers, offset, payload_len, span: 1, read_bytes: 0, cost: 1, ends })
    }

    /// Where the peer counts its receive requests, no more messages that take one are on their way
    /// than it has; one is always allowed, to learn of new ones (IBTA 9.7.7.2).
    fn lacks_credit(&self) -> bool {
        self.req.credits.is_some_and(|credits| self.req.receives_ahead >= credits.max(1))
    }

    /// A READ request for the chunk that `packet` lies in, or an atomic.
    ///
    /// A long READ is asked for in chunks, so that the responses never exceed what this side's
    /// receive buffer holds. Chunk boundaries do not move: a repeated request then always lies
    /// inside one request that the responder has seen.
    fn plan_read(&mut self, cx: &mut Cx, packet: u32) -> Result<Plan, Stop> {
        if self.req.reads.len() >= usize::from(self.attr.max_rd_atomic) {
            cx.stats.ord_limit_count += 1;
            return Err(Stop::Wait);
        }
        let wqe = &self.sq[self.req.cursor.0];
        let (mtu, chunk) = (self.attr.path_mtu, wqe.read_chunk);
        let end = ((packet / chunk + 1) * chunk).min(wqe.packets);
        let offset = u64::from(packet) * u64::from(mtu);
        let stop = (u64::from(end) * u64::from(mtu)).min(wqe.len.into());
        let asked = (stop - offset) as u32;
        let is_write = matches!(wqe.op, SendOp::AtomicWrite { .. });
        let mut headers = self.request_headers(wqe, packet, Position::Only);
        if let (SendOp::Read { .. }, Some(reth)) = (wqe.op, &mut headers.reth) {
            reth.va = reth.va.wrapping_add(offset);
            reth.len = asked;
        }
        let read_bytes = response_room(wqe.response_len().min(asked), mtu);
        if !cx.has_room_for_reads(read_bytes) {
            cx.read_waiters.push(self.index());
            return Err(Stop::Wait);
        }
        Ok(Plan {
            headers,
            offset,
            payload_len: if is_write { asked as usize } else { 0 },
            span: end - packet,
            read_bytes,
            cost: 0,
            ends: end == wqe.packets,
        })
    }

    fn request_headers(&self, wqe: &Wqe, packet: u32, position: Position) -> Headers {
        let service = match self.init.qp_type {
            QpType::Uc => Service::Uc,
            QpType::XrcSend => Service::Xrc,
            _ => Service::Rc,
        };
        let ends = matches!(position, Position::Last | Position::Only);
        let operation = match wqe.op {
            SendOp::Write { .. } => Operation::Write,
            SendOp::Read { .. } => Operation::ReadRequest,
            SendOp::CompareSwap { .. } => Operation::CompareSwap,
            SendOp::FetchAdd { .. } => Operation::FetchAdd,
            SendOp::AtomicWrite { .. } => Operation::AtomicWrite,
            SendOp::Flush { .. } => Operation::Flush,
            _ => Operation::Send,
        };
        let mut opcode = Opcode::new(service, operation, position);
        let imm = match wqe.op {
            SendOp::Send { imm } | SendOp::Write { imm, .. } if ends => imm,
            _ => None,
        };
        let ieth = match wqe.op {
            SendOp::SendInvalidate { rkey } if ends => Some(rkey),
            _ => None,
        };
        (opcode.immediate, opcode.invalidate) = (imm.is_some(), ieth.is_some());
        let bth = Bth::new(opcode, self.attr.dest_qpn, wqe.psn.add(packet));
        let (reth, atomic) = remote_address(wqe);
        Headers {
            xrceth: opcode.has_xrceth().then_some(wqe.srqn),
            feth: flush_header(&wqe.op),
            reth: reth.filter(|_| opcode.has_reth()),
            atomic: atomic.filter(|_| opcode.has_atomic_eth()),
            imm,
            ieth,
            ..Headers::new(bth)
        }
    }

    /// Takes the packet's share of the peer's window. UC has no acknowledgements, so its packets
    /// count against the window that probes keep.
    fn reserve(&mut self, cx: &mut Cx, path: &Path, plan: &Plan) -> bool {
        let index = self.index();
        if self.init.qp_type == QpType::Uc {
            let Cx { peers, timers, now, .. } = cx;
            return peers.reserve_datagram(path.peer, path.mtu, index, *now, timers);
        }
        let bytes = plan.cost * path.mtu;
        if bytes == 0 {
            return true;
        }
        let stuck = self.req.unasked >= self.req.in_flight;
        if !cx.peers.reserve(path.peer, bytes, index, stuck) {
            return false;
        }
        self.req.in_flight += plan.cost;
        true
    }

    fn send_packet(
        &mut self,
        cx: &mut Cx,
        path: &Path,
        mut plan: Plan,
        batch: &mut Batch<'_>,
    ) -> Result<(), WcStatus> {
        let at = self.req.cursor.0;
        let rc = self.init.qp_type.is_acknowledged();
        let asks = rc && self.asks_for_ack(cx, path, &plan);
        plan.headers.bth.ack_request = asks;
        let (wqe, mem, pd) = (&self.sq[at], &cx.mem, self.pd());
        let size = batch
            .push(&path.route, &plan.headers, plan.payload_len, |out| {
                wqe.gather(mem, pd, plan.offset, out)
            })
            .map_err(|error| {
                tracing::info!(
                    "QP {}: WR {}: local protection error: {error}",
                    self.qpn,
                    wqe.wr_id
                );
                WcStatus::LocProtErr
            })?;
        if self.is_for_rxe(&plan) {
            batch.sign_rxe_flush(size);
        }
        self.req.unasked = if asks { 0 } else { self.req.unasked + 1 };
        self.count_request(cx, &plan);
        self.advance_cursor(cx, &plan);
        if !rc && plan.ends {
            self.req.una = self.req.next;
            self.complete_front_send(cx, WcStatus::Success);
            self.note_drained(cx);
        }
        Ok(())
    }

    /// A FLUSH that got no answer may have gone to `rdma_rxe`, which drops what is not signed in
    /// its own way: every second retransmission is. It has no extended connections.
    fn is_for_rxe(&self, plan: &Plan) -> bool {
        let again = plan.headers.bth.psn.precedes(self.req.sent);
        let turn = self.attr.retry_cnt.wrapping_sub(self.req.retry_left);
        let plain = self.init.qp_type == QpType::Rc;
        again && plain && plan.headers.feth.is_some() && turn > 0 && turn.is_multiple_of(2)
    }

    /// At the end of each message, every quarter window, where the shared window is filled and
    /// nothing of this queue pair's share was asked about, for otherwise nobody would make room,
    /// and before a pause that the program's rate asks for.
    fn asks_for_ack(&self, cx: &Cx, path: &Path, plan: &Plan) -> bool {
        let quarter = (cx.peers.window(path.peer) / path.mtu / 4).max(1);
        let unasked = self.req.unasked + 1;
        plan.ends
            || plan.cost == 0
            || unasked >= quarter
            || unasked >= self.req.in_flight && cx.peers.is_nearly_full(path.peer)
            || self.rate.as_ref().is_some_and(|rate| rate.wait(plan.payload_len, cx.now).is_some())
    }

    fn advance_cursor(&mut self, cx: &mut Cx, plan: &Plan) {
        let end = plan.headers.bth.psn.add(plan.span);
        if self.req.sent.precedes(end) {
            self.req.sent = end;
        }
        if self.sq[self.req.cursor.0].op.is_read_or_atomic() {
            self.req.reads.push_back(end.sub(1));
            self.req.read_bytes += plan.read_bytes;
            cx.reads_in_flight += plan.read_bytes;
        }
        if plan.ends {
            self.req.pass(&self.sq[self.req.cursor.0]);
        } else {
            self.req.cursor.1 += plan.span;
        }
        if self.init.qp_type.is_acknowledged() && self.req.ack_deadline.is_none() {
            self.arm_ack_timer(cx);
        }
    }

    fn count_request(&self, cx: &mut Cx, plan: &Plan) {
        if !plan.ends || plan.headers.bth.psn.precedes(self.req.sent) {
            return;
        }
        match self.sq[self.req.cursor.0].op {
            SendOp::Read { .. } => cx.stats.out_rdma_reads += 1,
            SendOp::Write { .. } => cx.stats.out_rdma_writes += 1,
            op if op.is_word() => cx.stats.tx_atomics += 1,
            SendOp::Flush { .. } => {}
            _ => cx.stats.out_rdma_sends += 1,
        }
    }

    /// The request at the cursor cannot be sent. It is reported once the earlier ones are done,
    /// so that completions keep the order of posting.
    fn defer_failure(&mut self, cx: &mut Cx, status: WcStatus) {
        let at = self.req.cursor.0;
        self.sq[at].failure = Some(status);
        if at == 0 {
            self.fail_front_send(cx, status);
        }
    }
}

/// What a READ response of `len` bytes takes of this side's receive buffer.
fn response_room(len: u32, mtu: u32) -> u32 {
    let packets = packet_count(len, mtu);
    let rest = len - (packets - 1) * mtu;
    (packets - 1) * packet_room(mtu) + packet_room(rest)
}

fn position(packet: u32, packets: u32) -> Position {
    match (packet == 0, packet + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

fn flush_header(op: &SendOp) -> Option<Feth> {
    match *op {
        SendOp::Flush { placement, whole_region, .. } => {
            Some(Feth { placement: placement.bits(), selectivity: whole_region.into() })
        }
        _ => None,
    }
}

fn remote_address(wqe: &Wqe) -> (Option<Reth>, Option<AtomicEth>) {
    match wqe.op {
        SendOp::Write { remote_addr: va, rkey, .. } | SendOp::Read { remote_addr: va, rkey } => {
            (Some(Reth { va, rkey, len: wqe.len }), None)
        }
        SendOp::AtomicWrite { remote_addr: va, rkey } => {
            (Some(Reth { va, rkey, len: wqe.len }), None)
        }
        SendOp::Flush { remote_addr: va, rkey, len, .. } => (Some(Reth { va, rkey, len }), None),
        SendOp::CompareSwap { remote_addr: va, rkey, compare, swap } => {
            (None, Some(AtomicEth { va, rkey, swap_or_add: swap, compare }))
        }
        SendOp::FetchAdd { remote_addr: va, rkey, add } => {
            (None, Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 }))
        }
        _ => (None, None),
    }
}
