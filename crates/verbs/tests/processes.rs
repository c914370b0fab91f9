//! Several processes that share one address: steering, relays, deaths and forks.

mod common;

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use common::process::{Pause, Peer, ROLE, connected_to, meet, read_line};
use common::{Ends, Node, eventually, loopback, poll_one};
use irdma::{QpType, SendOp, Wc, WcStatus};

const LEN: usize = 1 << 16;

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("echo") => echo(),
        Ok("passive") => passive(),
        Ok("pinger") => pinger(),
        Ok(role) if role.starts_with("forker") => forker(role),
        _ => {}
    }
}

/// Sends back whatever arrives, until told to end or killed.
fn echo() {
    let node = Node::new(&loopback(), QpType::Rc, LEN);
    (0..8).for_each(|i| node.post_recv(i, 0, LEN));
    meet(&node);
    let ending = std::thread::spawn(read_line);
    let mut wcs = [Wc::default(); 4];
    while !ending.is_finished() {
        let count = node.cq.poll_cq(&mut wcs).unwrap();
        for wc in &wcs[..count] {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.wr_id < 8 {
                node.post_recv(wc.wr_id, 0, LEN);
                node.post(100, SendOp::Send { imm: None }, 0, wc.byte_len as usize);
            }
        }
    }
}

/// Is read from and written to without ever polling.
fn passive() {
    let node = Node::new(&loopback(), QpType::Rc, LEN);
    node.fill(0, LEN, 5);
    meet(&node);
    read_line();
}

/// Talks to a process that echoes.
fn pinger() {
    let node = Node::new(&loopback(), QpType::Rc, 2 * LEN);
    meet(&node);
    ping(&node, 100, 3000, 1);
    read_line();
}

fn ping(node: &Node, rounds: usize, len: usize, seed: u8) {
    for round in 0..rounds {
        node.fill(0, len, seed.wrapping_add(round as u8));
        node.post_recv(1, LEN, len);
        node.post(2, SendOp::Send { imm: None }, 0, len);
        let ids = [node.complete().wr_id, node.complete().wr_id];
        assert_eq!(ids[0] + ids[1], 3);
        node.expect_bytes(LEN, len, seed.wrapping_add(round as u8));
    }
}

#[test]
fn two_processes_on_one_address_talk() {
    let mut peer = Peer::start("echo");
    let node = connected_to(&mut peer, 2 * LEN, |_| ());
    ping(&node, 200, 100, 1);
    ping(&node, 20, LEN, 2);
    peer.finish();
}

#[test]
fn a_passive_process_is_read_and_written() {
    let mut peer = Peer::start("passive");
    let node = connected_to(&mut peer, 2 * LEN, |_| ());
    let Ends { addr, rkey, .. } = peer.ends;
    node.post(1, SendOp::Read { remote_addr: addr, rkey }, 0, LEN);
    node.complete();
    node.expect_bytes(0, LEN, 5);
    node.fill(0, LEN, 6);
    node.post(2, SendOp::Write { remote_addr: addr, rkey, imm: None }, 0, LEN);
    node.complete();
    node.post(3, SendOp::Read { remote_addr: addr, rkey }, LEN, LEN);
    node.complete();
    node.expect_bytes(LEN, LEN, 6);
    peer.finish();
}

#[test]
fn the_others_go_on_when_one_of_four_is_killed() {
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start("echo")).collect();
    let nodes: Vec<Node> =
        peers.iter_mut().map(|peer| connected_to(peer, 2 * LEN, |_| ())).collect();
    nodes.iter().for_each(|node| ping(node, 20, 3000, 1));
    let mut victim = peers.remove(0);
    let slot = victim.ends.qpn.slot();
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert!(!irdma_net::slot::is_alive(slot));
    nodes[0].post(7, SendOp::Send { imm: None }, 0, 10);
    nodes[1..].iter().for_each(|node| ping(node, 100, 3000, 3));
    let failed = poll_one(&nodes[0].cq);
    assert_eq!((failed.wr_id, failed.status), (7, WcStatus::RetryExcErr));
    peers.into_iter().for_each(Peer::finish);
}

/// Holds the lock of the loopback address's steering, as a process that is stopped may.
fn steering_lock() -> UnixDatagram {
    let name = SocketAddr::from_abstract_name("irdma/steer/127.0.0.1:4791").unwrap();
    let mut lock = None;
    eventually("the lock is free", || {
        lock = UnixDatagram::bind_addr(&name).ok();
        lock.is_some()
    });
    lock.unwrap()
}

#[test]
fn a_stopped_process_keeps_nobody_out_and_goes_on() {
    let mut stopped = Peer::start("echo");
    let node = connected_to(&mut stopped, 2 * LEN, |_| ());
    ping(&node, 20, 3000, 1);
    let pause = Pause::of(&stopped);
    let lock = steering_lock();
    let start = Instant::now();
    let (mut echo, mut pinger) = (Peer::start("echo"), Peer::start("pinger"));
    echo.tell(&pinger.ends);
    pinger.tell(&echo.ends);
    pinger.finish();
    echo.finish();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(pause);
    ping(&node, 100, 3000, 3);
    drop(lock);
    stopped.finish();
}

#[test]
fn traffic_survives_a_fork_whose_child_exits() {
    Forked::run("forker exit");
}

#[test]
fn traffic_survives_a_fork_whose_child_lives_and_opens_the_device_anew() {
    Forked::run("forker live");
}

struct Forked;

impl Forked {
    fn run(role: &str) {
        let mut peer = Peer::start(role);
        let node = connected_to(&mut peer, 2 * LEN, |_| ());
        (0..100).for_each(|i| node.post_recv(i, 0, 64));
        writeln!(peer.stdin, "go").unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let mut received = 0;
        let mut wcs = [Wc::default(); 8];
        while received < 100 {
            assert!(Instant::now() < end, "{received} of 100 messages");
            received += node.cq.poll_cq(&mut wcs).unwrap();
        }
        peer.finish();
    }
}

/// Forks while its queue pair is connected; the parent goes on sending.
fn forker(role: &str) {
    let node = Node::new(&loopback(), QpType::Rc, LEN);
    meet(&node);
    assert_eq!(read_line(), "go");
    // SAFETY: the child runs code that allocates, which glibc permits after fork.
    match unsafe { libc::fork() } {
        0 => forked_child(&node, role.ends_with("live")),
        child => {
            assert!(child > 0);
            for _ in 0..100 {
                node.post(1, SendOp::Send { imm: None }, 0, 64);
                node.complete();
            }
            let mut status = 0;
            // SAFETY: the kernel writes the status word.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's status");
        }
    }
    read_line();
}

fn forked_child(inherited: &Node, lives: bool) -> ! {
    let refused = inherited.cq.poll_cq(&mut [Wc::default()]);
    let mut status = i32::from(refused.unwrap_err().errno() != 5);
    if lives {
        let own = std::panic::catch_unwind(|| {
            let (a, b) = common::pair(QpType::Rc, 256);
            a.fill(0, 100, 9);
            b.post_recv(1, 100, 100);
            a.post(1, SendOp::Send { imm: None }, 0, 100);
            a.complete();
            b.complete();
            b.expect_bytes(100, 100, 9);
        });
        status |= i32::from(own.is_err()) << 1;
    }
    // SAFETY: ends the process without running the parent's handlers.
    unsafe { libc::_exit(status) }
}
