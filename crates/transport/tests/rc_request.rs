//! The requester of a reliable connection: what it sends and what completes it (IBTA 9.7.2, 9.7.3)

use irdma_sim::pattern;
use irdma_sim::script::{HERE, MTU, SQ_PSN, Script};
use irdma_transport::{
    DropReason, EventKind, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use irdma_wire::icrc::{Verdict, verify};
use irdma_wire::{FlowKey, NakCode, Position, Syndrome};

const GOOD: Syndrome = Syndrome::Ack { credit: 31 };
const SEND: SendOp = SendOp::Send { imm: None };

#[test]
fn a_send_is_cut_into_packets() {
    let mut t = Script::rc();
    let data = pattern(MTU * 5 / 2, 1);
    t.memory.write(10, &data);
    t.post(7, SEND, 10, data.len());
    let sent = t.sent();
    let text: Vec<_> = sent.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["SEND_FIRST 100 256B", "SEND_MIDDLE 101 256B", "SEND_LAST 102 ask 128B"]);
    assert_eq!(sent.iter().flat_map(|packet| packet.payload.clone()).collect::<Vec<_>>(), data);
    assert!(sent.iter().all(|packet| packet.headers.bth.dest_qpn == irdma_sim::script::PEER));
    assert_eq!(t.completed(), []);
    let ack = t.ack(SQ_PSN.add(2), GOOD);
    assert_eq!(t.exchange(&[ack]), [""; 0]);
    assert_eq!(t.completed(), [(7, WcStatus::Success)]);
    assert!(t.is_idle());
}

#[test]
fn every_operation_has_its_packet() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 0);
    t.post_flags(2, SendOp::Send { imm: Some([1, 2, 3, 4]) }, 0, 5, SendFlags::SOLICITED);
    t.post(3, SendOp::SendInvalidate { rkey: 0x55 }, 0, 1);
    let (remote_addr, rkey) = (0x1000, 0xABCD);
    t.post(4, SendOp::Write { remote_addr, rkey, imm: None }, 0, 3);
    t.post(5, SendOp::Write { remote_addr, rkey, imm: Some([5; 4]) }, 0, MTU + 1);
    t.post(6, SendOp::Read { remote_addr, rkey }, 0, 1000);
    t.post(7, SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 }, 0, 8);
    t.post(8, SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 0, 8);
    assert_eq!(
        t.sent_text(),
        [
            "SEND_ONLY 100 ask 0B",
            "SEND_ONLY 101 ask se imm=01020304 5B",
            "SEND_ONLY 102 ask invalidates 1B",
            "WRITE_ONLY 103 ask va=0x1000 len=3 3B",
            "WRITE_FIRST 104 va=0x1000 len=257 256B",
            "WRITE_LAST 105 ask imm=05050505 1B",
            "READ_REQUEST 106 ask va=0x1000 len=1000",
            "COMPARE_SWAP 110 ask va=0x1000 value=2 compare=1",
            "FETCH_ADD 111 ask va=0x1000 value=3 compare=0",
        ]
    );
}

#[test]
fn one_acknowledgement_completes_all_before_it() {
    let mut t = Script::rc();
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, 0, 4);
    }
    assert_eq!(t.sent().len(), 3);
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let ack = t.ack(SQ_PSN.add(2), GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(3, WcStatus::Success)]);
}

#[test]
fn an_acknowledgement_inside_a_message_completes_nothing() {
    let mut t = Script::rc();
    t.post(7, SEND, 0, 3 * MTU);
    t.sent();
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), []);
    assert!(!t.is_idle());
}

#[test]
fn answers_to_nothing_are_dropped() {
    let mut t = Script::rc();
    t.post(7, SEND, 0, 4);
    t.sent();
    for psn in [SQ_PSN.add(1), SQ_PSN.sub(2), SQ_PSN.add(1 << 22)] {
        let ack = t.ack(psn, GOOD);
        assert_eq!(t.exchange(&[ack]), [""; 0]);
    }
    let data = t.read_response(Position::Only, SQ_PSN, b"abcd");
    assert_eq!(t.exchange(&[data]), [""; 0]);
    let atomic = t.atomic_ack(SQ_PSN, 1);
    assert_eq!(t.exchange(&[atomic]), [""; 0]);
    let reserved = t.ack(SQ_PSN, Syndrome::Reserved(0x47));
    assert_eq!(t.exchange(&[reserved]), [""; 0]);
    assert_eq!(t.drops(DropReason::Stale), 6);
    assert_eq!(t.completed(), []);
}

#[test]
fn a_read_places_what_it_gets() {
    let mut t = Script::rc();
    let data = pattern(600, 4);
    t.post(7, t.read_op(), 20, 600);
    assert_eq!(t.sent_text(), ["READ_REQUEST 100 ask va=0x1000 len=600"]);
    let answers = [
        t.read_response(Position::First, SQ_PSN, &data[..MTU]),
        t.read_response(Position::Middle, SQ_PSN.add(1), &data[MTU..2 * MTU]),
        t.read_response(Position::Last, SQ_PSN.add(2), &data[2 * MTU..]),
    ];
    assert_eq!(t.exchange(&answers[..2]), [""; 0]);
    assert_eq!(t.completed(), []);
    assert_eq!(t.exchange(&answers[2..]), [""; 0]);
    assert_eq!(t.completed(), [(7, WcStatus::Success)]);
    assert_eq!(t.memory.read(20, 600), data);
    assert!(t.is_idle());
}

/// rxe answers a READ that was resumed in its middle with MIDDLE to LAST, without an AETH first.
#[test]
fn a_resumed_read_takes_middle_packets_first() {
    let mut t = Script::rc();
    let data = pattern(1000, 5);
    t.post(7, t.read_op(), 0, 1000);
    t.sent();
    let packets: Vec<&[u8]> = data.chunks(MTU).collect();
    let first = t.read_response(Position::First, SQ_PSN, packets[0]);
    let third = t.read_response(Position::Middle, SQ_PSN.add(2), packets[2]);
    assert_eq!(
        t.exchange(&[first, third]),
        ["READ_REQUEST 101 ask va=0x1100 len=744"],
        "a gap is seen at once"
    );
    let rest = [
        t.read_response(Position::Middle, SQ_PSN.add(1), packets[1]),
        t.read_response(Position::Middle, SQ_PSN.add(2), packets[2]),
        t.read_response(Position::Last, SQ_PSN.add(3), packets[3]),
    ];
    assert_eq!(t.exchange(&rest), [""; 0]);
    assert_eq!(t.completed(), [(7, WcStatus::Success)]);
    assert_eq!(t.memory.read(0, 1000), data);
}

#[test]
fn a_read_answer_acknowledges_what_was_sent_before() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, t.read_op(), 0, 4);
    t.sent();
    let answer = t.read_response(Position::Only, SQ_PSN.add(1), b"abcd");
    t.exchange(&[answer]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

/// An acknowledgement of what came later says that the answer to the READ was lost.
#[test]
fn an_acknowledgement_cannot_stand_for_read_data() {
    let mut t = Script::rc();
    t.post(1, t.read_op(), 0, 4);
    t.post(2, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    assert_eq!(
        t.exchange(&[ack]),
        ["READ_REQUEST 100 ask va=0x1000 len=4", "SEND_ONLY 101 ask 4B"]
    );
    assert_eq!(t.completed(), []);
    assert_eq!(t.node.endpoint.stats().nak_sequence_error_implied, 1);
    // A second one for the same gap changes nothing.
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    assert_eq!(t.exchange(&[ack]), [""; 0]);
    let answer = t.read_response(Position::Only, SQ_PSN, b"abcd");
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    t.exchange(&[answer, ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn an_atomic_returns_the_original_in_host_order() {
    let mut t = Script::rc();
    t.post(7, t.fetch_add_op(1), 8, 8);
    t.sent();
    let answer = t.atomic_ack(SQ_PSN, 0x0102_0304_0506_0708);
    t.exchange(&[answer]);
    assert_eq!(t.completed(), [(7, WcStatus::Success)]);
    assert_eq!(t.memory.word(8), 0x0102_0304_0506_0708);
    assert!(t.is_idle());
}

#[test]
fn a_read_answer_of_the_wrong_length_ends_the_queue_pair() {
    for len in [3, 5, 0] {
        let mut t = Script::rc();
        t.post(7, t.read_op(), 0, 4);
        t.sent();
        let answer = t.read_response(Position::Only, SQ_PSN, &vec![1; len]);
        t.exchange(&[answer]);
        assert_eq!(t.completed(), [(7, WcStatus::BadRespErr)]);
        assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpFatal]));
        assert_eq!(t.memory.read(0, 5), [0; 5]);
    }
}

#[test]
fn refusals_end_the_queue_pair() {
    for (code, status, event) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr, EventKind::QpReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr, EventKind::QpAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr, EventKind::QpFatal),
        (NakCode::Other(9), WcStatus::RemInvReqErr, EventKind::QpReqErr),
    ] {
        let mut t = Script::rc();
        for wr_id in 1..=3 {
            t.post(wr_id, SEND, 0, 4);
        }
        t.sent();
        t.post_recv(9, 0, 4);
        let nak = t.ack(SQ_PSN.add(1), Syndrome::Nak(code));
        assert_eq!(t.exchange(&[nak]), [""; 0]);
        assert_eq!(t.completed(), [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)]);
        assert_eq!(t.received_short(), [(9, WcStatus::WrFlushErr)]);
        assert_eq!((t.state(), t.events()), (QpState::Err, vec![event]));
        assert!(t.is_idle());
    }
}

/// rxe answers a SEND that is too long with 0x63, the specification's responder with 0x61.
#[test]
fn both_answers_to_a_long_send_are_understood() {
    for (byte, status) in [(0x63, WcStatus::RemOpErr), (0x61, WcStatus::RemInvReqErr)] {
        let mut t = Script::rc();
        t.post(1, SEND, 0, 100);
        t.sent();
        let nak = t.ack(SQ_PSN, Syndrome::from_byte(byte));
        t.exchange(&[nak]);
        assert_eq!(t.completed(), [(1, status)]);
    }
}

#[test]
fn no_more_reads_are_outstanding_than_agreed() {
    let mut t = Script::rc_with(|attr| attr.max_rd_atomic = 1);
    t.post(1, t.read_op(), 0, 4);
    t.post(2, t.fetch_add_op(1), 8, 8);
    t.post(3, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["READ_REQUEST 100 ask va=0x1000 len=4"]);
    let answer = t.read_response(Position::Only, SQ_PSN, b"abcd");
    assert_eq!(
        t.exchange(&[answer]),
        ["FETCH_ADD 101 ask va=0x1000 value=1 compare=0", "SEND_ONLY 102 ask 4B"]
    );
}

#[test]
fn a_read_without_a_right_to_any_fails_locally() {
    let mut t = Script::rc_with(|attr| attr.max_rd_atomic = 0);
    t.post(1, t.read_op(), 0, 4);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocQpOpErr)]);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn a_fence_waits_for_reads_and_not_for_sends() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post_flags(2, SEND, 0, 4, SendFlags::FENCE);
    t.post(3, t.read_op(), 0, 4);
    t.post_flags(4, SEND, 0, 4, SendFlags::FENCE);
    assert_eq!(
        t.sent_text(),
        ["SEND_ONLY 100 ask 4B", "SEND_ONLY 101 ask 4B", "READ_REQUEST 102 ask va=0x1000 len=4"]
    );
    let answer = t.read_response(Position::Only, SQ_PSN.add(2), b"abcd");
    assert_eq!(t.exchange(&[answer]), ["SEND_ONLY 103 ask 4B"]);
}

#[test]
fn unsignalled_requests_complete_in_silence_and_fail_aloud() {
    let mut t = Script::with(QpType::Rc, |init| init.sq_sig_all = false, |_| {});
    t.post(1, SEND, 0, 4);
    t.post_flags(2, SEND, 0, 4, SendFlags::SIGNALED);
    t.post(3, SEND, 0, 4);
    t.post(4, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(2, WcStatus::Success)]);
    let nak = t.ack(SQ_PSN.add(2), Syndrome::Nak(NakCode::RemoteAccess));
    t.exchange(&[nak]);
    assert_eq!(t.completed(), [(3, WcStatus::RemAccessErr), (4, WcStatus::WrFlushErr)]);
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    let mut t = Script::rc();
    fn inline(op: SendOp, data: &[u8]) -> SendWr<'_> {
        let flags = SendFlags::INLINE;
        SendWr { wr_id: 1, op, flags, data: SendData::Inline(data), ud: None }
    }
    let mut data = *b"hello";
    t.post_wr(&inline(SEND, &data)).unwrap();
    data.fill(0);
    assert_eq!(t.sent()[0].payload, b"hello");
    for wr in [inline(SEND, &[0; 65]), inline(t.read_op(), &data)] {
        assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22);
    }
    assert_eq!(t.sent_text(), [""; 0]);
}

/// The earlier requests complete first, then the bad one, then those behind it.
#[test]
fn a_bad_local_key_fails_in_its_turn() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    let mut sge = t.memory.sge(0, 4);
    sge.lkey ^= 0x100;
    let flags = SendFlags::empty();
    let wr = SendWr { wr_id: 2, op: SEND, flags, data: SendData::Sges(&[sge]), ud: None };
    t.post_wr(&wr).unwrap();
    t.post(3, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 4B"]);
    assert_eq!(t.completed(), []);
    let ack = t.ack(SQ_PSN, GOOD);
    assert_eq!(t.exchange(&[ack]), [""; 0]);
    assert_eq!(
        t.completed(),
        [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]
    );
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpAccessErr]));
    assert!(t.is_idle());
}

#[test]
fn an_element_past_its_region_fails_locally() {
    let mut t = Script::rc();
    t.post(1, SEND, (1 << 16) - 3, 4);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_read_into_a_bad_key_fails_when_data_comes() {
    let mut t = Script::rc();
    t.memory = t.node.memory_with(64, irdma_mem::Access::empty());
    t.post(1, t.read_op(), 0, 4);
    t.sent();
    let answer = t.read_response(Position::Only, SQ_PSN, b"abcd");
    t.exchange(&[answer]);
    assert_eq!(t.completed(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(t.memory.read(0, 4), [0; 4]);
}

#[test]
fn an_atomic_of_another_length_fails_locally() {
    let mut t = Script::rc();
    t.post(1, t.fetch_add_op(1), 0, 4);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocLenErr)]);
}

/// Credit code 3 grants three receive requests beyond the messages that were counted.
#[test]
fn lower_credits_are_honoured() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN, Syndrome::Ack { credit: 3 });
    t.exchange(&[ack]);
    for wr_id in 2..8 {
        t.post(wr_id, SEND, 0, 4);
    }
    assert_eq!(t.sent().len(), 3);
    let ack = t.ack(SQ_PSN.add(1), Syndrome::Ack { credit: 2 });
    assert_eq!(t.exchange(&[ack]), [""; 0], "two are on their way");
    let ack = t.ack(SQ_PSN.add(3), Syndrome::Ack { credit: 0 });
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 104 ask 4B"], "one may always ask");
    let ack = t.ack(SQ_PSN.add(4), GOOD);
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 105 ask 4B", "SEND_ONLY 106 ask 4B"]);
}

#[test]
fn credits_do_not_hold_back_what_takes_no_receive() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN, Syndrome::Ack { credit: 0 });
    t.exchange(&[ack]);
    t.post(2, SEND, 0, 4);
    t.post(3, t.write_op(), 0, 4);
    t.post(4, SendOp::Write { remote_addr: 0x1000, rkey: 1, imm: Some([0; 4]) }, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 101 ask 4B", "WRITE_ONLY 102 ask va=0x1000 len=4 4B"]);
}

/// A long message asks on its way, so that the window does not close without an answer.
#[test]
fn a_long_message_asks_every_quarter_window() {
    let mut t = Script::rc();
    t.post(1, t.write_op(), 0, 1 << 16);
    let asked: Vec<u32> = t
        .sent()
        .iter()
        .filter(|packet| packet.headers.bth.ack_request)
        .map(|packet| packet.headers.bth.psn.get() - SQ_PSN.get())
        .collect();
    assert_eq!(asked, [63, 127, 191, 255], "64 KiB are 256 packets");
}

/// The responses to a READ longer than this side's receive buffer are asked for piece by piece.
#[test]
fn a_long_read_is_asked_for_in_chunks_that_fit() {
    let mut t = Script::rc();
    t.node.endpoint.set_recv_window(32 << 10);
    t.post(1, t.read_op(), 0, 1 << 14);
    assert_eq!(
        t.sent_text(),
        ["READ_REQUEST 100 ask va=0x1000 len=2048", "READ_REQUEST 108 ask va=0x1800 len=2048"]
    );
    let data = pattern(1 << 14, 9);
    for n in 0..64u32 {
        let part = &data[n as usize * MTU..][..MTU];
        let position = match n % 8 {
            0 => Position::First,
            7 => Position::Last,
            _ => Position::Middle,
        };
        let answer = t.read_response(position, SQ_PSN.add(n), part);
        let asked = t.exchange(&[answer]);
        let more = n % 8 == 7 && n < 48;
        assert_eq!(asked.len(), usize::from(more), "after packet {n}: {asked:?}");
    }
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    assert_eq!(t.memory.read(0, 1 << 14), data);
    assert!(t.is_idle());
}

#[test]
fn a_full_send_queue_refuses_and_takes_again() {
    let mut t = Script::rc();
    for wr_id in 0..16 {
        t.post(wr_id, SEND, 0, 4);
    }
    let sges = [t.memory.sge(0, 4)];
    let flags = SendFlags::empty();
    let wr = SendWr { wr_id: 16, op: SEND, flags, data: SendData::Sges(&sges), ud: None };
    assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 12);
    assert_eq!(t.sent().len(), 16);
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 12, "its completion is not polled");
    assert_eq!(t.completed(), [(0, WcStatus::Success)]);
    t.post_wr(&wr).unwrap();
    assert_eq!(t.sent_text(), ["SEND_ONLY 116 ask 4B"]);
}

#[test]
fn psns_wrap_in_a_message() {
    let start = irdma_wire::Psn::new(0xFF_FFFF);
    let mut t = Script::rc_with(|attr| attr.sq_psn = start);
    t.post(1, SEND, 0, 3 * MTU);
    t.post(2, t.read_op(), 0, 2 * MTU);
    assert_eq!(
        t.sent_text(),
        [
            "SEND_FIRST 16777215 256B",
            "SEND_MIDDLE 0 256B",
            "SEND_LAST 1 ask 256B",
            "READ_REQUEST 2 ask va=0x1000 len=512"
        ]
    );
    let first = t.read_response(Position::First, start.add(3), &[1; MTU]);
    let last = t.read_response(Position::Last, start.add(4), &[2; MTU]);
    t.exchange(&[first, last]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn the_answer_has_to_be_of_the_requests_kind() {
    let mut t = Script::rc();
    t.post(1, t.read_op(), 0, 8);
    t.sent();
    let atomic = t.atomic_ack(SQ_PSN, 5);
    t.exchange(&[atomic]);
    let mut t2 = Script::rc();
    t2.post(1, t2.fetch_add_op(1), 0, 8);
    t2.sent();
    let read = t2.read_response(Position::Only, SQ_PSN, &[5; 8]);
    t2.exchange(&[read]);
    for mut t in [t, t2] {
        assert_eq!((t.completed(), t.drops(DropReason::Stale)), (vec![], 1));
        assert_eq!(t.memory.word(0), 0);
    }
}

/// Another queue pair fills the window that they share, and is never answered: it has no timer.
#[test]
fn nobody_waits_for_the_silent_for_ever() {
    let mut t = Script::rc_with(|attr| attr.timeout = 0);
    t.post(1, t.write_op(), 0, 1 << 16);
    t.sent();
    t.switch_to_another(|attr| attr.timeout = 14);
    for wr_id in 2..5 {
        t.post(wr_id, SEND, 0, 4);
        assert_eq!(t.sent().len(), 1);
        let ack = t.ack(SQ_PSN.add(wr_id as u32 - 2), GOOD);
        t.exchange(&[ack]);
        assert_eq!(t.completed(), [(wr_id, WcStatus::Success)]);
    }
}

/// Those that waited longer are woken first, and are gone: the last one is woken all the same.
#[test]
fn waiting_behind_the_dead_ends() {
    let mut t = Script::rc();
    let first = t.qpn;
    t.post(1, t.write_op(), 0, 1 << 16);
    t.sent();
    for wr_id in 0..16 {
        t.switch_to_another(|attr| attr.path_mtu = 4096);
        t.post(wr_id, SEND, 0, 4);
        assert_eq!(t.sent().len(), 1);
    }
    let waiting: Vec<_> = (0..70)
        .map(|wr_id| {
            t.switch_to_another(|attr| attr.path_mtu = 1024);
            t.post(wr_id, SEND, 0, 4);
            assert_eq!(t.sent_text(), [""; 0], "twice the window is in flight");
            t.qpn
        })
        .collect();
    for qpn in &waiting[..69] {
        t.node.endpoint.destroy_qp(*qpn).unwrap();
    }
    t.qpn = first;
    let ack = t.ack(SQ_PSN.add(255), GOOD);
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 100 ask 4B"]);
}

#[test]
fn a_queue_in_error_fills_up_with_what_is_not_polled() {
    let mut t = Script::rc();
    t.modify(QpState::Err).unwrap();
    let sges = [t.memory.sge(0, 4)];
    let flags = SendFlags::empty();
    let send = SendWr { wr_id: 1, op: SEND, flags, data: SendData::Sges(&sges), ud: None };
    let sends = (0..100).take_while(|_| t.post_wr(&send).is_ok()).count();
    let (qpn, receive) = (t.qpn, RecvWr { wr_id: 2, sges: &sges });
    let endpoint = &mut t.node.endpoint;
    let receives =
        (0..100).take_while(|_| endpoint.post_recv(t.now, qpn, &receive).is_ok()).count();
    assert_eq!((sends, receives), (16, 16));
    assert_eq!((t.completed().len(), t.received().len()), (16, 16));
    t.post_wr(&send).unwrap();
}

/// The next batch, verified with the source ports that its address has now.
fn sent_from(t: &mut Script, ports: &[u16]) -> usize {
    let mut buffer = vec![0; 1 << 16];
    let mut count = 0;
    while let Some(transmit) = t.node.endpoint.poll_transmit(t.now, &mut buffer) {
        let src_port = ports[transmit.port];
        let flow = FlowKey { src: transmit.src, dst: transmit.dst, src_port };
        for (id, bytes) in buffer[..transmit.len].chunks(transmit.segment).enumerate() {
            assert_eq!(verify(&flow, id as u16, bytes), Verdict::Good);
            count += 1;
        }
    }
    count
}

#[test]
fn an_address_that_comes_back_signs_with_its_new_ports() {
    let mut t = Script::rc();
    t.node.endpoint.remove_local(HERE);
    let ports = [60_001, 60_002];
    t.node.endpoint.add_local(HERE, ports.to_vec(), 4096);
    t.post(1, SEND, 0, 4);
    assert!(sent_from(&mut t, &ports) > 0);
}
