//! Requests that come again are answered again and never executed again (IBTA 9.7.5.1.2).

use irdma_sim::pattern;
use irdma_sim::script::{MTU, RQ_PSN, Script};
use irdma_transport::{DropReason, WcStatus};
use irdma_wire::{Operation, Position};

#[test]
fn a_send_is_delivered_once() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    t.post_recv(2, 0, 8);
    let packet = t.send_only(RQ_PSN, b"x").ask();
    assert_eq!(t.exchange(std::slice::from_ref(&packet)), ["ACK 200 msn=1 credit=31"]);
    // Also when it does not ask: the peer resends because an acknowledgement was lost.
    let again = t.send_only(RQ_PSN, b"x");
    assert_eq!(t.exchange(&[again]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)]);
}

#[test]
fn a_write_does_not_undo_what_the_program_did_since() {
    let mut t = Script::rc();
    let packet = t.write_only(RQ_PSN, 0, b"abc").ask();
    t.deliver(&packet);
    t.memory.write(0, b"xyz");
    assert_eq!(t.exchange(&[packet]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.memory.read(0, 3), b"xyz");
}

#[test]
fn a_duplicate_is_answered_with_the_newest_psn() {
    let mut t = Script::rc();
    let packets = [0, 1, 2].map(|n| t.write_only(RQ_PSN.add(n), 0, b"abc").ask());
    t.exchange(&packets);
    assert_eq!(t.exchange(&packets[..1]), ["ACK 202 msn=3 credit=31"]);
}

#[test]
fn an_atomic_is_executed_once_and_returns_the_same() {
    let mut t = Script::rc();
    t.memory.write(0, &5u64.to_ne_bytes());
    let packet = t.fetch_add(RQ_PSN, 0, 10);
    let first = t.exchange(std::slice::from_ref(&packet));
    assert_eq!(first, ["ATOMIC_ACK 200 msn=1 credit=31 value=5"]);
    assert_eq!(t.exchange(&[packet.clone(), packet.clone()]), first);
    assert_eq!(t.memory.word(0), 15);
    let swap = t.compare_swap(RQ_PSN.add(1), 0, 15, 20);
    let first = t.exchange(std::slice::from_ref(&swap));
    assert_eq!(first, ["ATOMIC_ACK 201 msn=2 credit=31 value=15"]);
    assert_eq!(t.exchange(&[swap]), first);
    assert_eq!(t.exchange(&[packet]), ["ATOMIC_ACK 200 msn=1 credit=31 value=5"]);
    assert_eq!(t.memory.word(0), 20);
}

#[test]
fn as_many_atomics_are_kept_as_may_be_outstanding() {
    let mut t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 2);
    let atomics = [0, 1, 2].map(|n| t.fetch_add(RQ_PSN.add(n), 0, 1));
    for packet in &atomics {
        t.exchange(std::slice::from_ref(packet));
    }
    assert_eq!(t.exchange(&atomics[..1]), [""; 0]);
    assert_eq!(t.drops(DropReason::Duplicate), 1);
    assert_eq!(
        t.exchange(&atomics[1..]),
        ["ATOMIC_ACK 201 msn=2 credit=31 value=1", "ATOMIC_ACK 202 msn=3 credit=31 value=2"]
    );
}

#[test]
fn a_read_may_ask_again_for_its_rest() {
    let mut t = Script::rc();
    t.memory.write(0, &pattern(600, 1));
    let whole = t.read_request(RQ_PSN, 0, 600);
    assert_eq!(t.exchange(std::slice::from_ref(&whole)).len(), 3);
    assert_eq!(
        t.exchange(&[whole]),
        [
            "READ_FIRST 200 msn=1 credit=31 256B",
            "READ_MIDDLE 201 256B",
            "READ_LAST 202 msn=1 credit=31 88B"
        ]
    );
    let rest = t.read_request(RQ_PSN.add(1), MTU, 600 - MTU as u32);
    t.deliver(&rest);
    let answers = t.sent();
    assert_eq!(answers[0].to_string(), "READ_FIRST 201 msn=1 credit=31 256B");
    assert_eq!(answers[1].to_string(), "READ_LAST 202 msn=1 credit=31 88B");
    assert_eq!(answers[0].payload, pattern(600, 1)[MTU..2 * MTU]);
    let end = t.read_request(RQ_PSN.add(2), 2 * MTU, 88);
    assert_eq!(t.exchange(&[end]), ["READ_ONLY 202 msn=1 credit=31 88B"]);
}

#[test]
fn a_read_may_not_grow() {
    let mut t = Script::rc();
    let read = t.read_request(RQ_PSN, 0, 600);
    t.exchange(&[read]);
    for (skip, len) in [(0, 4 * MTU as u32), (1, 600), (2, 2 * MTU as u32)] {
        let longer = t.read_request(RQ_PSN.add(skip), 0, len);
        assert_eq!(t.exchange(&[longer]), [""; 0], "{skip} {len}");
    }
    assert_eq!(t.drops(DropReason::Duplicate), 3);
}

/// Its key is checked like that of any READ, although its PSN was granted before.
#[test]
fn a_repeated_read_cannot_reach_other_memory() {
    let mut t = Script::rc();
    let read = t.read_request(RQ_PSN, 0, 16);
    t.exchange(&[read]);
    let packet = t.request(Operation::ReadRequest, Position::Only, RQ_PSN);
    let forged = packet.reth(t.memory.addr(0) - 100, t.memory.mr.rkey, 16);
    assert_eq!(t.exchange(&[forged]), ["NAK_ACCESS 200 msn=1"]);
}

#[test]
fn a_read_that_is_still_being_answered_is_not_answered_twice() {
    let mut t = Script::rc();
    let read = t.read_request(RQ_PSN, 0, 600);
    assert_eq!(t.exchange(&[read.clone(), read]).len(), 3);
}

/// The peer went back: it will ask for everything after that again, too.
#[test]
fn going_back_replaces_the_answers_that_wait() {
    let mut t = Script::rc();
    let reads = [0, 1, 2].map(|n| t.read_request(RQ_PSN.add(n), 0, 4));
    t.exchange(&reads[..1]);
    t.deliver(&reads[1]);
    t.deliver(&reads[0]);
    t.deliver(&reads[1]);
    t.deliver(&reads[2]);
    assert_eq!(
        t.sent_text(),
        [
            "READ_ONLY 200 msn=2 credit=31 4B",
            "READ_ONLY 201 msn=2 credit=31 4B",
            "READ_ONLY 202 msn=3 credit=31 4B"
        ]
    );
}

/// An answer that is repeated does not take the place of one that is agreed on.
#[test]
fn repeated_answers_do_not_count_against_the_limit() {
    let mut t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 1);
    let first = t.read_request(RQ_PSN, 0, 4);
    t.exchange(std::slice::from_ref(&first));
    let second = t.read_request(RQ_PSN.add(1), 0, 4);
    assert_eq!(
        t.exchange(&[first, second]),
        ["READ_ONLY 200 msn=1 credit=31 4B", "READ_ONLY 201 msn=2 credit=31 4B"]
    );
}

#[test]
fn a_reset_forgets_what_was_kept() {
    let mut t = Script::rc();
    let packet = t.fetch_add(RQ_PSN, 0, 1);
    t.exchange(std::slice::from_ref(&packet));
    use irdma_transport::QpState::{Init, Reset, Rtr, Rts};
    t.attr.rq_psn = RQ_PSN.add(1);
    for to in [Reset, Init, Rtr, Rts] {
        t.modify(to).unwrap();
    }
    assert_eq!(t.exchange(&[packet]), [""; 0]);
    assert_eq!(t.drops(DropReason::Duplicate), 1);
    assert_eq!(t.memory.word(0), 1);
}

/// A negative answer that waits covers a duplicate, and is not replaced by its acknowledgement.
#[test]
fn a_duplicate_does_not_hide_a_refusal() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 8);
    let first = t.send_only(RQ_PSN, b"x").ask();
    t.exchange(std::slice::from_ref(&first));
    let second = t.send_only(RQ_PSN.add(1), b"y");
    assert_eq!(t.exchange(&[second, first]), ["RNR 201 msn=1 timer=12"]);
}
