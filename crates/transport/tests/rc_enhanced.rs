//! ATOMIC WRITE and FLUSH (IBTA annex A19): both sides, refusals, duplicates, losses.

use irdma_mem::{Access, MwBind};
use irdma_sim::script::{Pkt, RQ_PSN, SQ_PSN, Script};
use irdma_transport::{
    EventKind, Placement, QpState, SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use irdma_wire::icrc::sign_rxe_flush;
use irdma_wire::{FlowKey, Position, Syndrome, parse};

const ATOMIC_WRITE: SendOp = SendOp::AtomicWrite { remote_addr: 0x1008, rkey: 0xABCD };
const FLUSH: SendOp = SendOp::Flush {
    remote_addr: 0x1000,
    rkey: 0xABCD,
    len: 100,
    placement: Placement::GLOBAL,
    whole_region: false,
};

#[track_caller]
fn refused(mut t: Script, packet: Pkt, answer: &str, event: EventKind) {
    assert_eq!(t.exchange(&[packet]), [answer]);
    assert_eq!((t.state(), t.events()), (QpState::Err, vec![event]));
    assert_eq!(t.memory.word(8), 0);
}

#[test]
fn an_atomic_write_is_answered_by_an_empty_read_response() {
    let mut t = Script::rc();
    let write = t.atomic_write(RQ_PSN, 8, 0x1122_3344_5566_7788);
    assert_eq!(t.exchange(&[write]), ["READ_ONLY 200 msn=1 credit=31 0B"]);
    assert_eq!(t.memory.word(8), 0x1122_3344_5566_7788);
    assert_eq!(t.node.endpoint.stats().rx_atomics, 1);
}

#[test]
fn a_flush_of_a_range_or_a_region_is_answered_by_an_empty_read_response() {
    let mut t = Script::rc();
    let range = t.flush(RQ_PSN, 0, 1 << 16);
    let mut region = t.flush(RQ_PSN.add(1), 0, 0).feth(1, 1);
    // The whole region is named by its key alone.
    region.headers.reth.as_mut().unwrap().va = 0;
    assert_eq!(
        t.exchange(&[range, region]),
        ["READ_ONLY 200 msn=1 credit=31 0B", "READ_ONLY 201 msn=2 credit=31 0B"]
    );
    assert_eq!(t.state(), QpState::Rts);
}

#[test]
fn a_flush_follows_the_writes_before_it() {
    let mut t = Script::rc();
    let packets = [t.write_only(RQ_PSN, 0, b"abc").ask(), t.flush(RQ_PSN.add(1), 0, 3)];
    let answers = t.exchange(&packets);
    assert_eq!(answers, ["ACK 200 msn=1 credit=31", "READ_ONLY 201 msn=2 credit=31 0B"]);
    assert_eq!(t.memory.read(0, 3), b"abc");
}

#[test]
fn what_an_atomic_write_must_not_be() {
    let t = Script::rc();
    let packet = t.atomic_write(RQ_PSN, 4, 1);
    refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    let t = Script::rc();
    let packet = t.atomic_write(RQ_PSN, 8, 1).payload(&[1; 4]);
    refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    let t = Script::rc_with(|attr| attr.access -= Access::REMOTE_WRITE);
    let packet = t.atomic_write(RQ_PSN, 8, 1);
    refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpAccessErr);
    let t = Script::rc();
    let packet = t.atomic_write(RQ_PSN, (1 << 16) + 8, 1);
    refused(t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let t = Script::rc();
    let mut packet = t.atomic_write(RQ_PSN, 8, 1);
    packet.headers.reth.as_mut().unwrap().rkey ^= 1;
    refused(t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let t = Script::rc_with(|attr| attr.max_dest_rd_atomic = 0);
    let packet = t.atomic_write(RQ_PSN, 8, 1);
    refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
}

#[test]
fn what_a_flush_must_not_be() {
    for (placement, selectivity) in [(0, 0), (4, 0), (1, 2), (1, 3)] {
        let t = Script::rc();
        let packet = t.flush(RQ_PSN, 0, 4).feth(placement, selectivity);
        refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpReqErr);
    }
    let t = Script::rc_with(|attr| attr.access -= Access::FLUSH_GLOBAL);
    let packet = t.flush(RQ_PSN, 0, 4);
    refused(t, packet, "NAK_INVALID 200 msn=0", EventKind::QpAccessErr);
    // The region does not allow persistence.
    let t = Script::rc_with(|attr| attr.access |= Access::FLUSH_PERSISTENT);
    let packet = t.flush(RQ_PSN, 0, 4).feth(2, 0);
    refused(t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
    let t = Script::rc();
    let packet = t.flush(RQ_PSN, 0, (1 << 16) + 1);
    refused(t, packet, "NAK_ACCESS 200 msn=0", EventKind::QpAccessErr);
}

#[test]
fn a_flush_to_persistence_waits_for_the_file_and_fails_with_it() {
    for (works, answer) in
        [(true, "READ_ONLY 200 msn=1 credit=31 0B"), (false, "NAK_OPERATION 200 msn=0")]
    {
        let mut t = Script::rc_with(|attr| attr.access |= Access::FLUSH_PERSISTENT);
        t.node.mem.set_persist(if works { |_, _| true } else { |_, _| false });
        let region = t.node.memory_with(4096, Access::FLUSH_PERSISTENT);
        let flush = t.flush(RQ_PSN, 0, 0).reth(region.addr(8), region.mr.rkey, 100).feth(2, 0);
        assert_eq!(t.exchange(&[flush]), [answer]);
        assert_eq!(t.state() == QpState::Rts, works);
    }
}

#[test]
fn duplicates_are_answered_and_not_executed() {
    let mut t = Script::rc();
    let (write, flush) = (t.atomic_write(RQ_PSN, 8, 5), t.flush(RQ_PSN.add(1), 0, 4));
    assert_eq!(t.exchange(&[write.clone(), flush.clone()]).len(), 2);
    t.memory.write(8, &9u64.to_ne_bytes());
    assert_eq!(
        t.exchange(&[write, flush]),
        ["READ_ONLY 200 msn=2 credit=31 0B", "READ_ONLY 201 msn=2 credit=31 0B"]
    );
    assert_eq!(t.memory.word(8), 9);
}

#[test]
fn requests_have_their_headers() {
    let mut t = Script::rc();
    t.memory.write(0, b"8 bytes!");
    t.post(1, ATOMIC_WRITE, 0, 8);
    t.post(2, FLUSH, 0, 0);
    let packets = t.sent();
    let text: Vec<_> = packets.iter().map(Pkt::to_string).collect();
    assert_eq!(
        text,
        [
            "ATOMIC_WRITE 100 ask va=0x1008 len=8 8B",
            "FLUSH 101 ask type=1 level=0 va=0x1000 len=100"
        ]
    );
    assert_eq!(packets[0].payload, b"8 bytes!");
    let answers = [0, 1].map(|n| t.read_response(Position::Only, SQ_PSN.add(n), b""));
    t.exchange(&answers);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(t.is_idle());
}

#[test]
fn an_acknowledgement_is_no_answer_and_data_a_wrong_one() {
    let mut t = Script::rc();
    t.post(1, FLUSH, 0, 0);
    assert_eq!(t.sent().len(), 1);
    let ack = t.ack(SQ_PSN, Syndrome::Ack { credit: 31 });
    assert_eq!(t.exchange(&[ack]), ["FLUSH 100 ask type=1 level=0 va=0x1000 len=100"]);
    let answer = t.read_response(Position::Only, SQ_PSN, b"data");
    t.exchange(&[answer]);
    assert_eq!(t.completed(), [(1, WcStatus::BadRespErr)]);
}

#[test]
fn they_take_of_what_reads_may_have_outstanding() {
    let mut t = Script::rc_with(|attr| attr.max_rd_atomic = 1);
    t.post(1, ATOMIC_WRITE, 0, 8);
    t.post(2, FLUSH, 0, 0);
    t.post_flags(3, t.write_op(), 0, 1, SendFlags::FENCE);
    assert_eq!(t.sent().len(), 1);
    let answer = t.read_response(Position::Only, SQ_PSN, b"");
    assert_eq!(t.exchange(&[answer]).len(), 1);
    let answer = t.read_response(Position::Only, SQ_PSN.add(1), b"");
    assert_eq!(t.exchange(&[answer]), ["WRITE_ONLY 102 ask va=0x1000 len=1 1B"]);
}

#[test]
fn an_atomic_write_is_of_8_bytes_and_may_be_inline() {
    let mut t = Script::rc();
    t.post(1, ATOMIC_WRITE, 0, 4);
    t.sent();
    assert_eq!(t.completed(), [(1, WcStatus::LocLenErr)]);
    let mut t =
        Script::with(irdma_transport::QpType::Rc, |init| init.cap.max_inline_data = 0, |_| {});
    let (flags, data) = (SendFlags::empty(), SendData::Inline(b"inline 8"));
    t.post_wr(&SendWr { wr_id: 1, op: ATOMIC_WRITE, flags, data, ud: None }).unwrap();
    assert_eq!(t.sent()[0].payload, b"inline 8");
}

#[test]
fn unreliable_services_have_neither() {
    for op in [ATOMIC_WRITE, FLUSH] {
        for mut t in [Script::uc(), Script::ud()] {
            let (flags, data) = (SendFlags::empty(), SendData::Inline(&[0; 8]));
            let wr = SendWr { wr_id: 1, op, flags, data, ud: None };
            assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22);
        }
    }
}

#[test]
fn what_moves_no_data_is_posted_without() {
    let access = Access::LOCAL_WRITE;
    let bind = MwBind { rkey: 0x100, new_rkey: 0x101, lkey: 0, va: 0, len: 0, access };
    let (key, new_key) = (0x100, 0x101);
    for op in [
        FLUSH,
        SendOp::LocalInvalidate { key },
        SendOp::BindMw(bind),
        SendOp::RegMr { key, new_key, access },
    ] {
        let mut t = Script::rc();
        let sges = [t.memory.sge(0, 4)];
        let (flags, data) = (SendFlags::empty(), SendData::Sges(&sges));
        let wr = SendWr { wr_id: 1, op, flags, data, ud: None };
        assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22, "{op:?}");
        assert_eq!(t.sent_text(), [""; 0]);
    }
}

/// `rdma_rxe` signs a FLUSH in its own way, and takes no other.
#[test]
fn a_flush_is_understood_by_rxe_and_from_it() {
    let mut t = Script::rc();
    let meta = t.meta();
    let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
    let mut bytes = t.flush(RQ_PSN, 0, 4).emit(&flow, 0);
    sign_rxe_flush(&flow, 0, &mut bytes);
    t.deliver_bytes(&meta, &bytes);
    assert_eq!(t.sent_text(), ["READ_ONLY 200 msn=1 credit=31 0B"]);

    t.post(1, FLUSH, 0, 0);
    let right = raw(&mut t);
    let mut signed: Vec<Vec<u8>> = Vec::new();
    for _ in 0..2 {
        t.now = t.now + 100_000_000;
        t.node.endpoint.handle_timeout(t.now);
        signed.push(raw(&mut t));
    }
    assert_eq!(signed[0], right, "the first retransmission is the same packet");
    assert_ne!(signed[1], right, "the second is for rxe");
    assert_eq!(parse(&signed[1]), parse(&right));
}

/// The FLUSH that is sent now, past any probe of a peer not known yet.
fn raw(t: &mut Script) -> Vec<u8> {
    loop {
        let mut buffer = vec![0; 65_536];
        let sent = t.node.endpoint.poll_transmit(t.now, &mut buffer).expect("a packet");
        buffer.truncate(sent.len);
        if parse(&buffer).is_ok_and(|packet| packet.headers.feth.is_some()) {
            return buffer;
        }
    }
}
