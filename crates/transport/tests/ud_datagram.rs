//! Datagrams: Q_Keys, the 40 bytes of GRH, what is dropped (IBTA 9.8.3, 10.2.5, annex A17.4.5).

use std::sync::Arc;

use irdma_sim::script::{HERE, PEER, QKEY, Script, THERE};
use irdma_sim::{Node, script::Pkt};
use irdma_transport::{
    AddressVector, Ah, DropReason, EventKind, Meta, Network, QpState, SendData, SendFlags, SendOp,
    SendWr, UdDest, WcFlags, WcStatus,
};
use irdma_wire::{Deth, Opcode, Operation, Position, Psn, Qpn, Service};

fn av() -> AddressVector {
    AddressVector { sgid: HERE.into(), dgid: THERE.into(), ..AddressVector::default() }
}

fn dest(node: &Node, av: AddressVector, qkey: u32) -> UdDest {
    UdDest { ah: Arc::new(Ah::create_ah(node.pd.clone(), av)), qpn: PEER, qkey }
}

fn post(t: &mut Script, wr_id: u64, dest: UdDest, len: usize) {
    let sges = [t.memory.sge(0, len)];
    let op = SendOp::Send { imm: None };
    let flags = SendFlags::empty();
    let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&sges), ud: Some(dest) };
    t.post_wr(&wr).unwrap();
}

fn datagram(to: Qpn, payload: &[u8]) -> Pkt {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut packet = Pkt::new(opcode, to, Psn::new(9)).payload(payload);
    packet.headers.deth = Some(Deth { qkey: QKEY, src_qpn: PEER });
    packet
}

#[test]
fn a_datagram_completes_when_it_is_sent() {
    let mut t = Script::ud();
    let to = dest(&t.node, av(), QKEY);
    post(&mut t, 1, to.clone(), 5);
    let from = t.qpn;
    assert_eq!(t.sent_text(), [format!("SEND_ONLY 100 qkey=0x11111111 from={from} 5B")]);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    post(&mut t, 2, to, 0);
    assert_eq!(t.sent_text(), [format!("SEND_ONLY 101 qkey=0x11111111 from={from} 0B")]);
}

#[test]
fn a_qkey_with_its_high_bit_stands_for_the_own_one() {
    let mut t = Script::ud();
    for (asked, sent) in [(0x2222, 0x2222), (0x8000_0000, QKEY), (0xFFFF_FFFF, QKEY)] {
        let to = dest(&t.node, av(), asked);
        post(&mut t, 1, to, 1);
        assert_eq!(t.sent()[0].headers.deth.unwrap().qkey, sent);
    }
}

#[test]
fn a_datagram_is_placed_behind_its_ip_header() {
    let mut t = Script::ud();
    t.post_recv(7, 0, 100);
    let meta = Meta { tos: 0xBA, ttl: 63, index: 3, ..t.meta() };
    let packet = datagram(t.qpn, b"hello").imm([1, 2, 3, 4]).solicited();
    t.deliver_from(&meta, &packet);
    let got = t.received();
    assert_eq!((got[0].wr_id, got[0].byte_len, got[0].imm), (7, 45, [1, 2, 3, 4]));
    assert_eq!((got[0].src_qpn, got[0].qpn), (PEER, t.qpn));
    assert_eq!(got[0].flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(got[0].network, Some(Network::Ipv4));
    assert!(got[0].solicited);
    assert_eq!(t.memory.read(0, 20), [0; 20], "IPv4 is in the last twenty bytes");
    // UDP 8, BTH 12, DETH 8, immediate 4, payload 5, pad 3, ICRC 4.
    let head = [0x45, 0xBA, 0, 20 + 44, 0, 3, 0x40, 0, 63, 17];
    assert_eq!(t.memory.read(20, 10), head);
    assert_eq!(t.memory.read(32, 8), [10, 0, 0, 2, 10, 0, 0, 1]);
    let header = t.memory.read(20, 20);
    let sum: u32 = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the header's checksum is right");
    assert_eq!(t.memory.read(40, 6), b"hello\0");
}

#[test]
fn over_ipv6_the_whole_header_is_there() {
    let here: std::net::IpAddr = "fd77::1".parse().unwrap();
    let there: std::net::IpAddr = "fd77::2".parse().unwrap();
    let mut t = Script::ud();
    t.node.endpoint.add_local(here, vec![1], 1024);
    t.post_recv(7, 0, 100);
    let meta = Meta { src: there, dst: here, ttl: 9, ..t.meta() };
    let packet = datagram(t.qpn, b"abcd");
    t.deliver_from(&meta, &packet);
    let grh = t.memory.read(0, 40);
    assert_eq!(grh[..8], [0x60, 0, 0, 0, 0, 36, 17, 9]);
    assert_eq!((grh[8], grh[23], grh[24], grh[39]), (0xfd, 2, 0xfd, 1));
    assert_eq!(t.memory.read(40, 4), b"abcd");
}

#[test]
fn what_is_not_for_the_queue_pair_is_dropped() {
    let mut t = Script::ud();
    t.post_recv(7, 0, 100);
    let mut wrong_key = datagram(t.qpn, b"x");
    wrong_key.headers.deth = Some(Deth { qkey: QKEY + 1, src_qpn: PEER });
    let mut other_service =
        Pkt::new(Opcode::new(Service::Rc, Operation::Send, Position::Only), t.qpn, Psn::new(9));
    other_service.payload = b"x".into();
    let unknown = datagram(Qpn::new(t.qpn.get() ^ 1), b"x");
    let smi = datagram(Qpn::SMI, b"x");
    let to_group_number = datagram(Qpn::MULTICAST, b"x");
    for (packet, reason) in [
        (wrong_key, DropReason::QKey),
        (other_service, DropReason::Service),
        (unknown, DropReason::UnknownQp),
        (smi, DropReason::UnknownQp),
        (to_group_number, DropReason::UnknownQp),
    ] {
        let before = t.drops(reason);
        assert_eq!(t.exchange(std::slice::from_ref(&packet)), [""; 0]);
        assert_eq!(t.drops(reason), before + 1, "{packet}");
    }
    assert_eq!(t.received_short(), []);
}

#[test]
fn without_a_receive_or_with_a_short_one_it_is_dropped() {
    let mut t = Script::ud();
    let packet = datagram(t.qpn, b"hello");
    t.deliver(&packet);
    assert_eq!(t.drops(DropReason::NoReceive), 1);
    t.post_recv(7, 0, 44);
    t.deliver(&packet);
    assert_eq!((t.drops(DropReason::Length), t.received_short()), (1, vec![]));
    assert_eq!(t.state(), QpState::Rts);
    // The receive is still there for one that fits.
    let packet = datagram(t.qpn, b"hell");
    t.deliver(&packet);
    assert_eq!(t.received_short(), [(7, WcStatus::Success)]);
    // Even an empty datagram needs room for the header.
    t.post_recv(8, 0, 39);
    let packet = datagram(t.qpn, b"");
    t.deliver(&packet);
    assert_eq!(t.drops(DropReason::Length), 2);
}

#[test]
fn a_datagram_longer_than_the_mtu_fails_locally() {
    let mut t = Script::ud();
    t.node.endpoint.add_local(HERE, (49152..49160).collect(), 1024);
    let to = dest(&t.node, av(), QKEY);
    post(&mut t, 1, to.clone(), 1024);
    assert_eq!(t.sent().len(), 1);
    post(&mut t, 2, to.clone(), 1025);
    post(&mut t, 3, to, 1);
    assert_eq!(t.sent_text(), [""; 0]);
    let all = [WcStatus::Success, WcStatus::LocLenErr, WcStatus::WrFlushErr];
    assert_eq!(t.completed(), [(1, all[0]), (2, all[1]), (3, all[2])]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpFatal]));
}

#[test]
fn a_handle_of_another_domain_fails_locally() {
    let mut t = Script::ud();
    let table = irdma_transport::PdTable::new(8);
    let others = [(); 3].map(|()| table.alloc_pd().unwrap());
    let other = others.iter().find(|pd| pd.id() != t.node.pd.id()).unwrap();
    let ah = Arc::new(Ah::create_ah(Arc::clone(other), av()));
    post(&mut t, 1, UdDest { ah, qpn: PEER, qkey: QKEY }, 1);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn an_address_that_is_gone_fails_locally() {
    let mut t = Script::ud();
    let to = dest(&t.node, av(), QKEY);
    t.node.endpoint.remove_local(HERE);
    post(&mut t, 1, to, 1);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn the_vector_marks_the_packet() {
    let mut t = Script::ud();
    let av = AddressVector { traffic_class: 0x48, hop_limit: 7, ..av() };
    let to = dest(&t.node, av, QKEY);
    post(&mut t, 1, to, 1);
    let mut buffer = vec![0; 65_536];
    let transmit = t.node.endpoint.poll_transmit(t.now, &mut buffer).unwrap();
    assert_eq!((transmit.tos, transmit.hop_limit), (0x48, 7));
    assert_eq!((transmit.src, transmit.dst), (HERE, THERE));
}

#[test]
fn only_a_handle_makes_a_datagram() {
    let mut t = Script::ud();
    let sges = [t.memory.sge(0, 1)];
    let flags = SendFlags::empty();
    let bare = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags,
        data: SendData::Sges(&sges),
        ud: None,
    };
    assert_eq!(t.post_wr(&bare).unwrap_err().errno(), 22);
    let to = dest(&t.node, av(), QKEY);
    let write = SendWr { op: t.write_op(), ud: Some(to.clone()), ..bare.clone() };
    assert_eq!(t.post_wr(&write).unwrap_err().errno(), 22);
    let mut connected = Script::rc();
    let with_handle = SendWr { ud: Some(to), ..bare };
    assert_eq!(connected.post_wr(&with_handle).unwrap_err().errno(), 22);
}

#[test]
fn a_receive_with_a_bad_key_ends_the_queue_pair() {
    let mut t = Script::ud();
    t.memory = t.node.memory_with(64, irdma_mem::Access::empty());
    t.post_recv(7, 0, 64);
    let packet = datagram(t.qpn, b"x");
    t.deliver(&packet);
    assert_eq!(t.received_short(), [(7, WcStatus::LocProtErr)]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpAccessErr]));
}
