//! Thread domains: queue pairs with sockets and a lock of their own.
//!
//! What a process holds is counted, and devices belong to it, so these tests take turns.

mod common;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::domain::{domain, domain_over, held_domain, node, node_on, pair, queue_pair};
use common::{Ends, Node, QKEY, connect, eventually, loopback, pattern, poll_one, to_init};
use irdma::{
    AhAttr, EventKind, Gid, Qp, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, SrqAttr,
    UdDest, Wc, WcOpcode, WcStatus, XrcdFlags,
};
use irdma_net::slot;

fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const LEN: usize = 3000;
const ROUNDS: usize = 100;

/// A message to and one from `b`, compared.
fn exchange(a: &Node, b: &Node, seed: u8) {
    for (from, to) in [(a, b), (b, a)] {
        from.fill(0, 64, seed);
        to.post_recv(1, 64, 64);
        from.post(2, SendOp::Send { imm: None }, 0, 64);
        assert_eq!((to.complete().wr_id, from.complete().wr_id), (1, 2));
        to.expect_bytes(64, 64, seed);
    }
}

/// One end of a connection between two of the members below.
struct End {
    qp: Qp,
    /// Messages sent, and received.
    sent: usize,
    received: usize,
    seeds: [u8; 2],
    /// Where its messages are: one to send, then one to receive.
    offset: usize,
}

/// A thread's queue pairs, which share its completion queue and its buffer.
struct Member {
    node: Node,
    ends: Vec<End>,
}

impl Member {
    fn new(in_domain: bool) -> Member {
        let context = loopback().open().unwrap();
        let pd = if in_domain { domain(&context) } else { context.alloc_pd().unwrap() };
        Member { node: node_on(context, pd, QpType::Rc, 16 * LEN), ends: Vec::new() }
    }

    fn add_end(&mut self, seeds: [u8; 2]) -> Ends {
        let qp = queue_pair(&self.node.pd, QpType::Rc, &self.node.cq, None);
        let ends = Ends { qpn: qp.qpn(), ..self.node.ends() };
        let offset = 2 * LEN * self.ends.len();
        self.ends.push(End { qp, sent: 0, received: 0, seeds, offset });
        ends
    }

    fn queue_pair(&self, qpn: Qpn) -> &Qp {
        &self.ends.iter().find(|end| end.qp.qpn() == qpn).unwrap().qp
    }

    fn send(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.sent < ROUNDS {
            self.node.fill(end.offset, LEN, end.seeds[0].wrapping_add(end.sent as u8));
            end.sent += 1;
            let sges = [self.node.sge(end.offset, LEN)];
            let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
            let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), ud: None };
            end.qp.post_send(&wr).unwrap();
        }
    }

    fn receive(&self, at: usize) {
        let sges = [self.node.sge(self.ends[at].offset + LEN, LEN)];
        self.ends[at].qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).unwrap();
    }

    /// Sends and receives all messages of all connections.
    fn run(&mut self) {
        (0..self.ends.len()).for_each(|at| self.receive(at));
        (0..self.ends.len()).for_each(|at| self.send(at));
        let mut completions = 2 * ROUNDS * self.ends.len();
        while completions > 0 {
            let wc = self.node.complete();
            let at = self.ends.iter().position(|end| end.qp.qpn() == wc.qpn).unwrap();
            match wc.opcode {
                WcOpcode::Recv => self.check(at),
                _ => self.send(at),
            }
            completions -= 1;
        }
    }

    fn check(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let seed = end.seeds[1].wrapping_add(end.received as u8);
        self.node.expect_bytes(end.offset + LEN, LEN, seed);
        end.received += 1;
        if end.received < ROUNDS {
            self.receive(at);
        }
    }
}

#[test]
fn threads_with_and_without_a_domain_talk_in_every_combination() {
    let _turn = my_turn();
    let mut members = [Member::new(true), Member::new(true), Member::new(false)];
    let slots = [0, 1, 2].map(|at| members[at].node.qp.qpn().slot());
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2], "{slots:?}");
    for i in 0..3 {
        for j in i..3 {
            let seeds = [(i * 3 + j) as u8, 100 + (i * 3 + j) as u8];
            let one = members[i].add_end(seeds);
            let two = members[j].add_end([seeds[1], seeds[0]]);
            connect(members[i].queue_pair(one.qpn), &two, 0, 14);
            connect(members[j].queue_pair(two.qpn), &one, 0, 14);
            assert_eq!([one.qpn.slot(), two.qpn.slot()], [slots[i], slots[j]]);
        }
    }
    // A message that finds no receive request yet is sent again.
    let start = Barrier::new(3);
    thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| {
                start.wait();
                member.run();
            });
        }
    });
}

/// How the thread waits that has one completion queue for three lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Polling,
    Sleeping,
}

#[test]
fn a_completion_queue_that_three_lanes_feed_loses_nothing() {
    let _turn = my_turn();
    for way in [Way::Polling, Way::Sleeping] {
        fed_by_three_lanes(way);
    }
}

fn fed_by_three_lanes(way: Way) {
    let context = loopback().open().unwrap();
    let base = context.alloc_pd().unwrap();
    let pds = [domain_over(&context, &base), domain_over(&context, &base), base];
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(1024, Some(&channel), 0).unwrap();
    let sink = node_on(context, pds[0].import_pd(), QpType::Rc, 64);
    let qps: Vec<Qp> = pds.iter().map(|pd| queue_pair(pd, QpType::Rc, &cq, None)).collect();
    let senders: Vec<Node> = qps.iter().map(|_| node(QpType::Rc, 64)).collect();
    for (qp, sender) in qps.iter().zip(&senders) {
        connect(qp, &sender.ends(), 0, 14);
        sender.connect(&Ends { qpn: qp.qpn(), ..sink.ends() });
        for wr_id in 0..ROUNDS as u64 {
            qp.post_recv(&RecvWr { wr_id, sges: &[sink.sge(0, 64)] }).unwrap();
        }
    }
    cq.req_notify_cq(false).unwrap();
    thread::scope(|scope| {
        for sender in senders {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    sender.post(9, SendOp::Send { imm: None }, 0, 64);
                    sender.complete();
                }
            });
        }
        let mut next = [0; 3];
        let end = Instant::now() + Duration::from_secs(20);
        while next != [ROUNDS as u64; 3] {
            assert!(Instant::now() < end, "{way:?}: {next:?}");
            if way == Way::Sleeping {
                let patience = Duration::from_secs(1);
                drop(channel.get_cq_event_within(patience).unwrap().expect("an event"));
                cq.req_notify_cq(false).unwrap();
            }
            let mut wcs = [Wc::default(); 8];
            while let count @ 1.. = cq.poll_cq(&mut wcs).unwrap() {
                for wc in &wcs[..count] {
                    let at = qps.iter().position(|qp| qp.qpn() == wc.qpn).unwrap();
                    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, next[at]), "{at}");
                    next[at] += 1;
                }
            }
        }
    });
}

#[test]
fn a_shared_receive_queue_serves_two_lanes() {
    let _turn = my_turn();
    let context = loopback().open().unwrap();
    let base = context.alloc_pd().unwrap();
    let pds = [domain_over(&context, &base), domain_over(&context, &base)];
    let sink = node_on(context, base, QpType::Rc, 64 * ROUNDS);
    let most = SrqAttr { max_wr: 2 * ROUNDS as u32, max_sge: 1, srq_limit: 0 };
    let srq = sink.pd.create_srq(most).unwrap();
    let cqs = [(); 2].map(|()| sink.context.create_cq(256, None, 0).unwrap());
    let qps = [0, 1].map(|at| queue_pair(&pds[at], QpType::Rc, &cqs[at], Some(&srq)));
    assert_ne!(qps[0].qpn().slot(), qps[1].qpn().slot());
    let senders = [(); 2].map(|()| node(QpType::Rc, 64));
    for (qp, sender) in qps.iter().zip(&senders) {
        connect(qp, &sender.ends(), 0, 14);
        sender.connect(&Ends { qpn: qp.qpn(), ..sink.ends() });
    }
    for wr_id in 0..ROUNDS {
        let sges = [sink.sge(64 * wr_id, 64)];
        srq.post_srq_recv(&RecvWr { wr_id: wr_id as u64, sges: &sges }).unwrap();
    }
    // Which queue pair takes a request is the queue's business; each is taken once.
    let taken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (seed, (sender, cq)) in senders.iter().zip(&cqs).enumerate() {
            let (sink, taken) = (&sink, &taken);
            scope.spawn(move || {
                for round in 0..ROUNDS / 2 {
                    let value = pattern(64, (round + 100 * seed) as u8);
                    sender.buffer.write(0, &value);
                    sender.post(1, SendOp::Send { imm: None }, 0, 64);
                    let (received, _) = (poll_one(cq), sender.complete());
                    assert_eq!(received.status, WcStatus::Success);
                    sink.expect_bytes(64 * received.wr_id as usize, 64, (round + 100 * seed) as u8);
                    taken.lock().unwrap().push(received.wr_id);
                }
            });
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort();
    assert_eq!(taken, (0..ROUNDS as u64).collect::<Vec<_>>());
}

#[test]
fn what_a_domain_sends_reaches_the_shared_queues_of_an_xrc_domain() {
    let _turn = my_turn();
    let context = loopback().open().unwrap();
    let xrcd = context.open_xrcd(None, XrcdFlags::CREAT).unwrap();
    let pd = domain(&context);
    let node = node_on(context, pd, QpType::Rc, 256);
    let most = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let cq = node.context.create_cq(4, None, 0).unwrap();
    let srq = node.pd.create_xrc_srq(most, &xrcd, &cq).unwrap();
    srq.post_srq_recv(&RecvWr { wr_id: 1, sges: &[node.sge(64, 64)] }).unwrap();
    let sender = queue_pair(&node.pd, QpType::XrcSend, &node.cq, None);
    let receiver = xrcd.create_qp().unwrap();
    to_init(&receiver);
    connect(&sender, &Ends { qpn: receiver.qpn(), ..node.ends() }, 0, 14);
    connect(&receiver, &Ends { qpn: sender.qpn(), ..node.ends() }, 0, 14);
    assert_ne!(sender.qpn().slot(), receiver.qpn().slot());
    node.fill(0, 64, 6);
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let sges = [node.sge(0, 64)];
    let wr = SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), ud: None };
    sender.start_post().unwrap().post_xrc_send(&wr, srq.get_srq_num().unwrap()).unwrap();
    assert_eq!((poll_one(&cq).wr_id, node.complete().wr_id), (1, 2));
    node.expect_bytes(64, 64, 6);
}

#[test]
fn a_passive_lane_is_written_and_read() {
    let _turn = my_turn();
    let (a, b) = pair(QpType::Rc, 1 << 16);
    let Ends { addr, rkey, .. } = b.ends();
    a.fill(0, 1 << 15, 3);
    a.post(1, SendOp::Write { remote_addr: addr, rkey, imm: None }, 0, 1 << 15);
    a.complete();
    b.expect_bytes(0, 1 << 15, 3);
    a.post(2, SendOp::Read { remote_addr: addr, rkey }, 1 << 15, 1 << 15);
    a.complete();
    a.expect_bytes(1 << 15, 1 << 15, 3);
}

/// A property of the locks, not of a clock: one lane is locked until others have done their work.
#[test]
fn a_lane_that_is_locked_holds_up_no_other() {
    let _turn = my_turn();
    let ((a, b), home) = (pair(QpType::Rc, 256), common::pair(QpType::Rc, 256));
    let (busy, other) = pair(QpType::Rc, 256);
    let (released, reached) = (AtomicBool::new(false), AtomicBool::new(false));
    let held = [home.0.qp.start_post().unwrap(), busy.qp.start_post().unwrap()];
    thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|round| exchange(&a, &b, round as u8))).join().unwrap();
        // The lane itself is held up, or this test would show nothing.
        scope.spawn(|| {
            other.post_recv(1, 0, 64);
            busy.post(2, SendOp::Send { imm: None }, 0, 64);
            assert!(released.load(Ordering::SeqCst), "posted while the lane was locked");
            reached.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!reached.load(Ordering::SeqCst));
        released.store(true, Ordering::SeqCst);
        drop(held);
    });
    assert_eq!((other.complete().wr_id, busy.complete().wr_id), (1, 2));
    exchange(&home.0, &home.1, 9);
}

/// Threads of ours, and descriptors.
fn ours() -> (usize, usize) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter(|task| {
        let comm = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(comm).is_ok_and(|name| name.trim_end() == "irdma")
    });
    (threads.count(), std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// The descriptors, once `threads` have their names.
fn descriptors_with(threads: usize) -> usize {
    eventually("the threads run", || ours().0 == threads);
    ours().1
}

/// Nothing is left of a domain, but for a few descriptors to relay over what tables of before, or
/// other processes, send astray.
fn is_back(threads: usize, descriptors: usize) -> bool {
    ours().0 == threads && ours().1 < descriptors + 8
}

#[test]
fn a_domain_that_ends_leaves_the_others_at_work() {
    let _turn = my_turn();
    let (a, b) = pair(QpType::Rc, 256);
    let context = loopback().open().unwrap();
    let (td, pd) = held_domain(&context);
    let before = descriptors_with(3);
    let slots = slot::list().unwrap();
    let node = node_on(context, pd, QpType::Rc, 256);
    let slot = node.qp.qpn().slot();
    assert!(slot::is_alive(slot) && !slots.contains(&slot));
    node.connect(&node.ends());
    let Node { qp, cq, channel, mr, pd, context, .. } = node;
    assert_eq!(td.dealloc_td().unwrap_err().error.errno(), 16);
    qp.destroy_qp().unwrap();
    mr.dereg_mr().unwrap();
    assert!(slot::is_alive(slot), "the domain is there");
    exchange(&a, &b, 1);
    pd.dealloc_pd().unwrap();
    assert!(!slot::is_alive(slot), "the last user of a domain without handle ends it");
    drop((cq, channel));
    eventually("its thread and descriptors are gone", || is_back(3, before));
    exchange(&a, &b, 2);
    context.dealloc_ucontext();
}

#[test]
fn a_hundred_domains_leave_neither_descriptor_nor_thread_nor_slot() {
    let _turn = my_turn();
    let peer = Node::new(&loopback(), QpType::Ud, 256);
    let context = loopback().open().unwrap();
    let base = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None, 0).unwrap();
    let before = descriptors_with(1);
    let unused = context.alloc_td().unwrap();
    assert!(is_back(1, before), "a domain alone is nothing");
    let mut slots = Vec::new();
    for _ in 0..100 {
        let td = context.alloc_td().unwrap();
        let pd = base.alloc_parent_domain(Some(&td)).unwrap();
        let qp = queue_pair(&pd, QpType::Rc, &cq, None);
        connect(&qp, &Ends { qpn: qp.qpn(), ..peer.ends() }, 0, 14);
        assert!(ours().1 > before + 9);
        slots.push(qp.qpn().slot());
        qp.destroy_qp().unwrap();
        pd.dealloc_pd().unwrap();
        td.dealloc_td().unwrap();
    }
    unused.dealloc_td().unwrap();
    eventually("threads and descriptors are gone", || is_back(1, before));
    slots.retain(|slot| slot::is_alive(*slot));
    assert!(slots.len() < 3, "{slots:?}: but for what other processes took meanwhile");
}

#[test]
fn whoever_waits_for_an_event_lets_go_of_a_domain_that_ends() {
    let _turn = my_turn();
    let context = loopback().open().unwrap();
    let pd = domain(&context);
    let node = node_on(context, pd, QpType::Rc, 256);
    let slot = node.qp.qpn().slot();
    node.connect(&node.ends());
    let Node { qp, cq: _cq, channel, mr, pd, context: _context, .. } = node;
    let waits = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let event = channel.get_cq_event_within(Duration::from_secs(2)).unwrap();
            assert!(event.is_none());
            waits.store(false, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        drop((qp, mr, pd));
        eventually("the slot is free", || !slot::is_alive(slot));
        assert!(waits.load(Ordering::SeqCst));
    });
}

fn send_to(from: &Node, gid: Gid, qpn: Qpn) {
    let attr = AhAttr { dgid: gid, hop_limit: 1, port: 1, ..AhAttr::default() };
    let ah = from.pd.create_ah(&attr).unwrap();
    let sges = [from.sge(0, 100)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let ud = Some(UdDest { ah: ah.transport().clone(), qpn, qkey: QKEY });
    let wr = SendWr { wr_id: 9, op, flags, data: SendData::Sges(&sges), ud };
    from.qp.post_send(&wr).unwrap();
    assert_eq!(from.complete().opcode, WcOpcode::Send);
}

#[test]
fn members_of_a_group_in_several_lanes_all_hear_and_share_its_limits() {
    let _turn = my_turn();
    let members = [node(QpType::Ud, 4096), node(QpType::Ud, 4096)];
    let members = [&members[0], &members[1], &Node::new(&loopback(), QpType::Ud, 4096)];
    let group = Gid::from("239.77.13.1".parse::<IpAddr>().unwrap());
    for member in members {
        connect(&member.qp, &member.ends(), 0, 0);
        member.qp.attach_mcast(&group, 0).unwrap();
        (0..4).for_each(|wr_id| member.post_recv(wr_id, 256, 256));
    }
    for (seed, sender) in members.iter().enumerate() {
        sender.fill(0, 100, seed as u8);
        send_to(sender, group, Qpn::MULTICAST);
        for member in members {
            let heard = member.complete();
            assert_eq!((heard.byte_len, heard.src_qpn), (140, sender.qp.qpn()));
            member.expect_bytes(256 + 40, 100, seed as u8);
        }
    }
    // Unicast, too, and from the handles of any lane.
    members[0].fill(0, 100, 77);
    send_to(members[0], members[1].ends().gid, members[1].qp.qpn());
    members[1].complete();
    members[1].expect_bytes(256 + 40, 100, 77);

    let more: Vec<Qp> = (0..6)
        .map(|at| queue_pair(&members[at % 2].pd, QpType::Ud, &members[at % 2].cq, None))
        .collect();
    more[..5].iter().for_each(|qp| qp.attach_mcast(&group, 0).unwrap());
    assert_eq!(more[5].attach_mcast(&group, 0).unwrap_err().errno(), libc::ENOMEM);
    more[0].detach_mcast(&group, 0).unwrap();
    more[5].attach_mcast(&group, 0).unwrap();
    assert_eq!(more[5].detach_mcast(&group, 1).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn a_removed_device_flushes_every_lane() {
    let _turn = my_turn();
    let device = loopback();
    let (a, b) = pair(QpType::Rc, 256);
    let home = common::pair(QpType::Rc, 256).0;
    for node in [&a, &home] {
        node.post_recv(1, 0, 64);
        // Nobody receives it: it is tried for ever.
        node.post(2, SendOp::Send { imm: None }, 0, 64);
    }
    device.ib_unregister_device();
    for node in [&a, &home] {
        assert_eq!(node.context.get_async_event().unwrap().kind(), EventKind::PortErr);
        assert_eq!(node.context.get_async_event().unwrap().kind(), EventKind::DeviceFatal);
        let mut flushed = [node.completion(), node.completion()].map(|wc| (wc.wr_id, wc.status));
        flushed.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(flushed, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(node.cq.poll_cq(&mut [Wc::default()]).unwrap_err().errno(), libc::EIO);
    }
    let slot = a.qp.qpn().slot();
    a.qp.destroy_qp().unwrap();
    a.mr.dereg_mr().unwrap();
    a.pd.dealloc_pd().unwrap();
    assert!(!slot::is_alive(slot));
    drop((b, home));
    device.ib_register_device().unwrap();
    let (a, b) = pair(QpType::Rc, 256);
    exchange(&a, &b, 1);
}

#[test]
fn counters_are_those_of_all_lanes_and_outlive_a_domain() {
    let _turn = my_turn();
    let watcher = Node::new(&loopback(), QpType::Rc, 64);
    let page = watcher.context.mmap(watcher.context.mmap_key(), 4096).unwrap();
    let sends = || watcher.context.get_hw_stats().get("InRdmaSends").unwrap();
    // More than the queue holds that they all answer to at once.
    let _idle: Vec<Node> = (0..12).map(|_| node(QpType::Rc, 64)).collect();
    let shown = |count: u64| {
        eventually("the sum of all lanes is shown", || {
            let mut all = irdma::processes().unwrap();
            all.retain(|found| found.pid == std::process::id());
            assert!(all.len() <= 1, "one process, however many lanes");
            all.iter().any(|own| {
                assert_eq!(own.slot, watcher.qp.qpn().slot());
                own.stats.get("InRdmaSends") == Some(count)
            })
        });
    };
    let before = sends();
    let (a, b) = pair(QpType::Rc, 256);
    (0..5).for_each(|round| exchange(&a, &b, round));
    assert_eq!(sends(), before + 10);
    shown(before + 10);
    let paged = page.get("InRdmaSends").unwrap();
    assert!(paged >= 10);
    drop((a, b));
    assert_eq!(sends(), before + 10);
    shown(before + 10);
    assert_eq!(page.get("InRdmaSends"), Some(paged));
}

#[test]
fn a_domain_for_which_nothing_is_left_shares_the_lane_of_the_process() {
    let _turn = my_turn();
    let (a, b) = common::pair(QpType::Rc, 256);
    let context = loopback().open().unwrap();
    let pd = domain(&context);
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(32), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let cq = context.create_cq(8, None, 0);
    let qp = cq.and_then(|cq| {
        let made = pd.create_qp(&irdma::QpInitAttr {
            qp_type: QpType::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap: common::CAP,
            sq_sig_all: false,
            block_self_mcast: false,
        });
        Ok((made?.qpn(), cq))
    });
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    let (qpn, _cq) = qp.unwrap();
    assert_eq!(qpn.slot(), a.qp.qpn().slot());
    let node = node_on(context, pd, QpType::Rc, 256);
    node.connect(&node.ends());
    drop(node);
    exchange(&a, &b, 1);
}
