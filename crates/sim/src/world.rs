//! Endpoints, the links between them, and the virtual time that drives both.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::IpAddr;

use irdma_transport::{
    AddressVector, AttrMask, Config, Disposition, Effect, Instant, Meta, QpAttr, QpState, QpType,
    Rng, Transmit,
};
use irdma_wire::{Psn, Qpn};

use crate::link::{Link, LinkConfig};
use crate::node::{Node, PORTS};
use crate::trace::Trace;

/// The interface that groups are joined on.
const IFINDEX: u32 = 1;
/// Bytes of a transmit buffer.
const BUFFER: usize = 65_536;

/// One UDP datagram on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4 identification: the number within its batch.
    pub id: u16,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

/// Decides which packets are lost, by time and content.
pub type Filter = Box<dyn FnMut(Instant, &Datagram) -> bool>;

/// A queue pair of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRef {
    /// The node.
    pub node: usize,
    /// The number.
    pub qpn: Qpn,
}

#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    at: Instant,
    order: u64,
    node: usize,
    datagram: usize,
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A network of simulated machines.
pub struct World {
    /// The machines.
    pub nodes: Vec<Node>,
    /// What happened so far.
    pub trace: Trace,
    /// Effects that endpoints asked for, by node; groups are joined by the world itself.
    pub effects: Vec<(usize, Effect)>,
    /// Sees every packet before its link does; those that it says `false` to are lost.
    pub filter: Option<Filter>,
    now: Instant,
    rng: Rng,
    links: BTreeMap<(usize, usize), Link>,
    default_link: LinkConfig,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    order: u64,
    datagrams: Vec<Option<Datagram>>,
    free: Vec<usize>,
    groups: BTreeSet<(IpAddr, usize)>,
    buffer: Vec<u8>,
}

impl World {
    /// An empty world; `link` joins every two nodes, and a node with itself.
    pub fn new(seed: u64, link: LinkConfig, capturing: bool) -> Self {
        World {
            nodes: Vec::new(),
            trace: Trace::new(capturing),
            effects: Vec::new(),
            filter: None,
            now: Instant::from_millis(1),
            rng: Rng::new(seed),
            links: BTreeMap::new(),
            default_link: link,
            arrivals: BinaryHeap::new(),
            order: 0,
            datagrams: Vec::new(),
            free: Vec::new(),
            groups: BTreeSet::new(),
            buffer: vec![0; BUFFER],
        }
    }

    /// A world of two machines, 10.0.0.1 and 10.0.0.2.
    pub fn pair(seed: u64, link: LinkConfig, capturing: bool) -> Self {
        let mut world = World::new(seed, link, capturing);
        for host in 1..=2u8 {
            world.add_node([10, 0, 0, host].into(), Config::default());
        }
        world
    }

    /// Adds a machine; its slot is its index + 1, its seed comes from the world's.
    pub fn add_node(&mut self, addr: IpAddr, config: Config) -> usize {
        let index = self.nodes.len();
        let seed = self.rng.next_u64();
        self.nodes.push(Node::new(addr, Config { slot: index as u16 + 1, seed, ..config }));
        index
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The number that two equal runs share.
    pub fn fingerprint(&self) -> u64 {
        self.trace.fingerprint()
    }

    /// The link from one node to another.
    pub fn link(&mut self, from: usize, to: usize) -> &mut Link {
        let World { links, rng, default_link, .. } = self;
        links.entry((from, to)).or_insert_with(|| Link::new(*default_link, rng.next_u64()))
    }

    /// The vector from one node to another.
    pub fn av(&self, from: usize, to: usize) -> AddressVector {
        AddressVector {
            sgid: self.nodes[from].addr.into(),
            dgid: self.nodes[to].addr.into(),
            ..AddressVector::default()
        }
    }

    /// Attributes that suit a connection from `a` to `b`.
    pub fn attr(&self, a: QpRef, b: QpRef) -> QpAttr {
        use irdma_mem::Access;
        QpAttr {
            port: 1,
            access: Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL,
            av: self.av(a.node, b.node),
            path_mtu: 1024,
            dest_qpn: b.qpn,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        }
    }

    /// Moves a queue pair to RTS with `attr`.
    ///
    /// # Panics
    /// When a step is refused.
    pub fn ready(&mut self, qp: QpRef, attr: &QpAttr) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qp, to, attr);
        }
        self.drain();
    }

    /// One step towards RTS with the attributes that it must have.
    ///
    /// # Panics
    /// When it is refused.
    pub fn modify(&mut self, qp: QpRef, to: QpState, attr: &QpAttr) {
        let endpoint = &mut self.nodes[qp.node].endpoint;
        let (found, init) = endpoint.query_qp(qp.qpn).expect("the queue pair exists");
        let row = irdma_transport::transition(init.qp_type, found.state, to).expect("a legal move");
        let attr = QpAttr { state: to, ..*attr };
        endpoint
            .modify_qp(self.now, qp.qpn, &attr, row.required | AttrMask::STATE)
            .expect("modify");
    }

    /// Connects two queue pairs of one service; the PSNs come from the world's seed.
    pub fn connect(&mut self, a: QpRef, b: QpRef, tune: impl Fn(&mut QpAttr)) {
        let (psn_a, psn_b) = (self.some_psn(), self.some_psn());
        for (from, to, sq_psn, rq_psn) in [(a, b, psn_a, psn_b), (b, a, psn_b, psn_a)] {
            let mut attr = QpAttr { sq_psn, rq_psn, ..self.attr(from, to) };
            tune(&mut attr);
            self.ready(from, &attr);
        }
    }

    fn some_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u64() as u32)
    }

    /// Sends what the endpoints have to send, and takes their effects.
    pub fn drain(&mut self) {
        for node in 0..self.nodes.len() {
            self.drain_node(node);
        }
    }

    fn drain_node(&mut self, node: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(transmit) = self.nodes[node].endpoint.poll_transmit(self.now, &mut buffer) {
            for (id, bytes) in buffer[..transmit.len].chunks(transmit.segment).enumerate() {
                self.send(node, &transmit, id as u16, bytes);
            }
        }
        self.buffer = buffer;
        while let Some(effect) = self.nodes[node].endpoint.poll_effect() {
            match &effect {
                Effect::JoinGroup { group, .. } => drop(self.groups.insert((*group, node))),
                Effect::LeaveGroup { group, .. } => drop(self.groups.remove(&(*group, node))),
                _ => {}
            }
            self.effects.push((node, effect));
        }
    }

    fn send(&mut self, from: usize, transmit: &Transmit, id: u16, bytes: &[u8]) {
        let datagram = Datagram {
            src: transmit.src,
            dst: transmit.dst,
            src_port: PORTS[transmit.port],
            tos: transmit.tos,
            ttl: if transmit.hop_limit == 0 { 64 } else { transmit.hop_limit },
            id,
            bytes: bytes.to_vec(),
        };
        self.trace.sent(self.now, &datagram);
        let now = self.now;
        if self.filter.as_mut().is_some_and(|filter| !filter(now, &datagram)) {
            return;
        }
        for to in self.receivers(datagram.dst) {
            self.carry(from, to, datagram.clone());
        }
    }

    fn receivers(&self, dst: IpAddr) -> Vec<usize> {
        let hears = |(index, node): (usize, &Node)| {
            let hears = node.addr == dst || self.groups.contains(&(dst, index));
            hears.then_some(index)
        };
        self.nodes.iter().enumerate().filter_map(hears).collect()
    }

    /// Puts a datagram on the link between two nodes, with all that may happen to it there.
    pub fn carry(&mut self, from: usize, to: usize, mut datagram: Datagram) {
        let now = self.now;
        let arrivals = self.link(from, to).send(now, &mut datagram.bytes);
        for at in arrivals.into_iter().flatten() {
            self.inject(at, to, datagram.clone());
        }
    }

    /// Lets a datagram arrive at a node at a time, whatever its link does.
    pub fn inject(&mut self, at: Instant, node: usize, datagram: Datagram) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.datagrams.push(None);
            self.datagrams.len() - 1
        });
        self.datagrams[slot] = Some(datagram);
        self.order += 1;
        self.arrivals.push(Reverse(Arrival { at, order: self.order, node, datagram: slot }));
    }

    /// Moves to the next thing that happens, no later than `limit`, and lets it happen. `false`
    /// when nothing does.
    pub fn step(&mut self, limit: Instant) -> bool {
        self.drain();
        let timeouts = self.nodes.iter().filter_map(|node| node.endpoint.poll_timeout());
        let arrival = self.arrivals.peek().map(|Reverse(arrival)| arrival.at);
        let Some(next) = timeouts.chain(arrival).min().filter(|next| *next <= limit) else {
            return false;
        };
        self.now = self.now.max(next);
        while self.arrivals.peek().is_some_and(|Reverse(arrival)| arrival.at <= self.now) {
            let Some(Reverse(arrival)) = self.arrivals.pop() else {
                break;
            };
            self.arrive(&arrival);
        }
        for node in &mut self.nodes {
            if node.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
                node.endpoint.handle_timeout(self.now);
            }
        }
        self.drain();
        true
    }

    fn arrive(&mut self, arrival: &Arrival) {
        let Some(datagram) = self.datagrams[arrival.datagram].take() else {
            return;
        };
        self.free.push(arrival.datagram);
        let meta = Meta {
            src: datagram.src,
            src_port: datagram.src_port,
            dst: datagram.dst,
            tos: datagram.tos,
            ttl: datagram.ttl,
            index: datagram.id,
            ifindex: if datagram.dst.is_multicast() { IFINDEX } else { 0 },
        };
        let endpoint = &mut self.nodes[arrival.node].endpoint;
        let disposition = endpoint.handle_datagram(self.now, &meta, &datagram.bytes);
        debug_assert!(
            disposition == Disposition::Done || !datagram.dst.is_multicast(),
            "multicast is for everyone"
        );
    }

    /// Steps until nothing happens any more; whether that was before `limit`.
    pub fn run(&mut self, limit: Instant) -> bool {
        while self.step(limit) {}
        self.arrivals.is_empty()
    }

    /// Lets time pass, with whatever happens in it.
    pub fn advance(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.step(until) {}
        self.now = until;
    }

    /// Creates a queue pair on a node, over completion queues of `capacity`.
    ///
    /// # Panics
    /// When it is refused.
    pub fn create_qp(&mut self, node: usize, init: irdma_transport::QpInit) -> QpRef {
        let qpn = self.nodes[node].endpoint.create_qp(init).expect("created");
        QpRef { node, qpn }
    }

    /// What a queue pair of `qp_type` on `node` is usually created with: 64 requests of 4
    /// elements, 256 inline bytes, signalling as each request says.
    pub fn init(&mut self, node: usize, qp_type: QpType) -> irdma_transport::QpInit {
        let node = &mut self.nodes[node];
        let cqs = node.cqs(4096);
        irdma_transport::QpInit {
            qp_type,
            pd: node.pd.clone(),
            send_cq: cqs.send,
            recv_cq: cqs.recv,
            srq: None,
            xrcd: None,
            cap: irdma_transport::QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            sq_sig_all: false,
            block_self_mcast: false,
        }
    }
}
