//! Shared receive queues: the low-water mark, and who takes from them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{ALL, CAP, Ends, connect, loopback, poll_one, to_init};
use irdma::{
    AsyncSource, Buffer, Context, Cq, ErrorKind, EventKind, Mr, Pd, Qp, QpInitAttr, QpType, RecvWr,
    SendData, SendFlags, SendOp, SendWr, Sge, Srq, SrqAttr, WcStatus,
};

const EACH: usize = 64;

/// Two queue pairs that receive from one queue, and two peers that send to them.
struct World {
    senders: Vec<Qp>,
    receivers: Vec<Qp>,
    srq: Srq,
    cq: Cq,
    mr: Mr,
    buffer: Arc<Buffer>,
    _pd: Pd,
    context: Context,
}

fn qp(pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Qp {
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    let qp = pd.create_qp(&init).unwrap();
    to_init(&qp);
    qp
}

fn world() -> World {
    let context = loopback().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 }).unwrap();
    srq.set_cookie(5);
    let buffer = Arc::new(Buffer::zeroed(16 * EACH));
    let mr = pd.reg_buffer(&buffer, 0..16 * EACH, ALL).unwrap();
    let gid = context.query_gid(1, 0).unwrap();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (a, b) = (qp(&pd, &cq, None), qp(&pd, &cq, Some(&srq)));
        let ends = |qp: &Qp| Ends { qpn: qp.qpn(), gid, addr: 0, rkey: 0 };
        connect(&a, &ends(&b), 0, 14);
        connect(&b, &ends(&a), 0, 14);
        senders.push(a);
        receivers.push(b);
    }
    World { senders, receivers, srq, cq, mr, buffer, _pd: pd, context }
}

impl World {
    fn sge(&self, at: u64) -> [Sge; 1] {
        let addr = self.buffer.addr() + at * EACH as u64;
        [Sge { addr, length: EACH as u32, lkey: self.mr.lkey() }]
    }

    fn post(&self, wr_id: u64) {
        self.srq.post_srq_recv(&RecvWr { wr_id, sges: &self.sge(wr_id) }).unwrap();
    }

    fn send(&self, from: usize) {
        let data = SendData::Sges(&self.sge(0));
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
        self.senders[from].post_send(&SendWr { wr_id: 99, op, flags, data, ud: None }).unwrap();
    }

    /// The next event, unless there is none.
    fn event(&self) -> Option<EventKind> {
        let patience = Duration::from_millis(20);
        let event = self.context.get_async_event_within(patience).unwrap()?;
        assert_eq!(event.source(), AsyncSource::Srq(5));
        self.srq.ack_async_events(1);
        Some(event.kind())
    }
}

#[test]
fn queue_pairs_take_requests_in_order_whoever_is_sent_to() {
    let w = world();
    (0..6).for_each(|wr_id| w.post(wr_id));
    for (turn, from) in [0, 1, 1, 0, 0, 1].into_iter().enumerate() {
        w.send(from);
        let wc = poll_one(&w.cq);
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, turn as u64));
        assert_eq!(wc.qpn, w.receivers[from].qpn());
    }
}

#[test]
fn the_limit_raises_one_event_for_each_arming() {
    let w = world();
    (0..8).for_each(|wr_id| w.post(wr_id));
    assert_eq!(w.srq.modify_srq(17).unwrap_err().kind(), ErrorKind::Invalid);
    w.srq.modify_srq(7).unwrap();
    assert_eq!(w.srq.query_srq().unwrap().srq_limit, 7);
    w.send(0);
    poll_one(&w.cq);
    assert_eq!(w.event(), None, "seven are left");
    w.send(1);
    poll_one(&w.cq);
    assert_eq!(w.event(), Some(EventKind::SrqLimitReached));
    assert_eq!(w.srq.query_srq().unwrap().srq_limit, 0);
    w.send(0);
    poll_one(&w.cq);
    assert_eq!(w.event(), None, "disarmed");
    w.srq.modify_srq(6).unwrap();
    w.send(0);
    poll_one(&w.cq);
    assert_eq!(w.event(), Some(EventKind::SrqLimitReached), "armed below the limit");
}

#[test]
fn a_queue_in_use_stays() {
    let World { senders, receivers, srq, _pd, .. } = world();
    let busy = srq.destroy_srq().unwrap_err();
    assert_eq!(busy.error.kind(), ErrorKind::Busy);
    drop((senders, receivers));
    busy.handle.destroy_srq().map_err(|refused| refused.error).unwrap();
}
