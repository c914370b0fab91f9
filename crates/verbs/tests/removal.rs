//! Taking a device away under a running program, and giving everything back at the end.
//!
//! Devices belong to the process, so these tests take turns.

mod common;

use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::{ALL, CAP, Node, loopback, pair};
use irdma::{
    AhAttr, AttrMask, Context, Device, DmAttr, EventKind, Gid, MwType, QpAttr, QpInitAttr, QpState,
    QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, SrqAttr, Wc, WcStatus,
};

const GONE: i32 = 5;
const NO_DEVICE: i32 = 19;
const BUSY: i32 = 16;

fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_listed(name: &str) -> bool {
    Device::list().unwrap().iter().any(|device| device.name() == name)
}

fn errno<T>(result: irdma::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

/// Everything a program hears until there is nothing more to hear.
fn events(context: &Context) -> Vec<EventKind> {
    let mut heard = Vec::new();
    loop {
        match context.get_async_event() {
            Ok(event) => heard.push(event.kind()),
            Err(error) => {
                assert_eq!(error.errno(), GONE);
                return heard;
            }
        }
    }
}

#[test]
fn a_removed_device_flushes_wakes_and_answers() {
    let _turn = my_turn();
    let device = loopback();
    let (a, b) = pair(QpType::Rc, 4096);
    let bystander = loopback().open().unwrap();
    let (window, srq) = (
        a.pd.alloc_mw(MwType::Two).unwrap(),
        a.pd.create_srq(SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 }).unwrap(),
    );
    let dm = a.context.alloc_dm(DmAttr { length: 64, log_align_req: 0 }).unwrap();
    a.post_recv(1, 0, 64);
    // Nobody receives it: it is tried for ever.
    a.post(2, SendOp::Send { imm: None }, 0, 64);
    thread::scope(|scope| {
        let completions = scope.spawn(|| errno(a.channel.get_cq_event()));
        let asynchronous = scope.spawn(|| events(&a.context));
        thread::sleep(Duration::from_millis(20));
        device.ib_unregister_device();
        assert_eq!(completions.join().unwrap(), GONE);
        assert_eq!(asynchronous.join().unwrap(), [EventKind::PortErr, EventKind::DeviceFatal]);
    });
    assert_eq!(events(&bystander), [EventKind::PortErr, EventKind::DeviceFatal]);
    let mut flushed = [a.completion(), a.completion()].map(|wc| (wc.wr_id, wc.status));
    flushed.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(flushed, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert!(!is_listed(device.name()));
    assert_eq!(errno(device.open()), NO_DEVICE);
    calls_answer(&a);
    window.dealloc_mw().unwrap();
    srq.destroy_srq().unwrap();
    dm.free_dm().unwrap();
    all_can_be_destroyed(a);
    drop(b);
    device.ib_register_device().unwrap();
    assert!(is_listed(device.name()));
    assert_eq!(errno(device.ib_register_device()), BUSY);
    traffic_flows();
}

fn calls_answer(node: &Node) {
    let Node { qp, cq, pd, context, buffer, .. } = node;
    let sges = [node.sge(0, 64)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let send = SendWr { wr_id: 3, op, flags, data: SendData::Sges(&sges), ud: None };
    assert_eq!(errno(qp.post_send(&send)), GONE);
    assert_eq!(errno(qp.post_recv(&RecvWr { wr_id: 4, sges: &sges })), GONE);
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    assert_eq!(errno(qp.modify_qp(&attr, AttrMask::STATE)), GONE);
    assert_eq!(errno(qp.query_qp()), GONE);
    assert_eq!(errno(qp.attach_mcast(&Gid::default(), 0)), GONE);
    assert_eq!(errno(cq.poll_cq(&mut [Wc::default()])), GONE);
    assert_eq!(errno(cq.req_notify_cq(false)), GONE);
    assert_eq!(errno(cq.resize_cq(8)), GONE);
    assert_eq!(errno(context.alloc_pd()), GONE);
    assert_eq!(errno(context.create_cq(8, None, 0)), GONE);
    assert_eq!(errno(context.create_comp_channel()), GONE);
    assert_eq!(errno(pd.create_srq(SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 })), GONE);
    assert_eq!(errno(pd.create_ah(&AhAttr::default())), GONE);
    assert_eq!(errno(pd.reg_buffer(buffer, 0..64, ALL)), GONE);
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    assert_eq!(errno(pd.create_qp(&init)), GONE);
    // The memory is the program's own, and stays.
    buffer.write(0, b"still here");
}

fn all_can_be_destroyed(node: Node) {
    node.qp.destroy_qp().unwrap();
    node.mr.dereg_mr().unwrap();
    node.cq.destroy_cq().unwrap();
    node.channel.destroy_comp_channel().unwrap();
    node.pd.dealloc_pd().unwrap();
    node.context.dealloc_ucontext();
}

fn traffic_flows() {
    let (a, b) = pair(QpType::Rc, 64);
    b.post_recv(1, 0, 64);
    a.post(2, SendOp::Send { imm: None }, 0, 64);
    assert_eq!((a.complete().wr_id, b.complete().wr_id), (2, 1));
}

/// A channel's descriptor tells those that wait on it by `poll`, too.
#[test]
fn the_descriptors_of_a_removed_device_are_readable() {
    let _turn = my_turn();
    let device = loopback();
    let node = Node::new(&device, QpType::Ud, 64);
    let readable = |fd| {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one element, which outlives the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) == 1 }
    };
    let fds = [node.channel.as_raw_fd(), node.context.async_fd()];
    assert_eq!(fds.map(readable), [false, false]);
    device.ib_unregister_device();
    assert_eq!(fds.map(readable), [true, true]);
    // Events say why, and behind them is the cut.
    assert_eq!(events(&node.context), [EventKind::PortErr, EventKind::DeviceFatal]);
    assert_eq!(errno(node.context.alloc_pd()), GONE);
    device.ib_register_device().unwrap();
}

/// Threads of ours, and sockets, by what the kernel lists.
fn ours() -> (usize, usize) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter(|task| {
        let comm = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(comm).is_ok_and(|name| name.trim_end() == "irdma")
    });
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path());
        target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    });
    (threads.count(), sockets.count())
}

#[test]
fn opening_starts_neither_thread_nor_socket() {
    let _turn = my_turn();
    let device = loopback();
    let before = ours();
    let context = device.open().unwrap();
    let _domain = context.alloc_pd().unwrap();
    // A thread would take its name once it ran.
    thread::sleep(Duration::from_millis(20));
    assert_eq!(ours(), before);
    device.ib_unregister_device();
    assert_eq!(errno(device.open()), NO_DEVICE);
    device.ib_register_device().unwrap();
}

#[test]
fn the_last_context_takes_thread_and_sockets_along() {
    let _turn = my_turn();
    let before = ours();
    let (first, second) = pair(QpType::Rc, 64);
    // A thread takes its name once it runs.
    common::eventually("a thread of ours", || ours().0 == before.0 + 1);
    let while_open = ours();
    assert!(while_open.1 > before.1 + 1, "{while_open:?}");
    drop(first);
    assert_eq!(ours(), while_open, "another context is open");
    second.context.dealloc_ucontext();
    let after = ours();
    // The slot's own socket goes with the last handle.
    assert!(after.0 == before.0 && after.1 <= before.1 + 1, "{after:?}");
}

#[test]
fn the_last_identifier_takes_thread_and_sockets_along() {
    use common::cm::{HERE, connect, listen};
    let _turn = my_turn();
    let before = ours();
    let listener = listen(QpType::Rc, HERE);
    let (client, server) = connect(&listener, QpType::Rc);
    drop((client.node, server.node));
    client.id.disconnect().unwrap();
    common::cm::expect(&listener.channel, irdma::cm::EventKind::Disconnected);
    drop((client.id, client.channel, server.id, server.channel));
    // A thread takes its name once it runs.
    common::eventually("a thread of ours", || ours().0 == before.0 + 1);
    assert!(ours().1 > before.1 + 1, "the listener is still there");
    drop(listener);
    assert_eq!(ours(), before);
}

#[test]
fn an_identifier_hears_that_its_device_was_taken_away() {
    use common::cm::{HERE, connect, expect, listen};
    use irdma::cm::EventKind as Kind;
    let _turn = my_turn();
    let listener = listen(QpType::Rc, HERE);
    let (client, server) = connect(&listener, QpType::Rc);
    client.id.set_cookie(1);
    server.id.set_cookie(2);
    listener.id.set_cookie(3);
    loopback().ib_unregister_device();
    assert_eq!(expect(&client.channel, Kind::DeviceRemoval).id(), 1);
    let mut heard = [(); 2].map(|()| expect(&listener.channel, Kind::DeviceRemoval).id());
    heard.sort_unstable();
    assert_eq!(heard, [2, 3]);
    for id in [client.id, server.id, listener.id] {
        assert_eq!(errno(id.disconnect()), 22);
        id.destroy();
    }
    client.node.context.device().ib_register_device().unwrap();
}
