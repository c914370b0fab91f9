//! Packets between the endpoint and the sockets: batches out, batches in, and what the tap and
//! the fault injector do on the way.

use std::io;
use std::net::{IpAddr, SocketAddr};

use irdma_net::port::PortName;
use irdma_net::slot::{Delivery, Slot};
use irdma_net::udp::{BATCH_LEN, RecvMeta};
use irdma_transport::{Disposition, Endpoint, Instant, Meta, Transmit};
use irdma_wire::cm::ServiceId;
use irdma_wire::pcapng::Direction;
use irdma_wire::{FlowKey, icrc};

use super::capture::{Capture, Way};
use super::early::{Early, Request};
use super::relay::{Backlog, Taker};
use super::sockets::{Sockets, Token, destination, hop_limit};
use crate::config::Config;
use crate::faults::{Injector, Side};

/// A run of the lane, or one post, moves no more than this many packets or bytes a way.
const BUDGET_PACKETS: usize = 64;
const BUDGET_BYTES: usize = 64 << 10;

/// What is left of a run's allowance.
#[derive(Debug)]
pub(crate) struct Budget {
    packets: usize,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Budget { packets: BUDGET_PACKETS, bytes: BUDGET_BYTES }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes == 0
    }

    pub(crate) fn spend(&mut self, packets: usize, bytes: usize) {
        self.packets = self.packets.saturating_sub(packets);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Packets that the protocol knows nothing of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Refused by the kernel for want of a route.
    pub(crate) out_no_routes: u64,
    /// Refused by the kernel for another reason.
    pub(crate) out_errors: u64,
    /// Batches handed to the slot that they are for.
    pub(crate) relayed_out: u64,
    /// Batches that another slot handed over.
    pub(crate) relayed_in: u64,
    /// Batches that could not be handed over.
    pub(crate) relay_drops: u64,
}

/// The way out: sockets, tap, refusals.
struct Exit {
    sockets: Sockets,
    counters: Counters,
    capture: Option<Capture>,
    backlog: Backlog,
    early: Early,
    /// Destination and error number of the last refusal, logged once in a row.
    last_refusal: Option<(IpAddr, Option<i32>)>,
}

/// What the kernel did with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// Gone, or refused for good.
    Done,
    /// The socket is full.
    Full,
    /// The route does not cut batches.
    Uncut,
}

/// Everything between an endpoint and the kernel.
pub(crate) struct Traffic {
    exit: Exit,
    tx: Box<[u8]>,
    rx: Box<[u8]>,
    /// The batch in `tx` that found its socket full, and how much of it is sent.
    pending: Option<(Transmit, usize)>,
    send_faults: Option<Injector<Transmit>>,
    recv_faults: Option<Injector<Meta>>,
}

impl Traffic {
    /// `stream` sets the faults of one lane apart from those of another.
    pub(crate) fn new(
        sockets: Sockets,
        config: &Config,
        capture: Option<Capture>,
        stream: u64,
    ) -> Self {
        let faults_on =
            |side| config.faults.filter(|spec| spec.side == side || spec.side == Side::Both);
        let exit = Exit {
            sockets,
            counters: Counters::default(),
            capture,
            backlog: Backlog::default(),
            early: Early::default(),
            last_refusal: None,
        };
        Traffic {
            exit,
            tx: vec![0; BATCH_LEN].into(),
            rx: vec![0; BATCH_LEN].into(),
            pending: None,
            send_faults: faults_on(Side::Send).map(|spec| Injector::new(spec, 2 * stream)),
            recv_faults: faults_on(Side::Receive).map(|spec| Injector::new(spec, 2 * stream + 1)),
        }
    }

    pub(crate) fn sockets(&mut self) -> &mut Sockets {
        &mut self.exit.sockets
    }

    pub(crate) fn counters(&self) -> Counters {
        self.exit.counters
    }

    pub(crate) fn overflows(&self) -> u64 {
        self.exit.sockets.overflows
    }

    /// Sends what the endpoint has, as far as one run's budget goes; tells whether more waits
    /// that could go now.
    pub(crate) fn transmit(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        if let Some((transmit, sent)) = self.pending.take() {
            self.exit.sockets.watch_room(&transmit, false);
            self.send(now, transmit, sent);
        }
        let mut budget = Budget::new();
        while self.pending.is_none() {
            if budget.is_spent() {
                return true;
            }
            let Some(transmit) = endpoint.poll_transmit(now, &mut self.tx) else { break };
            budget.spend(transmit.len.div_ceil(transmit.segment.max(1)), transmit.len);
            self.send(now, transmit, 0);
        }
        false
    }

    /// Sends the batch in `tx` from offset `from` on; keeps it if its socket is full.
    fn send(&mut self, now: Instant, transmit: Transmit, from: usize) {
        let single = transmit.len - from <= transmit.segment;
        if self.send_faults.is_none() && (single || from == 0) {
            let batch = &self.tx[from..transmit.len];
            match self.exit.send(&transmit, batch, transmit.segment) {
                Sent::Done => return,
                Sent::Full => return self.wait_for_room(transmit, from),
                Sent::Uncut => {}
            }
        }
        self.send_singly(now, transmit, from);
    }

    /// Sends datagram by datagram; each leaves with identification 0 then, and is signed again.
    fn send_singly(&mut self, now: Instant, transmit: Transmit, from: usize) {
        let Some(src_port) = self.exit.sockets.source_port(&transmit) else { return };
        let flow = FlowKey { src: transmit.src, dst: transmit.dst, src_port };
        let mut at = from;
        while at < transmit.len {
            let end = (at + transmit.segment).min(transmit.len);
            let datagram = &mut self.tx[at..end];
            icrc::sign(&flow, 0, datagram);
            match &mut self.send_faults {
                None => {
                    if self.exit.send(&transmit, datagram, datagram.len()) == Sent::Full {
                        return self.wait_for_room(transmit, at);
                    }
                }
                Some(faults) => faults.pass(now, transmit, datagram, &mut |transmit, datagram| {
                    self.exit.send(&transmit, datagram, datagram.len());
                }),
            }
            at = end;
        }
    }

    fn wait_for_room(&mut self, transmit: Transmit, sent: usize) {
        self.exit.sockets.watch_room(&transmit, true);
        self.pending = Some((transmit, sent));
    }

    /// Takes one batch from a socket to the endpoint; `false` if there was none.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        token: Token,
        budget: &mut Budget,
        endpoint: &mut Endpoint,
        slot: &Slot,
    ) -> bool {
        let Some((meta, ifindex)) = self.exit.sockets.recv(token, &mut self.rx) else {
            return false;
        };
        budget.spend(meta.len.div_ceil(meta.stride), meta.len);
        let batch = &mut self.rx[..meta.len];
        if self.exit.sockets.take_probe(token, batch, &meta, slot) {
            return true;
        }
        let mut entrance =
            Entrance { now, endpoint, meta, ifindex, foreign: None, misdirected: false };
        entrance.take_in(batch, &mut self.exit, &mut self.recv_faults, slot);
        if entrance.misdirected {
            self.exit.sockets.note_misdirected(token, now.as_nanos());
        }
        true
    }

    /// Takes in a batch that another slot relayed. What is not for this slot goes no further.
    pub(crate) fn receive_relayed(
        &mut self,
        now: Instant,
        meta: RecvMeta,
        data: &[u8],
        endpoint: &mut Endpoint,
        slot: &Slot,
    ) {
        self.exit.counters.relayed_in += 1;
        let Some(batch) = self.rx.get_mut(..data.len()) else {
            self.exit.counters.relay_drops += 1;
            return;
        };
        batch.copy_from_slice(data);
        let mut entrance =
            Entrance { now, endpoint, meta, ifindex: 0, foreign: None, misdirected: false };
        for (index, datagram) in batch.chunks_mut(meta.stride).enumerate() {
            let (exit, faults) = (&mut self.exit, &mut self.recv_faults);
            let to = entrance.datagram(index, datagram, exit, faults, slot);
            exit.counters.relay_drops += u64::from(to.is_some());
        }
    }

    /// Takes in requests that another process had no use for: nobody but this process can answer.
    pub(crate) fn receive_requests(
        &mut self,
        now: Instant,
        meta: RecvMeta,
        data: &[u8],
        endpoint: &mut Endpoint,
        slot: &Slot,
    ) {
        self.exit.counters.relayed_in += 1;
        for (index, datagram) in data.chunks(meta.stride).enumerate() {
            let meta = datagram_meta(&meta, index, 0);
            self.exit.tap(Direction::Inbound, &meta, datagram);
            self.exit.offer(now, slot, endpoint, Request::new(now, meta, datagram, true));
        }
    }

    /// Lets go what the fault injectors held back long enough, and goes on with steering and
    /// relaying.
    pub(crate) fn handle_timeout(&mut self, now: Instant, endpoint: &mut Endpoint, slot: &Slot) {
        self.exit.sockets.steer_due(slot, now.as_nanos());
        self.exit.retry_relays(now, slot);
        if let Some(faults) = &mut self.send_faults {
            faults.release_due(now, &mut |transmit, datagram| {
                self.exit.send(&transmit, datagram, datagram.len());
            });
        }
        if let Some(faults) = &mut self.recv_faults {
            faults.release_due(now, &mut |meta, datagram| match endpoint
                .handle_datagram(now, &meta, datagram)
            {
                Disposition::Done => {}
                Disposition::Foreign(to) => {
                    let batch = batch_of(&meta, datagram.len());
                    self.exit.relay(now, slot, Taker::Slot(to), batch, datagram);
                }
                Disposition::Unclaimed(service) => {
                    let request = Request::new(now, meta, datagram, false);
                    self.exit.pass_on(now, slot, endpoint, request, service);
                }
            });
        }
        for request in self.exit.early.due(now) {
            self.exit.offer(now, slot, endpoint, request);
        }
    }

    /// When [`Traffic::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let steer = self.exit.sockets.deadline_ns().map(Instant::from_nanos);
        let send = self.send_faults.as_ref().and_then(Injector::deadline);
        let receive = self.recv_faults.as_ref().and_then(Injector::deadline);
        let (relay, early) = (self.exit.backlog.deadline(), self.exit.early.deadline());
        steer.into_iter().chain(send).chain(receive).chain(relay).chain(early).min()
    }

    /// Writes what the tap collected.
    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.exit.capture {
            capture.flush();
        }
    }
}

impl Exit {
    /// Sends datagrams of `segment` bytes, the last possibly shorter.
    fn send(&mut self, transmit: &Transmit, batch: &[u8], segment: usize) -> Sent {
        let Some((_, sender)) = self.sockets.sender(transmit) else {
            self.counters.out_no_routes += 1;
            return Sent::Done;
        };
        let (src_port, dst) = (sender.port(), destination(transmit));
        let cut = Some(segment as u16).filter(|_| batch.len() > segment);
        match sender.send(dst, batch, cut, transmit.tos, hop_limit(transmit)) {
            Ok(_) => self.tap_batch(transmit, src_port, batch, segment),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Sent::Full,
                io::ErrorKind::Unsupported => return Sent::Uncut,
                _ => self.refuse(transmit, segment, &error),
            },
        }
        Sent::Done
    }

    /// Counts a batch that the kernel will never send; the protocol repeats what matters.
    fn refuse(&mut self, transmit: &Transmit, segment: usize, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                self.counters.out_no_routes += 1;
            }
            _ => self.counters.out_errors += 1,
        }
        let refusal = Some((transmit.dst, error.raw_os_error()));
        if self.last_refusal != refusal {
            self.last_refusal = refusal;
            tracing::warn!(
                "the kernel refuses datagrams of {segment} bytes from {} to {}: {error}; check \
                 route, firewall and MTU",
                transmit.src,
                transmit.dst
            );
        }
    }

    fn tap_batch(&mut self, transmit: &Transmit, src_port: u16, batch: &[u8], segment: usize) {
        let Some(capture) = &mut self.capture else { return };
        for (index, datagram) in batch.chunks(segment).enumerate() {
            let way = Way {
                src: transmit.src,
                src_port,
                dst: transmit.dst,
                tos: transmit.tos,
                ttl: hop_limit(transmit).unwrap_or(64),
                index: index as u16,
            };
            capture.add(Direction::Outbound, &way, datagram);
        }
    }

    fn tap(&mut self, direction: Direction, meta: &Meta, datagram: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        let &Meta { src, src_port, dst, tos, ttl, index, .. } = meta;
        capture.add(direction, &Way { src, src_port, dst, tos, ttl, index }, datagram);
    }

    /// Hands datagrams to whoever they are for, at best effort; tells whether there is one.
    fn relay(&mut self, now: Instant, slot: &Slot, to: Taker, meta: RecvMeta, data: &[u8]) -> bool {
        let delivery = match self.backlog.is_ahead_of(to) {
            true => Delivery::Full,
            false => to.deliver(slot, meta, data),
        };
        match delivery {
            Delivery::Sent => self.counters.relayed_out += 1,
            Delivery::Full if self.backlog.push(now, to, meta, data) => {}
            Delivery::Full => self.counters.relay_drops += 1,
            Delivery::Gone => {}
        }
        delivery != Delivery::Gone
    }

    /// Gives a request to this process's listener, if there is one by now.
    fn offer(&mut self, now: Instant, slot: &Slot, endpoint: &mut Endpoint, request: Request) {
        let disposition = endpoint.handle_datagram(now, &request.meta, &request.datagram);
        if let Disposition::Unclaimed(service) = disposition {
            self.pass_on(now, slot, endpoint, request, service);
        }
    }

    /// Hands a request to the process that listens for it, or after a while has it refused.
    fn pass_on(
        &mut self,
        now: Instant,
        slot: &Slot,
        endpoint: &mut Endpoint,
        request: Request,
        service: ServiceId,
    ) {
        let batch = batch_of(&request.meta, request.datagram.len());
        // One of the names may be this process's own, bound without listening.
        let elsewhere = service.to_rdma_ip().filter(|_| !request.relayed);
        let taken = elsewhere.is_some_and(|(space, port)| {
            let mut names = PortName::towards(space as u16, port, batch.dst).into_iter();
            names.any(|name| self.relay(now, slot, Taker::Port(name), batch, &request.datagram))
        });
        if !taken && let Some(request) = self.early.push(now, request) {
            endpoint.handle_unclaimed(now, &request.meta, &request.datagram);
        }
    }

    fn retry_relays(&mut self, now: Instant, slot: &Slot) {
        let deliver = |to: Taker, meta, data: &[u8]| to.deliver(slot, meta, data);
        let (sent, lost) = self.backlog.retry(now, deliver);
        self.counters.relayed_out += sent;
        self.counters.relay_drops += lost;
    }
}

/// A batch on its way in.
struct Entrance<'a> {
    now: Instant,
    endpoint: &'a mut Endpoint,
    meta: RecvMeta,
    ifindex: u32,
    /// A run of datagrams for another slot: the slot and where the run starts.
    foreign: Option<(u16, usize)>,
    /// Some of them were for a slot that has an owner.
    misdirected: bool,
}

impl Entrance<'_> {
    fn take_in(
        &mut self,
        batch: &mut [u8],
        exit: &mut Exit,
        faults: &mut Option<Injector<Meta>>,
        slot: &Slot,
    ) {
        let mut at = 0;
        for index in 0..batch.len().div_ceil(self.meta.stride) {
            let end = (at + self.meta.stride).min(batch.len());
            let to = self.datagram(index, &mut batch[at..end], exit, faults, slot);
            if to != self.foreign.map(|(to, _)| to) {
                self.relay_run(&batch[..at], exit, slot);
                self.foreign = to.map(|to| (to, at));
            }
            at = end;
        }
        self.relay_run(batch, exit, slot);
    }

    /// One datagram; tells the slot that it is for if that is not ours.
    fn datagram(
        &mut self,
        index: usize,
        datagram: &mut [u8],
        exit: &mut Exit,
        faults: &mut Option<Injector<Meta>>,
        slot: &Slot,
    ) -> Option<u16> {
        let meta = datagram_meta(&self.meta, index, self.ifindex);
        exit.tap(Direction::Inbound, &meta, datagram);
        let mut foreign = None;
        let mut handle = |meta: Meta, datagram: &mut [u8]| match self
            .endpoint
            .handle_datagram(self.now, &meta, datagram)
        {
            Disposition::Done => {}
            Disposition::Foreign(to) => foreign = Some(to),
            Disposition::Unclaimed(service) => {
                let request = Request::new(self.now, meta, datagram, false);
                exit.pass_on(self.now, slot, self.endpoint, request, service);
            }
        };
        match faults {
            None => handle(meta, datagram),
            Some(faults) => faults.pass(self.now, meta, datagram, &mut handle),
        }
        foreign
    }

    fn relay_run(&mut self, batch: &[u8], exit: &mut Exit, slot: &Slot) {
        let Some((to, start)) = self.foreign.take() else { return };
        let data = &batch[start..];
        let meta = RecvMeta { len: data.len(), ..self.meta };
        if exit.relay(self.now, slot, Taker::Slot(to), meta, data) {
            self.misdirected = true;
            return;
        }
        exit.counters.relay_drops += 1;
        // The owner is gone. Who asks it about a connection waits for an answer.
        for (index, datagram) in data.chunks(self.meta.stride).enumerate() {
            let index = start / self.meta.stride + index;
            let meta = datagram_meta(&self.meta, index, self.ifindex);
            self.endpoint.handle_unclaimed(self.now, &meta, datagram);
        }
    }
}

/// A batch of one datagram.
fn batch_of(meta: &Meta, len: usize) -> RecvMeta {
    let &Meta { src, src_port, dst, tos, ttl, .. } = meta;
    let src = SocketAddr::new(src, src_port);
    RecvMeta { len, stride: len, src, dst, tos, ttl, drops: 0 }
}

fn datagram_meta(meta: &RecvMeta, index: usize, ifindex: u32) -> Meta {
    Meta {
        src: meta.src.ip(),
        src_port: meta.src.port(),
        dst: meta.dst,
        tos: meta.tos,
        ttl: meta.ttl,
        index: index as u16,
        ifindex,
    }
}
