//! What a reliable responder refuses: answer, state after it, event (IBTA 9.7.5.2, 9.9.3).

use irdma_mem::Access;
use irdma_sim::script::{MTU, Pkt, RQ_PSN, Script};
use irdma_transport::{EventKind, QpState, RecvWr, WcStatus};
use irdma_wire::{Operation, Position};

/// One request is refused: its answer, and the event of the queue pair, which is then in error.
#[track_caller]
fn refused(t: &mut Script, packet: Pkt, answer: &str, event: EventKind) {
    assert_eq!(t.exchange(&[packet]), [answer]);
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.events(), [event]);
    assert!(t.memory.guards_are_whole());
}

#[test]
fn a_bad_key_is_an_access_error() {
    for operation in [Operation::Write, Operation::ReadRequest] {
        let mut t = Script::rc();
        let packet = t.request(operation, Position::Only, RQ_PSN).reth(t.memory.addr(0), 0x99, 4);
        let packet = if operation == Operation::Write { packet.payload(b"abcd") } else { packet };
        refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    }
    let mut t = Script::rc();
    let packet =
        t.request(Operation::FetchAdd, Position::Only, RQ_PSN).atomic(t.memory.addr(0), 0x99, 1, 0);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
}

#[test]
fn a_range_past_the_region_is_an_access_error() {
    let mut t = Script::rc();
    let packet = t.write_only(RQ_PSN, (1 << 16) - 3, b"abcd");
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let mut t = Script::rc();
    let packet = t.read_request(RQ_PSN, (1 << 16) - 3, 4);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let mut t = Script::rc();
    let packet = t
        .request(Operation::Write, Position::Only, RQ_PSN)
        .reth(u64::MAX - 1, t.memory.mr.rkey, 4)
        .payload(b"abcd");
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
}

/// The length of the whole message counts, before its first byte is placed.
#[test]
fn a_long_write_past_the_region_changes_nothing() {
    let mut t = Script::rc();
    let at = (1 << 16) - MTU;
    let packet = t
        .request(Operation::Write, Position::First, RQ_PSN)
        .reth(t.memory.addr(at), t.memory.mr.rkey, MTU as u32 + 1)
        .payload(&[7; MTU]);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    assert_eq!(t.memory.read(at, MTU), [0; MTU]);
}

#[test]
fn a_region_without_the_right_is_an_access_error() {
    for (access, write) in [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, true),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, false),
    ] {
        let mut t = Script::rc();
        t.memory = t.node.memory_with(4096, access);
        let packet =
            if write { t.write_only(RQ_PSN, 0, b"ab") } else { t.read_request(RQ_PSN, 0, 2) };
        refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    }
    let mut t = Script::rc();
    t.memory = t.node.memory_with(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let packet = t.fetch_add(RQ_PSN, 0, 1);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
}

#[test]
fn a_region_of_another_domain_is_an_access_error() {
    let mut t = Script::rc();
    let table = irdma_transport::PdTable::new(8);
    let others = [(); 3].map(|()| table.alloc_pd().unwrap());
    let other = others.iter().find(|pd| pd.id() != t.node.pd.id()).unwrap();
    t.memory = irdma_sim::Memory::new(&t.node.mem, other, 64, 0x9_0000, t.memory.mr.access);
    let packet = t.write_only(RQ_PSN, 0, b"ab");
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
}

#[test]
fn a_queue_pair_without_the_right_is_an_invalid_request() {
    for (missing, kind) in [
        (Access::REMOTE_WRITE, Operation::Write),
        (Access::REMOTE_READ, Operation::ReadRequest),
        (Access::REMOTE_ATOMIC, Operation::FetchAdd),
    ] {
        let mut t = Script::rc_with(|attr| attr.access -= missing);
        let packet = match kind {
            Operation::Write => t.write_only(RQ_PSN, 0, b"ab"),
            Operation::ReadRequest => t.read_request(RQ_PSN, 0, 2),
            _ => t.fetch_add(RQ_PSN, 0, 2),
        };
        refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpAccessErr);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut t = Script::rc();
    let packet = t.fetch_add(RQ_PSN, 4, 1);
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
}

#[test]
fn a_message_out_of_its_order_is_an_invalid_request() {
    use Operation::{ReadRequest, Send, Write};
    use Position::{First, Last, Middle, Only};
    for (before, then, position) in [
        (None, Send, Middle),
        (None, Send, Last),
        (None, Write, Middle),
        (Some(Send), Send, First),
        (Some(Send), Send, Only),
        (Some(Send), Write, Middle),
        (Some(Send), Write, Last),
        (Some(Send), ReadRequest, Only),
        (Some(Write), Write, First),
        (Some(Write), Send, Last),
        (Some(Write), Send, Only),
    ] {
        let mut t = Script::rc();
        t.post_recv(7, 0, 4096);
        let mut psn = RQ_PSN;
        if let Some(before) = before {
            let packet = t.request(before, First, psn).payload(&[0; MTU]);
            let (va, rkey) = (t.memory.addr(0), t.memory.mr.rkey);
            t.deliver(&if before == Write { packet.reth(va, rkey, 4096) } else { packet });
            psn = psn.add(1);
        }
        let packet = t.request(then, position, psn);
        let packet = if packet.headers.bth.opcode.has_reth() {
            packet.reth(t.memory.addr(0), t.memory.mr.rkey, MTU as u32)
        } else {
            packet
        };
        let packet = if then == ReadRequest { packet } else { packet.payload(&[0; MTU]) };
        let answer = format!("NAK_INVALID {} msn=0", psn.get());
        refused(&mut t, packet, &answer, EventKind::QpReqErr);
        assert_eq!(t.received_short(), [(7, WcStatus::WrFlushErr)], "{before:?} {then:?}");
    }
}

#[test]
fn a_packet_of_the_wrong_length_is_an_invalid_request() {
    for (position, len) in [
        (Position::First, MTU - 4),
        (Position::First, MTU + 4),
        (Position::First, 0),
        (Position::Only, MTU + 1),
    ] {
        let mut t = Script::rc();
        t.post_recv(7, 0, 4096);
        let packet = t.request(Operation::Send, position, RQ_PSN).payload(&vec![0; len]);
        refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    }
    for (position, len) in [
        (Position::Middle, MTU - 1),
        (Position::Middle, 0),
        (Position::Last, 0),
        (Position::Last, MTU + 4),
    ] {
        let mut t = Script::rc();
        t.post_recv(7, 0, 4096);
        let first = t.request(Operation::Send, Position::First, RQ_PSN).payload(&[0; MTU]);
        t.deliver(&first);
        let packet = t.request(Operation::Send, position, RQ_PSN.add(1)).payload(&vec![0; len]);
        refused(&mut t, packet, "NAK_INVALID 201 msn=0", EventKind::QpReqErr);
    }
}

#[test]
fn a_write_that_does_not_match_its_length_is_an_invalid_request() {
    let first = |t: &Script, len: u32| {
        let packet = t.request(Operation::Write, Position::First, RQ_PSN).payload(&[1; MTU]);
        packet.reth(t.memory.addr(0), t.memory.mr.rkey, len)
    };
    let mut t = Script::rc();
    let packet = t.write_only(RQ_PSN, 0, b"abcd").reth(t.memory.addr(0), t.memory.mr.rkey, 5);
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    for len in [0, 10, MTU as u32] {
        let mut t = Script::rc();
        let packet = first(&t, len);
        refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
        assert_eq!(t.memory.read(0, MTU), [0; MTU]);
    }
    let mut t = Script::rc();
    let packet = first(&t, MTU as u32 + 10);
    t.deliver(&packet);
    let last = t.request(Operation::Write, Position::Last, RQ_PSN.add(1)).payload(&[1; 11]);
    refused(&mut t, last, "NAK_INVALID 201 msn=0", EventKind::QpReqErr);
    assert_eq!(t.memory.read(MTU, 11), [0; 11]);
}

#[test]
fn a_length_above_two_gigabytes_is_an_invalid_request() {
    let mut t = Script::rc();
    let packet = t.read_request(RQ_PSN, 0, (1 << 31) + 1);
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    let mut t = Script::rc();
    let packet = t.request(Operation::Write, Position::First, RQ_PSN).payload(&[1; MTU]);
    let packet = packet.reth(t.memory.addr(0), t.memory.mr.rkey, (1 << 31) + 1);
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
}

#[test]
fn a_message_longer_than_the_receive_ends_both() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 4);
    t.post_recv(8, 0, 4);
    let packet = t.send_only(RQ_PSN, b"abcde");
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpFatal);
    assert_eq!(t.received_short(), [(7, WcStatus::LocLenErr), (8, WcStatus::WrFlushErr)]);
    assert_eq!(t.memory.read(0, 4), [0; 4]);
}

#[test]
fn a_receive_with_a_bad_key_is_the_responders_fault() {
    let mut t = Script::rc();
    let mut sge = t.memory.sge(0, 8);
    sge.lkey ^= 1;
    let wr = RecvWr { wr_id: 7, sges: &[sge] };
    t.node.endpoint.post_recv(t.now, t.qpn, &wr).unwrap();
    let packet = t.send_only(RQ_PSN, b"abc");
    refused(&mut t, packet, "NAK_OPERATION 200 msn=0", EventKind::QpAccessErr);
    assert_eq!(t.received_short(), [(7, WcStatus::LocProtErr)]);
}

/// A registered region cannot be invalidated by the peer.
#[test]
fn an_invalidate_of_what_is_no_window_is_refused() {
    let mut t = Script::rc();
    t.post_recv(7, 0, 8);
    let packet = t.send_only(RQ_PSN, b"x").invalidate(t.memory.mr.rkey);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    assert_eq!(t.received_short(), [(7, WcStatus::WrFlushErr)]);
    assert!(t.node.mem.query(t.memory.mr.rkey).is_some());
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 2);
    let reads = [0, 1, 2].map(|n| t.read_request(RQ_PSN.add(n), 0, 4));
    assert_eq!(
        t.exchange(&reads),
        [
            "READ_ONLY 200 msn=1 credit=31 4B",
            "READ_ONLY 201 msn=2 credit=31 4B",
            "NAK_INVALID 202 msn=2"
        ]
    );
    assert_eq!(t.events(), [EventKind::QpReqErr]);
    let mut t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 0);
    let read = t.read_request(RQ_PSN, 0, 4);
    refused(&mut t, read, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
}

#[test]
fn a_gap_is_answered_once_with_the_missing_psn() {
    let mut t = Script::rc();
    for wr_id in 0..4 {
        t.post_recv(wr_id, 0, 8);
    }
    let ahead = [1, 2].map(|n| t.send_only(RQ_PSN.add(n), b"x").ask());
    assert_eq!(t.exchange(&ahead), ["NAK_SEQUENCE 200 msn=0"]);
    assert_eq!(t.exchange(&ahead), [""; 0]);
    assert_eq!(t.state(), QpState::Rts);
    assert_eq!(t.drops(irdma_transport::DropReason::Ahead), 3);
    let all = [0, 1, 2].map(|n| t.send_only(RQ_PSN.add(n), b"x").ask());
    assert_eq!(t.exchange(&all), ["ACK 202 msn=3 credit=31"]);
    let ahead = t.send_only(RQ_PSN.add(5), b"x");
    assert_eq!(t.exchange(&[ahead]), ["NAK_SEQUENCE 203 msn=3"]);
    assert_eq!(t.events(), []);
}

#[test]
fn no_receive_asks_to_wait() {
    let mut t = Script::rc();
    let packet = t.send_only(RQ_PSN, b"x").ask();
    let next = t.send_only(RQ_PSN.add(1), b"y").ask();
    assert_eq!(t.exchange(&[packet.clone(), next]), ["RNR 200 msn=0 timer=12"]);
    assert_eq!(t.state(), QpState::Rts);
    assert_eq!(t.exchange(std::slice::from_ref(&packet)), ["RNR 200 msn=0 timer=12"]);
    t.post_recv(7, 0, 8);
    assert_eq!(t.exchange(&[packet]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.node.endpoint.stats().rnr_sent, 2);
}

#[test]
fn a_write_with_immediate_data_waits_before_memory_changes() {
    let mut t = Script::rc();
    let packet = t.write_only(RQ_PSN, 0, b"abc").imm([1; 4]);
    assert_eq!(t.exchange(std::slice::from_ref(&packet)), ["RNR 200 msn=0 timer=12"]);
    assert_eq!(t.memory.read(0, 3), [0; 3]);
    t.post_recv(7, 0, 0);
    assert_eq!(t.exchange(&[packet.ask()]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.memory.read(0, 3), b"abc");
}

/// The end of a long message waits; a peer that then starts from its beginning is answered.
#[test]
fn waiting_in_a_long_message_resumes_at_its_end() {
    let mut t = Script::rc();
    let (va, rkey) = (t.memory.addr(0), t.memory.mr.rkey);
    let first = t
        .request(Operation::Write, Position::First, RQ_PSN)
        .reth(va, rkey, MTU as u32 + 1)
        .payload(&[1; MTU]);
    let last = t.request(Operation::Write, Position::Last, RQ_PSN.add(1)).payload(&[2]).imm([9; 4]);
    assert_eq!(t.exchange(&[first.clone(), last.clone()]), ["RNR 201 msn=0 timer=12"]);
    t.post_recv(7, 0, 0);
    assert_eq!(t.exchange(&[first]), ["ACK 200 msn=0 credit=31"]);
    assert_eq!(t.exchange(&[last.ask()]), ["ACK 201 msn=1 credit=31"]);
    assert_eq!(t.received()[0].byte_len as usize, MTU + 1);
}

/// After a refusal the rest of the message and whatever follows is dropped.
#[test]
fn after_a_refusal_nothing_more_is_answered() {
    let mut t = Script::rc();
    let packet = t.write_only(RQ_PSN, 0, b"ab").reth(0, 0x99, 2);
    refused(&mut t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let packet = t.write_only(RQ_PSN.add(1), 0, b"ab").ask();
    assert_eq!(t.exchange(&[packet]), [""; 0]);
    assert_eq!(t.events(), []);
    assert_eq!(t.memory.read(0, 2), [0; 2]);
}

#[test]
fn a_region_that_goes_while_it_is_read_is_an_access_error() {
    let mut t = Script::rc();
    let read = t.read_request(RQ_PSN, 0, 600);
    t.deliver(&read);
    t.node.mem.dereg_mr(t.memory.mr.lkey).unwrap();
    assert_eq!(t.sent_text(), ["NAK_ACCESS 200 msn=1"]);
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.events(), [EventKind::QpAccessErr]);
}

/// A region whose addresses count from elsewhere can hide a misaligned word behind an aligned one.
#[test]
fn an_atomic_on_a_misaligned_word_is_an_invalid_request() {
    let mut t = Script::rc();
    let buffer = std::sync::Arc::new(irdma_mem::Buffer::zeroed(64));
    let (pd, access) = (t.node.pd.id(), t.memory.mr.access);
    let mr = t.node.mem.reg_phys_mr(pd, &buffer, 4..64, 0x5000, access).unwrap();
    let packet = t.fetch_add(RQ_PSN, 0, 1).atomic(0x5000, mr.rkey, 1, 0);
    refused(&mut t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    assert_eq!(buffer.byte(4), 0);
}
