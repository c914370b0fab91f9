//! What the environment decides about all devices of a process: their protocol, their push pages.

mod common;

use std::process::Command;
use std::sync::Arc;

use common::process::ROLE;
use common::{ALL, CAP, cap_on, loopback, pair};
use irdma::{
    AhAttr, Buffer, Device, Mode, NodeType, QpInitAttr, QpType, SendData, SendFlags, SendOp,
    SendWr, SrqAttr, Transport,
};

fn in_a_process_with(variable: &str, value: &str, role: &str) {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process", "--nocapture"])
        .envs([(variable, value), (ROLE, role)])
        .status();
    assert!(ran.unwrap().success(), "{variable}={value}");
}

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("iwarp") => iwarp(),
        Ok("push") => push(),
        _ => {}
    }
}

#[test]
fn iwarp_devices_are_listed_and_answer_and_have_no_queue_pairs() {
    in_a_process_with("IRDMA_MODE", "iwarp", "iwarp");
}

fn iwarp() {
    let devices = Device::list().unwrap();
    assert!(devices.iter().all(|device| device.name().starts_with("iw_")));
    let device = loopback();
    assert_eq!((device.name(), device.mode()), ("iw_lo", Mode::Iwarp));
    assert_eq!((device.node_type(), device.transport()), (NodeType::Rnic, Transport::Iwarp));
    let context = device.open().unwrap();
    let port = context.query_port(1).unwrap();
    assert_eq!((port.gid_tbl_len, port.pkey_tbl_len), (1, 0));
    assert_eq!(context.query_gid(1, 0).unwrap().0, [0; 16], "the loopback interface's MAC");
    assert_eq!(context.query_gid(1, 1).unwrap_err().errno(), 22);
    assert_eq!(context.query_pkey(1, 0).unwrap_err().errno(), 95);
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1, None, 0).unwrap();
    let buffer = Arc::new(Buffer::zeroed(64));
    pd.reg_buffer(&buffer, 0..64, ALL).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    let error = pd.create_qp(&init).unwrap_err();
    assert_eq!(error.errno(), 95);
    assert!(error.to_string().contains("--mode roce"), "{error}");
    let srq = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    assert_eq!(pd.create_srq(srq).unwrap_err().errno(), 95);
    assert_eq!(pd.create_ah(&AhAttr::default()).unwrap_err().errno(), 95);
    device.ib_unregister_device();
    assert_eq!(context.alloc_pd().unwrap_err().errno(), 5);
    device.ib_register_device().unwrap();
}

#[test]
fn with_push_every_queue_pair_has_a_page() {
    in_a_process_with("IRDMA_PUSH", "yes", "push");
}

fn push() {
    let (a, b) = pair(QpType::Rc, 64);
    assert!(cap_on(&loopback()).max_inline_data >= 8);
    b.post_recv(1, 0, 64);
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let data = SendData::Inline(&[7; 8]);
    a.qp.post_send(&SendWr { wr_id: 2, op, flags, data, ud: None }).unwrap();
    a.complete();
    b.complete();
    assert_eq!(b.buffer.byte(7), 7);
    assert_eq!(a.context.get_hw_stats().get("pushed"), Some(1));
}
