//! Extended reliable connections (IBTA annex A14): which queue a request is for, and whose keys
//! and completions that means.

use std::sync::Arc;

use irdma_mem::{Access, Sge};
use irdma_sim::script::{Pkt, RQ_PSN, SQ_PSN, Script};
use irdma_sim::{Cqs, Memory};
use irdma_transport::{
    Cq, DropReason, EventKind, Pd, PdTable, QpState, QpType, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Srq, SrqAttr, Wc, WcStatus, Xrcd,
};
use irdma_wire::{Operation, Position, Syndrome};

/// A receiving side with two shared queues, the second in a domain of its own.
struct Receiver {
    t: Script,
    xrcd: Arc<Xrcd>,
    srqs: Vec<Arc<Srq>>,
    cqs: Vec<Cqs>,
    memories: Vec<Memory>,
}

fn receiver() -> Receiver {
    receiver_with(16)
}

/// Of which each shared queue completes in a queue of `capacity`.
fn receiver_with(capacity: usize) -> Receiver {
    let xrcd = Arc::new(Xrcd::default());
    let mut t = Script::with(QpType::XrcRecv, |init| init.xrcd = Some(Arc::clone(&xrcd)), |_| {});
    let own = PdTable::new(4);
    // Numbers that the table gave to the queue pair's domain, too.
    let pds = [own.alloc_pd().unwrap(), own.alloc_pd().unwrap()];
    let (mut srqs, mut cqs, mut memories) = (Vec::new(), Vec::new(), Vec::new());
    for (i, pd) in pds.iter().enumerate() {
        let cq = t.node.cqs(capacity);
        let srq = xrc_srq(70 + i as u64, pd, &cq.recv);
        xrcd.add(&srq).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        memories.push(Memory::new(&t.node.mem, pd, 4096, 0x10_0000, access));
        srqs.push(srq);
        cqs.push(cq);
    }
    Receiver { t, xrcd, srqs, cqs, memories }
}

fn xrc_srq(token: u64, pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Srq> {
    let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    Arc::new(Srq::create_xrc_srq(token, Arc::clone(pd), attr, Arc::clone(cq)).unwrap())
}

impl Receiver {
    fn post(&self, at: usize, wr_id: u64) {
        let sges: [Sge; 1] = [self.memories[at].sge(0, 1024)];
        self.srqs[at].post_srq_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    fn send(&self, at: usize, n: u32, payload: &[u8]) -> Pkt {
        self.t.send_only(RQ_PSN.add(n), payload).srq(self.srqs[at].number()).ask()
    }

    fn received(&self, at: usize) -> Vec<u64> {
        let mut out = [Wc::default(); 4];
        let count = self.cqs[at].recv.poll_cq(&mut out);
        out[..count].iter().map(|wc| wc.wr_id).collect()
    }
}

#[test]
fn each_request_names_its_queue() {
    let mut r = receiver();
    r.post(0, 1);
    r.post(1, 2);
    let packets = [r.send(1, 0, b"two"), r.send(0, 1, b"one")];
    assert_eq!(r.t.exchange(&packets), ["ACK 201 msn=2 credit=31"]);
    assert_eq!((r.received(0), r.received(1)), (vec![1], vec![2]));
    assert_eq!(
        (r.memories[0].read(0, 3), r.memories[1].read(0, 3)),
        (b"one".into(), b"two".into())
    );
}

#[test]
fn answers_are_of_the_same_service() {
    let mut r = receiver();
    let packet = r.t.request(Operation::ReadRequest, Position::Only, RQ_PSN);
    let (va, rkey) = (r.memories[0].addr(0), r.memories[0].mr.rkey);
    r.t.deliver(&packet.reth(va, rkey, 4).srq(r.srqs[0].number()));
    let sent = r.t.sent();
    assert_eq!(sent[0].to_string(), "READ_ONLY 200 msn=1 credit=31 4B");
    assert_eq!(sent[0].headers.bth.opcode.to_byte(), 0xB0);
}

#[test]
fn keys_are_those_of_the_named_queues_domain() {
    let mut r = receiver();
    let key = r.memories[0].mr.rkey;
    let va = r.memories[0].addr(8);
    let write = |t: &Script, n: u32| {
        t.request(Operation::Write, Position::Only, RQ_PSN.add(n))
            .reth(va, key, 2)
            .payload(b"ab")
            .ask()
    };
    let good = write(&r.t, 0).srq(r.srqs[0].number());
    assert_eq!(r.t.exchange(&[good]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(r.memories[0].read(8, 2), b"ab");
    let foreign = write(&r.t, 1).srq(r.srqs[1].number());
    assert_eq!(r.t.exchange(&[foreign]), ["NAK_ACCESS 201 msn=1"]);
}

#[test]
fn a_queue_that_is_not_in_the_domain_is_an_invalid_request() {
    let mut r = receiver();
    r.post(0, 1);
    let send = r.send(0, 0, b"x").srq(999);
    assert_eq!(r.t.exchange(&[send]), ["NAK_INVALID 200 msn=0"]);
    assert_eq!((r.t.state(), r.t.events()), (QpState::Err, vec![EventKind::QpReqErr]));
    assert_eq!(r.received(0), [0; 0]);

    let mut r = receiver();
    r.post(0, 1);
    r.xrcd.remove(&r.srqs[0]);
    let send = r.send(0, 0, b"x");
    assert_eq!(r.t.exchange(&[send]), ["NAK_INVALID 200 msn=0"]);
}

#[test]
fn a_message_stays_with_its_queue() {
    let mut r = receiver();
    r.post(0, 1);
    r.post(1, 2);
    let number = [0, 1].map(|at: usize| r.srqs[at].number());
    let part = |t: &Script, position, n, payload: &[u8]| {
        t.request(Operation::Send, position, RQ_PSN.add(n)).payload(payload)
    };
    let first = part(&r.t, Position::First, 0, &[1; 256]).srq(number[0]);
    let last = part(&r.t, Position::Last, 1, &[2; 4]).srq(number[1]);
    assert_eq!(r.t.exchange(&[first, last]), ["NAK_INVALID 201 msn=0"]);
}

#[test]
fn an_empty_queue_asks_to_wait() {
    let mut r = receiver();
    let send = r.send(0, 0, b"x");
    assert_eq!(r.t.exchange(std::slice::from_ref(&send)), ["RNR 200 msn=0 timer=12"]);
    r.post(0, 1);
    assert_eq!(r.t.exchange(&[send]), ["ACK 200 msn=1 credit=31"]);
}

#[test]
fn duplicates_are_acknowledged() {
    let mut r = receiver();
    r.post(0, 1);
    let send = r.send(0, 0, b"x");
    r.t.exchange(std::slice::from_ref(&send));
    assert_eq!(r.t.exchange(&[send]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(r.received(0), [1]);
}

/// What was executed needs neither the queue's memory nor its requests.
#[test]
fn duplicates_for_a_queue_that_is_gone_are_acknowledged() {
    let mut r = receiver();
    r.post(0, 1);
    let send = r.send(0, 0, b"x");
    r.t.exchange(std::slice::from_ref(&send));
    r.xrcd.remove(&r.srqs[0]);
    assert_eq!(r.t.exchange(&[send]), ["ACK 200 msn=1 credit=31"]);
    assert_eq!(r.t.state(), QpState::Rts);
}

#[test]
fn a_completion_queue_that_overflows_fails_who_receives_into_it() {
    let mut r = receiver_with(1);
    for (at, n) in [(0, 0), (1, 1)] {
        r.post(at, n.into());
        let send = r.send(at, n, b"x");
        r.t.exchange(&[send]);
    }
    assert_eq!((r.t.state(), r.t.events()), (QpState::Rts, vec![]));
    r.post(0, 2);
    let send = r.send(0, 2, b"x");
    r.t.exchange(&[send]);
    assert_eq!(r.t.events(), [EventKind::CqErr, EventKind::QpFatal]);
    assert_eq!((r.t.state(), r.received(0)), (QpState::Err, vec![0]));
}

/// The queue that the newest request named is another one.
#[test]
fn a_queue_pair_fails_with_its_first_completion_in_an_overflowed_queue() {
    let mut r = receiver_with(1);
    let former = r.t.switch_to_another(|_| {});
    (0..4).for_each(|wr_id| r.post(0, wr_id));
    let to = |r: &Receiver, n| r.send(0, n, b"x");
    let sends = [to(&r, 0), to(&r, 1)];
    r.t.exchange(&sends);
    assert_eq!((r.t.state(), r.t.events().len()), (QpState::Err, 2));
    r.t.qpn = former;
    assert_eq!(r.t.state(), QpState::Rts, "it has not received into the queue");
    let send = to(&r, 0);
    r.t.exchange(&[send]);
    assert_eq!((r.t.state(), r.t.events()), (QpState::Err, vec![EventKind::QpFatal]));
}

/// Nothing is left to report to; the domain's other queue pairs go on.
#[test]
fn a_queue_that_is_destroyed_in_mid_message_takes_the_receive_along() {
    let mut r = receiver();
    for turn in 0..3 {
        r.t.switch_to_another(|_| {});
        r.post(0, turn);
        let number = r.srqs[0].number();
        let part = |t: &Script, position, n, payload: &[u8]| {
            t.request(Operation::Send, position, RQ_PSN.add(n)).payload(payload).srq(number)
        };
        let first = part(&r.t, Position::First, 0, &[1; 256]);
        let last = part(&r.t, Position::Last, 1, &[2; 4]);
        assert_eq!(r.t.exchange(&[first]), [""; 0]);
        r.xrcd.remove(&r.srqs[0]);
        let next = xrc_srq(80 + turn, r.srqs[0].pd(), &r.cqs[0].recv);
        r.xrcd.add(&next).unwrap();
        r.srqs[0] = next;
        assert_eq!(r.t.exchange(&[last]), ["NAK_INVALID 201 msn=0"]);
        assert_eq!(r.t.events(), [EventKind::QpReqErr]);
        assert_eq!((r.t.completed(), r.t.received_short()), (vec![], vec![]));
    }
}

#[test]
fn a_number_names_one_queue_of_a_domain() {
    let mut r = receiver();
    let twin = |token| xrc_srq(token, r.srqs[1].pd(), &r.cqs[1].recv);
    let same = twin(u64::from(r.srqs[0].number()) + (1 << 24));
    assert_eq!(r.xrcd.add(&same).unwrap_err().errno(), 75);
    assert_eq!(r.xrcd.add(&twin(1 << 24)).unwrap_err().errno(), 75, "number 0 is none");
    r.xrcd.remove(&same);
    r.post(0, 1);
    let send = r.send(0, 0, b"x");
    assert_eq!(r.t.exchange(&[send]), ["ACK 200 msn=1 credit=31"]);
    r.xrcd.remove(&r.srqs[0]);
    r.xrcd.add(&same).unwrap();
}

#[test]
fn the_sending_side_names_the_queue_in_each_packet() {
    let mut t = Script::with(QpType::XrcSend, |_| {}, |_| {});
    let sges = [t.memory.sge(0, 300)];
    let write = t.write_op();
    for (wr_id, op) in [(1, SendOp::Send { imm: None }), (2, write)] {
        let data = SendData::Sges(&sges);
        let wr = SendWr { wr_id, op, flags: SendFlags::empty(), data, ud: None };
        t.node.endpoint.post_xrc_send(t.now, t.qpn, &wr, 0x77).unwrap();
    }
    assert_eq!(
        t.sent_text(),
        [
            "SEND_FIRST 100 srq=119 256B",
            "SEND_LAST 101 ask srq=119 44B",
            "WRITE_FIRST 102 srq=119 va=0x1000 len=300 256B",
            "WRITE_LAST 103 ask srq=119 44B",
        ]
    );
    let ack = t.ack(SQ_PSN.add(3), Syndrome::Ack { credit: 31 });
    t.exchange(&[ack]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn each_side_does_its_own_part_only() {
    let mut t = Script::with(QpType::XrcSend, |_| {}, |_| {});
    let recv = RecvWr { wr_id: 1, sges: &[] };
    assert_eq!(t.node.endpoint.post_recv(t.now, t.qpn, &recv).unwrap_err().errno(), 22);
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
    let send = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&[]), ud: None };
    assert_eq!(t.post_wr(&send).unwrap_err().errno(), 22, "it names no queue");
    let request = t.send_only(RQ_PSN, b"x").srq(1);
    t.deliver(&request);
    assert_eq!(t.drops(DropReason::Service), 1);

    let mut r = receiver();
    assert_eq!(r.t.node.endpoint.post_recv(r.t.now, r.t.qpn, &recv).unwrap_err().errno(), 22);
    assert_eq!(r.t.post_wr(&send).unwrap_err().errno(), 22);
    let ack = r.t.ack(SQ_PSN, Syndrome::Ack { credit: 31 });
    r.t.deliver(&ack);
    assert_eq!(r.t.drops(DropReason::Service), 1);
}

/// perftest gives both sides all that a reliable connection needs; uverbs leaves out the other
/// side's part.
#[test]
fn each_side_overlooks_what_is_of_the_other() {
    use irdma_transport::AttrMask as M;
    use irdma_transport::QpState::{Init, Reset, Rtr, Rts};
    let mut t = Script::with(QpType::XrcSend, |_| {}, |_| {});
    for to in [Reset, Init] {
        t.modify(to).unwrap();
    }
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    t.modify_with(Rtr, rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER).unwrap();
    let (attr, _) = t.node.endpoint.query_qp(t.qpn).unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.min_rnr_timer), (0, 0));

    let mut t = Script::with(QpType::XrcRecv, |_| {}, |_| {});
    for to in [Reset, Init, Rtr] {
        t.modify(to).unwrap();
    }
    let rts = M::TIMEOUT | M::SQ_PSN;
    t.modify_with(Rts, rts | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC).unwrap();
    assert_eq!(t.node.endpoint.query_qp(t.qpn).unwrap().0.retry_cnt, 0);
}
