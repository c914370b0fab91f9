//! A peer controls every bit of a packet: whatever arrives is dropped or refused, and counted.

use std::sync::Arc;

use irdma_sim::script::{MTU, Pkt, RQ_PSN, SQ_PSN, Script};
use irdma_transport::{DropReason, Meta, QpState, QpType, Rng};
use irdma_wire::ctl::{self, Control, Kind};
use irdma_wire::icrc::sign;
use irdma_wire::{FlowKey, Operation, Position, Qpn, Service, Syndrome};

/// Packets of every kind for the queue pair of `t`.
fn packets(t: &Script) -> Vec<Pkt> {
    let (va, rkey) = (t.memory.addr(0), t.memory.mr.rkey);
    let write = |at, len| t.request(Operation::Write, at, RQ_PSN).reth(va, rkey, len);
    let mut packets = vec![
        t.send_only(RQ_PSN, b"hello"),
        t.send_only(RQ_PSN, b"hello").imm([1; 4]),
        t.send_only(RQ_PSN, b"hello").invalidate(5),
        t.request(Operation::Send, Position::First, RQ_PSN).payload(&[1; MTU]),
        t.request(Operation::Send, Position::Middle, RQ_PSN).payload(&[1; MTU]),
        t.request(Operation::Send, Position::Last, RQ_PSN).payload(&[1; 3]),
        t.request(Operation::Send, Position::Last, RQ_PSN).payload(&[1; 3]).imm([1; 4]),
        t.request(Operation::Send, Position::Last, RQ_PSN).payload(&[1; 3]).invalidate(5),
        write(Position::First, 300).payload(&[1; MTU]),
        t.request(Operation::Write, Position::Middle, RQ_PSN).payload(&[1; MTU]),
        t.request(Operation::Write, Position::Last, RQ_PSN).payload(&[1; 3]),
        t.request(Operation::Write, Position::Last, RQ_PSN).payload(&[1; 3]).imm([1; 4]),
        write(Position::Only, 3).payload(&[1; 3]),
        write(Position::Only, 3).payload(&[1; 3]).imm([1; 4]),
        t.read_request(RQ_PSN, 0, 600),
        t.fetch_add(RQ_PSN, 0, 1),
        t.compare_swap(RQ_PSN, 0, 1, 2),
        t.ack(SQ_PSN, Syndrome::Ack { credit: 31 }),
        t.ack(SQ_PSN, Syndrome::Rnr { timer: 1 }),
        t.atomic_ack(SQ_PSN, 5),
    ];
    for position in [Position::First, Position::Middle, Position::Last, Position::Only] {
        packets.push(t.read_response(position, SQ_PSN, &[1; MTU]));
    }
    packets.push(t.flush(RQ_PSN, 0, 4));
    packets.push(t.atomic_write(RQ_PSN, 8, 7));
    packets
}

fn flow(meta: &Meta) -> FlowKey {
    FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port }
}

/// A connection in mid-conversation: a request of each kind is on its way, a receive is posted.
fn busy() -> Script {
    let mut t = Script::rc();
    t.post(1, t.read_op(), 0, MTU);
    t.post(2, t.fetch_add_op(1), 1024, 8);
    t.post(3, t.write_op(), 0, 10);
    t.post_recv(9, 2048, 4096);
    t.sent();
    t
}

fn drop_count(t: &Script) -> u64 {
    t.node.endpoint.stats().drops.iter().sum()
}

/// Packets in, and what became of them: answered, completed, or counted as dropped.
#[track_caller]
fn survives(t: &mut Script, bytes: &[u8], what: &str) {
    let (meta, drops) = (t.meta(), drop_count(t));
    t.deliver_bytes(&meta, bytes);
    let answered = !t.sent().is_empty();
    let completed = !t.completed().is_empty() || !t.received().is_empty();
    let moved = t.state() == QpState::Err;
    assert!(answered || completed || moved || drop_count(t) > drops, "{what}: no trace");
    assert!(t.memory.guards_are_whole(), "{what}: wrote outside of the region");
}

#[test]
fn every_truncation_of_every_packet_is_dropped_or_refused() {
    let kinds = packets(&busy()).len();
    for kind in 0..kinds {
        let template = busy();
        let packet = &packets(&template)[kind];
        let whole = packet.emit(&flow(&template.meta()), 0);
        for len in 0..whole.len() {
            let mut t = busy();
            let mut bytes = whole[..len].to_vec();
            // Signed anew where there is room: the checks behind the ICRC are to be met, too.
            if len >= 16 {
                sign(&flow(&t.meta()), 0, &mut bytes);
            }
            survives(&mut t, &bytes, &format!("{packet} cut to {len}"));
        }
    }
}

/// Lengths and pads that lie.
#[test]
fn every_pad_count_of_every_packet_is_survived() {
    let kinds = packets(&busy()).len();
    for kind in 0..kinds {
        for pad in 0..4 {
            let mut t = busy();
            let packet = packets(&t)[kind].clone();
            let mut bytes = packet.emit(&flow(&t.meta()), 0);
            bytes[1] = bytes[1] & 0xCF | pad << 4;
            sign(&flow(&t.meta()), 0, &mut bytes);
            t.deliver_bytes(&t.meta(), &bytes);
            t.sent();
            assert!(t.memory.guards_are_whole(), "{packet} pad {pad}");
        }
    }
}

#[test]
fn every_opcode_byte_is_survived_by_every_service() {
    let xrc_send = || Script::with(QpType::XrcSend, |_| {}, |_| {});
    let xrc_recv =
        || Script::with(QpType::XrcRecv, |init| init.xrcd = Some(Arc::default()), |_| {});
    for make in [Script::rc, Script::uc, Script::ud, xrc_send, xrc_recv] {
        for opcode in 0..=255 {
            for len in [16, 20, 24, 28, 32, 36, 44, 48, 60, 16 + MTU] {
                let mut t = make();
                if !matches!(t.qp_type(), QpType::XrcSend | QpType::XrcRecv) {
                    t.post_recv(9, 0, 4096);
                }
                let mut bytes = vec![0x11; len];
                bytes[0] = opcode;
                bytes[1] = 0x40;
                bytes[2..4].fill(0xFF);
                bytes[4..8].copy_from_slice(&t.qpn.get().to_be_bytes());
                bytes[8..12].copy_from_slice(&RQ_PSN.get().to_be_bytes());
                sign(&flow(&t.meta()), 0, &mut bytes);
                let drops = drop_count(&t);
                t.deliver_bytes(&t.meta(), &bytes);
                let answered = !t.sent().is_empty();
                let completed = !t.received().is_empty() || t.state() == QpState::Err;
                let begins = matches!(opcode, 0x00 | 0x20) && len == 16 + MTU;
                let traced = answered || completed || drop_count(&t) > drops;
                assert!(traced || begins, "opcode {opcode:#04x} of {len} bytes: no trace");
                assert!(t.memory.guards_are_whole());
            }
        }
    }
}

#[test]
fn random_bits_in_valid_packets_are_survived() {
    let mut rng = Rng::new(42);
    let kinds = packets(&busy()).len();
    for _ in 0..4000 {
        let mut t = busy();
        let packet = packets(&t)[rng.below(kinds as u32) as usize].clone();
        let mut bytes = packet.emit(&flow(&t.meta()), 0);
        for _ in 0..=rng.below(3) {
            // Not the destination, so that the queue pair gets it.
            let bit = rng.below(bytes.len() as u32 * 8);
            if !(32..64).contains(&bit) {
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
        }
        sign(&flow(&t.meta()), 0, &mut bytes);
        t.deliver_bytes(&t.meta(), &bytes);
        t.sent();
        t.wait(1 << 30);
        assert!(t.memory.guards_are_whole());
    }
}

#[test]
fn a_wrong_icrc_is_counted_apart() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    let mut bytes = t.send_only(RQ_PSN, b"abcd").emit(&flow(&t.meta()), 0);
    *bytes.last_mut().unwrap() ^= 0x80;
    t.deliver_bytes(&t.meta(), &bytes);
    assert_eq!((t.drops(DropReason::Icrc), t.node.endpoint.stats().crc_errors), (1, 1));
    assert_eq!(t.received_short(), []);
}

/// An address translator changes the source: the ICRC no longer fits.
#[test]
fn another_source_is_not_the_peer() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    let packet = t.send_only(RQ_PSN, b"x").ask();
    let bytes = packet.emit(&flow(&t.meta()), 0);
    let meta = Meta { src: [10, 0, 0, 3].into(), ..t.meta() };
    t.deliver_bytes(&meta, &bytes);
    assert_eq!(t.drops(DropReason::Icrc), 1);
    t.deliver_from(&meta, &packet);
    assert_eq!(t.drops(DropReason::Source), 1);
    let elsewhere = Meta { dst: [10, 0, 0, 9].into(), ..t.meta() };
    t.deliver_from(&elsewhere, &packet);
    assert_eq!(t.drops(DropReason::Source), 2);
    let ack = t.ack(SQ_PSN, Syndrome::Ack { credit: 31 });
    t.deliver_from(&meta, &ack);
    assert_eq!(t.drops(DropReason::Source), 3);
    assert_eq!((t.sent_text(), t.received_short()), (vec![], vec![]));
    // Its port does not matter, the ICRC covers it.
    t.deliver_from(&Meta { src_port: 1024, ..t.meta() }, &packet);
    assert_eq!(t.sent().len(), 1);
}

#[test]
fn unknown_numbers_are_dropped_or_somebody_elses() {
    let mut t = Script::rc();
    for qpn in [Qpn::SMI, Qpn::new(t.qpn.get() ^ 7), Qpn::from_parts(1023, 5)] {
        let mut packet = t.send_only(RQ_PSN, b"x");
        packet.headers.bth.dest_qpn = qpn;
        t.deliver(&packet);
    }
    assert_eq!(t.drops(DropReason::UnknownQp), 3);
    let mut packet = t.send_only(RQ_PSN, b"x");
    packet.headers.bth.dest_qpn = Qpn::from_parts(500, 5);
    let bytes = packet.emit(&flow(&t.meta()), 0);
    let disposition = t.node.endpoint.handle_datagram(t.now, &t.meta(), &bytes);
    assert_eq!(disposition, irdma_transport::Disposition::Foreign(500));
}

#[test]
fn another_services_packets_are_dropped() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    for service in [Service::Uc, Service::Ud] {
        let mut packet = t.send_only(RQ_PSN, b"x");
        packet.headers.bth.opcode.service = service;
        if service == Service::Ud {
            packet.headers.deth = Some(irdma_wire::Deth::default());
        }
        t.deliver(&packet);
    }
    assert_eq!((t.drops(DropReason::Service), t.received_short()), (2, vec![]));
}

/// A peer that never stops asking cannot make the answers that wait grow without bound.
#[test]
fn answers_that_wait_are_bounded() {
    let mut t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 2);
    let ahead = t.send_only(RQ_PSN.add(1000), b"x").ask();
    for n in 0..500 {
        let packet = t.write_only(RQ_PSN.add(n), 0, b"x").ask();
        t.deliver(&packet);
        t.deliver(&ahead);
        let duplicate = t.write_only(RQ_PSN, 0, b"x").ask();
        t.deliver(&duplicate);
    }
    assert_eq!(t.sent_text(), ["NAK_SEQUENCE 700 msn=500"]);
}

fn control(message: Control) -> Pkt {
    let opcode = irdma_wire::Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut packet =
        Pkt::new(opcode, Qpn::from_parts(1, 0), irdma_wire::Psn::new(0)).payload(&message.emit());
    let src_qpn = Qpn::from_parts(message.src_slot, 0);
    packet.headers.deth = Some(irdma_wire::Deth { qkey: ctl::QKEY, src_qpn });
    packet
}

#[test]
fn a_probe_that_cannot_be_answered_holds_up_no_answer() {
    let mut t = Script::rc();
    let probe =
        |token| control(Control { kind: Kind::Probe, token, receive_window_bytes: 1, src_slot: 2 });
    let gone = Meta { dst: [10, 0, 0, 99].into(), ..t.meta() };
    let here = t.meta();
    for (meta, token) in [(gone, 1), (gone, 2), (here, 3)] {
        t.deliver_from(&meta, &probe(token));
    }
    let mut buffer = vec![0; 65_536];
    let sent = t.node.endpoint.poll_transmit(t.now, &mut buffer).expect("an echo");
    let echo = irdma_wire::parse(&buffer[..sent.len]).unwrap();
    assert_eq!(Control::parse(echo.payload).unwrap().token, 3);
}

#[test]
fn echoes_that_answer_nothing_change_nothing() {
    let mut t = Script::rc();
    t.post(1, t.write_op(), 0, 10);
    t.sent();
    for token in [0, 1, u64::MAX] {
        for receive_window_bytes in [0, u32::MAX] {
            for src_slot in [1, 77] {
                let echo = Control { kind: Kind::Echo, token, receive_window_bytes, src_slot };
                t.deliver(&control(echo));
            }
        }
    }
    assert_eq!(t.sent_text(), [""; 0]);
    t.post(2, t.write_op(), 0, 10);
    assert_eq!(t.sent().len(), 1);
}

#[test]
fn a_flood_of_probes_neither_piles_up_nor_stops_other_traffic() {
    use irdma_wire::ctl::{self, Control, Kind};
    let mut t = Script::rc();
    let opcode = irdma_wire::Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let (kind, receive_window_bytes, src_slot) = (Kind::Probe, 0, 77);
    let probe = Control { kind, token: 5, receive_window_bytes, src_slot };
    let to = Qpn::from_parts(1, 0);
    let mut packet = Pkt::new(opcode, to, irdma_wire::Psn::new(0)).payload(&probe.emit());
    let src_qpn = Qpn::from_parts(src_slot, 0);
    packet.headers.deth = Some(irdma_wire::Deth { qkey: ctl::QKEY, src_qpn });
    for _ in 0..1000 {
        t.deliver(&packet);
    }
    assert_eq!(t.drops(DropReason::NoReceive), 1000 - 64);
    t.post(1, t.write_op(), 0, 10);
    let mut buffer = vec![0; 1 << 16];
    let mut own = Vec::new();
    while let Some(transmit) = t.node.endpoint.poll_transmit(t.now, &mut buffer) {
        let packet = irdma_wire::parse(&buffer[..transmit.len]).unwrap();
        own.push(packet.headers.bth.opcode.service == Service::Rc);
    }
    assert!(own.iter().position(|rc| *rc).is_some_and(|at| at < 2), "{own:?}");
    assert!(own.len() >= 65, "the echoes and the request: {}", own.len());
}
