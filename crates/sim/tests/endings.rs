//! Connections that end in the middle of traffic: every request completes once and in order,
//! nothing comes after the flush, the neighbours do not notice.

use irdma_sim::{Failure, LinkConfig, Side, World, check_seeds};
use irdma_transport::{AttrMask, Instant, QpAttr, QpState, QpType, Rng, SendOp, Wc, WcStatus};

const END: Instant = Instant::from_millis(60_000);
const REQUESTS: u64 = 40;
const RECEIVES: u64 = 30;
const LEN: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Error,
    Reset,
    Destroyed,
    /// Its next WRITE names a key that the peer does not have.
    Refused,
    /// The peer takes its memory away.
    Deregistered,
}

use Ending::{Deregistered, Destroyed, Error, Refused, Reset};

fn pair(world: &mut World) -> [Side; 2] {
    let sides = [0, 1].map(|node| Side::new(world, node, QpType::Rc, LEN));
    world.connect(sides[0].qp, sides[1].qp, |attr| {
        attr.path_mtu = 256;
        attr.timeout = 8;
        attr.min_rnr_timer = 1;
        attr.rnr_retry = 6;
    });
    sides
}

fn post_all(world: &mut World, rng: &mut Rng, side: &Side, peer: &Side) {
    for wr_id in 0..RECEIVES {
        side.post_recv(world, wr_id, 0, 4096).unwrap();
    }
    let (rkey, remote_addr) = (peer.memory.mr.rkey, peer.memory.addr(8));
    let mut sends = 0;
    for wr_id in 0..REQUESTS {
        let len = rng.below(3000) as usize;
        let (op, len) = match rng.below(4) {
            0 if sends < RECEIVES => (SendOp::Send { imm: None }, len),
            1 => (SendOp::Read { remote_addr, rkey }, len),
            2 => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
            _ => (SendOp::Write { remote_addr, rkey, imm: None }, len),
        };
        sends += u64::from(op.is_send());
        side.post(world, wr_id, op, 8, len).unwrap();
    }
}

fn end(world: &mut World, ending: Ending, [side, peer]: &[Side; 2]) {
    let now = world.now();
    let to = |state| QpAttr { state, ..QpAttr::default() };
    let endpoint = &mut world.nodes[side.qp.node].endpoint;
    match ending {
        Error => endpoint.modify_qp(now, side.qp.qpn, &to(QpState::Err), AttrMask::STATE).unwrap(),
        Reset => {
            endpoint.modify_qp(now, side.qp.qpn, &to(QpState::Reset), AttrMask::STATE).unwrap()
        }
        Destroyed => endpoint.destroy_qp(side.qp.qpn).unwrap(),
        Refused => {
            let op = SendOp::Write { remote_addr: 0, rkey: 0x99, imm: None };
            side.post(world, REQUESTS, op, 0, 1).unwrap();
        }
        Deregistered => world.nodes[peer.qp.node].mem.dereg_mr(peer.memory.mr.rkey).unwrap(),
    }
}

/// Successes, then at most one failure with a reason, then flushes; wr_ids rise from 0.
fn check_order(wcs: &[Wc]) -> Result<(), String> {
    let in_order = wcs.iter().zip(0..).all(|(wc, wr_id)| wc.wr_id == wr_id);
    let rank = |status| match status {
        WcStatus::Success => 0,
        WcStatus::WrFlushErr => 2,
        _ => 1,
    };
    let ranks: Vec<u8> = wcs.iter().map(|wc| rank(wc.status)).collect();
    let reasons = ranks.iter().filter(|rank| **rank == 1).count();
    if in_order && ranks.is_sorted() && reasons <= 1 { Ok(()) } else { Err(format!("{wcs:?}")) }
}

fn check_side(world: &mut World, side: &Side, posted: u64) -> Result<(), String> {
    let (sent, received) = (side.sent(world), side.received(world));
    let Ok((attr, _)) = world.nodes[side.qp.node].endpoint.query_qp(side.qp.qpn) else {
        let gone = sent.is_empty() && received.is_empty();
        return if gone { Ok(()) } else { Err("completions of a destroyed queue pair".into()) };
    };
    check_order(&sent)?;
    check_order(&received)?;
    let (all_sent, all_received) = (sent.len() as u64 == posted, received.len() as u64 == RECEIVES);
    match attr.state {
        QpState::Err if all_sent && all_received => Ok(()),
        QpState::Rts if all_sent => Ok(()),
        QpState::Reset => Ok(()),
        state => Err(format!("{state:?}: {} sent, {} received", sent.len(), received.len())),
    }
}

fn run(ending: Ending, seed: u64, capturing: bool) -> (World, Result<(), Failure>) {
    let mut rng = Rng::new(seed);
    let link = LinkConfig { loss: 10_000, rate: 400_000_000, ..LinkConfig::PERFECT };
    let mut world = World::pair(seed, link, capturing);
    let pairs = [pair(&mut world), pair(&mut world)];
    for [a, b] in &pairs {
        post_all(&mut world, &mut rng, a, b);
        post_all(&mut world, &mut rng, b, a);
    }
    world.drain();
    let later = rng.below(400_000);
    world.advance(later.into());
    end(&mut world, ending, &pairs[0]);
    world.run(END);
    let outcome = check(&mut world, ending, &pairs);
    (world, outcome.map_err(|text| Failure(format!("{ending:?} after {later} ns: {text}"))))
}

fn check(world: &mut World, ending: Ending, pairs: &[[Side; 2]; 2]) -> Result<(), String> {
    let extra = u64::from(ending == Refused);
    check_side(world, &pairs[0][0], REQUESTS + extra)?;
    check_side(world, &pairs[0][1], REQUESTS)?;
    for side in &pairs[1] {
        let sent = side.sent(world);
        let fine = sent.iter().all(|wc| wc.status == WcStatus::Success);
        if !fine || sent.len() as u64 != REQUESTS {
            return Err(format!("the neighbour noticed: {sent:?}"));
        }
    }
    for node in &world.nodes {
        if node.endpoint.in_flight() != irdma_transport::InFlight::default() {
            return Err(format!("{} holds {:?}", node.addr, node.endpoint.in_flight()));
        }
    }
    let whole = pairs.iter().flatten().all(|side| side.memory.guards_are_whole());
    if whole { Ok(()) } else { Err("wrote outside of a region".into()) }
}

#[track_caller]
fn check_ending(name: &str, ending: Ending) {
    check_seeds(name, 60, |seed, capturing| run(ending, seed, capturing));
}

#[test]
fn moved_to_error() {
    check_ending("moved_to_error", Error);
}

#[test]
fn reset() {
    check_ending("reset", Reset);
}

#[test]
fn destroyed() {
    check_ending("destroyed", Destroyed);
}

#[test]
fn refused() {
    check_ending("refused", Refused);
}

#[test]
fn deregistered() {
    check_ending("deregistered", Deregistered);
}
