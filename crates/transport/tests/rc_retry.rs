//! Going back: timeouts, sequence NAKs, RNR and their budgets (IBTA 9.7.5.2, 9.9.2).

use irdma_sim::script::{MTU, SQ_PSN, Script};
use irdma_transport::{EventKind, QpState, SendOp, WcStatus};
use irdma_wire::{NakCode, Position, Syndrome};

const GOOD: Syndrome = Syndrome::Ack { credit: 31 };
const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
const SEND: SendOp = SendOp::Send { imm: None };
/// 4.096 us * 2^14, the timeout of these scripts.
const TIMEOUT_NS: u64 = 4096 << 14;

#[test]
fn a_timeout_sends_again_within_the_budget() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, SEND, 0, 4);
    t.post_recv(9, 0, 4);
    let both = ["SEND_ONLY 100 ask 4B", "SEND_ONLY 101 ask 4B"];
    assert_eq!(t.sent_text(), both);
    for _ in 0..2 {
        assert_eq!(t.wait(TIMEOUT_NS - 1), [""; 0]);
        assert_eq!(t.wait(1), both);
    }
    assert_eq!(t.wait(2 * TIMEOUT_NS), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(t.received_short(), [(9, WcStatus::WrFlushErr)]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpFatal]));
    assert!(t.is_idle());
    let stats = t.node.endpoint.stats();
    assert_eq!((stats.rto, stats.retrans_segs), (3, 4));
}

#[test]
fn progress_gives_the_budget_back() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, SEND, 0, 4);
    t.sent();
    for _ in 0..2 {
        t.wait(TIMEOUT_NS);
    }
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    for _ in 0..2 {
        assert_eq!(t.wait(TIMEOUT_NS), ["SEND_ONLY 101 ask 4B"]);
    }
    t.wait(2 * TIMEOUT_NS);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::RetryExcErr)]);
}

/// IBTA 9.7.6.1.3: no more than four times what the program asked for.
#[test]
fn a_silent_peer_is_given_more_time() {
    let mut t = Script::rc_with(|attr| attr.retry_cnt = 7);
    t.post(1, SEND, 0, 4);
    t.sent();
    for (before, times) in [1, 1, 2, 4, 4, 4, 4].into_iter().enumerate() {
        assert_eq!(t.wait(times * TIMEOUT_NS - 1), [""; 0], "after {before} timeouts");
        assert_eq!(t.wait(1), ["SEND_ONLY 100 ask 4B"], "after {before} timeouts");
    }
    assert_eq!(t.wait(4 * TIMEOUT_NS), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::RetryExcErr)]);
}

/// Only silence lengthens the timeout: after an answer it is what the program asked for.
#[test]
fn an_answer_ends_the_patience() {
    let mut t = Script::rc_with(|attr| attr.retry_cnt = 7);
    t.post(1, SEND, 0, 4);
    t.post(2, SEND, 0, 4);
    t.sent();
    for times in [1, 1, 2, 4] {
        assert_eq!(t.wait(times * TIMEOUT_NS).len(), 2);
    }
    let ack = t.ack(SQ_PSN, GOOD);
    assert_eq!(t.exchange(&[ack]), [""; 0]);
    assert_eq!(t.wait(TIMEOUT_NS), ["SEND_ONLY 101 ask 4B"]);
}

#[test]
fn progress_starts_the_timer_anew() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, SEND, 0, 4);
    t.sent();
    assert_eq!(t.wait(TIMEOUT_NS / 2), [""; 0]);
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.wait(TIMEOUT_NS - 1), [""; 0]);
    assert_eq!(t.wait(1), ["SEND_ONLY 101 ask 4B"]);
}

/// The peer's window is full of another queue pair's packets: what cannot be sent again is not
/// late, and costs no retry.
#[test]
fn waiting_for_the_window_is_no_timeout() {
    let mut t = Script::rc_with(|attr| attr.timeout = 0);
    t.post(1, t.write_op(), 0, 1 << 16);
    t.sent();
    let former = t.switch_to_another(|attr| attr.timeout = 14);
    t.post(2, SEND, 0, 4);
    assert_eq!(t.sent().len(), 1);
    // The loss halves the window, which is now less than half of what is in flight.
    for _ in 0..20 {
        assert_eq!(t.wait(TIMEOUT_NS), [""; 0]);
    }
    assert_eq!((t.completed(), t.state()), (vec![], QpState::Rts));
    let later = std::mem::replace(&mut t.qpn, former);
    let ack = t.ack(SQ_PSN.add(255), GOOD);
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 100 ask 4B"]);
    t.qpn = later;
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn timeout_0_never_runs_out() {
    let mut t = Script::rc_with(|attr| attr.timeout = 0);
    t.post(1, SEND, 0, 4);
    t.sent();
    assert_eq!(t.node.endpoint.poll_timeout().filter(|at| *at > t.now + 1_000_000_000), None);
    assert_eq!(t.wait(1 << 50), [""; 0]);
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn the_shortest_timeout_is_four_milliseconds() {
    let mut t = Script::rc_with(|attr| attr.timeout = 1);
    t.post(1, SEND, 0, 4);
    t.sent();
    assert_eq!(t.wait(3_999_999), [""; 0]);
    assert_eq!(t.wait(1).len(), 1);
}

#[test]
fn a_sequence_nak_resumes_at_the_missing_packet() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 3 * MTU);
    t.sent();
    let nak = t.ack(SQ_PSN.add(1), SEQUENCE);
    assert_eq!(t.exchange(&[nak]), ["SEND_MIDDLE 101 256B", "SEND_LAST 102 ask 256B"]);
    let nak = t.ack(SQ_PSN.add(1), SEQUENCE);
    assert_eq!(t.exchange(&[nak]), [""; 0], "the same gap is mended already");
    let ack = t.ack(SQ_PSN.add(2), GOOD);
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    assert_eq!(t.node.endpoint.stats().nak_sequence_error, 2);
}

#[test]
fn a_resumed_write_starts_where_the_peer_lost_it() {
    let mut t = Script::rc();
    t.post(1, t.write_op(), 0, 2 * MTU);
    t.sent();
    let nak = t.ack(SQ_PSN, SEQUENCE);
    assert_eq!(
        t.exchange(&[nak]),
        ["WRITE_FIRST 100 va=0x1000 len=512 256B", "WRITE_LAST 101 ask 256B"]
    );
}

#[test]
fn sequence_naks_use_the_budget_too() {
    let mut t = Script::rc_with(|attr| attr.retry_cnt = 1);
    t.post(1, SEND, 0, 4);
    t.sent();
    t.wait(TIMEOUT_NS);
    assert_eq!(t.wait(TIMEOUT_NS), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn retransmissions_are_sent_one_by_one() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 3 * MTU);
    t.sent();
    t.now = t.now + TIMEOUT_NS;
    t.node.endpoint.handle_timeout(t.now);
    let mut buffer = vec![0; 65_536];
    let mut batches = Vec::new();
    while let Some(transmit) = t.node.endpoint.poll_transmit(t.now, &mut buffer) {
        batches.push(transmit.len.div_ceil(transmit.segment));
    }
    // Besides the three packets there is a probe of the silent peer.
    assert_eq!(batches, [1, 1, 1, 1]);
    t.now = t.now + TIMEOUT_NS;
    t.node.endpoint.handle_timeout(t.now);
    t.post(2, SEND, 0, 256);
    let mut batches = Vec::new();
    while let Some(transmit) = t.node.endpoint.poll_transmit(t.now, &mut buffer) {
        batches.push(transmit.len.div_ceil(transmit.segment));
    }
    assert_eq!(batches, [1; 5], "a new packet does not join them");
}

#[test]
fn an_acknowledgement_overtakes_a_retransmission() {
    let mut t = Script::rc();
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, 0, 4);
    }
    t.sent();
    t.now = t.now + TIMEOUT_NS;
    t.node.endpoint.handle_timeout(t.now);
    let ack = t.ack(SQ_PSN.add(1), GOOD);
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 102 ask 4B"]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn rnr_waits_as_long_as_the_peer_asks() {
    for (code, ns) in [(1, 10_000), (12, 640_000), (31, 491_520_000), (0, 655_360_000)] {
        let mut t = Script::rc();
        t.post(1, SEND, 0, 4);
        t.post(2, SEND, 0, 4);
        t.sent();
        let rnr = t.ack(SQ_PSN, Syndrome::Rnr { timer: code });
        assert_eq!(t.exchange(&[rnr]), [""; 0]);
        assert_eq!(t.wait(ns - 1), [""; 0], "code {code}");
        assert_eq!(t.wait(1), ["SEND_ONLY 100 ask 4B"], "one, to see whether there is room");
        let ack = t.ack(SQ_PSN, GOOD);
        assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 101 ask 4B"]);
    }
}

#[test]
fn rnr_retries_run_out() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    let rnr = t.ack(SQ_PSN, Syndrome::Rnr { timer: 1 });
    for _ in 0..2 {
        assert_eq!(t.exchange(std::slice::from_ref(&rnr)), [""; 0]);
        assert_eq!(t.wait(10_000).len(), 1);
    }
    assert_eq!(t.exchange(&[rnr]), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::RnrRetryExcErr)]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpFatal]));
}

#[test]
fn rnr_retry_7_has_no_end() {
    let mut t = Script::rc_with(|attr| attr.rnr_retry = 7);
    t.post(1, SEND, 0, 4);
    t.sent();
    let rnr = t.ack(SQ_PSN, Syndrome::Rnr { timer: 1 });
    for _ in 0..1000 {
        t.deliver(&rnr);
        assert_eq!(t.wait(10_000).len(), 1);
    }
    assert_eq!((t.completed(), t.state()), (vec![], QpState::Rts));
    assert_eq!(t.node.endpoint.stats().rnr_received, 1000);
}

/// While the peer asked to wait, its silence is no timeout.
#[test]
fn rnr_stops_the_acknowledgement_timer() {
    let mut t = Script::rc_with(|attr| attr.timeout = 1);
    t.post(1, SEND, 0, 4);
    t.sent();
    let rnr = t.ack(SQ_PSN, Syndrome::Rnr { timer: 31 });
    t.deliver(&rnr);
    assert_eq!(t.wait(400_000_000), [""; 0]);
    assert_eq!(t.node.endpoint.stats().rto, 0);
}

#[test]
fn rnr_acknowledges_what_came_before() {
    let mut t = Script::rc();
    for wr_id in 1..=3 {
        t.post(wr_id, SEND, 0, 4);
    }
    t.sent();
    let rnr = t.ack(SQ_PSN.add(1), Syndrome::Rnr { timer: 1 });
    t.exchange(&[rnr]);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    assert_eq!(t.wait(10_000), ["SEND_ONLY 101 ask 4B"]);
}

#[test]
fn an_rnr_for_another_psn_is_stale() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN, GOOD);
    let rnr = t.ack(SQ_PSN, Syndrome::Rnr { timer: 31 });
    t.exchange(&[ack, rnr]);
    t.post(3, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 102 ask 4B"]);
}

#[test]
fn a_read_resumes_at_the_first_missing_packet_of_its_chunk() {
    let mut t = Script::rc();
    t.post(1, t.read_op(), 0, 4 * MTU);
    t.sent();
    let first = t.read_response(Position::First, SQ_PSN, &[1; MTU]);
    t.exchange(&[first]);
    assert_eq!(t.wait(TIMEOUT_NS), ["READ_REQUEST 101 ask va=0x1100 len=768"]);
    assert_eq!(t.wait(TIMEOUT_NS), ["READ_REQUEST 101 ask va=0x1100 len=768"]);
}

/// A refusal behind an unanswered READ: the READ is asked for again first.
#[test]
fn a_refusal_does_not_skip_a_read() {
    let mut t = Script::rc();
    t.post(1, t.read_op(), 0, 4);
    t.post(2, t.write_op(), 0, 4);
    t.sent();
    let nak = t.ack(SQ_PSN.add(1), Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(t.exchange(&[nak]).len(), 2);
    assert_eq!((t.completed(), t.state()), (vec![], QpState::Rts));
}

#[test]
fn timers_of_the_dead_are_harmless() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    t.modify(QpState::Err).unwrap();
    assert_eq!(t.completed(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(t.wait(TIMEOUT_NS), [""; 0]);
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    t.node.endpoint.destroy_qp(t.qpn).unwrap();
    assert!(t.is_idle());
    // The silent peer is probed three times; then nothing is left to wait for.
    for _ in 0..3 {
        assert_eq!(t.wait(TIMEOUT_NS), [""; 0]);
    }
    assert_eq!(t.node.endpoint.poll_timeout(), None);
}
