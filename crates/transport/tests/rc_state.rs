//! States of a queue pair: draining, flushing, resetting (IBTA 10.3.1), and posting in each.

use std::sync::Arc;

use irdma_sim::script::{RQ_PSN, SQ_PSN, Script};
use irdma_transport::QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd};
use irdma_transport::{
    AttrMask, Cq, EventKind, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Srq, SrqAttr,
    WcStatus,
};
use irdma_wire::{Position, Psn, Syndrome};

const GOOD: Syndrome = Syndrome::Ack { credit: 31 };
const SEND: SendOp = SendOp::Send { imm: None };

#[test]
fn requests_posted_early_wait_for_rts() {
    let mut t = Script::reset(QpType::Rc, |_| {}, |_| {});
    for to in [Init, Rtr] {
        t.modify(to).unwrap();
        t.post(to as u64, SEND, 0, 4);
        assert_eq!(t.sent_text(), [""; 0]);
    }
    t.modify(Rts).unwrap();
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 4B", "SEND_ONLY 101 ask 4B"]);
}

#[test]
fn error_flushes_both_queues_in_order() {
    let mut t = Script::rc();
    for wr_id in 1..=2 {
        t.post(wr_id, SEND, 0, 4);
        t.post_recv(10 + wr_id, 0, 4);
    }
    t.sent();
    t.modify(Error).unwrap();
    assert_eq!(t.completed(), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(t.received_short(), [(11, WcStatus::WrFlushErr), (12, WcStatus::WrFlushErr)]);
    assert_eq!((t.sent_text(), t.events()), (vec![], vec![]));
    assert!(t.is_idle());
    t.post(3, SEND, 0, 4);
    t.post_recv(13, 0, 4);
    assert_eq!(t.completed(), [(3, WcStatus::WrFlushErr)]);
    assert_eq!(t.received_short(), [(13, WcStatus::WrFlushErr)]);
    t.modify(Error).unwrap();
    assert_eq!((t.completed(), t.received_short()), (vec![], vec![]));
}

#[test]
fn unsignalled_requests_are_flushed_aloud() {
    let mut t = Script::with(QpType::Rc, |init| init.sq_sig_all = false, |_| {});
    t.post(1, SEND, 0, 4);
    t.sent();
    t.modify(Error).unwrap();
    assert_eq!(t.completed(), [(1, WcStatus::WrFlushErr)]);
}

#[test]
fn a_receive_that_a_message_was_placed_in_is_flushed_first() {
    let mut t = Script::rc();
    t.post_recv(1, 0, 1000);
    t.post_recv(2, 0, 1000);
    let first = t.request(irdma_wire::Operation::Send, Position::First, RQ_PSN).payload(&[1; 256]);
    t.deliver(&first);
    t.modify(Error).unwrap();
    assert_eq!(t.received_short(), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn nothing_arrives_in_error() {
    let mut t = Script::rc();
    t.modify(Error).unwrap();
    let packets = [t.send_only(RQ_PSN, b"x").ask(), t.ack(SQ_PSN, GOOD)];
    assert_eq!(t.exchange(&packets), [""; 0]);
    assert_eq!(t.drops(irdma_transport::DropReason::State), 2);
}

#[test]
fn reset_forgets_requests_and_starts_anew() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post_recv(2, 0, 4);
    t.sent();
    t.modify(Reset).unwrap();
    assert_eq!((t.completed(), t.received_short()), (vec![], vec![]));
    assert!(t.is_idle());
    (t.attr.sq_psn, t.attr.rq_psn) = (Psn::new(7), Psn::new(9));
    for to in [Init, Rtr, Rts] {
        t.modify(to).unwrap();
    }
    t.post_recv(3, 0, 4);
    t.post(4, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 7 ask 4B"]);
    let packets = [t.ack(Psn::new(7), GOOD), t.send_only(Psn::new(9), b"x").ask()];
    assert_eq!(t.exchange(&packets), ["ACK 9 msn=1 credit=31"]);
    assert_eq!(t.completed(), [(4, WcStatus::Success)]);
    assert_eq!(t.received_short(), [(3, WcStatus::Success)]);
}

#[test]
fn an_error_is_left_by_reset() {
    let mut t = Script::rc();
    t.modify(Error).unwrap();
    for to in [Reset, Init, Rtr, Rts] {
        t.modify(to).unwrap();
    }
    t.post(1, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 4B"]);
}

#[test]
fn draining_finishes_what_was_started() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    t.attr.en_sqd_async_notify = true;
    t.modify_with(Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    t.post(2, SEND, 0, 4);
    assert_eq!((t.sent_text(), t.events()), (vec![], vec![]));
    assert!(t.node.endpoint.query_qp(t.qpn).unwrap().0.sq_draining);
    let ack = t.ack(SQ_PSN, GOOD);
    assert_eq!(t.exchange(&[ack]), [""; 0]);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    assert_eq!(t.events(), [EventKind::SqDrained]);
    assert!(!t.node.endpoint.query_qp(t.qpn).unwrap().0.sq_draining);
    t.post_recv(9, 0, 4);
    let packet = t.send_only(RQ_PSN, b"x").ask();
    assert_eq!(t.exchange(&[packet]), ["ACK 200 msn=1 credit=31"], "receiving goes on");
    t.modify_with(Rts, AttrMask::empty()).unwrap();
    assert_eq!(t.sent_text(), ["SEND_ONLY 101 ask 4B"]);
}

#[test]
fn an_idle_queue_drains_at_once_and_without_being_asked_in_silence() {
    let mut t = Script::rc();
    t.attr.en_sqd_async_notify = true;
    t.modify_with(Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(t.events(), [EventKind::SqDrained]);
    let mut t = Script::rc();
    t.modify_with(Sqd, AttrMask::empty()).unwrap();
    assert_eq!(t.events(), []);
}

#[test]
fn a_lost_packet_is_sent_again_while_draining() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    t.modify_with(Sqd, AttrMask::empty()).unwrap();
    assert_eq!(t.wait(4096 << 14), ["SEND_ONLY 100 ask 4B"]);
}

#[test]
fn a_refused_modify_changes_nothing() {
    let mut t = Script::rc();
    let before = t.node.endpoint.query_qp(t.qpn).unwrap().0;
    t.attr.retry_cnt = 3;
    for (to, mask) in [
        (Rtr, AttrMask::empty()),
        (Rts, AttrMask::RETRY_CNT),
        (Rts, AttrMask::QKEY),
        (Sqd, AttrMask::CUR_STATE),
    ] {
        t.attr.cur_state = Init;
        assert_eq!(t.modify_with(to, mask).unwrap_err().errno(), 22, "{to:?} {mask:?}");
        assert_eq!(t.node.endpoint.query_qp(t.qpn).unwrap().0, before);
    }
}

#[test]
fn a_path_that_does_not_exist_is_refused() {
    type Tune = fn(&mut irdma_transport::QpAttr);
    let tunes: [Tune; 5] = [
        |attr| attr.av.dgid = irdma_wire::Gid::default(),
        |attr| attr.av.dgid = std::net::IpAddr::from([239, 1, 1, 1]).into(),
        |attr| attr.av.sgid = std::net::IpAddr::from([10, 0, 0, 9]).into(),
        |attr| attr.av.dgid = std::net::IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1]).into(),
        |attr| attr.path_mtu = 1500,
    ];
    for tune in tunes {
        let mut t = Script::reset(QpType::Rc, |_| {}, tune);
        t.modify(Init).unwrap();
        assert_eq!(t.modify(Rtr).unwrap_err().errno(), 22);
        assert_eq!(t.state(), Init);
    }
    let mut t = Script::reset(QpType::Rc, |_| {}, |attr| attr.path_mtu = 4096);
    t.node.endpoint.add_local(irdma_sim::script::HERE, vec![1], 1024);
    t.modify(Init).unwrap();
    assert_eq!(t.modify(Rtr).unwrap_err().errno(), 22, "the interface carries 1024");
}

/// Requests of a shared queue stay for the others; the event says that no more are taken.
#[test]
fn an_error_with_a_shared_queue_says_that_it_took_its_last() {
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut shared = None;
    let create = |init: &mut irdma_transport::QpInit| {
        let srq = Arc::new(Srq::create_srq(5, Arc::clone(&init.pd), attr).unwrap());
        shared = Some(Arc::clone(&srq));
        init.srq = Some(srq);
    };
    let mut t = Script::with(QpType::Rc, create, |_| {});
    let srq = shared.unwrap();
    for wr_id in 1..=3 {
        srq.post_srq_recv(&RecvWr { wr_id, sges: &[t.memory.sge(0, 1000)] }).unwrap();
    }
    let wr = RecvWr { wr_id: 9, sges: &[] };
    let refused = t.node.endpoint.post_recv(t.now, t.qpn, &wr);
    assert_eq!(refused.unwrap_err().errno(), 22);
    srq.modify_srq(2).unwrap();
    let whole = t.send_only(RQ_PSN, b"x");
    let first =
        t.request(irdma_wire::Operation::Send, Position::First, RQ_PSN.add(1)).payload(&[1; 256]);
    t.exchange(&[whole, first]);
    assert_eq!(t.events(), [EventKind::SrqLimitReached]);
    assert_eq!(srq.query_srq().srq_limit, 0);
    t.modify(Error).unwrap();
    assert_eq!(t.received_short(), [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    assert_eq!(t.events(), [EventKind::QpLastWqeReached]);
    t.modify(Error).unwrap();
    assert_eq!(t.events(), [], "once");
    srq.post_srq_recv(&wr).unwrap();
}

/// A queue pair whose sends complete on a queue of two, which four of them overflow.
fn overflowing() -> (Script, Arc<Cq>) {
    let small = Arc::new(Cq::new(55, 2));
    let mut t = Script::with(QpType::Rc, |init| init.send_cq = Arc::clone(&small), |_| {});
    t.post_recv(9, 0, 4);
    for wr_id in 1..=4 {
        t.post(wr_id, SEND, 0, 4);
    }
    t.sent();
    let ack = t.ack(SQ_PSN.add(3), GOOD);
    t.exchange(&[ack]);
    (t, small)
}

#[test]
fn a_completion_queue_that_overflows_says_so_once_and_its_queue_pair_fails() {
    let (mut t, small) = overflowing();
    assert_eq!(t.events(), [EventKind::CqErr, EventKind::QpFatal]);
    assert_eq!((t.state(), small.len()), (Error, 2));
    assert_eq!(t.received_short(), [(9, WcStatus::WrFlushErr)]);
    t.post(5, SEND, 0, 4);
    t.post_recv(10, 0, 4);
    assert_eq!((t.sent_text(), t.events()), (vec![], vec![]));
    assert_eq!(t.received_short(), [(10, WcStatus::WrFlushErr)]);
    assert!(t.is_idle());
}

/// The queue pair that overflows it is another one.
#[test]
fn every_queue_pair_of_an_overflowed_completion_queue_fails() {
    let small = Arc::new(Cq::new(55, 2));
    let mut t = Script::with(QpType::Rc, |init| init.recv_cq = Arc::clone(&small), |_| {});
    let first = t.qpn;
    t.switch_to_another(|_| {});
    for wr_id in 1..=3 {
        t.post_recv(wr_id, 0, 4);
        let packet = t.send_only(RQ_PSN.add(wr_id as u32 - 1), b"x");
        t.deliver(&packet);
    }
    assert_eq!(t.events(), [EventKind::CqErr, EventKind::QpFatal, EventKind::QpFatal]);
    assert_eq!(t.state(), Error);
    let state = t.node.endpoint.query_qp(first).unwrap().0.state;
    assert_eq!(state, Error, "the one that did nothing");
}

#[test]
fn a_queue_pair_that_joins_an_overflowed_completion_queue_fails_with_its_first_completion() {
    let (mut t, _small) = overflowing();
    t.events();
    t.modify(Reset).unwrap();
    for to in [Init, Rtr, Rts] {
        t.modify(to).unwrap();
    }
    t.post(1, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 4B"]);
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!((t.state(), t.events()), (Error, vec![EventKind::QpFatal]));
}

#[test]
fn a_reset_gives_the_page_for_inline_data_back() {
    let mut t = Script::reset(QpType::Rc, |_| {}, |_| {});
    t.node.endpoint.alloc_push_page(t.qpn);
    let inline = |wr_id| SendWr {
        wr_id,
        op: SEND,
        flags: SendFlags::empty(),
        data: SendData::Inline(b"x"),
        ud: None,
    };
    for turn in 1..=2 {
        t.post_wr(&inline(turn)).unwrap();
        assert_eq!(t.node.endpoint.stats().pushed, turn);
        t.modify(Reset).unwrap();
    }
}

#[test]
fn destroying_takes_unpolled_completions_along() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    t.post(2, SEND, 0, 4);
    t.sent();
    t.node.endpoint.destroy_qp(t.qpn).unwrap();
    assert_eq!(t.completed(), []);
    assert!(t.is_idle());
    assert_eq!(t.node.endpoint.destroy_qp(t.qpn).unwrap_err().errno(), 22);
    let packet =
        irdma_sim::script::Pkt::new(irdma_wire::Opcode::from_byte(0x11).unwrap(), t.qpn, SQ_PSN);
    t.deliver(&packet.aeth(GOOD, 0));
    assert_eq!(t.drops(irdma_transport::DropReason::UnknownQp), 1);
}

#[test]
fn a_local_invalidate_waits_for_its_turn_and_fails_for_a_registered_region() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.post(2, SendOp::LocalInvalidate { key: t.memory.mr.lkey }, 0, 0);
    t.post(3, SEND, 0, 4);
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 4B"]);
    let ack = t.ack(SQ_PSN, GOOD);
    t.exchange(&[ack]);
    assert_eq!(
        t.completed(),
        [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]
    );
}

/// The memory behind them may go now; acknowledgements of what was delivered still go out.
#[test]
fn a_queue_pair_that_failed_answers_no_more_reads() {
    let mut t = Script::rc();
    t.post(1, SEND, 0, 4);
    t.sent();
    t.post_recv(2, 0, 4);
    let packets = [
        t.send_only(RQ_PSN, b"x").ask(),
        t.read_request(RQ_PSN.add(1), 0, 4),
        t.fetch_add(RQ_PSN.add(2), 0, 1),
        t.ack(SQ_PSN, Syndrome::Nak(irdma_wire::NakCode::RemoteAccess)),
    ];
    assert_eq!(t.exchange(&packets), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(t.completed(), [(1, WcStatus::RemAccessErr)]);
}
