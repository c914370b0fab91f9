//! Bodies of the fuzz targets: any bytes are an input, no input panics or leaves its memory.
//!
//! The targets in `fuzz/` call these; a test replays their corpus.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use irdma_mem::{Access, MwBind, MwType, Sge};
use irdma_transport::{
    Ah, AttrMask, Config, InFlight, Instant, Meta, Placement, QpAttr, QpCap, QpInit, QpState,
    QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Srq, SrqAttr, UdDest, Wc, Xrcd,
};
use irdma_wire::cm::CmMessage;
use irdma_wire::icrc::{Verdict, sign, verify};
use irdma_wire::{FlowKey, Gid, Qpn, parse, wire_len};

use crate::node::{Cqs, Memory, Node, PORTS};
use crate::script::{HERE, THERE, attr};

const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
const SERVICES: [QpType; 5] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
/// Actions of one input.
pub(crate) const MAX_ACTIONS: usize = 256;

/// Parsing: what is accepted comes out as it went in.
pub fn packet(bytes: &[u8]) {
    let flow = FlowKey { src: THERE, dst: HERE, src_port: 50_000 };
    let _ = verify(&flow, 0, bytes);
    let _ = irdma_wire::ctl::Control::parse(bytes);
    message(bytes);
    let _ = irdma_wire::ip::Datagram::parse(bytes);
    let _ = irdma_wire::pcapng::read(bytes);
    let Ok(packet) = parse(bytes) else {
        return;
    };
    let opcode = packet.headers.bth.opcode;
    let mut out = vec![0; irdma_wire::headers_len(opcode)];
    irdma_wire::emit_headers(&packet.headers, &mut out);
    let mut again = bytes.to_vec();
    again[..out.len()].copy_from_slice(&out);
    let reparsed = parse(&again).expect("what was emitted is accepted");
    assert_eq!(reparsed, packet);
}

/// A message of the connection manager: what is accepted comes out as it went in.
fn message(bytes: &[u8]) {
    let _ = irdma_wire::cm::IpHeader::parse(bytes);
    if let Ok((header, message)) = CmMessage::parse(bytes) {
        let again = message.emit(header.transaction_id);
        let (_, reparsed) = CmMessage::parse(&again).expect("what was emitted is accepted");
        assert_eq!(reparsed, message);
    }
}

/// An endpoint under verbs, datagrams and time as the input says.
pub fn endpoint(bytes: &[u8]) {
    let mut machine = Machine::new();
    let mut input = Input(bytes);
    for _ in 0..MAX_ACTIONS {
        if input.0.is_empty() {
            break;
        }
        machine.act(&mut input);
        machine.check();
    }
    machine.end();
}

/// Bytes that decide; zeros once they run out.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, bound: u8) -> usize {
        usize::from(self.byte() % bound)
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct Slot {
    qpn: Qpn,
    cqs: Cqs,
    /// Requests that must complete, and such that a reset may have swallowed.
    open: BTreeSet<u64>,
    vanished: BTreeSet<u64>,
}

struct Machine {
    node: Node,
    now: Instant,
    memory: Memory,
    /// A window of type 2, whose key stays.
    window: u32,
    xrcd: Arc<Xrcd>,
    srq: Arc<Srq>,
    slots: Vec<Slot>,
    next_wr_id: u64,
}

impl Machine {
    fn new() -> Self {
        let mut node = Node::new(HERE, Config { max_qp: 16, ..Config::default() });
        let memory = node.memory(8192);
        let window = node.mem.alloc_mw(node.pd.id(), MwType::Two).expect("a fresh table has room");
        let attr = SrqAttr { max_wr: 64, max_sge: 1, srq_limit: 0 };
        let cq = node.cqs(64).recv;
        let srq = Arc::new(Srq::create_xrc_srq(9, node.pd.clone(), attr, cq).expect("created"));
        let xrcd = Arc::new(Xrcd::default());
        xrcd.add(&srq).expect("the only one");
        let mut machine = Machine {
            node,
            now: Instant::from_millis(1),
            memory,
            window,
            xrcd,
            srq,
            slots: Vec::new(),
            next_wr_id: 0,
        };
        for qp_type in [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud] {
            machine.create(qp_type, 3);
        }
        for qp_type in [QpType::XrcRecv, QpType::XrcSend] {
            machine.create(qp_type, 3);
        }
        for wr_id in 0..64 {
            let sges = [machine.memory.sge(0, 600)];
            machine.srq.post_srq_recv(&RecvWr { wr_id, sges: &sges }).expect("there is room");
        }
        machine
    }

    /// One more queue pair, `steps` moves after RESET.
    fn create(&mut self, qp_type: QpType, steps: usize) {
        let cqs = self.node.cqs(1 << 14);
        let init = QpInit {
            qp_type,
            pd: self.node.pd.clone(),
            send_cq: cqs.send.clone(),
            recv_cq: cqs.recv.clone(),
            srq: None,
            xrcd: (qp_type == QpType::XrcRecv).then(|| self.xrcd.clone()),
            cap: QpCap {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 16,
            },
            sq_sig_all: true,
            block_self_mcast: false,
        };
        let Ok(qpn) = self.node.endpoint.create_qp(init) else {
            return;
        };
        let (open, vanished) = (BTreeSet::new(), BTreeSet::new());
        self.slots.push(Slot { qpn, cqs, open, vanished });
        let at = self.slots.len() - 1;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().take(steps) {
            self.modify(at, to, &attr(), None);
        }
    }

    fn modify(&mut self, at: usize, to: QpState, attr: &QpAttr, mask: Option<AttrMask>) {
        let qpn = self.slots[at].qpn;
        let (found, init) = self.node.endpoint.query_qp(qpn).expect("it exists");
        let row = irdma_transport::transition(init.qp_type, found.state, to);
        let required = row.map_or(AttrMask::empty(), |row| row.required);
        let mask = mask.unwrap_or(required) | AttrMask::STATE;
        let attr = QpAttr { state: to, ..*attr };
        let moved = self.node.endpoint.modify_qp(self.now, qpn, &attr, mask);
        if moved.is_ok() && to == QpState::Reset {
            let Slot { open, vanished, .. } = &mut self.slots[at];
            vanished.append(open);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let action = input.below(16);
        let at = input.below(self.slots.len().max(1) as u8);
        if at >= self.slots.len() {
            return self.create(QpType::Rc, 3);
        }
        match action {
            0..=6 => self.datagram(at, input),
            7..=9 => self.post_send(at, input),
            10 => self.post_recv(at, input),
            11 => self.modify_somehow(at, input),
            12 => {
                self.now = self.now + (1 << input.below(34));
                self.node.endpoint.handle_timeout(self.now);
            }
            13 => self.attachment(at, input),
            14 if input.below(4) == 0 => self.destroy(at),
            14 => self.create(SERVICES[input.below(5)], input.below(4)),
            _ => self.poll(at),
        }
    }

    /// Raw bytes, most of them made to pass the first checks.
    fn datagram(&mut self, at: usize, input: &mut Input<'_>) {
        let how = input.byte();
        let offset = i32::from(input.byte() as i8);
        let len = if how & 1 == 0 { input.below(64) } else { 16 + 256 + input.below(8) * 4 };
        let mut bytes = input.bytes(len).to_vec();
        bytes.resize(len, 0x5A);
        let mut meta =
            Meta { src: THERE, src_port: 50_000, dst: HERE, tos: 0, ttl: 64, index: 0, ifindex: 0 };
        if how & 2 != 0 {
            (meta.dst, meta.ifindex) = (GROUP, 1);
        }
        if bytes.len() >= 16 && how & 4 == 0 {
            self.dress(at, &mut bytes, offset, how);
            let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
            sign(&flow, 0, &mut bytes);
        }
        self.node.endpoint.handle_datagram(self.now, &meta, &bytes);
    }

    /// Flags, destination, a PSN near the ones in use, and for some keys and addresses that work.
    fn dress(&self, at: usize, bytes: &mut [u8], offset: i32, how: u8) {
        let qpn = self.slots[at].qpn;
        let found = self.node.endpoint.query_qp(qpn).expect("it exists").0;
        bytes[1] &= 0xF0;
        bytes[2..4].fill(0xFF);
        let dest = if how & 8 != 0 && how & 2 != 0 { Qpn::MULTICAST } else { qpn };
        bytes[4..8].copy_from_slice(&dest.get().to_be_bytes());
        let base = if how & 16 == 0 { found.rq_psn } else { found.sq_psn };
        let psn = base.get().wrapping_add_signed(offset / 8) & 0xFF_FFFF;
        let ask = u32::from(bytes[8] & 0x80) << 24;
        bytes[8..12].copy_from_slice(&(psn | ask).to_be_bytes());
        let mut at = 12;
        if bytes[0] >> 5 == 5 && bytes.len() >= 36 {
            bytes[12..16].copy_from_slice(&self.srq.number().to_be_bytes());
            at = 16;
        }
        if how & 32 == 0 && bytes.len() >= at + 20 {
            let va = self.memory.addr(usize::from(bytes[at + 7]) * 8);
            bytes[at..at + 8].copy_from_slice(&va.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&self.memory.mr.rkey.to_be_bytes());
            bytes[at + 12..at + 14].fill(0);
        }
        if how & 64 == 0 && bytes.len() >= 20 && bytes[0] >> 5 == 3 {
            bytes[12..16].copy_from_slice(&crate::script::QKEY.to_be_bytes());
        }
    }

    fn post_send(&mut self, at: usize, input: &mut Input<'_>) {
        let (remote_addr, rkey) = (0x1000, 0xABCD);
        let imm = Some([7; 4]);
        let lkey = self.memory.mr.lkey;
        let bind = MwBind {
            rkey: self.window,
            new_rkey: self.window,
            lkey,
            va: self.memory.addr(0),
            len: input.byte().into(),
            access: Access::REMOTE_READ,
        };
        let whole_region = input.below(2) == 0;
        let placement = Placement::GLOBAL;
        let ops = [
            SendOp::Send { imm: None },
            SendOp::Send { imm },
            SendOp::SendInvalidate { rkey },
            SendOp::Write { remote_addr, rkey, imm: None },
            SendOp::Write { remote_addr, rkey, imm },
            SendOp::Read { remote_addr, rkey },
            SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 },
            SendOp::FetchAdd { remote_addr, rkey, add: 3 },
            SendOp::LocalInvalidate { key: lkey },
            SendOp::AtomicWrite { remote_addr, rkey },
            SendOp::Flush { remote_addr, rkey, len: 64, placement, whole_region },
            SendOp::BindMw(bind),
            SendOp::LocalInvalidate { key: self.window },
            SendOp::RegMr { key: lkey, new_key: lkey, access: Access::LOCAL_WRITE },
        ];
        let op = ops[input.below(ops.len() as u8)];
        let flags = SendFlags::from_bits_truncate(input.byte().into());
        let ud = (input.below(4) > 0 && self.is_ud(at)).then(|| self.dest(input));
        let inline = [1; 16];
        let sges = self.sges(input, op.is_atomic());
        let data =
            if input.below(8) == 0 { SendData::Inline(&inline) } else { SendData::Sges(&sges) };
        let wr_id = self.take_wr_id();
        let wr = SendWr { wr_id, op, flags, data, ud };
        let qpn = self.slots[at].qpn;
        if self.node.endpoint.post_send(self.now, qpn, &wr).is_ok() {
            self.slots[at].open.insert(wr_id);
        }
    }

    fn is_ud(&self, at: usize) -> bool {
        let (_, init) = self.node.endpoint.query_qp(self.slots[at].qpn).expect("it exists");
        init.qp_type == QpType::Ud
    }

    fn dest(&self, input: &mut Input<'_>) -> UdDest {
        let mut av = attr().av;
        if input.below(2) == 0 {
            av.dgid = GROUP.into();
        }
        let ah = std::sync::Arc::new(Ah::create_ah(self.node.pd.clone(), av));
        UdDest { ah, qpn: Qpn::new(input.word()), qkey: input.word() }
    }

    fn sges(&self, input: &mut Input<'_>, word: bool) -> Vec<Sge> {
        if word && input.below(8) > 0 {
            return vec![self.memory.sge(input.below(64) * 8, 8)];
        }
        let sge = |input: &mut Input<'_>| {
            let at = input.below(8) * 100;
            let len = [0, 1, 255, 256, 257, 1000, 7000, 9000][input.below(8)];
            let mut sge = self.memory.sge(at, len);
            sge.lkey ^= u32::from(input.below(16) == 0);
            sge
        };
        (0..input.below(4)).map(|_| sge(input)).collect()
    }

    fn take_wr_id(&mut self) -> u64 {
        self.next_wr_id += 1;
        self.next_wr_id
    }

    fn post_recv(&mut self, at: usize, input: &mut Input<'_>) {
        let wr_id = self.take_wr_id();
        let sges = self.sges(input, false);
        let qpn = self.slots[at].qpn;
        let wr = RecvWr { wr_id, sges: &sges };
        if self.node.endpoint.post_recv(self.now, qpn, &wr).is_ok() {
            self.slots[at].open.insert(wr_id);
        }
    }

    fn modify_somehow(&mut self, at: usize, input: &mut Input<'_>) {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let to = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err][input.below(7)];
        let mut attr = attr();
        attr.timeout = input.byte() % 40;
        attr.retry_cnt = input.byte() % 9;
        attr.rnr_retry = input.byte() % 9;
        attr.max_rd_atomic = input.byte() % 5;
        attr.max_dest_rd_atomic = input.byte() % 5;
        attr.path_mtu = [256, 1024, 4096, 100][input.below(4)];
        attr.en_sqd_async_notify = true;
        let mask = (input.below(4) == 0).then(|| AttrMask::from_bits_truncate(input.word()));
        self.modify(at, to, &attr, mask);
    }

    fn attachment(&mut self, at: usize, input: &mut Input<'_>) {
        let (qpn, gid, lid) = (self.slots[at].qpn, Gid::from(GROUP), u16::from(input.byte() % 2));
        let endpoint = &mut self.node.endpoint;
        // Refusals are as welcome as successes.
        let _ = match input.below(2) {
            0 => endpoint.attach_mcast(qpn, &gid, lid, 1),
            _ => endpoint.detach_mcast(qpn, &gid, lid, 1),
        };
    }

    fn destroy(&mut self, at: usize) {
        if self.node.endpoint.destroy_qp(self.slots[at].qpn).is_ok() {
            self.slots.remove(at);
        }
    }

    /// Takes completions: each request completes at most once.
    fn poll(&mut self, at: usize) {
        let Slot { qpn, cqs, open, vanished } = &mut self.slots[at];
        for cq in [&cqs.send, &cqs.recv] {
            let mut out = vec![Wc::default(); cq.len()];
            let count = cq.poll_cq(&mut out);
            for wc in &out[..count] {
                let known = open.remove(&wc.wr_id) || vanished.remove(&wc.wr_id);
                assert!(known && wc.qpn == *qpn, "completed twice, or never posted: {wc:?}");
            }
        }
    }

    /// What is sent is well-formed and signed; memory around the region is untouched.
    fn check(&mut self) {
        let mut buffer = vec![0; 65_536];
        let mut batches = 0;
        while let Some(transmit) = self.node.endpoint.poll_transmit(self.now, &mut buffer) {
            let flow =
                FlowKey { src: transmit.src, dst: transmit.dst, src_port: PORTS[transmit.port] };
            for (id, bytes) in buffer[..transmit.len].chunks(transmit.segment).enumerate() {
                let packet = parse(bytes).expect("well-formed");
                let len = wire_len(packet.headers.bth.opcode, packet.payload.len());
                assert_eq!((verify(&flow, id as u16, bytes), len), (Verdict::Good, bytes.len()));
            }
            batches += 1;
            assert!(batches < 10_000, "there is no end to what is sent");
        }
        while self.node.endpoint.poll_effect().is_some() {}
        assert!(self.memory.guards_are_whole());
    }

    /// In error every request has completed; without queue pairs nothing is in flight.
    fn end(&mut self) {
        for at in 0..self.slots.len() {
            self.modify(at, QpState::Err, &attr(), None);
            self.check();
            self.poll(at);
            let Slot { qpn, open, .. } = &self.slots[at];
            let state = self.node.endpoint.query_qp(*qpn).expect("it exists").0.state;
            assert!(open.is_empty() || state == QpState::Reset, "left in {state:?}: {open:?}");
        }
        for slot in std::mem::take(&mut self.slots) {
            for lid in 0..2 {
                // It may not be attached.
                let _ = self.node.endpoint.detach_mcast(slot.qpn, &Gid::from(GROUP), lid, 1);
            }
            self.node.endpoint.destroy_qp(slot.qpn).expect("detached");
        }
        self.check();
        assert_eq!(self.node.endpoint.in_flight(), InFlight::default());
        assert_eq!(self.node.endpoint.qp_count(), 0);
    }
}
