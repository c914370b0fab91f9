//! Multicast groups: who may join, who gets a copy (seed rows 1, 69 to 74; IBTA 10.5.2).

use std::net::IpAddr;
use std::sync::Arc;

use irdma_sim::script::{HERE, PEER, QKEY, Script};
use irdma_sim::{Cqs, script::Pkt};
use irdma_transport::{AttrMask, DropReason, Effect, Meta, QpState, QpType, WcStatus, mcast_mac};
use irdma_wire::{Deth, Gid, Opcode, Operation, Position, Psn, Qpn, Service};

const IF: u32 = 3;

fn group(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn effects(t: &mut Script) -> Vec<Effect> {
    std::iter::from_fn(|| t.node.endpoint.poll_effect()).collect()
}

/// One more datagram queue pair of the machine, in RTS.
fn member(t: &mut Script) -> (Qpn, Cqs) {
    let (_, mut init) = t.node.endpoint.query_qp(t.qpn).unwrap();
    let cqs = t.node.cqs(16);
    (init.send_cq, init.recv_cq) = (Arc::clone(&cqs.send), Arc::clone(&cqs.recv));
    init.qp_type = QpType::Ud;
    let qpn = t.node.endpoint.create_qp(init).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let found = t.node.endpoint.query_qp(qpn).unwrap().0.state;
        let row = irdma_transport::transition(QpType::Ud, found, state).unwrap();
        let attr = irdma_transport::QpAttr { state, ..t.attr };
        let mask = row.required | AttrMask::STATE;
        t.node.endpoint.modify_qp(t.now, qpn, &attr, mask).unwrap();
    }
    (qpn, cqs)
}

fn attach(t: &mut Script, qpn: Qpn, group: IpAddr, lid: u16) -> Result<(), i32> {
    let attached = t.node.endpoint.attach_mcast(qpn, &Gid::from(group), lid, IF);
    attached.map_err(|error| error.errno())
}

fn detach(t: &mut Script, qpn: Qpn, group: IpAddr, lid: u16) -> Result<(), i32> {
    let detached = t.node.endpoint.detach_mcast(qpn, &Gid::from(group), lid, IF);
    detached.map_err(|error| error.errno())
}

fn datagram(to: Qpn, from: Qpn) -> Pkt {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut packet = Pkt::new(opcode, to, Psn::new(9)).payload(b"x");
    packet.headers.deth = Some(Deth { qkey: QKEY, src_qpn: from });
    packet
}

fn arrival(t: &Script, group: IpAddr) -> Meta {
    Meta { dst: group, ifindex: IF, ..t.meta() }
}

#[test]
fn the_first_member_joins_and_the_last_one_leaves() {
    for address in ["239.1.2.3", "ff0e::1:2"].map(group) {
        let mut t = Script::ud();
        let (other, _) = member(&mut t);
        let first = t.qpn;
        assert_eq!(attach(&mut t, first, address, 0), Ok(()));
        assert_eq!(effects(&mut t), [Effect::JoinGroup { group: address, ifindex: IF }]);
        assert_eq!(attach(&mut t, other, address, 0), Ok(()));
        assert_eq!(detach(&mut t, first, address, 0), Ok(()));
        assert_eq!(effects(&mut t), []);
        assert_eq!(detach(&mut t, other, address, 0), Ok(()));
        assert_eq!(effects(&mut t), [Effect::LeaveGroup { group: address, ifindex: IF }]);
    }
}

#[test]
fn each_member_gets_its_copy() {
    let address = group("239.1.2.3");
    let mut t = Script::ud();
    let (_, stranger) = member(&mut t);
    let (without_receive, _) = member(&mut t);
    let first = t.qpn;
    for qpn in [first, without_receive] {
        attach(&mut t, qpn, address, 0).unwrap();
    }
    t.post_recv(1, 0, 64);
    let packet = datagram(Qpn::MULTICAST, PEER);
    let meta = arrival(&t, address);
    t.deliver_from(&meta, &packet);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)]);
    assert_eq!(t.drops(DropReason::NoReceive), 1, "only the one without a receive loses its copy");
    assert!(stranger.recv.is_empty());
    detach(&mut t, first, address, 0).unwrap();
    detach(&mut t, without_receive, address, 0).unwrap();
    t.post_recv(2, 0, 64);
    t.deliver_from(&meta, &packet);
    assert_eq!((t.received_short(), t.drops(DropReason::UnknownQp)), (vec![], 1));
}

#[test]
fn a_group_is_an_address_on_an_interface() {
    let mut t = Script::ud();
    let first = t.qpn;
    attach(&mut t, first, group("239.1.2.3"), 0).unwrap();
    t.post_recv(1, 0, 64);
    let packet = datagram(Qpn::MULTICAST, PEER);
    for meta in [
        Meta { ifindex: IF + 1, ..arrival(&t, group("239.1.2.3")) },
        arrival(&t, group("239.1.2.4")),
        arrival(&t, HERE),
    ] {
        t.deliver_from(&meta, &packet);
    }
    assert_eq!((t.received_short(), t.drops(DropReason::UnknownQp)), (vec![], 3));
}

/// A group's datagrams carry the group's queue pair number.
#[test]
fn a_number_of_its_own_is_not_reached_through_a_group() {
    let mut t = Script::ud();
    let first = t.qpn;
    attach(&mut t, first, group("239.1.2.3"), 0).unwrap();
    t.post_recv(1, 0, 64);
    let packet = datagram(first, PEER);
    let meta = arrival(&t, group("239.1.2.3"));
    t.deliver_from(&meta, &packet);
    let foreign = datagram(Qpn::from_parts(500, 1), PEER);
    t.deliver_from(&meta, &foreign);
    assert_eq!((t.received_short(), t.drops(DropReason::UnknownQp)), (vec![], 2));
}

#[test]
fn attaching_twice_counts_once_and_another_lid_again() {
    let address = group("239.1.2.3");
    let mut t = Script::ud();
    let first = t.qpn;
    for _ in 0..2 {
        assert_eq!(attach(&mut t, first, address, 0), Ok(()));
    }
    assert_eq!(attach(&mut t, first, address, 7), Ok(()));
    t.post_recv(1, 0, 64);
    t.post_recv(2, 0, 64);
    let packet = datagram(Qpn::MULTICAST, PEER);
    let meta = arrival(&t, address);
    t.deliver_from(&meta, &packet);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)], "one copy a queue pair");
    assert_eq!(detach(&mut t, first, address, 0), Ok(()));
    assert_eq!(detach(&mut t, first, address, 0), Err(22));
    assert_eq!(t.node.endpoint.destroy_qp(first).unwrap_err().errno(), 16);
    assert_eq!(detach(&mut t, first, address, 7), Ok(()));
    t.node.endpoint.destroy_qp(first).unwrap();
}

#[test]
fn a_ninth_queue_pair_is_refused_and_leaves_no_trace() {
    let address = group("239.1.2.3");
    let mut t = Script::ud();
    let members: Vec<_> = (0..9).map(|_| member(&mut t).0).collect();
    for qpn in &members[..8] {
        assert_eq!(attach(&mut t, *qpn, address, 0), Ok(()));
    }
    assert_eq!(attach(&mut t, members[8], address, 0), Err(12));
    assert_eq!(attach(&mut t, members[0], address, 5), Ok(()), "a member may attach again");
    t.node.endpoint.destroy_qp(members[8]).unwrap();
    assert_eq!(detach(&mut t, members[3], address, 0), Ok(()));
    let late = member(&mut t).0;
    assert_eq!(attach(&mut t, late, address, 0), Ok(()));
}

#[test]
fn strangers_and_wrong_services_are_refused() {
    let mut t = Script::ud();
    let first = t.qpn;
    assert_eq!(detach(&mut t, first, group("239.1.2.3"), 0), Err(22));
    attach(&mut t, first, group("239.1.2.3"), 0).unwrap();
    let (other, _) = member(&mut t);
    assert_eq!(detach(&mut t, other, group("239.1.2.3"), 0), Err(22));
    for unicast in ["10.0.0.2", "fd77::1"] {
        assert_eq!(attach(&mut t, first, group(unicast), 0), Err(22));
    }
    let mut t = Script::rc();
    let first = t.qpn;
    assert_eq!(attach(&mut t, first, group("239.1.2.3"), 0), Err(22));
    assert_eq!(effects(&mut t), []);
}

#[test]
fn a_member_can_be_spared_its_own_datagrams() {
    let address = group("239.1.2.3");
    for block in [false, true] {
        let mut t = Script::with(QpType::Ud, |init| init.block_self_mcast = block, |_| {});
        let first = t.qpn;
        attach(&mut t, first, address, 0).unwrap();
        t.post_recv(1, 0, 64);
        let own = datagram(Qpn::MULTICAST, first);
        let meta = Meta { src: HERE, ..arrival(&t, address) };
        t.deliver_from(&meta, &own);
        assert_eq!(t.received_short().len(), usize::from(!block));
        assert_eq!(t.drops(DropReason::SelfLoopback), u64::from(block));
        t.post_recv(2, 0, 64);
        let others = datagram(Qpn::MULTICAST, PEER);
        t.deliver_from(&arrival(&t, address), &others);
        assert_eq!(t.received_short().len(), 1);
    }
}

#[test]
fn the_address_on_the_link_follows_from_the_group() {
    assert_eq!(mcast_mac(group("239.129.2.3")), [0x01, 0, 0x5e, 1, 2, 3]);
    assert_eq!(mcast_mac(group("ff0e::1:2")), [0x33, 0x33, 0, 1, 0, 2]);
}
