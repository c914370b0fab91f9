//! What a program can watch in memory: its queues, a page of counters; and the push page.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{Node, cap_on, loopback, pair, to_init};
use irdma::{
    Buffer, ErrorKind, Part, Pd, Qp, QpCap, QpInitAttr, QpType, QueueMr, RecvWr, SendData,
    SendFlags, SendOp, SendWr,
};

const SEND_LEN: usize = 4;
const RECV_LEN: usize = 8;
const SHADOW: usize = 4 * 8;
const WHOLE: usize = (SEND_LEN + RECV_LEN) * 8 + SHADOW;

fn create(node: &Node, memory: &QueueMr) -> irdma::Result<Qp> {
    create_on(&node.pd, node, memory.addr())
}

fn create_on(pd: &Pd, node: &Node, addr: u64) -> irdma::Result<Qp> {
    let cap =
        QpCap { max_send_wr: SEND_LEN as u32, max_recv_wr: RECV_LEN as u32, ..cap_on(&loopback()) };
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &node.cq,
        recv_cq: &node.cq,
        srq: None,
        cap,
        sq_sig_all: true,
        block_self_mcast: false,
    };
    pd.setup_umode_qp(&init, addr)
}

fn words(buffer: &Buffer, range: Range<usize>) -> Vec<u64> {
    let mut bytes = vec![0; range.len()];
    buffer.read(range.start, &mut bytes);
    bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

fn register(node: &Node, parts: &[Part]) -> irdma::Result<QueueMr> {
    node.pd.reg_queue_mr(parts, SEND_LEN as u32, RECV_LEN as u32)
}

#[test]
fn waiting_requests_are_seen_in_the_programs_memory() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let rings = Arc::new(Buffer::zeroed(WHOLE));
    let memory = register(&node, &[(Arc::clone(&rings), 0..WHOLE)]).unwrap();
    let qp = create(&node, &memory).unwrap();
    let shadow = WHOLE - SHADOW..WHOLE;
    assert_eq!(words(&rings, shadow.clone()), [0; 4]);
    to_init(&qp);
    (100..106).for_each(|wr_id| qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
    post(&qp, 7);
    assert_eq!(words(&rings, 0..SEND_LEN * 8), [7, 0, 0, 0]);
    let recv = SEND_LEN * 8..(SEND_LEN + RECV_LEN) * 8;
    assert_eq!(words(&rings, recv.clone()), [100, 101, 102, 103, 104, 105, 0, 0]);
    assert_eq!(words(&rings, shadow.clone()), [1, 0, 6, 0]);

    // It talks to itself: the message takes the first receive.
    let ends = common::Ends { qpn: qp.qpn(), ..node.ends() };
    common::connect(&qp, &ends, 0, 14);
    assert_eq!([node.complete(), node.complete()].map(|wc| wc.wr_id).iter().sum::<u64>(), 107);
    assert_eq!(words(&rings, shadow.clone()), [1, 1, 6, 1]);
    (0..4).for_each(|_| post(&qp, 8));
    assert_eq!(words(&rings, 0..SEND_LEN * 8), [8; 4], "the fifth is where the first was");
    assert_eq!(words(&rings, shadow)[0], 5);
}

fn post(qp: &Qp, wr_id: u64) {
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    qp.post_send(&SendWr { wr_id, op, flags, data: SendData::Inline(b""), ud: None }).unwrap();
}

#[test]
fn scattered_memory_serves_as_well() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let parts = [SEND_LEN * 8, RECV_LEN * 8, SHADOW].map(|len| {
        let buffer = Arc::new(Buffer::zeroed(len + 8));
        (buffer, 8..len + 8)
    });
    let memory = register(&node, &parts).unwrap();
    let qp = create(&node, &memory).unwrap();
    qp.post_recv(&RecvWr { wr_id: 9, sges: &[] }).unwrap();
    assert_eq!(words(&parts[1].0, 0..24), [0, 9, 0]);
    assert_eq!(words(&parts[2].0, 8..40), [0, 0, 1, 0]);
}

#[test]
fn queue_memory_is_registered_before_and_kept_meanwhile() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let rings = Arc::new(Buffer::zeroed(WHOLE));
    let unknown = create_on(&node.pd, &node, rings.addr());
    assert_eq!(unknown.unwrap_err().errno(), 61);
    let memory = register(&node, &[(Arc::clone(&rings), 0..WHOLE)]).unwrap();
    assert_eq!(memory.shadow_addr(), rings.addr() + (WHOLE - SHADOW) as u64);
    assert_eq!(create_on(&node.pd, &node, rings.addr() + 8).unwrap_err().errno(), 61);
    let other = node.context.alloc_pd().unwrap();
    assert_eq!(create_on(&other, &node, rings.addr()).unwrap_err().errno(), 22);
    let qp = create(&node, &memory).unwrap();
    assert_eq!(create(&node, &memory).unwrap_err().kind(), ErrorKind::NoData, "it is taken");
    let busy = memory.dereg_mr().unwrap_err();
    assert_eq!(busy.error.errno(), 16);
    qp.destroy_qp().unwrap();
    let again = create(&node, &busy.handle).unwrap();
    drop(again);
    busy.handle.dereg_mr().unwrap();
    assert_eq!(create_on(&node.pd, &node, rings.addr()).unwrap_err().errno(), 61);
}

#[test]
fn queue_memory_that_does_not_fit_is_refused() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let rings = Arc::new(Buffer::zeroed(WHOLE + 8));
    let part = |range: Range<usize>| (Arc::clone(&rings), range);
    let refused = |parts: &[Part]| register(&node, parts).unwrap_err().errno();
    assert_eq!(refused(&[part(0..WHOLE - 1)]), 22);
    assert_eq!(refused(&[part(1..WHOLE + 1)]), 22);
    assert_eq!(refused(&[part(usize::MAX..usize::MAX)]), 22);
    assert_eq!(refused(&[]), 22);
    assert_eq!(refused(&[part(0..64), part(0..64)]), 22);
    assert_eq!(node.pd.reg_queue_mr(&[part(0..WHOLE)], 0, 8).unwrap_err().errno(), 22);
    let short = node.pd.reg_queue_mr(&[part(0..WHOLE)], 4, 7).unwrap();
    assert_eq!(create(&node, &short).unwrap_err().errno(), 22, "the ring is too short");
    assert_eq!(short.dereg_mr().map_err(|refused| refused.error), Ok(()));
}

#[test]
fn the_counters_of_the_page_move_with_the_traffic() {
    let (a, b) = pair(QpType::Rc, 4096);
    let (key, other) = (a.context.mmap_key(), a.context.mmap_key() ^ 4096);
    assert_eq!(a.context.mmap(other, 4096).unwrap_err().errno(), 22);
    assert_eq!(a.context.mmap(key, 4097).unwrap_err().errno(), 22);
    let page = a.context.mmap(key, 4096).unwrap();
    let before = (page.get("OutRdmaSends").unwrap(), page.updates());
    b.post_recv(1, 0, 64);
    a.post(2, SendOp::Send { imm: None }, 0, 64);
    a.complete();
    b.complete();
    assert!(page.get("OutRdmaSends").unwrap() > before.0 && page.updates() > before.1);
    assert_eq!(page.get("no counter"), None);
}

/// The page is used where it helps, and what it does not fit goes as without, in order.
#[test]
fn a_push_page_takes_small_inline_sends_and_changes_nothing_else() {
    let (a, b) = pair(QpType::Rc, 4096);
    let pushed = || a.context.get_hw_stats().get("pushed").unwrap();
    let send = |wr_id: u64, bytes: &[u8]| {
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
        let data = SendData::Inline(bytes);
        a.qp.post_send(&SendWr { wr_id, op, flags, data, ud: None }).unwrap();
    };
    b.post_recv(0, 0, 64);
    send(0, b"none");
    a.complete();
    assert_eq!(pushed(), 0, "there is no page");
    a.qp.alloc_push_page();
    (1..4).for_each(|i| b.post_recv(i, 64 * i as usize, 64));
    for wr_id in 1..3 {
        send(wr_id, &[wr_id as u8; 16]);
        assert_eq!(a.complete().wr_id, wr_id);
    }
    assert_eq!(pushed(), 2, "the page comes back with the completion");
    let sges = [a.sge(0, 16)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 3, op, flags, data: SendData::Sges(&sges), ud: None };
    a.qp.post_send(&wr).unwrap();
    a.complete();
    assert_eq!(pushed(), 2, "only inline data");
    // The first of three waits for a receive, so that the others find the queue in use.
    (4..7).for_each(|wr_id| send(wr_id, &[wr_id as u8; 16]));
    assert_eq!(pushed(), 3);
    (4..7).for_each(|i| b.post_recv(i, 64 * i as usize, 64));
    (4..7).for_each(|wr_id| assert_eq!(a.complete().wr_id, wr_id));
    (0..7).for_each(|wr_id| assert_eq!(b.complete().wr_id, wr_id));
    for i in [1, 2, 4, 5, 6] {
        assert_eq!(b.buffer.byte(64 * i + 15), i as u8);
    }
}
