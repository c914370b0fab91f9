//! Random traffic over reliable connections, and the model that it is held against.
//!
//! Both sides of each connection send, write, read and run atomics at once. Everything that a
//! program can see is predicted when a request is posted: what the receiver gets and in which
//! order, what READs and atomics return, what remote memory holds in the end.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use irdma_mem::Sge;
use irdma_transport::{
    Config, Instant, Placement, QpType, RecvWr, Rng, SendData, SendFlags, SendOp, SendWr, Wc,
    WcOpcode, WcStatus,
};

use crate::link::LinkConfig;
use crate::side::{Side, pattern};
use crate::world::World;

/// The longest message, in packets.
const MAX_PACKETS: usize = 64;
/// Requests, and receives, that are outstanding at once.
const DEPTH: usize = 8;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Both directions of the link.
    pub link: LinkConfig,
    /// Over IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Connections between the two machines.
    pub connections: usize,
    /// Requests of each side of each connection.
    pub requests: usize,
    /// Path MTU.
    pub mtu: u32,
    /// Only these operations; all of them when empty.
    pub only: &'static [Kind],
    /// Longest time in nanoseconds that a receive stays unposted after it was used.
    pub receive_lag_ns: u64,
    /// RNR timer code that receivers ask for.
    pub min_rnr_timer: u8,
    /// Endpoint configuration.
    pub config: Config,
    /// Virtual time within which all must be done.
    pub limit: Instant,
}

impl Scenario {
    /// One connection over `link`, 24 requests a side.
    pub fn new(link: LinkConfig) -> Self {
        Scenario {
            link,
            ipv6: false,
            connections: 1,
            requests: 24,
            mtu: 256,
            only: &[],
            receive_lag_ns: 0,
            min_rnr_timer: 1,
            config: Config::default(),
            limit: Instant::from_millis(60_000),
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, with or without immediate data.
    Send,
    /// WRITE, with or without immediate data.
    Write,
    /// READ.
    Read,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH of a range, or of the whole region.
    Flush,
}

const KINDS: [Kind; 7] = [
    Kind::Send,
    Kind::Write,
    Kind::Read,
    Kind::FetchAdd,
    Kind::CompareSwap,
    Kind::AtomicWrite,
    Kind::Flush,
];

/// What the completion of a request must show.
#[derive(Debug)]
struct Posted {
    wr_id: u64,
    kind: Kind,
    signaled: bool,
    len: usize,
    /// Bytes that must be in the local slot.
    result: Option<Vec<u8>>,
    /// A READ of memory that later writes may change.
    unstable: bool,
}

/// What the next receive completion must show.
#[derive(Debug)]
struct Expected {
    opcode: WcOpcode,
    len: usize,
    imm: Option<[u8; 4]>,
    /// The message, `None` where it went elsewhere.
    data: Option<Vec<u8>>,
}

/// Where things are in a side's memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    slot: usize,
}

impl Layout {
    fn new(mtu: u32) -> Self {
        Layout { slot: MAX_PACKETS * mtu as usize }
    }
    fn local(&self, index: usize) -> usize {
        index % DEPTH * self.slot
    }
    fn receive(&self, index: usize) -> usize {
        (DEPTH + index % DEPTH) * self.slot
    }
    /// What the peer reads and writes.
    fn shared(&self) -> usize {
        2 * DEPTH * self.slot
    }
    fn shared_len(&self) -> usize {
        2 * self.slot
    }
    fn counter(&self) -> usize {
        self.shared() + self.shared_len()
    }
    fn swapped(&self) -> usize {
        self.counter() + 8
    }
    fn stored(&self) -> usize {
        self.swapped() + 8
    }
    fn len(&self) -> usize {
        self.stored() + 8
    }
}

/// One side of a connection at work, with the model of the peer's memory.
struct Worker {
    side: Side,
    rng: Rng,
    layout: Layout,
    posted: VecDeque<Posted>,
    posted_count: usize,
    /// Receive completions that must still come, in order.
    expected: VecDeque<Expected>,
    receives_posted: usize,
    /// Receives that are posted later.
    lagging: VecDeque<Instant>,
    /// The peer's shared memory as it will be once all that is posted is done.
    shared: Vec<u8>,
    counter: u64,
    swapped: u64,
    stored: u64,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Check = Result<(), Failure>;

fn fail<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure(text.into()))
}

/// Runs a scenario from a seed. The world comes back with its trace.
pub fn run(scenario: &Scenario, seed: u64, capturing: bool) -> (World, Check) {
    let mut world = World::new(seed, scenario.link, capturing);
    for host in 1..=2 {
        world.add_node(address(host, scenario.ipv6), scenario.config);
    }
    let mut pairs = connect(&mut world, scenario, seed);
    let outcome = work(&mut world, scenario, &mut pairs);
    (world, outcome)
}

fn address(host: u8, ipv6: bool) -> IpAddr {
    if ipv6 { [0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)].into() } else { [10, 0, 0, host].into() }
}

fn connect(world: &mut World, scenario: &Scenario, seed: u64) -> Vec<[Worker; 2]> {
    let layout = Layout::new(scenario.mtu);
    let mut rng = Rng::new(seed ^ 0x7472_6166);
    let mut pairs = Vec::new();
    for _ in 0..scenario.connections {
        let sides = [0, 1].map(|node| Side::new(world, node, QpType::Rc, layout.len()));
        world.connect(sides[0].qp, sides[1].qp, |attr| {
            attr.path_mtu = scenario.mtu;
            attr.min_rnr_timer = scenario.min_rnr_timer;
            attr.max_rd_atomic = 4;
            attr.max_dest_rd_atomic = 4;
        });
        pairs.push(sides.map(|side| Worker::new(side, Rng::new(rng.next_u64()), layout)));
    }
    pairs
}

fn work(world: &mut World, scenario: &Scenario, pairs: &mut [[Worker; 2]]) -> Check {
    for pair in &mut *pairs {
        for worker in pair.iter_mut() {
            for _ in 0..DEPTH {
                worker.post_receive(world);
            }
        }
    }
    loop {
        for [a, b] in &mut *pairs {
            a.turn(world, b, scenario)?;
            b.turn(world, a, scenario)?;
        }
        let done = pairs.iter().flatten().all(|worker| worker.is_done(scenario));
        if done {
            break;
        }
        if !world.step(scenario.limit) && !pass_time(world, pairs) {
            return fail(format!("nothing happens any more, {}", describe(pairs)));
        }
        if world.now() >= scenario.limit {
            return fail(format!("not done at {:?}, {}", world.now(), describe(pairs)));
        }
    }
    world.run(scenario.limit);
    for [a, b] in pairs {
        a.check_end(world, b)?;
        b.check_end(world, a)?;
    }
    check_idle(world)
}

/// Moves on to the next receive that is posted late.
fn pass_time(world: &mut World, pairs: &[[Worker; 2]]) -> bool {
    let next = pairs.iter().flatten().filter_map(|worker| worker.lagging.front()).min();
    match next {
        Some(&at) => {
            let wait = at - world.now();
            world.advance(wait);
            true
        }
        None => false,
    }
}

fn describe(pairs: &[[Worker; 2]]) -> String {
    let describe = |worker: &Worker| {
        format!(
            "{} posted {} outstanding {:?} expecting {}",
            worker.side.qp.qpn,
            worker.posted_count,
            worker.posted.front(),
            worker.expected.len()
        )
    };
    pairs.iter().flatten().map(describe).collect::<Vec<_>>().join("; ")
}

/// Nothing is in flight when nothing is to be done.
fn check_idle(world: &World) -> Check {
    for node in &world.nodes {
        let in_flight = node.endpoint.in_flight();
        if in_flight != irdma_transport::InFlight::default() {
            return fail(format!("idle, but {} holds {in_flight:?}", node.addr));
        }
    }
    Ok(())
}

impl Worker {
    fn new(side: Side, rng: Rng, layout: Layout) -> Self {
        Worker {
            side,
            rng,
            layout,
            posted: VecDeque::new(),
            posted_count: 0,
            expected: VecDeque::new(),
            receives_posted: 0,
            lagging: VecDeque::new(),
            shared: vec![0; layout.shared_len()],
            counter: 0,
            swapped: 0,
            stored: 0,
        }
    }

    fn is_done(&self, scenario: &Scenario) -> bool {
        self.posted_count == scenario.requests && self.posted.is_empty() && self.expected.is_empty()
    }

    /// Takes completions, then posts as much as there is room for.
    fn turn(&mut self, world: &mut World, peer: &mut Worker, scenario: &Scenario) -> Check {
        for wc in self.side.sent(world) {
            self.check_sent(&wc)?;
        }
        for wc in self.side.received(world) {
            self.check_received(&wc)?;
            let lag = self.rng.next_u64() % (scenario.receive_lag_ns + 1);
            self.lagging.push_back(world.now() + lag);
        }
        while self.lagging.front().is_some_and(|at| *at <= world.now()) {
            self.lagging.pop_front();
            self.post_receive(world);
        }
        while self.posted.len() < DEPTH && self.posted_count < scenario.requests {
            self.post_something(world, peer, scenario)?;
        }
        Ok(())
    }

    fn post_receive(&mut self, world: &mut World) {
        let at = self.layout.receive(self.receives_posted);
        let sges = self.cut(at, self.layout.slot);
        let wr = RecvWr { wr_id: self.receives_posted as u64, sges: &sges };
        self.receives_posted += 1;
        let now = world.now();
        let endpoint = &mut world.nodes[self.side.qp.node].endpoint;
        endpoint.post_recv(now, self.side.qp.qpn, &wr).expect("as many as there are slots");
    }

    /// Covers a range by one to four elements.
    fn cut(&mut self, at: usize, len: usize) -> Vec<Sge> {
        let mut cuts: Vec<usize> = (0..self.rng.below(4))
            .map(|_| self.rng.below(len as u32 + 1) as usize)
            .chain([0, len])
            .collect();
        cuts.sort_unstable();
        cuts.windows(2).map(|ends| self.side.memory.sge(at + ends[0], ends[1] - ends[0])).collect()
    }

    /// Mostly short, sometimes up to 64 packets, often at a packet's edge.
    fn some_len(&mut self, mtu: u32) -> usize {
        let packets = match self.rng.below(4) {
            0 => 0,
            1 | 2 => self.rng.below(6),
            _ => self.rng.below(MAX_PACKETS as u32),
        };
        let rest = match self.rng.below(4) {
            0 => self.rng.below(5),
            1 => mtu - self.rng.below(5),
            _ => self.rng.below(mtu + 1),
        };
        (packets * mtu + rest) as usize
    }

    fn post_something(
        &mut self,
        world: &mut World,
        peer: &mut Worker,
        scenario: &Scenario,
    ) -> Check {
        let kinds = if scenario.only.is_empty() { &KINDS[..] } else { scenario.only };
        let kind = kinds[self.rng.below(kinds.len() as u32) as usize];
        let salt = self.rng.next_u64();
        let imm = (self.rng.below(2) == 0).then(|| (salt as u32).to_be_bytes());
        let (rkey, slot) = (peer.side.memory.mr.rkey, self.layout.local(self.posted_count));
        let mut len = self.some_len(scenario.mtu);
        let at = self.rng.below((self.layout.shared_len() - len + 1) as u32) as usize;
        let remote = |place: usize| peer.side.memory.addr(place);
        let shared = remote(self.layout.shared() + at);
        let mut result = None;
        let op = match kind {
            Kind::Send => {
                let data = Some(pattern(len, salt));
                peer.expected.push_back(Expected { opcode: WcOpcode::Recv, len, imm, data });
                SendOp::Send { imm }
            }
            Kind::Write => {
                self.shared[at..at + len].copy_from_slice(&pattern(len, salt));
                if imm.is_some() {
                    let opcode = WcOpcode::RecvRdmaWithImm;
                    peer.expected.push_back(Expected { opcode, len, imm, data: None });
                }
                SendOp::Write { remote_addr: shared, rkey, imm }
            }
            Kind::Read => {
                result = Some(self.shared[at..at + len].to_vec());
                SendOp::Read { remote_addr: shared, rkey }
            }
            Kind::FetchAdd => {
                len = 8;
                result = Some(self.counter.to_ne_bytes().to_vec());
                self.counter = self.counter.wrapping_add(salt);
                SendOp::FetchAdd { remote_addr: remote(self.layout.counter()), rkey, add: salt }
            }
            Kind::CompareSwap => {
                len = 8;
                result = Some(self.swapped.to_ne_bytes().to_vec());
                let hit = self.rng.below(3) > 0;
                let compare = if hit { self.swapped } else { !self.swapped };
                self.swapped = if hit { salt } else { self.swapped };
                let remote_addr = remote(self.layout.swapped());
                SendOp::CompareSwap { remote_addr, rkey, compare, swap: salt }
            }
            Kind::AtomicWrite => {
                len = 8;
                self.stored = salt;
                SendOp::AtomicWrite { remote_addr: remote(self.layout.stored()), rkey }
            }
            Kind::Flush => {
                let whole_region = imm.is_some();
                let range = std::mem::take(&mut len) as u32;
                let placement = Placement::GLOBAL;
                SendOp::Flush { remote_addr: shared, rkey, len: range, placement, whole_region }
            }
        };
        match kind {
            Kind::Send | Kind::Write => self.side.memory.write(slot, &pattern(len, salt)),
            Kind::AtomicWrite => self.side.memory.write(slot, &salt.to_ne_bytes()),
            _ => {}
        }
        self.post(world, scenario, kind, op, (slot, len), result)
    }

    fn post(
        &mut self,
        world: &mut World,
        scenario: &Scenario,
        kind: Kind,
        op: SendOp,
        (slot, len): (usize, usize),
        result: Option<Vec<u8>>,
    ) -> Check {
        let wr_id = self.posted_count as u64;
        let last = self.posted_count + 1 == scenario.requests;
        // The last free slot is signalled, or nobody would tell that there is room again.
        let signaled = last || self.posted.len() + 1 >= DEPTH || self.rng.below(2) == 0;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::SOLICITED, self.rng.below(8) == 0);
        let unstable_reads = self.posted.iter().any(|posted| posted.unstable);
        flags.set(SendFlags::FENCE, kind == Kind::Write && unstable_reads);
        let sges = if len == 8 { vec![self.side.memory.sge(slot, 8)] } else { self.cut(slot, len) };
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&sges), ud: None };
        if let Err(error) = self.side.post_wr(world, &wr) {
            return fail(format!("post refused: {error}"));
        }
        self.posted_count += 1;
        let unstable = kind == Kind::Read;
        self.posted.push_back(Posted { wr_id, kind, signaled, len, result, unstable });
        Ok(())
    }

    /// Completions come once, in order, and vouch for the unsignalled requests before them.
    fn check_sent(&mut self, wc: &Wc) -> Check {
        if wc.status != WcStatus::Success {
            return fail(format!("request ended with {wc:?}"));
        }
        loop {
            let Some(posted) = self.posted.pop_front() else {
                return fail(format!("a completion for nothing: {wc:?}"));
            };
            self.check_result(&posted)?;
            if posted.wr_id == wc.wr_id {
                if posted.len != wc.byte_len as usize || !posted.signaled {
                    return fail(format!("{wc:?} for {posted:?}"));
                }
                return Ok(());
            }
            if posted.signaled {
                return fail(format!("{wc:?} overtook {posted:?}"));
            }
        }
    }

    fn check_result(&self, posted: &Posted) -> Check {
        let Some(result) = &posted.result else {
            return Ok(());
        };
        let found = self.side.memory.read(self.layout.local(posted.wr_id as usize), result.len());
        if found != *result {
            let at = found.iter().zip(result).position(|(a, b)| a != b);
            return fail(format!("{:?} {} differs at {at:?}", posted.kind, posted.wr_id));
        }
        Ok(())
    }

    fn check_received(&mut self, wc: &Wc) -> Check {
        let Some(expected) = self.expected.pop_front() else {
            return fail(format!("received what nobody sent: {wc:?}"));
        };
        let imm = wc.flags.contains(irdma_transport::WcFlags::WITH_IMM).then_some(wc.imm);
        let shown = (wc.status, wc.opcode, wc.byte_len as usize, imm);
        if shown != (WcStatus::Success, expected.opcode, expected.len, expected.imm) {
            return fail(format!("{wc:?} instead of {expected:?}"));
        }
        let Some(data) = expected.data else {
            return Ok(());
        };
        if self.side.memory.read(self.layout.receive(wc.wr_id as usize), data.len()) != data {
            return fail(format!("wrong bytes in receive {wc:?}"));
        }
        Ok(())
    }

    /// The peer's memory is what all requests together make of it, and nothing more came.
    fn check_end(&mut self, world: &mut World, peer: &Worker) -> Check {
        let more = (self.side.sent(world), self.side.received(world));
        if !more.0.is_empty() || !more.1.is_empty() {
            return fail(format!("after the end: {more:?}"));
        }
        let memory = &peer.side.memory;
        if memory.read(self.layout.shared(), self.shared.len()) != self.shared {
            return fail("the peer's memory differs from what was written");
        }
        let places = [self.layout.counter(), self.layout.swapped(), self.layout.stored()];
        if places.map(|at| memory.word(at)) != [self.counter, self.swapped, self.stored] {
            return fail("the peer's words differ from what atomics made of them");
        }
        if !memory.guards_are_whole() {
            return fail("bytes outside of a registration changed");
        }
        Ok(())
    }
}
