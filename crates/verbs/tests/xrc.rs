//! Extended reliable connections over the loopback interface.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{ALL, CAP, Ends, connect, loopback, poll_one, to_init};
use irdma::{
    AsyncEvent, AsyncSource, AttrMask, Buffer, Context, Cq, ErrorKind, EventKind, Mr, Pd, Qp,
    QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Srq,
    SrqAttr, WcOpcode, WcStatus, Xrcd, XrcdFlags,
};

const SRQ: SrqAttr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };

/// A protection domain with a shared queue, its completion queue and memory.
struct Service {
    srq: Srq,
    cq: Cq,
    mr: Mr,
    buffer: Arc<Buffer>,
    _pd: Pd,
}

fn service(context: &Context, xrcd: &Xrcd) -> Service {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let srq = pd.create_xrc_srq(SRQ, xrcd, &cq).unwrap();
    let buffer = Arc::new(Buffer::zeroed(4096));
    let mr = pd.reg_buffer(&buffer, 0..4096, ALL).unwrap();
    let service = Service { srq, cq, mr, buffer, _pd: pd };
    for wr_id in 0..4 {
        let sges = [service.sge(wr_id as usize * 1024, 1024)];
        service.srq.post_srq_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }
    service
}

impl Service {
    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.addr() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }
}

struct World {
    ini: Qp,
    tgt: Qp,
    cq: Cq,
    services: Vec<Service>,
    xrcd: Xrcd,
    pd: Pd,
    context: Context,
}

fn world() -> World {
    let context = loopback().open().unwrap();
    let xrcd = context.open_xrcd(None, XrcdFlags::CREAT).unwrap();
    let services = vec![service(&context, &xrcd), service(&context, &xrcd)];
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let ini = pd.create_qp(&init(&cq, QpType::XrcSend)).unwrap();
    let tgt = xrcd.create_qp().unwrap();
    join(&ini, &tgt, &context);
    World { ini, tgt, cq, services, xrcd, pd, context }
}

fn join(ini: &Qp, tgt: &Qp, context: &Context) {
    let gid = context.query_gid(1, 0).unwrap();
    let ends = |qp: &Qp| Ends { qpn: qp.qpn(), gid, addr: 0, rkey: 0 };
    to_init(ini);
    to_init(tgt);
    connect(ini, &ends(tgt), 0, 14);
    connect(tgt, &ends(ini), 0, 14);
}

fn post(ini: &Qp, op: SendOp, data: &[u8], srqn: u32) {
    let (flags, data) = (SendFlags::empty(), SendData::Inline(data));
    let wr = SendWr { wr_id: 1, op, flags, data, ud: None };
    ini.start_post().unwrap().post_xrc_send(&wr, srqn).unwrap();
}

fn init(cq: &Cq, qp_type: QpType) -> QpInitAttr<'_> {
    QpInitAttr {
        qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    }
}

impl World {
    fn post(&self, op: SendOp, data: &[u8], srqn: u32) {
        post(&self.ini, op, data, srqn);
    }

    fn number(&self, at: usize) -> u32 {
        self.services[at].srq.get_srq_num().unwrap()
    }
}

#[test]
fn one_connection_serves_all_shared_queues_of_a_domain() {
    let w = world();
    for (turn, at) in [0, 1, 1, 0].into_iter().enumerate() {
        let service = &w.services[at];
        w.post(SendOp::Send { imm: Some([1, 2, 3, turn as u8]) }, b"hello", w.number(at));
        let got = poll_one(&service.cq);
        assert_eq!((got.status, got.opcode, got.byte_len), (WcStatus::Success, WcOpcode::Recv, 5));
        assert_eq!((got.imm[3], got.qpn), (turn as u8, w.tgt.qpn()));
        let mut found = [0; 5];
        service.buffer.read(got.wr_id as usize * 1024, &mut found);
        assert_eq!(&found, b"hello");
        assert_eq!(poll_one(&w.cq).status, WcStatus::Success);
    }
}

#[test]
fn memory_is_that_of_the_named_queues_domain() {
    let w = world();
    let service = &w.services[1];
    let (remote_addr, rkey) = (service.buffer.addr() + 2000, service.mr.rkey());
    let write = SendOp::Write { remote_addr, rkey, imm: None };
    w.post(write, b"abc", w.number(1));
    assert_eq!(poll_one(&w.cq).status, WcStatus::Success);
    assert_eq!(service.buffer.byte(2002), b'c');
    w.post(write, b"abc", w.number(0));
    assert_eq!(poll_one(&w.cq).status, WcStatus::RemAccessErr);
}

#[test]
fn a_queue_that_went_is_an_invalid_request() {
    let mut w = world();
    let number = w.number(0);
    let service = w.services.remove(0);
    service.srq.destroy_srq().map_err(|refused| refused.error).unwrap();
    w.post(SendOp::Send { imm: None }, b"x", number);
    assert_eq!(poll_one(&w.cq).status, WcStatus::RemInvReqErr);
    assert_eq!(w.tgt.query_qp().unwrap().0.state, QpState::Err);
}

#[test]
fn a_receiving_queue_pair_ends_with_its_last_handle() {
    let w = world();
    let qpn = w.tgt.qpn();
    let second = w.xrcd.open_qp(qpn).unwrap();
    w.tgt.destroy_qp().map_err(|refused| refused.error).unwrap();
    assert_eq!(second.query_qp().unwrap().0.state, QpState::Rts);
    drop(second);
    assert_eq!(w.xrcd.open_qp(qpn).unwrap_err().kind(), ErrorKind::Invalid);
}

/// An event names its maker's handle, which therefore stays until the acknowledgement.
#[test]
fn a_maker_that_lets_go_waits_for_its_events_and_hears_no_more() {
    let w = world();
    let second = w.xrcd.open_qp(w.tgt.qpn()).unwrap();
    w.tgt.set_cookie(7);
    w.ini.set_cookie(1);
    let nowhere = 0xff_ffff;
    w.post(SendOp::Send { imm: None }, b"x", nowhere);
    assert_eq!(poll_one(&w.cq).status, WcStatus::RemInvReqErr);
    let (kind, _) = event_about(7, &w.context).into_unacked();
    assert_eq!(kind, EventKind::QpReqErr);
    let tgt = w.tgt;
    thread::scope(|scope| {
        let destroyer = scope.spawn(|| tgt.destroy_qp().map_err(|refused| refused.error));
        thread::sleep(Duration::from_millis(50));
        assert!(!destroyer.is_finished(), "the event is not acknowledged");
        second.ack_async_events(1);
        destroyer.join().unwrap().unwrap();
    });
    assert_eq!(second.query_qp().unwrap().0.state, QpState::Err);
    for qp in [&w.ini, &second] {
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        qp.modify_qp(&attr, AttrMask::STATE).unwrap();
    }
    join(&w.ini, &second, &w.context);
    post(&w.ini, SendOp::Send { imm: None }, b"x", nowhere);
    assert_eq!(poll_one(&w.cq).status, WcStatus::RemInvReqErr);
    assert_eq!(event_about(0, &w.context).kind(), EventKind::QpReqErr);
}

/// Both sides of a refused request hear of it, in any order.
fn event_about(cookie: u64, context: &Context) -> AsyncEvent {
    loop {
        let event = context.get_async_event().unwrap();
        if event.source() == AsyncSource::Qp(cookie) {
            return event;
        }
    }
}

/// Whoever opens a queue pair while its last other handle goes has a live one, or none.
#[test]
fn opening_and_letting_go_at_once_leave_no_dead_handle() {
    let context = loopback().open().unwrap();
    let xrcd = context.open_xrcd(None, XrcdFlags::CREAT).unwrap();
    for _ in 0..2000 {
        let qp = xrcd.create_qp().unwrap();
        let qpn = qp.qpn();
        thread::scope(|scope| {
            let opener = scope.spawn(|| xrcd.open_qp(qpn));
            qp.destroy_qp().map_err(|refused| refused.error).unwrap();
            if let Ok(second) = opener.join().unwrap() {
                second.query_qp().unwrap();
            }
        });
    }
}

/// Only the last one meets the queue pair that keeps the domain.
#[test]
fn of_two_handles_closed_at_once_one_is_the_last() {
    let context = loopback().open().unwrap();
    let file = tempfile::tempfile().unwrap();
    let open = || context.open_xrcd(Some(file.as_fd()), XrcdFlags::CREAT).unwrap();
    for _ in 0..2000 {
        let handles = [open(), open()];
        let _qp = handles[0].create_qp().unwrap();
        let awaited = AtomicU32::new(2);
        let refused: Vec<_> = thread::scope(|scope| {
            let closers = handles.map(|handle| {
                scope.spawn(|| {
                    // Awake, so that both call within nanoseconds.
                    awaited.fetch_sub(1, Ordering::AcqRel);
                    while awaited.load(Ordering::Acquire) > 0 {
                        std::hint::spin_loop();
                    }
                    handle.close_xrcd().err()
                })
            });
            closers.into_iter().filter_map(|closer| closer.join().unwrap()).collect()
        });
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].error.kind(), ErrorKind::Busy);
    }
}

#[test]
fn a_domain_in_use_stays() {
    let World { ini, tgt, services, xrcd, .. } = world();
    let busy = xrcd.close_xrcd().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    drop(tgt);
    let busy = busy.handle.close_xrcd().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy, "its shared queues");
    drop((services, ini));
    busy.handle.close_xrcd().map_err(|refused| refused.error).unwrap();
}

#[test]
fn a_file_names_its_domain() {
    let context = loopback().open().unwrap();
    let file = tempfile::tempfile().unwrap();
    let open = |file: &std::fs::File, flags| {
        context.open_xrcd(Some(file.as_fd()), flags).map_err(|error| error.kind())
    };
    let (none, creat) = (XrcdFlags::empty(), XrcdFlags::CREAT);
    assert_eq!(open(&file, none).unwrap_err(), ErrorKind::Again);
    let first = open(&file, creat).unwrap();
    assert_eq!(open(&file, creat | XrcdFlags::EXCL).unwrap_err(), ErrorKind::Invalid);
    let second = open(&file, none).unwrap();
    let tgt = first.create_qp().unwrap();
    assert_eq!(second.open_qp(tgt.qpn()).unwrap().qpn(), tgt.qpn());
    let other = open(&tempfile::tempfile().unwrap(), creat).unwrap();
    assert!(other.open_qp(tgt.qpn()).is_err());
    first.close_xrcd().map_err(|refused| refused.error).unwrap();
    assert!(second.close_xrcd().is_err(), "the last handle, and a queue pair in it");
    assert_eq!(context.open_xrcd(None, none).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn what_belongs_to_one_side_is_refused_to_the_other() {
    let w = world();
    let refused = w.pd.create_qp(&init(&w.cq, QpType::XrcRecv)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let with_srq = QpInitAttr { srq: Some(&w.services[0].srq), ..init(&w.cq, QpType::XrcSend) };
    assert_eq!(w.pd.create_qp(&with_srq).unwrap_err().kind(), ErrorKind::Invalid);
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let init = QpInitAttr { qp_type, ..with_srq };
        assert_eq!(w.pd.create_qp(&init).unwrap_err().kind(), ErrorKind::Invalid, "{qp_type:?}");
    }
    assert!(w.ini.post_recv(&RecvWr { wr_id: 1, sges: &[] }).is_err());
    let plain = w.pd.create_srq(SRQ).unwrap();
    assert_eq!(plain.get_srq_num().unwrap_err().kind(), ErrorKind::Invalid);
    let other = loopback().open().unwrap();
    let foreign = other.open_xrcd(None, XrcdFlags::CREAT).unwrap();
    assert!(w.pd.create_xrc_srq(SRQ, &foreign, &w.cq).is_err());
    assert!(w.context.query_device().limits.max_srq > 0);
}
