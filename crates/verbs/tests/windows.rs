//! Memory windows and fast registrations over the loopback interface.

mod common;

use std::sync::Arc;

use common::{ALL, Node, pair, to_init};
use irdma::{
    Access, AttrMask, Buffer, ErrorKind, Mr, Mw, MwBindInfo, MwType, Piece, QpAttr, QpState,
    QpType, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus,
};

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const PAGE: usize = 4096;

/// A region of the node's buffer that windows can be bound to.
fn parent(node: &Node) -> Mr {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    node.pd.reg_buffer(&node.buffer, 0..node.buffer.len(), access).unwrap()
}

fn info<'a>(node: &Node, mr: &'a Mr) -> MwBindInfo<'a> {
    MwBindInfo { mr, addr: node.buffer.addr() + 1024, length: 512, access: REMOTE }
}

fn bind(node: &Node, mw: &Mw, info: &MwBindInfo<'_>) -> u32 {
    let rkey = node.qp.bind_mw(9, SIGNALED, mw, info).unwrap();
    let done = node.complete();
    assert_eq!((done.wr_id, done.opcode), (9, WcOpcode::BindMw));
    assert_eq!(mw.rkey(), rkey);
    rkey
}

fn write(from: &Node, remote_addr: u64, rkey: u32) -> WcStatus {
    from.post(1, SendOp::Write { remote_addr, rkey, imm: None }, 0, 64);
    from.completion().status
}

#[test]
fn a_window_is_written_to_and_read_from_inside_its_range_only() {
    for mw_type in [MwType::One, MwType::Two] {
        let (a, b) = pair(QpType::Rc, 4096);
        let mr = parent(&b);
        let mw = b.pd.alloc_mw(mw_type).unwrap();
        let first = mw.rkey();
        let info = info(&b, &mr);
        let rkey = bind(&b, &mw, &info);
        assert_eq!((rkey ^ first) & !0xff, 0, "only the low byte changes");
        assert_ne!(rkey, first);
        a.fill(0, 64, 5);
        assert_eq!(write(&a, info.addr, rkey), WcStatus::Success);
        b.expect_bytes(1024, 64, 5);
        a.post(2, SendOp::Read { remote_addr: info.addr, rkey }, 100, 64);
        assert_eq!(a.complete().opcode, WcOpcode::RdmaRead);
        a.expect_bytes(100, 64, 5);
        assert_eq!(write(&a, info.addr + 512 - 63, rkey), WcStatus::RemAccessErr);
    }
}

#[test]
fn a_region_with_bound_windows_stays() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let mr = parent(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    bind(&b, &mw, &info(&b, &mr));
    let refused = mr.dereg_mr().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Busy);
    mw.dealloc_mw().unwrap();
    refused.handle.dereg_mr().unwrap();
}

#[test]
fn dropped_queue_pairs_and_regions_let_go_of_their_windows() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let (one, two) = (b.pd.alloc_mw(MwType::One).unwrap(), b.pd.alloc_mw(MwType::Two).unwrap());
    let mr = parent(&b);
    bind(&b, &two, &info(&b, &mr));
    let Node { qp, cq, pd, buffer, .. } = b;
    qp.destroy_qp().map_err(|refused| refused.error).unwrap();
    mr.dereg_mr().map_err(|refused| refused.error).unwrap();
    drop((one, two));
    drop((cq, buffer));
    assert!(pd.dealloc_pd().is_err(), "the node's region stands on it");
}

#[test]
fn windows_of_type_2_are_invalidated_from_both_sides() {
    let (a, b) = pair(QpType::Rc, 4096);
    let mr = parent(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    let rkey = bind(&b, &mw, &info(&b, &mr));
    b.post(3, SendOp::LocalInvalidate { key: rkey }, 0, 0);
    assert_eq!(b.complete().opcode, WcOpcode::LocalInv);
    let rkey = bind(&b, &mw, &info(&b, &mr));
    b.post_recv(7, 0, 64);
    a.post(1, SendOp::SendInvalidate { rkey }, 0, 64);
    let got = b.complete();
    assert!(got.flags.contains(WcFlags::WITH_INV));
    assert_eq!((got.wr_id, got.invalidated_rkey), (7, rkey));
    assert_eq!(a.complete().wr_id, 1);
    assert_eq!(write(&a, b.buffer.addr() + 1024, rkey), WcStatus::RemAccessErr);
}

#[test]
fn sends_of_every_size_invalidate() {
    let (a, b) = pair(QpType::Rc, 1 << 16);
    let mr = parent(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    for (turn, len) in [0, 1, 1023, 1024, 1025, 8193].into_iter().enumerate() {
        let rkey = bind(&b, &mw, &info(&b, &mr));
        b.post_recv(turn as u64, 0, len);
        a.fill(0, len, turn as u8);
        a.post(1, SendOp::SendInvalidate { rkey }, 0, len);
        let got = b.complete();
        assert_eq!((got.byte_len as usize, got.invalidated_rkey), (len, rkey));
        b.expect_bytes(0, len, turn as u8);
        a.complete();
    }
}

#[test]
fn a_window_of_type_1_is_unbound_by_length_0() {
    let (a, b) = pair(QpType::Rc, 4096);
    let mr = parent(&b);
    let mw = b.pd.alloc_mw(MwType::One).unwrap();
    let bound = info(&b, &mr);
    bind(&b, &mw, &bound);
    let rkey = bind(&b, &mw, &MwBindInfo { length: 0, ..bound });
    assert_eq!(write(&a, bound.addr, rkey), WcStatus::RemAccessErr);
    mr.dereg_mr().unwrap();
}

#[test]
fn a_bind_that_may_not_be_is_reported_and_the_queue_pair_in_error() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    // The node's own region was not registered for windows.
    b.qp.bind_mw(4, SendFlags::empty(), &mw, &info(&b, &b.mr)).unwrap();
    assert_eq!(b.completion().status, WcStatus::MwBindErr);
    assert_eq!(b.qp.query_qp().unwrap().0.state, QpState::Err);
}

#[test]
fn a_zero_based_region_takes_no_window() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let access = Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
    let mr = b.pd.reg_buffer(&b.buffer, 0..4096, access).unwrap();
    let mw = b.pd.alloc_mw(MwType::One).unwrap();
    let before = mw.rkey();
    let refused = b.qp.bind_mw(4, SIGNALED, &mw, &info(&b, &mr)).unwrap_err();
    assert_eq!((refused.kind(), mw.rkey()), (ErrorKind::Invalid, before));
}

/// The pages of a fast registration lie apart; the peer sees them as one range.
#[test]
fn scattered_pages_are_written_as_one_region_until_invalidated() {
    let (a, b) = pair(QpType::Rc, 1 << 16);
    let pages = Arc::new(Buffer::zeroed(20 * PAGE));
    let first = (pages.addr() as usize).next_multiple_of(PAGE) - pages.addr() as usize;
    let fast = b.pd.alloc_mr(8).unwrap();
    let part = |i: usize| (Arc::clone(&pages), first + i * 2 * PAGE..first + (i * 2 + 1) * PAGE);
    let parts: Vec<_> = (0..9).map(part).collect();
    let outside = [(Arc::clone(&pages), usize::MAX..usize::MAX)];
    let refused = fast.map_buffers(&outside, PAGE as u64).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(fast.map_buffers(&parts, PAGE as u64).unwrap(), 8, "the list is full");
    let rkey = b.qp.reg_mr(5, SIGNALED, &fast, ALL).unwrap();
    assert_eq!(b.complete().opcode, WcOpcode::RegMr);
    assert_eq!((fast.key(), fast.pbl_level()), (rkey, 1));

    a.fill(0, 8 * PAGE, 3);
    let remote_addr = pages.addr() + first as u64;
    a.post(1, SendOp::Write { remote_addr, rkey, imm: None }, 0, 8 * PAGE);
    a.complete();
    let wanted = common::pattern(8 * PAGE, 3);
    for i in 0..8 {
        let mut found = vec![0; 2 * PAGE];
        pages.read(first + i * 2 * PAGE, &mut found);
        assert!(found[..PAGE] == wanted[i * PAGE..][..PAGE], "page {i}");
        assert!(found[PAGE..].iter().all(|byte| *byte == 0), "after page {i}");
    }
    a.post(2, SendOp::Read { remote_addr: remote_addr + 100, rkey }, 0, 8 * PAGE - 100);
    a.complete();
    let mut back = vec![0; 8 * PAGE - 100];
    a.buffer.read(0, &mut back);
    assert!(back == wanted[100..]);

    b.post_recv(7, 0, 0);
    a.post(3, SendOp::SendInvalidate { rkey }, 0, 0);
    assert_eq!((b.complete().invalidated_rkey, a.complete().wr_id), (rkey, 3));
    assert_eq!(write(&a, remote_addr, rkey), WcStatus::RemAccessErr);
    fast.dereg_mr().unwrap();
}

/// What flushed requests would have made of the keys never comes about.
#[test]
fn flushed_binds_and_registrations_leave_window_and_region_usable() {
    let (a, b) = pair(QpType::Rc, 2 * PAGE);
    let (parent, mw) = (parent(&b), b.pd.alloc_mw(MwType::Two).unwrap());
    let fast = b.pd.alloc_mr(1).unwrap();
    let first = (b.buffer.addr() as usize).next_multiple_of(PAGE) - b.buffer.addr() as usize;
    fast.map_buffers(&[(Arc::clone(&b.buffer), first..first + 64)], PAGE as u64).unwrap();
    let go = |state| {
        let attr = QpAttr { state, ..QpAttr::default() };
        b.qp.modify_qp(&attr, AttrMask::STATE).unwrap();
    };
    go(QpState::Err);
    let info = info(&b, &parent);
    for _ in 0..3 {
        b.qp.bind_mw(4, SIGNALED, &mw, &info).unwrap();
        assert_eq!(b.completion().status, WcStatus::WrFlushErr);
        b.qp.reg_mr(5, SIGNALED, &fast, ALL).unwrap();
        assert_eq!(b.completion().status, WcStatus::WrFlushErr);
    }
    go(QpState::Reset);
    to_init(&b.qp);
    b.connect(&a.ends());
    let rkey = bind(&b, &mw, &info);
    assert_eq!(write(&a, info.addr, rkey), WcStatus::Success);
    assert_eq!(b.qp.reg_mr(6, SIGNALED, &fast, ALL).unwrap(), fast.key());
    assert_eq!(b.complete().opcode, WcOpcode::RegMr);
    assert_eq!(write(&a, b.buffer.addr() + first as u64, fast.key()), WcStatus::Success);
}

#[test]
fn raw_memory_is_mapped_and_registered() {
    let (a, b) = pair(QpType::Rc, 4096);
    let pages = Buffer::zeroed(4 * PAGE);
    let first = pages.addr().next_multiple_of(PAGE as u64);
    let fast = b.pd.alloc_mr(2).unwrap();
    let pieces = [(first + 4000, 96), (first + 2 * PAGE as u64, 100), (first, 8)];
    let pieces = pieces.map(|(addr, len)| Piece { addr, len });
    // SAFETY: the buffer outlives the region.
    let mapped = unsafe { fast.map_mr_sg(&pieces, PAGE as u64) };
    assert_eq!(mapped.unwrap(), 2, "the second piece ends inside a page");
    let rkey = b.qp.reg_mr(5, SIGNALED, &fast, ALL).unwrap();
    b.complete();
    a.fill(0, 64, 6);
    assert_eq!(write(&a, first + 4000 + 64, rkey), WcStatus::Success);
    let wanted = common::pattern(64, 6);
    let at = (first - pages.addr()) as usize;
    let mut found = [0; 64];
    pages.read(at + 4064, &mut found[..32]);
    pages.read(at + 2 * PAGE, &mut found[32..]);
    assert!(found[..] == wanted[..]);
    assert_eq!(write(&a, first + 4000 + 196 - 63, rkey), WcStatus::RemAccessErr);
    fast.dereg_mr().unwrap();
    let fast = b.pd.alloc_mr(1).unwrap();
    // SAFETY: refused.
    let refused = unsafe { fast.map_mr_sg(&pieces[..1], 100) }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn pages_that_follow_each_other_need_no_list() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let pages = Arc::new(Buffer::zeroed(601 * PAGE));
    let first = (pages.addr() as usize).next_multiple_of(PAGE) - pages.addr() as usize;
    for (step, level) in [(1, 0), (2, 2)] {
        let fast = b.pd.alloc_mr(600).unwrap();
        let part = |i: usize| {
            let start = first + (i * step % 600) * PAGE;
            (Arc::clone(&pages), start..start + PAGE)
        };
        let parts: Vec<_> = (0..600).map(part).collect();
        assert_eq!(fast.map_buffers(&parts, PAGE as u64).unwrap(), 600);
        b.qp.reg_mr(5, SIGNALED, &fast, ALL).unwrap();
        b.complete();
        assert_eq!(fast.pbl_level(), level);
    }
}

#[test]
fn unreliable_connections_use_windows_too() {
    let (a, b) = pair(QpType::Uc, 4096);
    let mr = parent(&b);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    let info = info(&b, &mr);
    let rkey = bind(&b, &mw, &info);
    a.fill(0, 64, 8);
    b.post_recv(7, 0, 0);
    a.post(1, SendOp::Write { remote_addr: info.addr, rkey, imm: Some([1, 2, 3, 4]) }, 0, 64);
    assert_eq!(b.complete().imm, [1, 2, 3, 4]);
    b.expect_bytes(1024, 64, 8);
}
