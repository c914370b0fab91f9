//! Unreliable services over the loopback interface, shared receive queues and multicast.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::{Node, QKEY, connect, loopback, pair, poll_one};
use irdma::{
    AhAttr, Gid, QpInitAttr, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, SrqAttr,
    UdDest, Wc, WcFlags, WcOpcode,
};

const GRH: usize = 40;

fn ready(device: &irdma::Device) -> Node {
    let node = Node::new(device, QpType::Ud, 1 << 14);
    connect(&node.qp, &node.ends(), 0, 0);
    node
}

fn send_to(from: &Node, gid: Gid, qpn: Qpn, offset: usize, len: usize) {
    let attr = AhAttr { dgid: gid, hop_limit: 1, port: 1, ..AhAttr::default() };
    let ah = from.pd.create_ah(&attr).unwrap();
    let sges = [from.sge(offset, len)];
    let wr = SendWr {
        wr_id: 9,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        ud: Some(UdDest { ah: ah.transport().clone(), qpn, qkey: QKEY }),
    };
    from.qp.post_send(&wr).unwrap();
    assert_eq!(from.complete().opcode, WcOpcode::Send);
}

#[test]
fn datagrams_arrive_behind_the_forty_bytes_of_a_grh() {
    let device = loopback();
    let (a, b) = (ready(&device), ready(&device));
    for (i, len) in [0, 1, 33, 1024, 4096].into_iter().enumerate() {
        a.fill(0, len, i as u8);
        b.post_recv(i as u64, 0, GRH + len);
        send_to(&a, b.ends().gid, b.qp.qpn(), 0, len);
        let received = b.complete();
        assert_eq!(received.byte_len as usize, GRH + len);
        assert!(received.flags.contains(WcFlags::GRH));
        assert_eq!(received.src_qpn, a.qp.qpn());
        b.expect_bytes(GRH, len, i as u8);
    }
}

#[test]
fn an_address_handle_needs_a_way_to_its_destination() {
    let node = ready(&loopback());
    let good = AhAttr { dgid: node.ends().gid, port: 1, ..AhAttr::default() };
    let of_other_version = match good.dgid.is_v4() {
        true => Gid::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
        false => Gid::from(IpAddr::from(Ipv4Addr::LOCALHOST)),
    };
    for attr in [
        AhAttr { port: 2, ..good },
        AhAttr { sgid_index: 200, ..good },
        AhAttr { dgid: Gid::default(), ..good },
        AhAttr { dgid: of_other_version, ..good },
    ] {
        assert_eq!(node.pd.create_ah(&attr).unwrap_err().errno(), 22, "{attr:?}");
    }
    assert_eq!(node.pd.create_ah(&good).unwrap().query_ah().dgid, good.dgid);
}

#[test]
fn every_gid_of_the_device_can_be_sent_to_and_from() {
    let device = loopback();
    let (a, b) = (ready(&device), ready(&device));
    for index in 0..device.query_port(1).unwrap().gid_tbl_len {
        let gid = device.query_gid(1, index).unwrap();
        b.post_recv(1, 0, GRH + 8);
        let attr = AhAttr { dgid: gid, sgid_index: index as u8, port: 1, ..AhAttr::default() };
        let ah = a.pd.create_ah(&attr).unwrap();
        let sges = [a.sge(0, 8)];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: Some(UdDest { ah: ah.transport().clone(), qpn: b.qp.qpn(), qkey: QKEY }),
        };
        a.qp.post_send(&wr).unwrap();
        assert_eq!(b.complete().byte_len, 48, "{gid}");
        a.complete();
    }
}

#[test]
fn a_group_reaches_every_member_until_it_leaves() {
    let device = loopback();
    let (sender, first, second) = (ready(&device), ready(&device), ready(&device));
    let group = Gid::from("239.77.12.1".parse::<std::net::IpAddr>().unwrap());
    for member in [&first, &second] {
        member.qp.attach_mcast(&group, 0).unwrap();
        member.qp.attach_mcast(&group, 0).unwrap();
        member.post_recv(1, 0, 4096);
        member.post_recv(2, 0, 4096);
    }
    sender.fill(0, 100, 5);
    send_to(&sender, group, Qpn::MULTICAST, 0, 100);
    for member in [&first, &second] {
        assert_eq!(member.complete().byte_len, 140);
        member.expect_bytes(GRH, 100, 5);
    }
    second.qp.detach_mcast(&group, 0).unwrap();
    assert_eq!(second.qp.detach_mcast(&group, 0).unwrap_err().errno(), 22);
    send_to(&sender, group, Qpn::MULTICAST, 0, 100);
    first.complete();
    let mut none = [Wc::default()];
    assert_eq!(second.cq.poll_cq(&mut none), Ok(0));
    let refused = first.qp.destroy_qp().unwrap_err();
    assert_eq!(refused.error.errno(), 16);
    refused.handle.detach_mcast(&group, 0).unwrap();
    refused.handle.destroy_qp().unwrap();
}

/// Whether the kernel lists an IPv4 group as joined.
fn is_joined(group: Ipv4Addr) -> bool {
    let text = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&text)
}

#[test]
fn the_kernel_lists_a_group_while_it_has_a_member() {
    let device = loopback();
    let (first, second) = (ready(&device), ready(&device));
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 78, high, low);
    let gid = Gid::from(IpAddr::from(group));
    assert!(!is_joined(group));
    first.qp.attach_mcast(&gid, 0).unwrap();
    second.qp.attach_mcast(&gid, 0).unwrap();
    assert!(is_joined(group));
    first.qp.detach_mcast(&gid, 0).unwrap();
    assert!(is_joined(group));
    second.qp.detach_mcast(&gid, 0).unwrap();
    assert!(!is_joined(group));
}

#[test]
fn a_context_that_closes_while_a_group_is_joined_leaves_no_membership() {
    let device = loopback();
    // Keeps the sockets open.
    let _other = ready(&device);
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 77, high, low);
    let gid = Gid::from(IpAddr::from(group));
    for round in 0..50 {
        let Node { qp, context, cq: _cq, pd: _pd, mr: _mr, .. } = ready(&device);
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let joins = || {
                start.wait();
                while qp.attach_mcast(&gid, 0).is_ok() && qp.detach_mcast(&gid, 0).is_ok() {}
            };
            scope.spawn(joins);
            start.wait();
            context.dealloc_ucontext();
        });
        assert!(!is_joined(group), "round {round}");
    }
}

#[test]
fn only_datagram_queue_pairs_join_and_only_groups_are_joined() {
    let (a, _b) = pair(QpType::Rc, 64);
    let group = Gid::from("239.77.12.2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(a.qp.attach_mcast(&group, 0).unwrap_err().errno(), 22);
    let ud = ready(&loopback());
    assert_eq!(ud.qp.attach_mcast(&ud.ends().gid, 0).unwrap_err().errno(), 22);
}

#[test]
fn unreliable_connections_carry_sends_and_writes() {
    let (a, b) = pair(QpType::Uc, 1 << 17);
    for (i, len) in [0, 1, 1025, 65536].into_iter().enumerate() {
        a.fill(0, len, i as u8);
        b.post_recv(1, 0, len);
        a.post(1, SendOp::Send { imm: None }, 0, len);
        assert_eq!((b.complete().byte_len, a.complete().wr_id), (len as u32, 1));
        b.expect_bytes(0, len, i as u8);
    }
    let ends = b.ends();
    a.fill(0, 1 << 16, 77);
    b.post_recv(2, 0, 0);
    let imm = Some([0, 0, 0, 1]);
    a.post(2, SendOp::Write { remote_addr: ends.addr, rkey: ends.rkey, imm }, 0, 1 << 16);
    assert_eq!(b.complete().opcode, WcOpcode::RecvRdmaWithImm);
    b.expect_bytes(0, 1 << 16, 77);
}

#[test]
fn a_shared_queue_feeds_two_queue_pairs_and_tells_when_it_runs_low() {
    let device = loopback();
    let (a, b) = (Node::new(&device, QpType::Rc, 4096), Node::new(&device, QpType::Rc, 4096));
    let target = Node::new(&device, QpType::Rc, 4096);
    let srq = target.pd.create_srq(SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 }).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &target.cq,
        recv_cq: &target.cq,
        srq: Some(&srq),
        cap: common::CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    let qps = [(); 2].map(|()| target.pd.create_qp(&init).unwrap());
    for (qp, peer) in qps.iter().zip([&a, &b]) {
        common::to_init(qp);
        peer.connect(&common::Ends { qpn: qp.qpn(), ..target.ends() });
        connect(qp, &peer.ends(), 0, 14);
    }
    for wr_id in 0..4 {
        srq.post_srq_recv(&RecvWr { wr_id, sges: &[target.sge(0, 64)] }).unwrap();
    }
    srq.modify_srq(3).unwrap();
    for (sender, wr_id) in [(&a, 0), (&b, 1)] {
        sender.post(1, SendOp::Send { imm: None }, 0, 10);
        let wc = poll_one(&target.cq);
        assert_eq!((wc.wr_id, wc.byte_len), (wr_id, 10));
        sender.complete();
    }
    let event = target.context.get_async_event().unwrap();
    assert_eq!(event.kind(), irdma::EventKind::SrqLimitReached);
    drop(event);
    assert_eq!(srq.query_srq().unwrap().srq_limit, 0);
    let refused = srq.destroy_srq().unwrap_err();
    assert_eq!(refused.error.errno(), 16);
    for qp in qps {
        qp.destroy_qp().unwrap();
    }
    refused.handle.destroy_srq().unwrap();
}
