//! Reliable connections over the loopback interface: every operation, every byte.

mod common;

use std::time::Duration;

use common::{Node, eventually, loopback, pair};
use irdma::{
    AttrMask, EventKind, Psn, QpAttr, QpState, QpType, SendData, SendFlags, SendOp, SendWr,
    WcFlags, WcOpcode, WcStatus,
};

const SIZES: [usize; 9] = [0, 1, 33, 1023, 1024, 1025, 8193, 65536, 1 << 20];
const LEN: usize = 2 << 20;

fn write_to(b: &Node, imm: Option<[u8; 4]>) -> SendOp {
    let ends = b.ends();
    SendOp::Write { remote_addr: ends.addr, rkey: ends.rkey, imm }
}

#[test]
fn sends_arrive_whole_and_in_order() {
    let (a, b) = pair(QpType::Rc, LEN);
    for (i, len) in SIZES.into_iter().enumerate() {
        a.fill(0, len, i as u8);
        b.post_recv(100 + i as u64, 0, len);
        a.post(i as u64, SendOp::Send { imm: None }, 0, len);
        let received = b.complete();
        assert_eq!((received.wr_id, received.byte_len), (100 + i as u64, len as u32));
        assert_eq!((received.opcode, received.qpn), (WcOpcode::Recv, b.qp.qpn()));
        b.expect_bytes(0, len, i as u8);
        assert_eq!(a.complete().wr_id, i as u64);
    }
}

#[test]
fn a_query_tells_the_attributes_and_the_live_numbers() {
    let (a, b) = pair(QpType::Rc, 4096);
    let messages = 3;
    for wr_id in 0..messages {
        b.post_recv(wr_id, 0, 64);
        a.post(wr_id, SendOp::Send { imm: None }, 0, 64);
        a.complete();
        b.complete();
    }
    let (sender, cap) = a.qp.query_qp().unwrap();
    let (receiver, _) = b.qp.query_qp().unwrap();
    // Both sides start at 7.
    let next = Psn::new(7 + messages as u32);
    assert_eq!((sender.sq_psn, sender.rq_psn), (next, Psn::new(7)));
    assert_eq!((receiver.sq_psn, receiver.rq_psn), (Psn::new(7), next));
    assert_eq!((sender.state, sender.cur_state), (QpState::Rts, QpState::Rts));
    assert_eq!((sender.dest_qpn, sender.path_mtu), (b.qp.qpn(), 1024));
    assert_eq!((sender.max_rd_atomic, sender.max_dest_rd_atomic), (16, 16));
    assert_eq!((sender.timeout, sender.retry_cnt, sender.rnr_retry), (14, 7, 7));
    assert_eq!((sender.min_rnr_timer, sender.port, sender.access), (12, 1, common::ALL));
    assert_eq!((sender.av.dgid, cap), (b.ends().gid, common::CAP));
}

#[test]
fn a_refused_change_changes_nothing() {
    let node = Node::new(&loopback(), QpType::Rc, 64);
    let before = node.qp.query_qp().unwrap();
    use AttrMask as M;
    let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let to_rtr = M::STATE | path | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let mut good = QpAttr {
        state: QpState::Rtr,
        path_mtu: 1024,
        dest_qpn: node.qp.qpn(),
        max_dest_rd_atomic: 16,
        ..QpAttr::default()
    };
    good.av.dgid = node.ends().gid;
    let limits = node.context.query_device().limits;
    let mut nowhere = good;
    nowhere.av.sgid_index = 200;
    for (attr, mask) in [
        (good, to_rtr - M::AV),
        (good, to_rtr | M::QKEY),
        (good, to_rtr | M::CUR_STATE),
        (QpAttr { state: QpState::Rts, ..good }, to_rtr),
        (QpAttr { path_mtu: 8192, ..good }, to_rtr),
        (QpAttr { max_dest_rd_atomic: limits.max_qp_rd_atom + 1, ..good }, to_rtr),
        (nowhere, to_rtr),
    ] {
        let refused = node.qp.modify_qp(&attr, mask).unwrap_err();
        assert_eq!(refused.errno(), 22, "{attr:?} {mask:?}");
        assert_eq!(node.qp.query_qp().unwrap(), before, "{attr:?} {mask:?}");
    }
    node.qp.modify_qp(&good, to_rtr).unwrap();
}

#[test]
fn writes_change_what_they_name_and_nothing_beside() {
    let (a, b) = pair(QpType::Rc, LEN);
    for (i, len) in SIZES.into_iter().enumerate() {
        let seed = 0x40 + i as u8;
        b.fill(0, LEN, 0xff);
        a.fill(0, len, seed);
        a.post(i as u64, write_to(&b, None), 0, len);
        assert_eq!(a.complete().opcode, WcOpcode::RdmaWrite);
        b.expect_bytes(0, len, seed);
        assert_eq!(b.buffer.byte(len), common::pattern(len + 1, 0xff)[len]);
    }
}

#[test]
fn immediate_data_consumes_a_receive() {
    let (a, b) = pair(QpType::Rc, 4096);
    b.post_recv(7, 0, 0);
    a.post(1, write_to(&b, Some([1, 2, 3, 4])), 0, 33);
    let received = b.complete();
    assert_eq!((received.opcode, received.imm), (WcOpcode::RecvRdmaWithImm, [1, 2, 3, 4]));
    assert_eq!((received.wr_id, received.byte_len), (7, 33));
    assert!(received.flags.contains(WcFlags::WITH_IMM));
}

#[test]
fn reads_fetch_what_the_peer_has() {
    let (a, b) = pair(QpType::Rc, LEN);
    let ends = b.ends();
    for (i, len) in SIZES.into_iter().enumerate() {
        b.fill(0, len, i as u8);
        let read = SendOp::Read { remote_addr: ends.addr, rkey: ends.rkey };
        a.post(i as u64, read, 0, len);
        assert_eq!(a.complete().opcode, WcOpcode::RdmaRead);
        a.expect_bytes(0, len, i as u8);
    }
}

#[test]
fn atomics_return_the_original_and_change_the_target() {
    let (a, b) = pair(QpType::Rc, 64);
    let (remote_addr, rkey) = (b.buffer.addr(), b.mr.rkey());
    let returned = || {
        let mut bytes = [0; 8];
        a.buffer.read(8, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    b.buffer.write(0, &40u64.to_ne_bytes());
    a.post(1, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, 8, 8);
    assert_eq!((a.complete().opcode, returned()), (WcOpcode::FetchAdd, 40));
    a.post(2, SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 }, 8, 8);
    assert_eq!((a.complete().opcode, returned()), (WcOpcode::CompSwap, 42));
    a.post(3, SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 9 }, 8, 8);
    assert_eq!((a.complete().wr_id, returned()), (3, 7));
    let mut target = [0; 8];
    b.buffer.read(0, &mut target);
    assert_eq!(u64::from_ne_bytes(target), 7);
}

#[test]
fn many_requests_are_in_flight_at_once() {
    let (a, b) = pair(QpType::Rc, LEN);
    const EACH: usize = 8193;
    for i in 0..100 {
        b.post_recv(i, i as usize * EACH, EACH);
    }
    a.fill(0, 100 * EACH, 3);
    for i in 0..100 {
        a.post(i, SendOp::Send { imm: None }, i as usize * EACH, EACH);
    }
    for i in 0..100 {
        assert_eq!((b.complete().wr_id, a.complete().wr_id), (i, i));
    }
    b.expect_bytes(0, 100 * EACH, 3);
}

#[test]
fn inline_data_needs_no_key_and_may_be_reused_at_once() {
    let (a, b) = pair(QpType::Rc, 4096);
    let mut data = *b"posted, then overwritten";
    b.post_recv(1, 0, 4096);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Inline(&data),
        ud: None,
    };
    a.qp.post_send(&wr).unwrap();
    data.fill(0);
    assert_eq!(b.complete().byte_len, 24);
    let mut found = [0; 24];
    b.buffer.read(0, &mut found);
    assert_eq!(&found, b"posted, then overwritten");
    a.complete();
}

#[test]
fn a_bad_remote_key_fails_both_sides_and_tells_the_target() {
    let (a, b) = pair(QpType::Rc, 4096);
    let SendOp::Write { remote_addr, rkey, imm } = write_to(&b, None) else { unreachable!() };
    a.post(5, SendOp::Write { remote_addr, rkey: rkey ^ 0x100, imm }, 0, 16);
    let failed = a.completion();
    assert_eq!((failed.wr_id, failed.status), (5, WcStatus::RemAccessErr));
    let event = b.context.get_async_event().unwrap();
    assert_eq!(event.kind(), EventKind::QpAccessErr);
    let (attr, _) = b.qp.query_qp().unwrap();
    assert_eq!(attr.state, irdma::QpState::Err);
}

#[test]
fn a_passive_program_is_written_to_and_read_from() {
    let (a, b) = pair(QpType::Rc, 1 << 16);
    a.fill(0, 1 << 16, 9);
    a.post(1, write_to(&b, None), 0, 1 << 16);
    // Nobody polls: the background threads do it all.
    let last = common::pattern(1 << 16, 9)[(1 << 16) - 1];
    eventually("the last byte", || b.buffer.byte((1 << 16) - 1) == last);
    b.expect_bytes(0, 1 << 16, 9);
    std::thread::sleep(Duration::from_millis(1));
    a.complete();
}
