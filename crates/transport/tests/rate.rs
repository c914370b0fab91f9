//! Queue pairs that send at a rate (`ibv_modify_qp_rate_limit(3)`).

use std::sync::Arc;

use irdma_sim::script::{MTU, QKEY, SQ_PSN, Script};
use irdma_transport::{
    Ah, AttrMask, ErrorKind, QpState, QpType, RateLimit, SendData, SendFlags, SendOp, SendWr,
    UdDest, WcStatus,
};
use irdma_wire::{Psn, Qpn, Syndrome};

const MILLISECOND_NS: u64 = 1_000_000;
/// A byte a millisecond; two packets of the script's MTU at once.
const SLOW: RateLimit = RateLimit { kbps: 8, max_burst: 600 };

fn limited(qp_type: QpType) -> Script {
    let mut t = Script::with(qp_type, |_| {}, |attr| attr.rate = SLOW);
    t.modify_with(QpState::Rts, AttrMask::RATE_LIMIT).expect("allowed in RTS");
    t
}

fn acknowledge(t: &mut Script, psn: Psn) {
    let ack = t.ack(psn, Syndrome::Ack { credit: 31 });
    assert_eq!(t.exchange(&[ack]), [""; 0]);
}

/// FIRST takes 288 ms, the others 272; each pause begins with a packet that asks, so that waiting
/// is no silence of the peer.
#[test]
fn requests_leave_in_bursts_and_ask_before_each_pause() {
    let mut t = limited(QpType::Rc);
    t.post(1, t.write_op(), 0, 4 * MTU);
    let first = ["WRITE_FIRST 100 va=0x1000 len=1024 256B", "WRITE_MIDDLE 101 ask 256B"];
    assert_eq!(t.sent_text(), first);
    acknowledge(&mut t, SQ_PSN.add(1));
    assert_eq!(t.wait(232 * MILLISECOND_NS - 1), [""; 0]);
    assert_eq!(t.wait(1), ["WRITE_MIDDLE 102 ask 256B"]);
    acknowledge(&mut t, SQ_PSN.add(2));
    assert_eq!(t.wait(272 * MILLISECOND_NS - 1), [""; 0]);
    assert_eq!(t.wait(1), ["WRITE_LAST 103 ask 256B"]);
    acknowledge(&mut t, SQ_PSN.add(3));
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    assert!(t.is_idle());
    assert_eq!(t.node.endpoint.stats().rto, 0);
}

#[test]
fn a_new_rate_counts_at_once() {
    let mut t = limited(QpType::Uc);
    t.post(1, t.write_op(), 0, 4 * MTU);
    assert_eq!(t.sent().len(), 2);
    t.attr.rate = RateLimit::default();
    t.modify_with(QpState::Rts, AttrMask::RATE_LIMIT).expect("0 ends the limit");
    assert_eq!(t.sent().len(), 2);
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn datagrams_leave_at_the_rate() {
    let mut t = limited(QpType::Ud);
    let ah = Ah::create_ah(Arc::clone(&t.node.pd), t.attr.av);
    let ud = Some(UdDest { ah: Arc::new(ah), qpn: Qpn::from_parts(9, 9), qkey: QKEY });
    let sges = [t.memory.sge(0, 256)];
    for wr_id in 1..=3 {
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&sges), ud: ud.clone() };
        t.post_wr(&wr).expect("posted");
    }
    // Each takes 12 + 8 + 256 + 4 ms.
    assert_eq!(t.sent().len(), 2);
    assert_eq!(t.wait(240 * MILLISECOND_NS - 1).len(), 0);
    assert_eq!(t.wait(1).len(), 1);
    assert_eq!(t.completed().len(), 3);
}

#[test]
fn a_rate_needs_a_queue_pair_that_may_send() {
    let mut t = Script::reset(QpType::Rc, |_| {}, |attr| attr.rate = SLOW);
    for to in [QpState::Init, QpState::Rtr] {
        t.modify(to).expect("a legal move");
        let refused = t.modify_with(to, AttrMask::RATE_LIMIT).expect_err("not yet");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    let row = irdma_transport::transition(QpType::Rc, QpState::Rtr, QpState::Rts).unwrap();
    t.modify_with(QpState::Rts, row.required | AttrMask::RATE_LIMIT).expect("on the way to RTS");
    assert_eq!(t.node.endpoint.query_qp(t.qpn).unwrap().0.rate, SLOW);
}
