//! Unreliable connections: a lost packet costs its message, and nobody answers (IBTA 9.8.2, 9.8.3).

use irdma_mem::Access;
use irdma_sim::script::{MTU, Pkt, RQ_PSN, Script};
use irdma_transport::{
    AttrMask, DropReason, EventKind, QpState, QpType, SendOp, WcOpcode, WcStatus,
};
use irdma_wire::{Operation, Position};

const SEND: SendOp = SendOp::Send { imm: None };

fn send(t: &Script, position: Position, n: u32, len: usize) -> Pkt {
    t.request(Operation::Send, position, RQ_PSN.add(n)).payload(&vec![n as u8 + 1; len])
}

fn write(t: &Script, position: Position, n: u32, len: usize, all: u32) -> Pkt {
    let packet =
        t.request(Operation::Write, position, RQ_PSN.add(n)).payload(&vec![n as u8 + 1; len]);
    let starts = packet.headers.bth.opcode.has_reth();
    if starts { packet.reth(t.memory.addr(0), t.memory.mr.rkey, all) } else { packet }
}

#[test]
fn requests_complete_when_they_are_sent() {
    let mut t = Script::uc();
    t.post(1, SEND, 0, 2 * MTU);
    t.post(2, SendOp::Write { remote_addr: 0x1000, rkey: 7, imm: Some([1; 4]) }, 0, 4);
    let sent = t.sent();
    let text: Vec<_> = sent.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "SEND_FIRST 100 256B",
            "SEND_LAST 101 256B",
            "WRITE_ONLY 102 va=0x1000 len=4 imm=01010101 4B"
        ]
    );
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(t.is_idle());
}

#[test]
fn what_the_service_does_not_offer_is_refused() {
    let mut t = Script::uc();
    let sges = [t.memory.sge(0, 8)];
    for op in [t.read_op(), t.fetch_add_op(1), SendOp::SendInvalidate { rkey: 1 }] {
        let wr = irdma_transport::SendWr {
            wr_id: 1,
            op,
            flags: irdma_transport::SendFlags::empty(),
            data: irdma_transport::SendData::Sges(&sges),
            ud: None,
        };
        assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22);
    }
}

#[test]
fn a_message_arrives_without_an_answer() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 600);
    let packets = [send(&t, Position::First, 0, MTU), send(&t, Position::Last, 1, 10).ask()];
    assert_eq!(t.exchange(&packets), [""; 0]);
    let got = t.received();
    assert_eq!((got[0].wr_id, got[0].status), (1, WcStatus::Success));
    assert_eq!((got[0].byte_len, got[0].opcode), (266, WcOpcode::Recv));
    assert_eq!(t.memory.read(0, 266), [vec![1; MTU], vec![2; 10]].concat());
}

#[test]
fn a_write_with_immediate_data_completes_a_receive() {
    let mut t = Script::uc();
    t.post_recv(1, 100, 0);
    let packets =
        [write(&t, Position::First, 0, MTU, 260), write(&t, Position::Last, 1, 4, 0).imm([3; 4])];
    assert_eq!(t.exchange(&packets), [""; 0]);
    let got = t.received();
    assert_eq!(
        (got[0].opcode, got[0].byte_len, got[0].imm),
        (WcOpcode::RecvRdmaWithImm, 260, [3; 4])
    );
    assert_eq!(t.memory.read(0, 261), [vec![1; MTU], vec![2; 4], vec![0]].concat());
}

/// The receive of the broken message serves the next one, from its beginning.
#[test]
fn a_lost_packet_costs_one_message() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 1000);
    let packets = [
        send(&t, Position::First, 0, MTU),
        send(&t, Position::Last, 2, 10),
        send(&t, Position::Only, 3, 5),
    ];
    t.exchange(&packets);
    assert_eq!(t.drops(DropReason::Sequence), 1);
    let got = t.received();
    assert_eq!((got.len(), got[0].wr_id, got[0].byte_len), (1, 1, 5));
    assert_eq!(t.memory.read(0, 6), [4, 4, 4, 4, 4, 1]);
}

#[test]
fn a_lost_start_costs_one_message() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 1000);
    let packets = [
        send(&t, Position::Middle, 1, MTU),
        send(&t, Position::Last, 2, 10),
        send(&t, Position::Only, 3, 5),
    ];
    t.exchange(&packets);
    assert_eq!(t.drops(DropReason::Sequence), 2);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)]);
}

#[test]
fn a_new_message_ends_an_unfinished_one() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 1000);
    let packets = [send(&t, Position::First, 0, MTU), send(&t, Position::Only, 1, 5)];
    t.exchange(&packets);
    assert_eq!(t.received()[0].byte_len, 5);
}

#[test]
fn a_lost_message_is_no_matter() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 1000);
    let packet = send(&t, Position::Only, 1000, 5);
    t.deliver(&packet);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)]);
    assert_eq!(t.node.endpoint.stats().rcvd_out_of_order_packets, 1);
}

#[test]
fn a_message_without_a_receive_is_dropped() {
    let mut t = Script::uc();
    let packets = [send(&t, Position::First, 0, MTU), send(&t, Position::Last, 1, 5)];
    t.exchange(&packets);
    assert_eq!(t.drops(DropReason::NoReceive), 1);
    t.post_recv(1, 0, 1000);
    let packet = send(&t, Position::Only, 2, 5);
    t.deliver(&packet);
    assert_eq!(t.received_short(), [(1, WcStatus::Success)]);
}

#[test]
fn a_write_that_may_not_be_is_dropped() {
    let mut t = Script::uc();
    let packets = [
        write(&t, Position::Only, 0, 4, 4).reth(t.memory.addr(0), 0x99, 4),
        write(&t, Position::Only, 1, 4, 4).reth(t.memory.addr((1 << 16) - 2), t.memory.mr.rkey, 4),
        write(&t, Position::Only, 2, 4, 5),
        write(&t, Position::First, 3, MTU, 100),
        write(&t, Position::First, 4, MTU, MTU as u32),
    ];
    assert_eq!(t.exchange(&packets), [""; 0]);
    assert_eq!((t.drops(DropReason::Access), t.drops(DropReason::Length)), (2, 3));
    assert_eq!((t.state(), t.events()), (QpState::Rts, vec![]));
    assert_eq!(t.memory.read(0, MTU), [0; MTU]);
    assert!(t.memory.guards_are_whole());
    let mut t = Script::with(QpType::Uc, |_| {}, |attr| attr.access -= Access::REMOTE_WRITE);
    let packet = write(&t, Position::Only, 0, 4, 4);
    t.deliver(&packet);
    assert_eq!((t.drops(DropReason::Access), t.memory.read(0, 4)), (1, vec![0; 4]));
}

#[test]
fn a_message_longer_than_its_receive_ends_the_queue_pair() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 4);
    let packet = send(&t, Position::Only, 0, 5);
    t.deliver(&packet);
    assert_eq!(t.received_short(), [(1, WcStatus::LocLenErr)]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpFatal]));
    assert_eq!(t.memory.read(0, 4), [0; 4]);
}

#[test]
fn packets_of_the_wrong_length_are_dropped() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 4096);
    let packets = [
        send(&t, Position::First, 0, MTU - 4),
        send(&t, Position::Only, 1, MTU + 4),
        send(&t, Position::First, 2, MTU),
        send(&t, Position::Middle, 3, MTU - 4),
        send(&t, Position::First, 4, MTU),
        send(&t, Position::Last, 5, 0),
    ];
    t.exchange(&packets);
    assert_eq!((t.drops(DropReason::Length), t.received_short()), (4, vec![]));
}

#[test]
fn requests_of_a_reliable_connection_are_dropped() {
    let mut t = Script::uc();
    t.post_recv(1, 0, 8);
    let mut packet = send(&t, Position::Only, 0, 4);
    packet.headers.bth.opcode.service = irdma_wire::Service::Rc;
    assert_eq!(t.exchange(&[packet]), [""; 0]);
    assert_eq!(t.drops(DropReason::Service), 1);
}

#[test]
fn draining_ends_with_an_event() {
    let mut t = Script::uc();
    t.attr.en_sqd_async_notify = true;
    t.post(1, SEND, 0, 4);
    t.modify_with(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(t.events(), [EventKind::SqDrained]);
    assert_eq!(t.completed(), [], "it was not started");
    t.modify_with(QpState::Rts, AttrMask::empty()).unwrap();
    assert_eq!(t.sent().len(), 1);
}

#[test]
fn a_bad_local_key_ends_the_queue_pair() {
    let mut t = Script::uc();
    t.post(1, SEND, (1 << 16) - 1, 2);
    t.post(2, SEND, 0, 2);
    assert_eq!(t.sent_text(), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(t.state(), QpState::Err);
}
