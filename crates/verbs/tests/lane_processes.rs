//! Several lanes in a process that forks, is watched, meets losses, or connects by address.

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;

use common::cm::{HERE, LEN, expect, listen, param, resolved, set_up};
use common::domain::{domain, node, node_on, pair};
use common::link::{Link, device, ip};
use common::process::{Peer, ROLE, text};
use common::{Node, QKEY, connect, loopback};
use irdma::cm::EventKind;
use irdma::{AhAttr, Gid, QpType, SendData, SendFlags, SendOp, SendWr, UdDest, Wc};
use irdma_wire::ip::Datagram;
use irdma_wire::{FlowKey, Verdict, icrc, parse, pcapng};

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("forks") => forks(),
        Ok("talks") => talks(),
        Ok("follows") => follows(),
        _ => {}
    }
}

fn exchange(a: &Node, b: &Node, rounds: usize) {
    for round in 0..rounds {
        for (from, to) in [(a, b), (b, a)] {
            from.fill(0, 3000, round as u8);
            to.post_recv(1, 4096, 4096);
            from.post(2, SendOp::Send { imm: None }, 0, 3000);
            assert_eq!((to.complete().wr_id, from.complete().wr_id), (1, 2));
            to.expect_bytes(4096, 3000, round as u8);
        }
    }
}

/// Between two thread domains, and between one and what is in none.
fn talks() {
    let (a, b) = pair(QpType::Rc, 8192);
    let home = Node::new(&loopback(), QpType::Rc, 8192);
    let other = node(QpType::Rc, 8192);
    home.connect(&other.ends());
    other.connect(&home.ends());
    exchange(&a, &b, 30);
    exchange(&home, &other, 30);
    let slots = [&a, &b, &home, &other].map(|node| node.qp.qpn().slot());
    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn bytes_are_right_in_every_lane_under_every_kind_of_fault() {
    let faults = "drop=3%,dup=3%,reorder=3%,corrupt=3%,seed=5";
    Peer::start_silent_env("talks", &[("IRDMA_FAULTS", faults)]).finish();
}

#[test]
fn one_capture_holds_the_packets_of_all_lanes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.pcapng");
    Peer::start_silent_env("talks", &[("IRDMA_CAPTURE", path.to_str().unwrap())]).finish();
    let bytes = std::fs::read(&path).unwrap();
    let mut slots = [BTreeSet::new(), BTreeSet::new()];
    for frame in pcapng::read(&bytes).unwrap() {
        let datagram = Datagram::parse(frame.ip_packet().unwrap()).unwrap();
        let (src, dst) = (datagram.ip.src, datagram.ip.dst);
        let flow = FlowKey { src, dst, src_port: datagram.src_port };
        let verdict = icrc::verify(&flow, datagram.ip.ident.id, datagram.payload);
        assert_eq!(verdict, Verdict::Good);
        let way = usize::from(frame.direction == Some(pcapng::Direction::Inbound));
        slots[way].insert(parse(datagram.payload).unwrap().headers.bth.dest_qpn.slot());
    }
    assert_eq!((slots[0].len(), &slots[0]), (4, &slots[1]), "sent, and received");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no file of a lane's own");
}

#[test]
fn traffic_in_several_lanes_survives_a_fork() {
    Peer::start_silent("forks").finish();
}

fn forks() {
    let (a, b) = pair(QpType::Rc, 8192);
    let home = common::pair(QpType::Rc, 8192);
    exchange(&a, &b, 5);
    exchange(&home.0, &home.1, 5);
    // SAFETY: the child runs code that allocates, which glibc permits after fork.
    match unsafe { libc::fork() } {
        0 => {
            let refused = a.cq.poll_cq(&mut [Wc::default()]).unwrap_err().errno() != libc::EIO;
            // What is inherited goes without touching the parent's.
            drop((a, home));
            let own = std::panic::catch_unwind(talks);
            // SAFETY: ends the process without running the parent's handlers.
            unsafe { libc::_exit(i32::from(refused) | i32::from(own.is_err()) << 1) }
        }
        child => {
            assert!(child > 0);
            exchange(&a, &b, 100);
            exchange(&home.0, &home.1, 100);
            let mut status = 0;
            // SAFETY: the kernel writes the status word.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's status");
        }
    }
}

/// The connection manager stays in the process's own lane.
#[test]
fn queue_pairs_of_a_domain_connect_by_address() {
    let listener = listen(QpType::Rc, HERE);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    let client = node(QpType::Rc, 4 * LEN);
    id.connect(&param(&client, b"")).unwrap();
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    let server_id = event.take_id().unwrap();
    let server = node(QpType::Rc, 4 * LEN);
    set_up(&server_id, &server);
    server_id.accept(&param(&server, b"")).unwrap();
    expect(&channel, EventKind::ConnectResponse);
    set_up(&id, &client);
    id.establish().unwrap();
    expect(&listener.channel, EventKind::Established);
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.fill(0, LEN, 4);
        to.post_recv(1, LEN, LEN);
        from.post(2, SendOp::Send { imm: None }, 0, LEN);
        assert_eq!((to.complete().wr_id, from.complete().wr_id), (1, 2));
        to.expect_bytes(LEN, LEN, 4);
    }
    id.disconnect().unwrap();
    expect(&listener.channel, EventKind::Disconnected);
    server_id.disconnect().unwrap();
    expect(&channel, EventKind::Disconnected);
}

/// An address that comes is opened in the lane of a thread domain, too.
#[test]
fn lanes_follow_the_addresses_of_their_device() {
    let Some(link) = Link::new("lanes") else { return };
    let peer = Peer::start_in(&link.0[0], "follows");
    ip(&format!("-n {} addr add 10.9.0.7/24 dev v0", link.0[0]));
    peer.finish();
}

fn follows() {
    let context = device().open().unwrap();
    let pd = domain(&context);
    let own = node_on(context, pd, QpType::Ud, 1024);
    let home = Node::new(&device(), QpType::Ud, 1024);
    [&own, &home].iter().for_each(|node| connect(&node.qp, &node.ends(), 0, 0));
    println!("@ends {}", text(&own.ends()));
    assert_eq!(own.context.get_async_event().unwrap().kind(), irdma::EventKind::GidChange);
    let new = Gid::from("10.9.0.7".parse::<IpAddr>().unwrap());
    let count = own.context.query_port(1).unwrap().gid_tbl_len;
    let index = (0..count).find(|at| own.context.query_gid(1, *at).unwrap() == new).unwrap();
    for (from, to) in [(&own, &home), (&home, &own)] {
        to.post_recv(1, 512, 140);
        from.fill(0, 100, index as u8);
        let attr = AhAttr { dgid: new, sgid_index: index as u8, port: 1, ..AhAttr::default() };
        let ah = from.pd.create_ah(&attr).unwrap();
        let sges = [from.sge(0, 100)];
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
        let ud = Some(UdDest { ah: ah.transport().clone(), qpn: to.qp.qpn(), qkey: QKEY });
        let wr = SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), ud };
        from.qp.post_send(&wr).unwrap();
        assert_eq!((from.complete().wr_id, to.complete().byte_len), (2, 140));
        to.expect_bytes(512 + 40, 100, index as u8);
    }
}
