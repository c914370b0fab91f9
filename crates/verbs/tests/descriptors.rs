//! A process without a free descriptor: refusals name the cause, and nothing has changed.
//!
//! The limit is the whole process's, so that this file holds one test.

mod common;

use std::os::fd::AsRawFd;

use common::{CAP, QKEY, loopback, to_init};
use irdma::{AttrMask, QpAttr, QpInitAttr, QpState, QpType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const EMFILE: i32 = 24;

/// Runs `call` while no more than `free` descriptors can be opened.
fn with_few<T>(free: u64, call: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = Rlimit { current: Some(lowest + free), ..before };
    setrlimit(Resource::Nofile, limit).unwrap();
    let result = call();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}

#[test]
fn exhausted_descriptors_are_named() {
    let context = loopback().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8, None, 0).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    assert_eq!(with_few(0, || context.create_comp_channel()).unwrap_err().errno(), EMFILE);
    let refused = with_few(0, || pd.create_qp(&init)).unwrap_err();
    assert_eq!(refused.errno(), EMFILE, "{refused}");
    context.create_comp_channel().unwrap();
    let qp = pd.create_qp(&init).unwrap();
    let attr = QpAttr { state: QpState::Init, port: 1, qkey: QKEY, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    for free in [0, 1, 4, 8] {
        let refused = with_few(free, || qp.modify_qp(&attr, mask)).unwrap_err();
        assert_eq!(refused.errno(), EMFILE, "{free}: {refused}");
    }
    to_init(&qp);
}
