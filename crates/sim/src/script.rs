//! Packet scripts: one endpoint against a peer that the test writes packet by packet.
//!
//! The endpoint under test is at 10.0.0.1 with one queue pair; the peer is at 10.0.0.2 with
//! [`PEER`]. What the endpoint sends is shown as one line of text a packet, see [`Pkt`].

use std::net::IpAddr;
use std::sync::Arc;

use irdma_mem::Access;
use irdma_transport::{
    AttrMask, Config, Disposition, Effect, EventKind, InFlight, Instant, Meta, QpAttr, QpInit,
    QpState, QpType, RecvWr, Result, SendData, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use irdma_wire::icrc::{Verdict, verify};
use irdma_wire::{FlowKey, Opcode, Operation, Position, Psn, Qpn, Service, Syndrome, parse};

use crate::node::{Cqs, Memory, Node, PORTS};
pub use crate::packet::Pkt;

/// The address of the endpoint under test.
pub const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
/// The address of the peer.
pub const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// The peer's queue pair.
pub const PEER: Qpn = Qpn::from_parts(77, 5);
/// The first PSN that the endpoint sends.
pub const SQ_PSN: Psn = Psn::new(100);
/// The first PSN that the peer sends.
pub const RQ_PSN: Psn = Psn::new(200);
/// The path MTU.
pub const MTU: usize = 256;
/// The Q_Key of datagram queue pairs.
pub const QKEY: u32 = 0x1111_1111;

/// An endpoint with one queue pair, and the peer's hand.
pub struct Script {
    /// The machine under test.
    pub node: Node,
    /// The time, which only [`Script::wait`] moves.
    pub now: Instant,
    /// The queue pair under test.
    pub qpn: Qpn,
    /// Its completion queues.
    pub cqs: Cqs,
    /// 64 KiB with every right.
    pub memory: Memory,
    /// Its attributes.
    pub attr: QpAttr,
    effects: Vec<Effect>,
}

impl Script {
    /// A reliable connection in RTS.
    pub fn rc() -> Self {
        Script::with(QpType::Rc, |_| {}, |_| {})
    }

    /// An unreliable connection in RTS.
    pub fn uc() -> Self {
        Script::with(QpType::Uc, |_| {}, |_| {})
    }

    /// A datagram queue pair in RTS.
    pub fn ud() -> Self {
        Script::with(QpType::Ud, |_| {}, |_| {})
    }

    /// A reliable connection in RTS with other attributes than [`attr`].
    pub fn rc_with(tune: impl FnOnce(&mut QpAttr)) -> Self {
        Script::with(QpType::Rc, |_| {}, tune)
    }

    /// A queue pair in RTS that was created and moved with other values.
    pub fn with(
        qp_type: QpType,
        create: impl FnOnce(&mut QpInit),
        tune: impl FnOnce(&mut QpAttr),
    ) -> Self {
        let mut script = Script::reset(qp_type, create, tune);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            script.modify(to).expect("a legal move");
        }
        assert_eq!(script.sent_text(), [""; 0]);
        script
    }

    /// A queue pair in RESET.
    pub fn reset(
        qp_type: QpType,
        create: impl FnOnce(&mut QpInit),
        tune: impl FnOnce(&mut QpAttr),
    ) -> Self {
        let mut node = Node::new(HERE, Config::default());
        let cqs = node.cqs(1024);
        let memory = node.memory(1 << 16);
        let mut init = QpInit {
            qp_type,
            pd: Arc::clone(&node.pd),
            send_cq: Arc::clone(&cqs.send),
            recv_cq: Arc::clone(&cqs.recv),
            srq: None,
            xrcd: None,
            cap: irdma_transport::QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sq_sig_all: true,
            block_self_mcast: false,
        };
        create(&mut init);
        let qpn = node.endpoint.create_qp(init).expect("created");
        let mut attr = attr();
        tune(&mut attr);
        let now = Instant::from_millis(1000);
        Script { node, now, qpn, cqs, memory, attr, effects: Vec::new() }
    }

    /// Makes another queue pair like the one under test, in RTS, the one under test; the former
    /// one lives on. Returns its number.
    pub fn switch_to_another(&mut self, tune: impl FnOnce(&mut QpAttr)) -> Qpn {
        let (_, init) = self.node.endpoint.query_qp(self.qpn).expect("it exists");
        let qpn = self.node.endpoint.create_qp(init).expect("created");
        let former = std::mem::replace(&mut self.qpn, qpn);
        tune(&mut self.attr);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(to).expect("a legal move");
        }
        former
    }

    /// Moves to a state with the attributes that the move must have.
    pub fn modify(&mut self, to: QpState) -> Result<()> {
        let (found, init) = self.node.endpoint.query_qp(self.qpn)?;
        let row = irdma_transport::transition(init.qp_type, found.state, to);
        let required = row.map_or(AttrMask::empty(), |row| row.required);
        self.modify_with(to, required)
    }

    /// Moves to a state with chosen attributes.
    pub fn modify_with(&mut self, to: QpState, mask: AttrMask) -> Result<()> {
        let attr = QpAttr { state: to, ..self.attr };
        self.node.endpoint.modify_qp(self.now, self.qpn, &attr, mask | AttrMask::STATE)
    }

    /// The state of the queue pair.
    pub fn state(&self) -> QpState {
        self.node.endpoint.query_qp(self.qpn).expect("it exists").0.state
    }

    /// The service of the queue pair.
    pub fn qp_type(&self) -> QpType {
        self.node.endpoint.query_qp(self.qpn).expect("it exists").1.qp_type
    }

    /// A request of the peer.
    pub fn request(&self, operation: Operation, position: Position, psn: Psn) -> Pkt {
        let service = match self.qp_type() {
            QpType::Uc => Service::Uc,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        };
        Pkt::new(Opcode::new(service, operation, position), self.qpn, psn)
    }

    /// A SEND of the peer in one packet.
    pub fn send_only(&self, psn: Psn, payload: &[u8]) -> Pkt {
        self.request(Operation::Send, Position::Only, psn).payload(payload)
    }

    /// A WRITE of the peer in one packet, to the byte `at` of the memory.
    pub fn write_only(&self, psn: Psn, at: usize, payload: &[u8]) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        let packet = self.request(Operation::Write, Position::Only, psn);
        packet.reth(va, rkey, payload.len() as u32).payload(payload)
    }

    /// A READ request of the peer for `len` bytes at `at` of the memory.
    pub fn read_request(&self, psn: Psn, at: usize, len: u32) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        self.request(Operation::ReadRequest, Position::Only, psn).reth(va, rkey, len).ask()
    }

    /// A fetch-and-add of the peer on the word at `at` of the memory.
    pub fn fetch_add(&self, psn: Psn, at: usize, add: u64) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        self.request(Operation::FetchAdd, Position::Only, psn).atomic(va, rkey, add, 0).ask()
    }

    /// A compare-and-swap of the peer on the word at `at` of the memory.
    pub fn compare_swap(&self, psn: Psn, at: usize, compare: u64, swap: u64) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        let packet = self.request(Operation::CompareSwap, Position::Only, psn);
        packet.atomic(va, rkey, swap, compare).ask()
    }

    /// An ATOMIC WRITE of the peer to the word at `at` of the memory.
    pub fn atomic_write(&self, psn: Psn, at: usize, value: u64) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        let packet = self.request(Operation::AtomicWrite, Position::Only, psn);
        packet.reth(va, rkey, 8).payload(&value.to_ne_bytes()).ask()
    }

    /// A FLUSH of the peer for `len` bytes at `at` of the memory.
    pub fn flush(&self, psn: Psn, at: usize, len: u32) -> Pkt {
        let (va, rkey) = (self.memory.addr(at), self.memory.mr.rkey);
        self.request(Operation::Flush, Position::Only, psn).feth(1, 0).reth(va, rkey, len).ask()
    }

    /// An acknowledgement of the peer, of whatever sign.
    pub fn ack(&self, psn: Psn, syndrome: Syndrome) -> Pkt {
        self.request(Operation::Ack, Position::Only, psn).aeth(syndrome, 0)
    }

    /// A READ response of the peer.
    pub fn read_response(&self, position: Position, psn: Psn, payload: &[u8]) -> Pkt {
        let packet = self.request(Operation::ReadResponse, position, psn).payload(payload);
        let plain = position == Position::Middle;
        if plain { packet } else { packet.aeth(Syndrome::Ack { credit: 31 }, 0) }
    }

    /// An atomic's answer of the peer.
    pub fn atomic_ack(&self, psn: Psn, value: u64) -> Pkt {
        let mut packet = self.request(Operation::AtomicAck, Position::Only, psn);
        packet.headers.atomic_ack = Some(value);
        packet.aeth(Syndrome::Ack { credit: 31 }, 0)
    }

    /// How the peer's packets arrive.
    pub fn meta(&self) -> Meta {
        Meta { src: THERE, src_port: 50_000, dst: HERE, tos: 0, ttl: 64, index: 0, ifindex: 0 }
    }

    /// Lets a packet of the peer arrive.
    pub fn deliver(&mut self, packet: &Pkt) {
        self.deliver_from(&self.meta(), packet);
    }

    /// Lets a packet arrive from anywhere.
    pub fn deliver_from(&mut self, meta: &Meta, packet: &Pkt) {
        let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
        self.deliver_bytes(meta, &packet.emit(&flow, meta.index));
    }

    /// Lets bytes arrive.
    pub fn deliver_bytes(&mut self, meta: &Meta, bytes: &[u8]) {
        let disposition = self.node.endpoint.handle_datagram(self.now, meta, bytes);
        assert_eq!(disposition, Disposition::Done);
    }

    /// Lets packets of the peer arrive together; what is sent then, as text.
    pub fn exchange(&mut self, packets: &[Pkt]) -> Vec<String> {
        for packet in packets {
            self.deliver(packet);
        }
        self.sent_text()
    }

    /// What the endpoint sends now, probes left out.
    ///
    /// # Panics
    /// When a packet is not well-formed, not signed, or not for the peer.
    pub fn sent(&mut self) -> Vec<Pkt> {
        let mut buffer = vec![0; 65_536];
        let mut packets = Vec::new();
        while let Some(transmit) = self.node.endpoint.poll_transmit(self.now, &mut buffer) {
            let flow =
                FlowKey { src: transmit.src, dst: transmit.dst, src_port: PORTS[transmit.port] };
            for (id, bytes) in buffer[..transmit.len].chunks(transmit.segment).enumerate() {
                assert_eq!(verify(&flow, id as u16, bytes), Verdict::Good);
                let packet = parse(bytes).expect("well-formed");
                let bth = packet.headers.bth;
                assert!(bth.migreq && bth.pkey == 0xFFFF, "{bth:?}");
                if bth.dest_qpn.index() != 0 {
                    let payload = packet.payload.to_vec();
                    packets.push(Pkt { headers: packet.headers, payload });
                }
            }
        }
        while let Some(effect) = self.node.endpoint.poll_effect() {
            self.effects.push(effect);
        }
        packets
    }

    /// As [`Script::sent`], as text.
    pub fn sent_text(&mut self) -> Vec<String> {
        self.sent().iter().map(Pkt::to_string).collect()
    }

    /// Lets time pass and its timers run; what is sent then, as text.
    pub fn wait(&mut self, ns: u64) -> Vec<String> {
        self.now = self.now + ns;
        self.node.endpoint.handle_timeout(self.now);
        self.sent_text()
    }

    /// Posts a request over `len` bytes at `at` of the memory.
    pub fn post(&mut self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        self.post_flags(wr_id, op, at, len, SendFlags::empty());
    }

    /// As [`Script::post`], with flags.
    pub fn post_flags(&mut self, wr_id: u64, op: SendOp, at: usize, len: usize, flags: SendFlags) {
        let sges = [self.memory.sge(at, len)];
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&sges), ud: None };
        self.post_wr(&wr).expect("posted");
    }

    /// Posts any request.
    pub fn post_wr(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.node.endpoint.post_send(self.now, self.qpn, wr)
    }

    /// Posts a receive of `len` bytes at `at` of the memory.
    pub fn post_recv(&mut self, wr_id: u64, at: usize, len: usize) {
        let sges = [self.memory.sge(at, len)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.node.endpoint.post_recv(self.now, self.qpn, &wr).expect("posted");
    }

    /// A WRITE to the peer.
    pub fn write_op(&self) -> SendOp {
        SendOp::Write { remote_addr: 0x1000, rkey: 0xABCD, imm: None }
    }

    /// A READ from the peer.
    pub fn read_op(&self) -> SendOp {
        SendOp::Read { remote_addr: 0x1000, rkey: 0xABCD }
    }

    /// A fetch-and-add at the peer.
    pub fn fetch_add_op(&self, add: u64) -> SendOp {
        SendOp::FetchAdd { remote_addr: 0x1000, rkey: 0xABCD, add }
    }

    /// Takes the send completions.
    pub fn completed(&mut self) -> Vec<(u64, WcStatus)> {
        poll(&self.cqs.send).iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Takes the receive completions.
    pub fn received(&mut self) -> Vec<Wc> {
        poll(&self.cqs.recv)
    }

    /// Takes the receive completions, without their details.
    pub fn received_short(&mut self) -> Vec<(u64, WcStatus)> {
        self.received().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Takes the asynchronous events.
    pub fn events(&mut self) -> Vec<EventKind> {
        self.sent();
        let kind = |effect| match effect {
            Effect::Async(kind, _) => Some(kind),
            _ => None,
        };
        self.effects.drain(..).filter_map(kind).collect()
    }

    /// Takes the tokens of completion queues that raised an event.
    pub fn cq_events(&mut self) -> Vec<u64> {
        self.sent();
        let token = |effect| match effect {
            Effect::CqEvent(token) => Some(token),
            _ => None,
        };
        self.effects.drain(..).filter_map(token).collect()
    }

    /// How many packets were dropped for a reason.
    pub fn drops(&self, reason: irdma_transport::DropReason) -> u64 {
        self.node.endpoint.stats().drops[reason as usize]
    }

    /// Whether nothing counts against a window.
    pub fn is_idle(&self) -> bool {
        self.node.endpoint.in_flight() == InFlight::default()
    }
}

/// The attributes that scripts run with.
pub fn attr() -> QpAttr {
    QpAttr {
        port: 1,
        access: Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL,
        qkey: QKEY,
        av: irdma_transport::AddressVector {
            sgid: HERE.into(),
            dgid: THERE.into(),
            ..irdma_transport::AddressVector::default()
        },
        path_mtu: MTU as u32,
        rq_psn: RQ_PSN,
        sq_psn: SQ_PSN,
        dest_qpn: PEER,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 2,
        rnr_retry: 2,
        ..QpAttr::default()
    }
}

fn poll(cq: &irdma_transport::Cq) -> Vec<Wc> {
    let mut out = vec![Wc::default(); cq.len()];
    let count = cq.poll_cq(&mut out);
    out.truncate(count);
    out
}
