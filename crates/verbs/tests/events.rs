//! Completion events: real descriptors, one-shot arming, acknowledgements.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use common::{CAP, Ends, connect, loopback, to_init};
use irdma::{
    Access, Buffer, CompChannel, Context, Cq, ErrorKind, Pd, Qp, QpInitAttr, QpType, RecvWr,
    SendData, SendFlags, SendOp, SendWr, Sge, Wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

struct Waiter {
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    sge: Sge,
    ends: Ends,
    _mr: irdma::Mr,
    _pd: Pd,
    _context: Context,
}

fn waiter() -> Waiter {
    let context = loopback().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(64, Some(&channel), 0).unwrap();
    cq.set_cookie(77);
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    };
    let qp = pd.create_qp(&init).unwrap();
    to_init(&qp);
    let buffer = std::sync::Arc::new(Buffer::zeroed(64));
    let mr = pd.reg_buffer(&buffer, 0..64, Access::LOCAL_WRITE).unwrap();
    let gid = context.query_gid(1, 0).unwrap();
    let ends = Ends { qpn: qp.qpn(), gid, addr: buffer.addr(), rkey: mr.rkey() };
    let sge = Sge { addr: buffer.addr(), length: 64, lkey: mr.lkey() };
    Waiter { qp, cq, channel, sge, ends, _mr: mr, _pd: pd, _context: context }
}

fn waiters() -> (Waiter, Waiter) {
    let (a, b) = (waiter(), waiter());
    connect(&a.qp, &b.ends, 0, 14);
    connect(&b.qp, &a.ends, 0, 14);
    (a, b)
}

impl Waiter {
    fn send(&self) {
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send { imm: None },
            flags: SendFlags::empty(),
            data: SendData::Sges(&[self.sge]),
            ud: None,
        };
        self.qp.post_send(&wr).unwrap();
    }

    fn recv(&self) {
        self.qp.post_recv(&RecvWr { wr_id: 2, sges: &[self.sge] }).unwrap();
    }

    fn readable_within(&self, timeout: Duration) -> bool {
        let fds = &mut [PollFd::new(&self.channel, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        poll(fds, Some(&timeout)).unwrap() == 1
    }

    fn poll_all(&self) -> usize {
        self.cq.poll_cq(&mut [Wc::default(); 16]).unwrap()
    }
}

#[test]
fn an_armed_queue_makes_its_channel_readable_once() {
    let (a, b) = waiters();
    b.recv();
    b.recv();
    b.cq.req_notify_cq(false).unwrap();
    assert!(!b.readable_within(Duration::ZERO));
    // Nobody calls in on either side: the background thread delivers.
    a.send();
    assert!(b.readable_within(Duration::from_secs(10)));
    let event = b.channel.get_cq_event().unwrap();
    assert_eq!(event.cookie(), 77);
    drop(event);
    assert_eq!(b.poll_all(), 1);
    a.send();
    assert!(!b.readable_within(Duration::from_millis(20)));
    assert_eq!(b.poll_all(), 1);
}

#[test]
fn a_blocked_reader_runs_the_protocol_and_returns() {
    let (a, b) = waiters();
    const ROUNDS: usize = 500;
    for _ in 0..16 {
        b.recv();
    }
    b.cq.req_notify_cq(false).unwrap();
    let sender = thread::spawn(move || {
        a.cq.req_notify_cq(false).unwrap();
        for _ in 0..ROUNDS {
            a.send();
            drop(a.channel.get_cq_event().unwrap());
            a.cq.req_notify_cq(false).unwrap();
            while a.poll_all() == 0 {}
        }
        a
    });
    let mut received = 0;
    while received < ROUNDS {
        drop(b.channel.get_cq_event().unwrap());
        b.cq.req_notify_cq(false).unwrap();
        let count = b.poll_all();
        received += count;
        (0..count).for_each(|_| b.recv());
    }
    sender.join().unwrap();
}

#[test]
fn a_non_blocking_channel_says_that_nothing_waits() {
    let (a, b) = waiters();
    let flags = rustix::fs::fcntl_getfl(&b.channel).unwrap();
    rustix::fs::fcntl_setfl(&b.channel, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    assert_eq!(b.channel.get_cq_event().unwrap_err().errno(), 11);
    b.recv();
    b.cq.req_notify_cq(false).unwrap();
    a.send();
    assert!(b.readable_within(Duration::from_secs(10)));
    assert!(b.channel.get_cq_event().is_ok());
    assert!(b.channel.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn destroying_waits_for_the_acknowledgement_and_a_channel_for_its_queues() {
    let (a, b) = waiters();
    b.recv();
    b.cq.req_notify_cq(false).unwrap();
    a.send();
    let cookie = b.channel.get_cq_event().unwrap().into_unacked();
    assert_eq!(cookie, 77);
    let refused = b.channel.destroy_comp_channel().unwrap_err();
    assert_eq!(refused.error.errno(), 16);
    let refused_cq = b.cq.destroy_cq().unwrap_err();
    assert_eq!(refused_cq.error.errno(), 16);
    b.qp.destroy_qp().unwrap();
    let cq = refused_cq.handle;
    cq.ack_cq_events(1);
    cq.destroy_cq().unwrap();
    refused.handle.destroy_comp_channel().unwrap();
}

/// Whoever waits when its object is destroyed is woken and told, and so is who comes later.
#[test]
fn destruction_wakes_those_who_wait() {
    let context = loopback().open().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cm = irdma::cm::EventChannel::create_event_channel().unwrap();
    let (completions, asyncs, connections) = (channel.events(), context.async_events(), cm.clone());
    let (told, hear) = mpsc::channel();
    let tell = move |result: irdma::Result<()>| told.send(result.unwrap_err().kind()).unwrap();
    let waits: [Box<dyn Fn() -> irdma::Result<()> + Send + Sync>; 3] = [
        Box::new(move || completions.get_cq_event_within(Duration::MAX).map(drop)),
        Box::new(move || asyncs.get_async_event_within(Duration::MAX).map(drop)),
        Box::new(move || connections.get_cm_event_within(Duration::MAX).map(drop)),
    ];
    thread::scope(|scope| {
        for wait in &waits {
            let tell = tell.clone();
            scope.spawn(move || tell(wait()));
        }
        assert_eq!(hear.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        channel.destroy_comp_channel().unwrap();
        context.dealloc_ucontext();
        cm.destroy_event_channel();
        let patience = Duration::from_secs(20);
        for _ in &waits {
            assert_eq!(hear.recv_timeout(patience), Ok(ErrorKind::Destroyed));
        }
    });
    for wait in &waits {
        assert_eq!(wait().unwrap_err().kind(), ErrorKind::Destroyed);
    }
}

/// As `read(2)` on the channel of a kernel device: `SA_RESTART` decides.
#[test]
fn a_signal_ends_the_wait_unless_its_handler_restarts_calls() {
    let (a, b) = waiters();
    b.recv();
    b.cq.req_notify_cq(false).unwrap();
    install_handler(0);
    assert_eq!(wait_interrupted(&b).map_err(|error| error.errno()), Err(4));
    install_handler(libc::SA_RESTART);
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(60));
        a.send();
        a
    });
    assert_eq!(wait_interrupted(&b), Ok(77));
    sender.join().unwrap();
}

fn install_handler(flags: libc::c_int) {
    extern "C" fn handler(_: libc::c_int) {}
    // SAFETY: an action of zeros is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = flags;
    // SAFETY: the kernel reads the action, which lives for the call; the handler does nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
}

/// Waits for an event; a signal arrives after 20 ms, and again until one finds the thread asleep:
/// as with `read(2)`, a signal before that interrupts nothing.
fn wait_interrupted(waiter: &Waiter) -> irdma::Result<u64> {
    // SAFETY: names the calling thread.
    let waiting = unsafe { libc::pthread_self() };
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let interrupter = thread::spawn(move || {
        while !is_over.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(20));
            // SAFETY: the waiting thread lives until it has joined this one.
            assert_eq!(unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) }, 0);
        }
    });
    let result = waiter.channel.get_cq_event().map(|event| event.cookie());
    over.store(true, Ordering::Release);
    interrupter.join().unwrap();
    result
}
