//! Every service over a perfect link: bytes arrive, no timer runs, nothing is left over.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_sim::{LinkConfig, Side, World, pattern};
use irdma_transport::{
    Instant, QpState, QpType, RecvWr, SendOp, Srq, SrqAttr, Wc, WcFlags, WcOpcode, WcStatus,
};
use irdma_wire::Gid;

const END: Instant = Instant::from_millis(10_000);
const LENS: [usize; 12] = [0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 4096, 65_536, 300_000];
const QKEY: u32 = 0x1111_1111;

fn connected(qp_type: QpType) -> (World, Side, Side) {
    let mut world = World::pair(1, LinkConfig::PERFECT, false);
    let a = Side::new(&mut world, 0, qp_type, 1 << 20);
    let b = Side::new(&mut world, 1, qp_type, 1 << 20);
    world.connect(a.qp, b.qp, |attr| attr.qkey = QKEY);
    (world, a, b)
}

#[track_caller]
fn all_succeed(wcs: &[Wc], count: usize) {
    assert_eq!(wcs.len(), count, "{wcs:?}");
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
    let last = wcs.iter().map(|wc| wc.timestamp_ns).max();
    assert!(last < Some(4_000_000), "a timer ran: {last:?}");
}

#[test]
fn rc_sends_writes_and_reads() {
    for len in LENS {
        let (mut world, a, b) = connected(QpType::Rc);
        let data = pattern(len, 3);
        a.memory.write(0, &data);
        let (rkey, remote_addr) = (b.memory.mr.rkey, b.memory.addr(400_000));
        b.post_recv(&mut world, 77, 0, len).unwrap();
        b.post_recv(&mut world, 78, 0, 0).unwrap();
        a.post(&mut world, 1, SendOp::Send { imm: Some([1, 2, 3, 4]) }, 0, len).unwrap();
        a.post(&mut world, 2, SendOp::Write { remote_addr, rkey, imm: Some([5; 4]) }, 0, len)
            .unwrap();
        a.post(&mut world, 3, SendOp::Read { remote_addr, rkey }, 400_000, len).unwrap();
        assert!(world.run(END));
        all_succeed(&a.sent(&mut world), 3);
        let got = b.received(&mut world);
        all_succeed(&got, 2);
        assert_eq!((got[0].wr_id, got[0].byte_len, got[0].imm), (77, len as u32, [1, 2, 3, 4]));
        assert_eq!((got[1].wr_id, got[1].byte_len, got[1].imm), (78, len as u32, [5; 4]));
        assert_eq!(got[1].opcode, WcOpcode::RecvRdmaWithImm);
        assert!(b.memory.read(0, len) == data, "send of {len}");
        assert!(b.memory.read(400_000, len) == data, "write of {len}");
        assert!(a.memory.read(400_000, len) == data, "read of {len}");
        assert!(a.memory.guards_are_whole() && b.memory.guards_are_whole());
    }
}

#[test]
fn rc_atomics_return_what_was_there() {
    let (mut world, a, b) = connected(QpType::Rc);
    b.memory.write(8, &100u64.to_ne_bytes());
    let (rkey, remote_addr) = (b.memory.mr.rkey, b.memory.addr(8));
    a.post(&mut world, 1, SendOp::FetchAdd { remote_addr, rkey, add: 5 }, 0, 8).unwrap();
    let swap = SendOp::CompareSwap { remote_addr, rkey, compare: 105, swap: 7 };
    a.post(&mut world, 2, swap, 8, 8).unwrap();
    a.post(&mut world, 3, swap, 16, 8).unwrap();
    assert!(world.run(END));
    all_succeed(&a.sent(&mut world), 3);
    assert_eq!([a.memory.word(0), a.memory.word(8), a.memory.word(16)], [100, 105, 7]);
    assert_eq!(b.memory.word(8), 7);
}

#[test]
fn uc_sends_and_writes() {
    for len in LENS {
        let (mut world, a, b) = connected(QpType::Uc);
        let data = pattern(len, 4);
        a.memory.write(0, &data);
        let (rkey, remote_addr) = (b.memory.mr.rkey, b.memory.addr(400_000));
        b.post_recv(&mut world, 77, 0, len).unwrap();
        b.post_recv(&mut world, 78, 0, 0).unwrap();
        a.post(&mut world, 1, SendOp::Send { imm: Some([1, 2, 3, 4]) }, 0, len).unwrap();
        a.post(&mut world, 2, SendOp::Write { remote_addr, rkey, imm: Some([5; 4]) }, 0, len)
            .unwrap();
        assert!(world.run(END));
        all_succeed(&a.sent(&mut world), 2);
        all_succeed(&b.received(&mut world), 2);
        assert!(b.memory.read(0, len) == data, "send of {len}");
        assert!(b.memory.read(400_000, len) == data, "write of {len}");
    }
}

#[test]
fn ud_sends_with_a_grh() {
    let (mut world, a, b) = connected(QpType::Ud);
    for len in [0, 1, 33, 1024, 4096] {
        let data = pattern(len, 5);
        a.memory.write(0, &data);
        b.post_recv(&mut world, 9, 0, 40 + len).unwrap();
        let dest = b.dest(&world, 0, QKEY);
        a.post_to(&mut world, 1, dest, 0, len).unwrap();
        assert!(world.run(END));
        assert_eq!(a.sent(&mut world).len(), 1);
        let got = b.received(&mut world);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].byte_len, got[0].src_qpn), (40 + len as u32, a.qp.qpn));
        assert!(got[0].flags.contains(WcFlags::GRH));
        assert!(b.memory.read(40, len) == data);
        assert_eq!(b.memory.read(0, 21), [vec![0; 20], vec![0x45]].concat());
    }
}

#[test]
fn a_shared_queue_feeds_two_connections() {
    let mut world = World::pair(1, LinkConfig::PERFECT, false);
    let attr = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
    let srq = Arc::new(Srq::create_srq(99, world.nodes[1].pd.clone(), attr).unwrap());
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let a = Side::new(&mut world, 0, QpType::Rc, 4096);
        let mut init = world.init(1, QpType::Rc);
        init.srq = Some(Arc::clone(&srq));
        let b = Side::with(&mut world, 1, init, 4096);
        world.connect(a.qp, b.qp, |_| {});
        pairs.push((a, b));
    }
    let inbox = world.nodes[1].memory(16 * 64);
    for i in 0..16 {
        srq.post_srq_recv(&RecvWr { wr_id: i, sges: &[inbox.sge(i as usize * 64, 64)] }).unwrap();
    }
    for i in 0..16 {
        let (a, _) = &pairs[i % 2];
        a.memory.write(i * 64, &pattern(64, i as u64));
        a.post(&mut world, i as u64, SendOp::Send { imm: Some([i as u8; 4]) }, i * 64, 64).unwrap();
    }
    assert!(world.run(END));
    let mut taken = Vec::new();
    for (a, b) in &pairs {
        assert_eq!(a.sent(&mut world).len(), 8);
        let got = b.received(&mut world);
        all_succeed(&got, 8);
        for wc in got {
            let place = wc.wr_id as usize * 64;
            assert_eq!(inbox.read(place, 64), pattern(64, wc.imm[0].into()));
            taken.push(wc.wr_id);
        }
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..16).collect::<Vec<u64>>());
}

#[test]
fn members_of_a_group_get_their_copies_until_they_leave() {
    let mut world = World::pair(1, LinkConfig::PERFECT, false);
    world.add_node([10, 0, 0, 3].into(), irdma_transport::Config::default());
    let group: IpAddr = [239, 1, 2, 3].into();
    let gid = Gid::from(group);
    let members: Vec<Side> =
        [0, 1, 1, 2].map(|node| Side::new(&mut world, node, QpType::Ud, 4096)).into();
    let sender = &members[0];
    for side in &members {
        let mut attr = world.attr(side.qp, side.qp);
        attr.qkey = QKEY;
        world.ready(side.qp, &attr);
        side.post_recv(&mut world, 5, 0, 140).unwrap();
        side.post_recv(&mut world, 6, 200, 140).unwrap();
        world.nodes[side.qp.node].endpoint.attach_mcast(side.qp.qpn, &gid, 0, 1).unwrap();
    }
    world.drain();
    sender.memory.write(1000, &pattern(100, 6));
    let dest = sender.group(&world, group, QKEY);
    sender.post_to(&mut world, 1, dest.clone(), 1000, 100).unwrap();
    assert!(world.run(END));
    for side in &members {
        all_succeed(&side.received(&mut world), 1);
        assert_eq!(side.memory.read(40, 100), pattern(100, 6));
        world.nodes[side.qp.node].endpoint.detach_mcast(side.qp.qpn, &gid, 0, 1).unwrap();
    }
    world.drain();
    sender.post_to(&mut world, 2, dest, 1000, 100).unwrap();
    assert!(world.run(END));
    for side in &members {
        assert!(side.received(&mut world).is_empty());
        let (attr, _) = world.nodes[side.qp.node].endpoint.query_qp(side.qp.qpn).unwrap();
        assert_eq!(attr.state, QpState::Rts);
    }
}

/// Both ends in one process: the packets come back to the endpoint that sent them.
#[test]
fn an_endpoint_talks_to_itself() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut world = World::pair(1, LinkConfig::PERFECT, false);
        let a = Side::new(&mut world, 0, qp_type, 1 << 16);
        let b = Side::new(&mut world, 0, qp_type, 1 << 16);
        world.connect(a.qp, b.qp, |_| {});
        let data = pattern(50_000, 3);
        a.memory.write(0, &data);
        b.post_recv(&mut world, 1, 0, 50_000).unwrap();
        a.post(&mut world, 2, SendOp::Send { imm: None }, 0, 50_000).unwrap();
        assert!(world.run(END));
        all_succeed(&a.sent(&mut world), 1);
        all_succeed(&b.received(&mut world), 1);
        assert!(b.memory.read(0, 50_000) == data);
    }
}

/// One machine serves twenty, each over a connection of its own.
#[test]
fn a_server_has_many_clients() {
    let mut world = World::new(1, LinkConfig::PERFECT, false);
    for host in 1..=21u8 {
        world.add_node([10, 0, 0, host].into(), irdma_transport::Config::default());
    }
    let pairs: Vec<[Side; 2]> = (1..=20)
        .map(|node| {
            let sides = [0, node].map(|node| Side::new(&mut world, node, QpType::Rc, 1 << 16));
            world.connect(sides[0].qp, sides[1].qp, |_| {});
            sides
        })
        .collect();
    for (n, [server, client]) in pairs.iter().enumerate() {
        client.memory.write(0, &pattern(30_000, n as u64));
        server.post_recv(&mut world, 1, 0, 30_000).unwrap();
        client.post(&mut world, 2, SendOp::Send { imm: None }, 0, 30_000).unwrap();
        let (rkey, remote_addr) = (client.memory.mr.rkey, client.memory.addr(0));
        server.post(&mut world, 3, SendOp::Read { remote_addr, rkey }, 32_000, 30_000).unwrap();
    }
    assert!(world.run(END));
    for (n, [server, client]) in pairs.iter().enumerate() {
        all_succeed(&client.sent(&mut world), 1);
        all_succeed(&server.received(&mut world), 1);
        all_succeed(&server.sent(&mut world), 1);
        assert!(server.memory.read(0, 30_000) == pattern(30_000, n as u64));
        assert!(server.memory.read(32_000, 30_000) == pattern(30_000, n as u64));
    }
}
