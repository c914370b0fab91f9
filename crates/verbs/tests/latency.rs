//! Latency between two processes in the three ways that programs wait: spinning on memory, polling
//! the completion queue, sleeping on the channel. No timer may stand in the path.

mod common;

use std::time::{Duration, Instant};

use common::process::{Peer, ROLE, connected_to, meet, read_line};
use common::{Ends, Node, loopback};
use irdma::{QpType, SendOp, Wc, WcOpcode, WcStatus};

const ROUNDS: usize = 2000;
/// Far above what the way takes, below the shortest timers of the protocol.
const BOUND: Duration = Duration::from_micros(1000);
/// The byte that the peer writes, and the one that is written to it.
const INBOX: usize = 0;
const OUTBOX: usize = 1;

/// How a program waits.
#[derive(Clone, Copy, Debug)]
enum Way {
    Memory,
    Polling,
    Sleeping,
}

impl Way {
    fn prepare(self, node: &Node) {
        node.post_recv(1, INBOX, 1);
        if let Way::Sleeping = self {
            node.cq.req_notify_cq(false).unwrap();
        }
    }

    fn send(self, node: &Node, peer: &Ends, value: u8) {
        node.buffer.write(OUTBOX, &[value]);
        let write = SendOp::Write { remote_addr: peer.addr, rkey: peer.rkey, imm: None };
        match self {
            Way::Memory => {
                node.post(2, write, OUTBOX, 1);
                node.complete();
            }
            Way::Polling | Way::Sleeping => node.post(2, SendOp::Send { imm: None }, OUTBOX, 1),
        }
    }

    fn receive(self, node: &Node, value: u8) {
        match self {
            Way::Memory => await_byte(node, value),
            Way::Polling => while !received(node) {},
            Way::Sleeping => while !woken(node) {},
        }
        assert_eq!(node.buffer.byte(INBOX), value);
    }
}

fn await_byte(node: &Node, value: u8) {
    let end = Instant::now() + Duration::from_secs(10);
    while node.buffer.byte(INBOX) != value {
        assert!(Instant::now() < end, "the byte never changed");
        std::hint::spin_loop();
    }
}

/// Takes completions; whether a message was among them.
fn received(node: &Node) -> bool {
    let mut wcs = [Wc::default(); 2];
    let count = node.cq.poll_cq(&mut wcs).unwrap();
    let mut received = false;
    for wc in &wcs[..count] {
        assert_eq!(wc.status, WcStatus::Success);
        if wc.opcode == WcOpcode::Recv {
            node.post_recv(1, INBOX, 1);
            received = true;
        }
    }
    received
}

fn woken(node: &Node) -> bool {
    drop(node.channel.get_cq_event().unwrap());
    node.cq.req_notify_cq(false).unwrap();
    received(node)
}

/// Does nothing as a test; is the main function of the other process.
#[test]
fn another_process() {
    let way = match std::env::var(ROLE).as_deref() {
        Ok("Memory") => Way::Memory,
        Ok("Polling") => Way::Polling,
        Ok("Sleeping") => Way::Sleeping,
        _ => return,
    };
    let node = Node::new(&loopback(), QpType::Rc, 64);
    way.prepare(&node);
    let peer = meet(&node);
    for round in 0..ROUNDS {
        let value = (round as u8).wrapping_add(1);
        way.receive(&node, value);
        way.send(&node, &peer, value);
    }
    // A program that stops polling must still acknowledge what arrives late.
    read_line();
}

fn half_round_trips(way: Way) -> Vec<Duration> {
    let mut peer = Peer::start(&format!("{way:?}"));
    let node = connected_to(&mut peer, 64, |node| way.prepare(node));
    let ends = peer.ends;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let value = (round as u8).wrapping_add(1);
            let start = Instant::now();
            way.send(&node, &ends, value);
            way.receive(&node, value);
            start.elapsed() / 2
        })
        .collect();
    peer.finish();
    times.sort();
    times
}

#[test]
fn no_way_of_waiting_meets_a_timer() {
    for way in [Way::Memory, Way::Polling, Way::Sleeping] {
        let times = half_round_trips(way);
        let at = |percent: usize| times[times.len() * percent / 100];
        println!("{way:?}: median {:?}, 90% {:?}, 99% {:?}", at(50), at(90), at(99));
        assert!(at(50) < BOUND, "{way:?}: {:?}", at(50));
    }
}
