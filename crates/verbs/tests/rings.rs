//! Rings in the program's own memory, and keys for all of it.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{CAP, Ends, Node, connect, loopback, pair, poll_one, to_init};
use irdma::{
    Access, Buffer, ErrorKind, QUANTUM, QpInitAttr, QpType, QueueKind, RecvWr, SendData, SendFlags,
    SendOp, SendWr, Sge, ring_bytes,
};

const PAGE: usize = 4096;

/// Pages of a buffer, and where the first one is in it.
fn pages(count: usize) -> (Arc<Buffer>, usize) {
    let buffer = Arc::new(Buffer::zeroed((count + 1) * PAGE));
    let first = (buffer.addr() as usize).next_multiple_of(PAGE) - buffer.addr() as usize;
    (buffer, first)
}

fn whole(buffer: &Arc<Buffer>, range: Range<usize>) -> Vec<(Arc<Buffer>, Range<usize>)> {
    vec![(Arc::clone(buffer), range)]
}

fn init(node: &Node) -> QpInitAttr<'_> {
    QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &node.cq,
        recv_cq: &node.cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    }
}

fn kind() -> (QueueKind, usize) {
    let [send, recv] = ring_bytes(&CAP).unwrap();
    let pages = send.div_ceil(PAGE) + recv.div_ceil(PAGE) + 1;
    (QueueKind::Qp { send, recv }, pages)
}

#[test]
fn a_queue_pair_with_rings_shows_in_them_what_was_posted() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let (kind, count) = kind();
    let (buffer, first) = pages(count);
    let rings =
        node.pd.reg_queue_memory(kind, whole(&buffer, first..first + count * PAGE)).unwrap();
    assert_eq!(rings.place(), Ok(rings.addr()), "one piece");
    let qp = node.pd.create_umode_qp(&init(&node), rings.addr()).unwrap();
    to_init(&qp);
    let ends = Ends { qpn: qp.qpn(), ..node.ends() };
    connect(&qp, &ends, 0, 14);
    qp.post_recv(&RecvWr { wr_id: 0x77, sges: &[node.sge(0, 100)] }).unwrap();
    let wr = SendWr {
        wr_id: 0x88,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&[node.sge(200, 30), node.sge(300, 30)]),
        ud: None,
    };
    qp.post_send(&wr).unwrap();
    let shown = |at: usize| {
        let mut bytes = [0; QUANTUM];
        buffer.read(first + at, &mut bytes);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        (word(0), word(8), bytes[16], bytes[28])
    };
    let [send, _] = ring_bytes(&CAP).unwrap();
    assert_eq!(shown(0), (0x88, 60, 2, 1));
    assert_eq!(shown(send.next_multiple_of(PAGE)), (0x77, 100, 1, 1));
    poll_one(&node.cq);
    poll_one(&node.cq);

    let busy = rings.dereg_mr().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    let addr = busy.handle.addr();
    drop(qp);
    let again = node.pd.create_umode_qp(&init(&node), addr).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NoData, "rings are for one queue pair");
    busy.handle.dereg_mr().map_err(|refused| refused.error).unwrap();
}

#[test]
fn rings_that_are_not_there_or_too_short_are_refused() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let (_, count) = kind();
    let refused = |addr| node.pd.create_umode_qp(&init(&node), addr).unwrap_err().kind();
    assert_eq!(refused(0x1000), ErrorKind::NoData);
    let (buffer, first) = pages(count);
    let short = QueueKind::Qp { send: PAGE, recv: PAGE };
    let range = first..first + 3 * PAGE;
    let rings = node.pd.reg_queue_memory(short, whole(&buffer, range.clone())).unwrap();
    assert_eq!(refused(rings.addr()), ErrorKind::Invalid);
    let few = node.pd.reg_queue_memory(QueueKind::Cq(3 * PAGE), whole(&buffer, range));
    assert_eq!(few.unwrap_err().kind(), ErrorKind::Invalid, "no page after the ring");
}

#[test]
fn rings_in_scattered_pages_are_named_by_a_list() {
    let node = Node::new(&loopback(), QpType::Rc, 4096);
    let (buffer, first) = pages(12);
    let part = |page: usize| (Arc::clone(&buffer), first + page * PAGE..first + (page + 1) * PAGE);
    let parts = [0, 2, 4, 6, 8, 10].map(part).to_vec();
    let rings = node.pd.reg_queue_memory(QueueKind::Srq(4 * PAGE), parts).unwrap();
    assert_eq!(rings.place(), Err(1));
}

#[test]
fn a_key_for_all_memory_serves_the_programs_own_lists_only() {
    let (a, b) = pair(QpType::Rc, 4096);
    // SAFETY: the requests below write to the node's buffer only.
    let all = unsafe { a.pd.get_dma_mr(Access::LOCAL_WRITE) }.unwrap();
    b.fill(0, 64, 3);
    let ends = b.ends();
    let sges = [Sge { addr: a.buffer.addr() + 8, length: 64, lkey: all.lkey() }];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Read { remote_addr: ends.addr, rkey: ends.rkey },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        ud: None,
    };
    a.qp.post_send(&wr).unwrap();
    a.complete();
    a.expect_bytes(8, 64, 3);
    // SAFETY: refused.
    let remote = unsafe { a.pd.get_dma_mr(Access::REMOTE_READ) };
    assert_eq!(remote.unwrap_err().kind(), ErrorKind::Invalid);
}
