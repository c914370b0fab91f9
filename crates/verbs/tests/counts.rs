//! Advertised counts of objects are truthful: the value works, one more is refused.
//!
//! A file of its own: other tests of the same process would take places meanwhile.

mod common;

use std::sync::Arc;

use common::{CAP, loopback};
use irdma::{Access, AhAttr, Buffer, DmAttr, ErrorKind, MwType, QpInitAttr, QpType, SrqAttr};

/// Makes objects until one is refused; expects exactly `max`, and room again when they are gone.
fn fill<T>(what: &str, max: u32, make: impl Fn() -> irdma::Result<T>) {
    let mut made = Vec::new();
    let refused = loop {
        match make() {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
        assert!(made.len() <= max as usize, "{what}: more than {max}");
    };
    assert_eq!(made.len() as u32, max, "{what}: {refused}");
    let kinds = [ErrorKind::Overflow, ErrorKind::NoMemory];
    assert!(kinds.contains(&refused.kind()), "{what}: {refused:?}");
    drop(made);
    assert!(make().is_ok(), "{what}: no room after all are gone");
}

#[test]
fn counts_are_exact() {
    let context = loopback().open().unwrap();
    let limits = context.query_device().limits;
    fill("max_pd", limits.max_pd, || context.alloc_pd());
    fill("max_cq", limits.max_cq, || context.create_cq(1, None, 0));
    let pd = context.alloc_pd().unwrap();
    let srq = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    fill("max_srq", limits.max_srq, || pd.create_srq(srq));
    let ah = AhAttr { dgid: context.query_gid(1, 0).unwrap(), port: 1, ..AhAttr::default() };
    fill("max_ah", limits.max_ah, || pd.create_ah(&ah));
    let buffer = Arc::new(Buffer::zeroed(64));
    fill("max_mr", limits.max_mr, || pd.reg_buffer(&buffer, 0..64, Access::empty()));
    fill("max_mw", limits.max_mw, || pd.alloc_mw(MwType::Two));
    let half = DmAttr { length: limits.max_dm_size / 2, log_align_req: 0 };
    fill("max_dm_size", 2, || context.alloc_dm(half));
    let cq = context.create_cq(1, None, 0).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    fill("max_qp", limits.max_qp, || pd.create_qp(&init));
}
