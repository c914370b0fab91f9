//! The responder of a reliable connection: what it accepts, places and answers (IBTA 9.7.4, 9.7.5).

use irdma_sim::pattern;
use irdma_sim::script::{MTU, RQ_PSN, Script};
use irdma_transport::{EventKind, QpState, WcFlags, WcOpcode, WcStatus};
use irdma_wire::{Operation, Position, Psn};

/// Three parts of a message of two and a half packets.
fn parts(data: &[u8]) -> [(Position, &[u8]); 3] {
    let (first, rest) = data.split_at(MTU);
    let (middle, last) = rest.split_at(MTU);
    [(Position::First, first), (Position::Middle, middle), (Position::Last, last)]
}

#[test]
fn a_send_fills_a_receive_and_is_acknowledged() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 100);
    let packet = t.send_only(RQ_PSN, b"hello").ask();
    assert_eq!(t.exchange(&[packet]), ["ACK 200 msn=1 credit=31"]);
    let got = t.received();
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].wr_id, got[0].status, got[0].opcode),
        (7, WcStatus::Success, WcOpcode::Recv)
    );
    assert_eq!((got[0].byte_len, got[0].flags), (5, WcFlags::empty()));
    assert_eq!(t.memory.read(0, 6), b"hello\0");
}

#[test]
fn a_send_that_does_not_ask_is_not_acknowledged() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 100);
    let packet = t.send_only(RQ_PSN, b"hello");
    assert_eq!(t.exchange(&[packet]), [""; 0]);
    assert_eq!(t.received_short(), [(7, WcStatus::Success)]);
}

#[test]
fn acknowledgements_of_one_batch_become_one() {
    let mut t = Script::rc();
    for wr_id in 0..3 {
        t.post_recv(wr_id, 0, 100);
    }
    let packets = [0, 1, 2].map(|n| t.send_only(RQ_PSN.add(n), b"x").ask());
    assert_eq!(t.exchange(&packets), ["ACK 202 msn=3 credit=31"]);
}

#[test]
fn a_long_send_is_placed_in_order() {
    let mut t = Script::rc();
    t.post_recv(7, 10, 1000);
    let data = pattern(MTU * 5 / 2, 1);
    let packets: Vec<_> = (0..)
        .zip(parts(&data))
        .map(|(n, (at, part))| t.request(Operation::Send, at, RQ_PSN.add(n)).payload(part))
        .collect();
    assert_eq!(t.exchange(&packets[..2]), [""; 0]);
    assert_eq!(t.received_short(), []);
    assert_eq!(t.exchange(&[packets[2].clone().ask()]), ["ACK 202 msn=1 credit=31"]);
    assert_eq!(t.received()[0].byte_len as usize, data.len());
    assert_eq!(t.memory.read(10, data.len()), data);
}

#[test]
fn immediate_data_keeps_its_byte_order() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 100);
    t.post_recv(8, 0, 0);
    let send = t.send_only(RQ_PSN, b"a").imm([1, 2, 3, 4]);
    let write = t.write_only(RQ_PSN.add(1), 500, b"bc").imm([5, 6, 7, 8]).ask();
    assert_eq!(t.exchange(&[send, write]), ["ACK 201 msn=2 credit=31"]);
    let got = t.received();
    assert_eq!((got[0].imm, got[0].byte_len, got[0].opcode), ([1, 2, 3, 4], 1, WcOpcode::Recv));
    assert_eq!((got[1].imm, got[1].byte_len), ([5, 6, 7, 8], 2));
    assert_eq!((got[1].opcode, got[1].wr_id), (WcOpcode::RecvRdmaWithImm, 8));
    assert!(got.iter().all(|wc| wc.flags == WcFlags::WITH_IMM));
}

#[test]
fn a_write_changes_memory_and_nothing_else() {
    let mut t = Script::rc();
    let data = pattern(MTU * 5 / 2, 2);
    let (va, rkey) = (t.memory.addr(40), t.memory.mr.rkey);
    let packets: Vec<_> = (0..)
        .zip(parts(&data))
        .map(|(n, (at, part))| {
            let packet = t.request(Operation::Write, at, RQ_PSN.add(n)).payload(part);
            if n == 0 { packet.reth(va, rkey, data.len() as u32) } else { packet }
        })
        .collect();
    assert_eq!(t.exchange(&packets), [""; 0]);
    assert_eq!(t.memory.read(40, data.len()), data);
    assert_eq!(t.memory.read(40 + data.len(), 8), [0; 8]);
    assert_eq!(t.received_short(), []);
}

#[test]
fn a_read_is_answered_in_packets_with_aeth_first_and_last() {
    let mut t = Script::rc();
    t.memory.write(0, &pattern(600, 3));
    let read = t.read_request(RQ_PSN, 0, 600);
    t.deliver(&read);
    let answers = t.sent();
    let text: Vec<_> = answers.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "READ_FIRST 200 msn=1 credit=31 256B",
            "READ_MIDDLE 201 256B",
            "READ_LAST 202 msn=1 credit=31 88B"
        ]
    );
    assert_eq!(answers.concat_payload(), pattern(600, 3));
    let read = t.read_request(RQ_PSN.add(3), 5, 3);
    assert_eq!(t.exchange(&[read]), ["READ_ONLY 203 msn=2 credit=31 3B"]);
}

trait Payloads {
    fn concat_payload(&self) -> Vec<u8>;
}

impl Payloads for [irdma_sim::script::Pkt] {
    fn concat_payload(&self) -> Vec<u8> {
        self.iter().flat_map(|packet| packet.payload.clone()).collect()
    }
}

#[test]
fn answers_keep_the_order_of_the_requests() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    t.post_recv(2, 0, 8);
    let packets = [
        t.send_only(RQ_PSN, b"x").ask(),
        t.read_request(RQ_PSN.add(1), 0, 4),
        t.send_only(RQ_PSN.add(2), b"y").ask(),
        t.fetch_add(RQ_PSN.add(3), 64, 5),
    ];
    assert_eq!(
        t.exchange(&packets),
        [
            "ACK 200 msn=1 credit=31",
            "READ_ONLY 201 msn=2 credit=31 4B",
            "ACK 202 msn=3 credit=31",
            "ATOMIC_ACK 203 msn=4 credit=31 value=0"
        ]
    );
}

#[test]
fn atomics_are_big_endian_outside_and_native_inside() {
    let mut t = Script::rc();
    t.memory.write(8, &0x0102_0304_0506_0708u64.to_ne_bytes());
    let add = t.fetch_add(RQ_PSN, 8, 1);
    t.deliver(&add);
    let answers = t.sent();
    assert_eq!(answers[0].headers.atomic_ack, Some(0x0102_0304_0506_0708));
    assert_eq!(t.memory.word(8), 0x0102_0304_0506_0709);
    let swap = t.compare_swap(RQ_PSN.add(1), 8, 0x0102_0304_0506_0709, 42);
    let miss = t.compare_swap(RQ_PSN.add(2), 8, 1, 43);
    let answers = t.exchange(&[swap, miss]);
    assert_eq!(answers[0], "ATOMIC_ACK 201 msn=2 credit=31 value=72623859790382857");
    assert_eq!(answers[1], "ATOMIC_ACK 202 msn=3 credit=31 value=42");
    assert_eq!(t.memory.word(8), 42);
}

#[test]
fn an_empty_message_checks_no_key() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 0);
    let send = t.send_only(RQ_PSN, b"");
    let write = t
        .request(Operation::Write, Position::Only, RQ_PSN.add(1))
        .reth(0xdead_beef, 0x1234_5678, 0)
        .ask();
    let read = t
        .request(Operation::ReadRequest, Position::Only, RQ_PSN.add(2))
        .reth(0xdead_beef, 0x1234_5678, 0)
        .ask();
    assert_eq!(
        t.exchange(&[send, write, read]),
        ["ACK 201 msn=2 credit=31", "READ_ONLY 202 msn=3 credit=31 0B"]
    );
    assert_eq!(t.received()[0].byte_len, 0);
}

#[test]
fn both_values_of_migreq_and_both_full_and_limited_pkeys_are_taken() {
    let mut t = Script::rc();
    for (n, (migreq, pkey)) in
        [(true, 0xFFFF), (false, 0xFFFF), (true, 0x7FFF)].into_iter().enumerate()
    {
        t.post_recv(n as u64, 0, 8);
        let mut packet = t.send_only(RQ_PSN.add(n as u32), b"x").ask();
        (packet.headers.bth.migreq, packet.headers.bth.pkey) = (migreq, pkey);
        t.deliver(&packet);
        assert_eq!(t.sent().len(), 1, "MigReq {migreq}, P_Key {pkey:#x}");
    }
    let mut packet = t.send_only(RQ_PSN.add(3), b"x").ask();
    packet.headers.bth.pkey = 0x1234;
    assert_eq!(t.exchange(&[packet]), [""; 0]);
    assert_eq!(t.drops(irdma_transport::DropReason::PKey), 1);
}

#[test]
fn psns_wrap() {
    let last = Psn::new(0xFF_FFFF);
    let mut t = Script::rc_with(|attr| attr.rq_psn = last);
    t.memory.write(0, &pattern(600, 1));
    t.post_recv(1, 0, 8);
    let packets = [t.send_only(last, b"x").ask(), t.read_request(last.add(1), 0, 600)];
    assert_eq!(
        t.exchange(&packets),
        [
            "ACK 16777215 msn=1 credit=31",
            "READ_FIRST 0 msn=2 credit=31 256B",
            "READ_MIDDLE 1 256B",
            "READ_LAST 2 msn=2 credit=31 88B"
        ]
    );
    let duplicate = t.send_only(last, b"x").ask();
    assert_eq!(t.exchange(&[duplicate]), ["ACK 2 msn=2 credit=31"]);
}

#[test]
fn a_packet_before_rts_establishes_and_is_answered() {
    let mut t = Script::reset(irdma_transport::QpType::Rc, |_| {}, |_| {});
    t.modify(QpState::Init).unwrap();
    t.post_recv(7, 0, 8);
    let packet = t.send_only(RQ_PSN, b"x").ask();
    assert_eq!(t.exchange(std::slice::from_ref(&packet)), [""; 0]);
    assert_eq!(t.drops(irdma_transport::DropReason::State), 1);
    t.modify(QpState::Rtr).unwrap();
    assert_eq!(t.exchange(&[packet]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.events(), [EventKind::CommEst]);
    assert_eq!(t.received_short(), [(7, WcStatus::Success)]);
}

#[test]
fn a_solicited_message_wakes_a_queue_armed_for_it() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    t.post_recv(2, 0, 8);
    t.cqs.recv.req_notify_cq(irdma_transport::Arm::Solicited);
    let plain = t.send_only(RQ_PSN, b"x");
    t.deliver(&plain);
    assert_eq!(t.cq_events(), [0; 0]);
    let solicited = t.send_only(RQ_PSN.add(1), b"x").solicited();
    t.deliver(&solicited);
    assert_eq!(t.cq_events(), [t.cqs.recv.token()]);
    assert!(!t.cqs.recv.is_armed());
}

#[test]
fn memory_is_scattered_over_elements() {
    let mut t = Script::rc();
    let sges = [t.memory.sge(0, 3), t.memory.sge(100, 0), t.memory.sge(200, 5)];
    let wr = irdma_transport::RecvWr { wr_id: 7, sges: &sges };
    t.node.endpoint.post_recv(t.now, t.qpn, &wr).unwrap();
    let packet = t.send_only(RQ_PSN, b"abcdefg");
    t.deliver(&packet);
    assert_eq!((t.memory.read(0, 4), t.memory.read(200, 5)), (b"abc\0".into(), b"defg\0".into()));
}
