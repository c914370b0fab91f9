//! Completion queues beyond polling, domains of threads, address handles that are one.

mod common;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{CAP, Node, connect, loopback, pair};
use irdma::{
    AhAttr, CqInitAttr, ErrorKind, Overrun, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendData,
    SendFlags, SendOp, SendWr, Wc, WcStatus,
};

/// Flushes `count` receive requests, so that as many completions wait.
fn flush(node: &Node, count: u64) {
    (0..count).for_each(|wr_id| node.post_recv(wr_id, 0, 8));
    to_state(node, QpState::Err);
}

fn to_state(node: &Node, state: QpState) {
    let attr = QpAttr { state, ..QpAttr::default() };
    node.qp.modify_qp(&attr, irdma::AttrMask::STATE).unwrap();
}

#[test]
fn a_resize_refuses_to_lose_what_waits_and_keeps_the_order() {
    let node = Node::new(&loopback(), QpType::Rc, 64);
    flush(&node, 4);
    assert_eq!(node.cq.resize_cq(3).unwrap_err().kind(), ErrorKind::Invalid);
    node.cq.resize_cq(4).unwrap();
    node.cq.resize_cq(9).unwrap();
    assert_eq!(node.cq.capacity(), 9);
    let mut found = [Wc::default(); 8];
    assert_eq!(node.cq.poll_cq(&mut found).unwrap(), 4);
    assert_eq!(found.map(|wc| wc.wr_id)[..4], [0, 1, 2, 3]);
}

#[test]
fn a_reset_takes_unpolled_completions_along() {
    let node = Node::new(&loopback(), QpType::Rc, 64);
    flush(&node, 3);
    to_state(&node, QpState::Reset);
    assert_eq!(node.cq.poll_cq(&mut [Wc::default()]).unwrap(), 0);
}

#[test]
fn a_queue_may_overwrite_its_oldest_completions() {
    let node = Node::new(&loopback(), QpType::Rc, 64);
    let attr = CqInitAttr { cqe: 2, overrun: Overrun::Overwrites, ..CqInitAttr::default() };
    let cq = node.context.create_cq_ex(&attr).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    };
    let qp = node.pd.create_qp(&init).unwrap();
    common::to_init(&qp);
    for wr_id in 0..5 {
        qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify_qp(&error, irdma::AttrMask::STATE).unwrap();
    let mut found = [Wc::default(); 4];
    assert_eq!(cq.poll_cq(&mut found).unwrap(), 2);
    assert_eq!((found[0].wr_id, found[1].wr_id), (3, 4));
}

#[test]
fn timestamps_are_of_the_raw_clock_and_become_times_of_day() {
    let (a, b) = pair(QpType::Rc, 64);
    let before = a.context.raw_clock_ns();
    let mut last = before;
    for wr_id in 0..50 {
        b.post_recv(wr_id, 0, 8);
        a.post(wr_id, SendOp::Send { imm: None }, 0, 8);
        let (sent, received) = (a.complete(), b.complete());
        assert!(sent.timestamp_ns >= last && received.timestamp_ns >= before);
        last = sent.timestamp_ns;
    }
    assert!(last <= a.context.raw_clock_ns());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let then = Duration::from_nanos(a.cq.wallclock_ns(last));
    assert!(then <= now && now - then < Duration::from_secs(60), "{then:?} {now:?}");
}

#[test]
fn a_request_can_be_checked_without_being_posted() {
    let (a, _b) = pair(QpType::Rc, 64);
    let wr = |len| SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Inline(&[0; 300][..len]),
        ud: None,
    };
    let mut posting = a.qp.start_post().unwrap();
    let room = CAP.max_send_wr as usize;
    posting.check_post_send(&wr(8), room - 1).unwrap();
    let full = posting.check_post_send(&wr(8), room).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoMemory);
    let long = posting.check_post_send(&wr(257), 0).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Invalid);
    drop(posting);
    assert_eq!(a.cq.poll_cq(&mut [Wc::default()]).unwrap(), 0);
}

#[test]
fn a_parent_domain_is_the_domain_it_was_made_of() {
    let (a, b) = pair(QpType::Rc, 64);
    let td = a.context.alloc_td().unwrap();
    let parent = a.pd.alloc_parent_domain(Some(&td)).unwrap();
    let foreign = b.context.alloc_td().unwrap();
    let refused = a.pd.alloc_parent_domain(Some(&foreign)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &a.cq,
        recv_cq: &a.cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    };
    // The queue pair is the parent's, the region its domain's.
    let qp = parent.create_qp(&init).unwrap();
    common::to_init(&qp);
    let ends = irdma_ends(&qp, &a);
    connect(&qp, &ends, 0, 14);
    a.fill(0, 8, 7);
    let write = SendOp::Write { remote_addr: a.buffer.addr() + 32, rkey: a.mr.rkey(), imm: None };
    let sges = [a.sge(0, 8)];
    let data = SendData::Sges(&sges);
    qp.post_send(&SendWr { wr_id: 1, op: write, flags: SendFlags::empty(), data, ud: None })
        .unwrap();
    assert_eq!(a.complete().wr_id, 1);
    a.expect_bytes(32, 8, 7);

    let td = td.dealloc_td().unwrap_err();
    assert_eq!(td.error.kind(), ErrorKind::Busy);
    let parent = parent.dealloc_pd().unwrap_err();
    assert_eq!(parent.error.kind(), ErrorKind::Busy);
    qp.destroy_qp().unwrap();
    parent.handle.dealloc_pd().unwrap();
    td.handle.dealloc_td().unwrap();
}

/// What `qp` has to know to talk to itself over the buffer of `node`.
fn irdma_ends(qp: &irdma::Qp, node: &Node) -> common::Ends {
    common::Ends { qpn: qp.qpn(), ..node.ends() }
}

#[test]
fn equal_address_handles_of_programs_share_an_entry() {
    let node = Node::new(&loopback(), QpType::Ud, 64);
    let dgid = node.ends().gid;
    let attr = AhAttr { dgid, port: 1, hop_limit: 3, ..AhAttr::default() };
    let first = node.pd.create_user_ah(&attr).unwrap();
    let second = node.pd.create_user_ah(&attr).unwrap();
    assert!(Arc::ptr_eq(first.transport(), second.transport()));
    let own = node.pd.create_ah(&attr).unwrap();
    let other = node.pd.create_user_ah(&AhAttr { hop_limit: 4, ..attr }).unwrap();
    let pd = node.context.alloc_pd().unwrap();
    let elsewhere = pd.create_user_ah(&attr).unwrap();
    for apart in [&own, &other, &elsewhere] {
        assert!(!Arc::ptr_eq(first.transport(), apart.transport()));
    }
    // The entry stays until the last handle goes; the next one is new.
    let entry = Arc::downgrade(first.transport());
    first.destroy_ah();
    assert_eq!(second.query_ah().hop_limit, 3);
    second.destroy_ah();
    assert!(entry.upgrade().is_none());
    assert_eq!(node.pd.create_user_ah(&attr).unwrap().query_ah().dgid, dgid);
}

#[test]
fn a_failed_request_keeps_its_status_in_a_resized_queue() {
    let (a, b) = pair(QpType::Rc, 64);
    let write = SendOp::Write { remote_addr: b.buffer.addr(), rkey: 1, imm: None };
    a.post(3, write, 0, 8);
    a.cq.resize_cq(100).unwrap();
    assert_eq!(a.completion().status, WcStatus::RemAccessErr);
}
