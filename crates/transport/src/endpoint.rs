//! One lane's protocol: its queue pairs, its demultiplexer, its timers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use irdma_mem::MemTable;
use irdma_wire::icrc::{Verdict, verify};
use irdma_wire::{FlowKey, Gid, Packet, Qpn, Service, parse};

use crate::batch::Batch;
use crate::cm::{self, Cm};
use crate::control::{self, Control};
use crate::cx::Cx;
use crate::effects::{Effect, EventKind};
use crate::error::{DropReason, Result, VerbsError};
use crate::flow::Peers;
use crate::io::{Disposition, InFlight, Meta, Transmit};
use crate::locals::Locals;
use crate::mcast::{McastTable, mcast_address};
use crate::qp::{AttrMask, Qp, QpAttr, QpInit, QpState, QpType};
use crate::ready::ReadyList;
use crate::rng::Rng;
use crate::roce::Fill;
use crate::stats::Stats;
use crate::table::QpTable;
use crate::time::Instant;
use crate::timer::{TimerKey, Timers};
use crate::wr::{RecvWr, SendWr};

/// Control datagrams that may wait to be sent before probes stay unanswered; they come again.
const MAX_CONTROLS: usize = 64;

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The slot whose queue pair numbers this endpoint hands out.
    pub slot: u16,
    /// Decides every random choice.
    pub seed: u64,
    /// Queue pairs at once.
    pub max_qp: u32,
    /// Multicast groups at once.
    pub max_mcast_grp: u32,
    /// Bytes of packets that may wait in this side's receive buffer.
    pub recv_window: u32,
    /// Bytes in flight towards a peer whose receive buffer is unknown.
    pub initial_window: u32,
    /// The most bytes in flight towards any peer.
    pub max_window: u32,
    /// The shortest acknowledgement timeout that is armed, in nanoseconds.
    pub min_timeout_ns: u64,
    /// Whether the peer's ATOMIC WRITEs are executed, not refused as invalid requests.
    pub atomic_write: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            slot: 1,
            seed: 0,
            max_qp: (1 << 14) - 1,
            max_mcast_grp: 4095,
            recv_window: 64 << 10,
            initial_window: 64 << 10,
            max_window: 1 << 20,
            min_timeout_ns: 4_000_000,
            atomic_write: true,
        }
    }
}

/// The protocol of one lane. Deterministic: inputs, times and the seed decide everything.
///
/// Four kinds of methods: verbs (`create_qp`, `post_send`, ...), inputs (`handle_*`), outputs
/// (`poll_*`) and getters. After any verb or input, drain `poll_transmit` until `None`, then
/// `poll_effect` until `None`, then sleep no longer than `poll_timeout`.
pub struct Endpoint {
    pub(crate) cx: Cx,
    pub(crate) cm: Cm,
    pub(crate) qps: QpTable,
    mcast: McastTable,
    controls: VecDeque<Control>,
    /// The newest batch was a control datagram: what queue pairs have to send comes first now.
    control_sent: bool,
}

impl Endpoint {
    /// An endpoint for `config.slot` over the regions of `mem`.
    pub fn new(config: Config, mem: Arc<MemTable>) -> Self {
        let mut rng = Rng::new(config.seed);
        Endpoint {
            qps: QpTable::new(config.slot, config.max_qp, rng.next_u64()),
            cm: Cm::new(config.slot, &mut rng),
            mcast: McastTable::new(config.max_mcast_grp),
            controls: VecDeque::new(),
            control_sent: false,
            cx: Cx {
                config,
                now: Instant::ZERO,
                mem,
                stats: Stats::default(),
                effects: VecDeque::new(),
                ready: ReadyList::default(),
                timers: Timers::default(),
                peers: Peers::default(),
                locals: Locals::default(),
                reads_in_flight: 0,
                read_waiters: ReadyList::default(),
                dead_cqs: Vec::new(),
                failing: Vec::new(),
            },
        }
    }

    /// Makes `addr` usable as a source: `ports` are the source ports of its sending sockets, `mtu`
    /// the path MTU in bytes that its interface allows.
    pub fn add_local(&mut self, addr: IpAddr, ports: Vec<u16>, mtu: u32) {
        for path in self.qps.iter_mut().filter_map(|qp| qp.path.as_mut()) {
            path.route.follow_ports(addr, &ports);
        }
        self.cx.locals.add(addr, ports, mtu);
    }

    /// Takes `addr` out of use; queue pairs that send from it run into their retry budgets.
    pub fn remove_local(&mut self, addr: IpAddr) {
        self.cx.locals.remove(addr);
    }

    /// Whether `addr` is in use as a source.
    pub fn has_local(&self, addr: IpAddr) -> bool {
        self.cx.locals.contains(addr)
    }

    /// Tells how many bytes of packets this side's receive buffer holds.
    pub fn set_recv_window(&mut self, bytes: u32) {
        self.cx.config.recv_window = bytes;
    }

    /// Creates a queue pair in RESET. EOVERFLOW when the numbers are exhausted.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn> {
        self.qps.insert(init)
    }

    /// Changes state and attributes as `ibv_modify_qp(3)`; a refused call changes nothing.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<()> {
        self.cx.now = now;
        self.qps.find(qpn)?.modify_qp(&mut self.cx, attr, mask)
    }

    /// Attributes and creation attributes as `ibv_query_qp(3)`.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, QpInit)> {
        let qp = self.qps.get(qpn).ok_or_else(|| unknown(qpn))?;
        Ok(qp.query_qp())
    }

    /// Destroys a queue pair and drops its unpolled completions. EBUSY while it is attached to a
    /// multicast group.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<()> {
        let qp = self.qps.find(qpn)?;
        if qp.attached_count > 0 {
            return Err(VerbsError::busy(format!(
                "destroy_qp: QP {qpn} is attached to {} multicast groups; detach it first",
                qp.attached_count
            )));
        }
        self._destroy_qp(qpn);
        Ok(())
    }

    /// The teardown behind [`Endpoint::destroy_qp`] and a failed creation; cannot fail.
    fn _destroy_qp(&mut self, qpn: Qpn) {
        if let Some(mut qp) = self.qps.remove(qpn) {
            qp.release_windows(&mut self.cx);
            self.cx.mem.unbind_all(qpn.get());
            qp.init.send_cq.clean_cqes(qpn);
            qp.init.recv_cq.clean_cqes(qpn);
        }
    }

    /// Queues a send request; see [`SendWr`]. EINVAL, or ENOMEM when the queue is full.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<()> {
        self.post_xrc_send(now, qpn, wr, 0)
    }

    /// As [`Endpoint::post_send`], for the shared receive queue `srqn` of the peer's domain
    /// ([`QpType::XrcSend`]).
    pub fn post_xrc_send(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: &SendWr<'_>,
        srqn: u32,
    ) -> Result<()> {
        self.cx.now = now;
        self.qps.find(qpn)?.post_send(&mut self.cx, wr, srqn)
    }

    /// What [`Endpoint::post_send`] would say of `wr` once `ahead` other requests are queued.
    pub fn check_post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>, ahead: usize) -> Result<()> {
        self.qps.find(qpn)?.check_post_send(&self.cx, wr, ahead).map(drop)
    }

    /// Queues a receive request. EINVAL (also with a shared queue), or ENOMEM when full.
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: &RecvWr<'_>) -> Result<()> {
        self.cx.now = now;
        self.qps.find(qpn)?.post_recv(&mut self.cx, wr)
    }

    /// Attaches a UD queue pair to the multicast group of `gid` on an interface.
    ///
    /// Attaching again with the same LID changes nothing. EINVAL for another service or GID,
    /// ENOMEM for a ninth queue pair.
    pub fn attach_mcast(&mut self, qpn: Qpn, gid: &Gid, lid: u16, ifindex: u32) -> Result<()> {
        let qp = self.qps.find(qpn)?;
        if qp.init.qp_type != QpType::Ud {
            return Err(VerbsError::invalid(format!(
                "attach_mcast: QP {qpn} is {:?}; only UD queue pairs hear multicast",
                qp.init.qp_type
            )));
        }
        let group = mcast_address(gid)?;
        let (added, effect) = self.mcast.attach_mcast(qpn, (group, ifindex), lid)?;
        qp.attached_count += u32::from(added);
        self.cx.effects.extend(effect);
        Ok(())
    }

    /// Ends an attachment. EINVAL where there is none.
    pub fn detach_mcast(&mut self, qpn: Qpn, gid: &Gid, lid: u16, ifindex: u32) -> Result<()> {
        let qp = self.qps.find(qpn)?;
        let group = mcast_address(gid)?;
        let effect = self.mcast.detach_mcast(qpn, (group, ifindex), lid)?;
        qp.attached_count -= 1;
        self.cx.effects.extend(effect);
        Ok(())
    }

    /// Takes in one UDP payload that arrived on port 4791.
    pub fn handle_datagram(&mut self, now: Instant, meta: &Meta, bytes: &[u8]) -> Disposition {
        self.take_in(now, meta, bytes, false)
    }

    /// Takes in a datagram that nobody else will: one that was relayed, or one that no other
    /// process takes. Connection managers that ask for a service that nobody here offers, or
    /// about a connection that nobody here knows, are told so.
    pub fn handle_unclaimed(&mut self, now: Instant, meta: &Meta, bytes: &[u8]) -> Disposition {
        self.take_in(now, meta, bytes, true)
    }

    fn take_in(
        &mut self,
        now: Instant,
        meta: &Meta,
        bytes: &[u8],
        is_unclaimed: bool,
    ) -> Disposition {
        self.cx.now = now;
        let packet = match parse(bytes) {
            Ok(packet) => packet,
            Err(_) => return self.drop_packet(DropReason::Malformed),
        };
        let is_intact = || {
            let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
            verify(&flow, meta.index, bytes) != Verdict::Bad
        };
        let dest = packet.headers.bth.dest_qpn;
        if self.is_foreign(dest) && !meta.dst.is_multicast() {
            return Disposition::Foreign(dest.slot());
        }
        if dest == Qpn::GSI
            && !is_unclaimed
            && !meta.dst.is_multicast()
            && let Some(elsewhere) = self.cm.steer(meta, &packet)
        {
            // Finding the process that listens costs far more than this.
            return if is_intact() { elsewhere } else { self.drop_packet(DropReason::Icrc) };
        }
        self.cx.stats.count_in(meta.dst, bytes.len());
        if !is_intact() {
            return self.drop_packet(DropReason::Icrc);
        }
        if packet.headers.bth.pkey & 0x7fff != 0x7fff {
            return self.drop_packet(DropReason::PKey);
        }
        self.dispatch(meta, &packet);
        Disposition::Done
    }

    /// Whether another process or lane may own the number: slot 0 is that of QP0 and QP1, the
    /// last one that of multicast.
    fn is_foreign(&self, dest: Qpn) -> bool {
        let slot = dest.slot();
        slot != self.cx.config.slot && slot != 0 && slot != Qpn::MULTICAST.slot()
    }

    fn dispatch(&mut self, meta: &Meta, packet: &Packet<'_>) {
        let dest = packet.headers.bth.dest_qpn;
        match (dest == Qpn::MULTICAST, meta.dst.is_multicast()) {
            (true, true) => return self.dispatch_multicast(meta, packet),
            (false, false) => {}
            // A group's datagrams carry the group's number, and only they do (IBTA 10.5.2).
            _ => return self.cx.drop_packet(DropReason::UnknownQp),
        }
        if dest == Qpn::GSI {
            return self.cm.receive(&mut self.cx, meta, packet);
        }
        if dest.index() == 0 && dest.slot() != 0 {
            return self.handle_control(meta, packet);
        }
        match self.qps.get_mut(dest) {
            None => self.cx.drop_packet(DropReason::UnknownQp),
            Some(qp) => {
                if let Err(reason) = deliver(qp, &mut self.cx, meta, packet) {
                    self.cx.drop_packet(reason);
                }
            }
        }
    }

    /// Each member gets its own copy; one that cannot take it loses only its own.
    fn dispatch_multicast(&mut self, meta: &Meta, packet: &Packet<'_>) {
        let (members, count) = self.mcast.members((meta.dst, meta.ifindex));
        if count == 0 {
            return self.cx.drop_packet(DropReason::UnknownQp);
        }
        for qpn in &members[..count] {
            if let Some(qp) = self.qps.get_mut(*qpn)
                && let Err(reason) = deliver(qp, &mut self.cx, meta, packet)
            {
                self.cx.drop_packet(reason);
            }
        }
    }

    fn handle_control(&mut self, meta: &Meta, packet: &Packet<'_>) {
        match control::receive(meta, packet) {
            Ok(Some(_)) if self.controls.len() >= MAX_CONTROLS => {
                self.cx.drop_packet(DropReason::NoReceive);
            }
            Ok(Some(answer)) => self.controls.push_back(answer),
            Ok(None) => control::on_echo(&mut self.cx, meta, packet),
            Err(reason) => self.cx.drop_packet(reason),
        }
    }

    fn drop_packet(&mut self, reason: DropReason) -> Disposition {
        self.cx.drop_packet(reason);
        Disposition::Done
    }

    /// Runs the deadlines that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.cx.now = now;
        while let Some(key) = self.cx.timers.pop_due(now) {
            match key {
                TimerKey::Qp(index) => {
                    if let Some(qp) = self.qps.at_mut(index) {
                        qp.handle_timeout(&mut self.cx);
                    }
                }
                TimerKey::Cm(id) => self.cm.handle_timeout(&mut self.cx, id),
                TimerKey::Peer(key) => {
                    let Cx { peers, timers, ready, .. } = &mut self.cx;
                    peers.handle_timeout(key, now, timers, ready);
                }
            }
        }
    }

    /// Fills `buf`, 64 KiB or more, with the next batch to send; `None` when there is nothing.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        self.cx.now = now;
        if self.cx.peers.are_crowded() {
            let paths = self.qps.iter_mut().filter_map(|qp| qp.path);
            self.cx.peers.forget_idle(&paths.map(|path| path.peer).collect(), now);
        }
        let mut batch = Batch::new(buf);
        // Whoever floods this side with probes must not keep it from sending anything else.
        let data_first = std::mem::take(&mut self.control_sent);
        if !data_first {
            self.fill_control(&mut batch);
        }
        self.fill_data(&mut batch);
        if data_first && batch.is_empty() {
            self.fill_control(&mut batch);
        }
        let segments = batch.count();
        let transmit = batch.finish()?;
        self.cx.stats.count_out(transmit.dst, transmit.len, segments);
        Some(transmit)
    }

    fn fill_data(&mut self, batch: &mut Batch<'_>) {
        while let Some(index) = self.next_ready() {
            let before = batch.count();
            let fill = match self.qps.at_mut(index) {
                _ if index == cm::INDEX => self.cm.fill(&mut self.cx, batch),
                Some(qp) => fill(qp, &mut self.cx, batch),
                None => Fill::Idle,
            };
            match fill {
                Fill::Idle => {
                    self.cx.ready.remove_front();
                }
                Fill::Full => {
                    if batch.count() > before {
                        self.cx.ready.rotate();
                    }
                    break;
                }
            }
        }
    }

    fn next_ready(&mut self) -> Option<u16> {
        let Cx { peers, ready, .. } = &mut self.cx;
        while ready.front().is_none() && peers.wake_more(ready) {}
        ready.front()
    }

    /// A probe or echo travels alone.
    fn fill_control(&mut self, batch: &mut Batch<'_>) {
        let Cx { peers, timers, now, .. } = &mut self.cx;
        if let Some((id, token)) = peers.next_probe(*now, timers) {
            let peer = self.cx.peers.peer(id);
            let probe = Control::probe(peer, token);
            self.controls.push_back(probe);
        }
        while batch.is_empty()
            && let Some(control) = self.controls.pop_front()
        {
            control.push(&self.cx, batch);
        }
        if !batch.is_empty() {
            batch.close();
            self.control_sent = true;
        }
    }

    /// The next thing for the caller to do now that its lock can be released.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        while !self.cx.failing.is_empty() || !self.cx.dead_cqs.is_empty() {
            self.fail_users_of_dead_cqs();
        }
        self.cx.effects.pop_front()
    }

    /// Completion queues lost completions: the queue pairs that use them can no longer tell what
    /// they did, and fail (IBTA 11.6.3, `ibv_get_async_event(3)`). Looks at every queue pair only
    /// when a queue overflows, for a peer can bring about any number of completions that follow.
    fn fail_users_of_dead_cqs(&mut self) {
        for qpn in std::mem::take(&mut self.cx.failing) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                fail(qp, &mut self.cx);
            }
        }
        for token in std::mem::take(&mut self.cx.dead_cqs) {
            for qp in self.qps.iter_mut().filter(|qp| qp.completes_in(token)) {
                fail(qp, &mut self.cx);
            }
        }
    }

    /// When [`Endpoint::handle_timeout`] is next due, `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.cx.timers.next()
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.cx.stats
    }

    /// What counts against windows now.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            request_bytes: self.cx.peers.in_flight(),
            read_bytes: self.cx.reads_in_flight.into(),
        }
    }

    /// Connections and attempts at one that exist, those that only wait for their packets to be
    /// gone included.
    pub fn cm_count(&self) -> usize {
        self.cm.count()
    }

    /// Whether messages about connections wait to be sent: whoever exits loses them.
    pub fn cm_has_outgoing(&self) -> bool {
        self.cm.has_outgoing()
    }

    /// Queue pairs that exist.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }
}

fn unknown(qpn: Qpn) -> VerbsError {
    VerbsError::invalid(format!("QP {qpn} does not exist, or was destroyed"))
}

/// Fails a queue pair that lost a completion.
fn fail(qp: &mut Qp, cx: &mut Cx) {
    if !matches!(qp.attr.state, QpState::Reset | QpState::Err) {
        tracing::info!("QP {}: a completion queue of its overflowed", qp.qpn);
        qp.enter_error(cx, Some(EventKind::QpFatal));
    }
}

/// Gives a packet to the side of the queue pair that it is for.
fn deliver(
    qp: &mut Qp,
    cx: &mut Cx,
    meta: &Meta,
    packet: &Packet<'_>,
) -> std::result::Result<(), DropReason> {
    if !qp.receives() {
        return Err(DropReason::State);
    }
    let opcode = packet.headers.bth.opcode;
    match (qp.init.qp_type, opcode.service) {
        (QpType::Ud, Service::Ud) => qp.handle_datagram(cx, meta, packet),
        (QpType::Rc, Service::Rc)
        | (QpType::Uc, Service::Uc)
        | (QpType::XrcSend | QpType::XrcRecv, Service::Xrc) => {
            let ends = qp.path.map(|path| (path.route.dst, path.route.src));
            if ends != Some((meta.src, meta.dst)) {
                return Err(DropReason::Source);
            }
            match (qp.init.qp_type, opcode.is_response()) {
                (QpType::Uc, _) => qp.handle_uc(cx, packet),
                (QpType::XrcSend, false) | (QpType::XrcRecv, true) => {
                    return Err(DropReason::Service);
                }
                (_, true) => qp.handle_response(cx, packet),
                (_, false) => qp.handle_request(cx, packet),
            }
        }
        _ => return Err(DropReason::Service),
    }
    Ok(())
}

/// One queue pair's turn: its answers first, because the peer waits for them.
fn fill(qp: &mut Qp, cx: &mut Cx, batch: &mut Batch<'_>) -> Fill {
    if qp.init.qp_type == QpType::Ud {
        return qp.fill_datagrams(cx, batch);
    }
    if qp.fill_responses(cx, batch) == Fill::Full {
        return Fill::Full;
    }
    match qp.attr.state {
        QpState::Rts | QpState::Sqd => qp.fill_requests(cx, batch),
        _ => Fill::Idle,
    }
}
