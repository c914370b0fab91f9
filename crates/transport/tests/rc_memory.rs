//! Keys that work requests make and unmake: windows, fast registrations, invalidates (IBTA 10.6).

use std::sync::Arc;

use irdma_mem::{Access, Buffer, MwBind, MwType};
use irdma_sim::script::{Pkt, RQ_PSN, SQ_PSN, Script};
use irdma_transport::{
    EventKind, QpState, SendData, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};
use irdma_wire::{Operation, Position, Syndrome};

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const GOOD: Syndrome = Syndrome::Ack { credit: 31 };

/// A bind of 64 bytes at 100 of the memory.
fn bind(t: &Script, mw_type: MwType) -> MwBind {
    let rkey = t.node.mem.alloc_mw(t.node.pd.id(), mw_type).unwrap();
    let (va, lkey) = (t.memory.addr(100), t.memory.mr.lkey);
    MwBind { rkey, new_rkey: rkey ^ 1, lkey, va, len: 64, access: REMOTE }
}

fn post(t: &mut Script, wr_id: u64, op: SendOp) {
    let (flags, data) = (SendFlags::empty(), SendData::Sges(&[]));
    t.post_wr(&SendWr { wr_id, op, flags, data, ud: None }).unwrap();
}

fn write_with(t: &Script, key: u32, va: u64, payload: &[u8]) -> Pkt {
    let packet = t.request(Operation::Write, Position::Only, RQ_PSN);
    packet.reth(va, key, payload.len() as u32).payload(payload).ask()
}

#[test]
fn a_bind_makes_the_window_work_and_an_invalidate_ends_it() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut t = Script::rc();
        let window = bind(&t, mw_type);
        post(&mut t, 1, SendOp::BindMw(window));
        assert_eq!(t.sent_text(), [""; 0], "no packet");
        assert_eq!(t.completed(), [(1, WcStatus::Success)]);
        assert_eq!(t.node.endpoint.stats().rdma_bnd, 1);
        let write = write_with(&t, window.new_rkey, window.va + 2, b"hey");
        assert_eq!(t.exchange(&[write]), ["ACK 200 msn=1 credit=31"]);
        assert_eq!(t.memory.read(102, 3), b"hey");
    }
}

#[test]
fn a_bind_waits_for_what_was_posted_before_and_holds_up_what_comes_after() {
    let mut t = Script::rc();
    let window = bind(&t, MwType::Two);
    let send = SendOp::Send { imm: None };
    t.post(1, send, 0, 1);
    post(&mut t, 2, SendOp::BindMw(window));
    t.post(3, send, 0, 1);
    assert_eq!(t.sent_text(), ["SEND_ONLY 100 ask 1B"]);
    assert_eq!(t.completed(), []);
    let ack = t.ack(SQ_PSN, GOOD);
    assert_eq!(t.exchange(&[ack]), ["SEND_ONLY 101 ask 1B"]);
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn a_bind_that_may_not_be_is_a_bind_error_and_puts_the_queue_pair_in_error() {
    let spoils: [fn(&mut MwBind); 4] =
        [|b| b.len = 1 << 20, |b| b.lkey ^= 1, |b| b.rkey ^= 0x100, |b| b.new_rkey ^= 0x100];
    for spoil in spoils {
        let mut t = Script::rc();
        let mut window = bind(&t, MwType::Two);
        spoil(&mut window);
        post(&mut t, 1, SendOp::BindMw(window));
        t.post(2, SendOp::Send { imm: None }, 0, 1);
        t.sent();
        assert_eq!(t.completed(), [(1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!((t.state(), t.events()), (QpState::Err, vec![EventKind::QpAccessErr]));
    }
}

#[test]
fn a_window_cannot_stand_on_a_zero_based_region() {
    let mut t = Script::rc();
    let access = Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
    let region = t.node.memory_with(4096, access);
    let window = MwBind { lkey: region.mr.lkey, va: 0, ..bind(&t, MwType::Two) };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::BindMw(window),
        flags: SendFlags::empty(),
        data: SendData::Sges(&[]),
        ud: None,
    };
    assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22);
}

#[test]
fn a_window_outside_its_range_or_rights_is_an_access_error() {
    for (offset, len, operation) in
        [(0, 65, Operation::Write), (60, 5, Operation::Write), (0, 8, Operation::FetchAdd)]
    {
        let mut t = Script::rc();
        let window = bind(&t, MwType::Two);
        post(&mut t, 1, SendOp::BindMw(window));
        let va = window.va + offset + 4;
        let packet = match operation {
            Operation::Write => write_with(&t, window.new_rkey, va - 4, &vec![1; len]),
            other => t.request(other, Position::Only, RQ_PSN).atomic(va, window.new_rkey, 1, 0),
        };
        assert_eq!(t.exchange(&[packet]), ["NAK_ACCESS 200 msn=0"]);
        assert_eq!(t.memory.read(100, 64), [0; 64]);
    }
}

#[test]
fn a_window_of_type_2_is_the_queue_pairs_own_and_goes_with_it() {
    let mut t = Script::rc();
    let window = bind(&t, MwType::Two);
    post(&mut t, 1, SendOp::BindMw(window));
    t.sent();
    let former = t.switch_to_another(|_| {});
    let write = write_with(&t, window.new_rkey, window.va, b"x");
    assert_eq!(t.exchange(&[write]), ["NAK_ACCESS 200 msn=0"]);
    assert!(t.node.mem.dereg_mr(t.memory.mr.lkey).is_err(), "the window stands on it");
    t.node.endpoint.destroy_qp(former).unwrap();
    t.node.mem.dereg_mr(t.memory.mr.lkey).unwrap();
}

#[test]
fn a_local_invalidate_ends_a_window_of_type_2_and_fails_for_others() {
    let mut t = Script::rc();
    let window = bind(&t, MwType::Two);
    post(&mut t, 1, SendOp::BindMw(window));
    post(&mut t, 2, SendOp::LocalInvalidate { key: window.new_rkey });
    t.sent();
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let write = write_with(&t, window.new_rkey, window.va, b"x");
    assert_eq!(t.exchange(&[write]), ["NAK_ACCESS 200 msn=0"]);

    let mut t = Script::rc();
    let window = bind(&t, MwType::One);
    post(&mut t, 1, SendOp::BindMw(window));
    post(&mut t, 2, SendOp::LocalInvalidate { key: window.new_rkey });
    t.sent();
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::LocProtErr)]);
}

#[test]
fn a_send_with_invalidate_ends_a_window_of_type_2() {
    let mut t = Script::rc();
    let window = bind(&t, MwType::Two);
    post(&mut t, 1, SendOp::BindMw(window));
    t.sent();
    t.post_recv(7, 0, 16);
    let send = t.send_only(RQ_PSN, b"done").invalidate(window.new_rkey).ask();
    assert_eq!(t.exchange(&[send]), ["ACK 200 msn=1 credit=31"]);
    let got = t.received();
    assert_eq!((got[0].flags, got[0].invalidated_rkey), (WcFlags::WITH_INV, window.new_rkey));
    let mut write = write_with(&t, window.new_rkey, window.va, b"x");
    write.headers.bth.psn = RQ_PSN.add(1);
    assert_eq!(t.exchange(&[write]), ["NAK_ACCESS 201 msn=1"]);
}

#[test]
fn a_send_that_may_not_invalidate_is_an_access_error() {
    let keys: [fn(&Script) -> u32; 3] = [
        |t| t.memory.mr.rkey,
        |t| t.memory.mr.rkey ^ 0x100,
        |t| {
            // Bound to another queue pair.
            let window = bind(t, MwType::Two);
            t.node.mem.bind_mw(&window, t.node.pd.id(), 1).unwrap();
            window.new_rkey
        },
    ];
    for key in keys {
        let mut t = Script::rc();
        let key = key(&t);
        t.post_recv(7, 0, 16);
        let send = t.send_only(RQ_PSN, b"x").invalidate(key).ask();
        assert_eq!(t.exchange(&[send]), ["NAK_ACCESS 200 msn=0"]);
        assert_eq!(t.received_short(), [(7, WcStatus::WrFlushErr)]);
        assert_eq!(t.events(), [EventKind::QpAccessErr]);
    }
}

/// A region of two pages that do not follow each other.
fn scattered(t: &Script) -> (Arc<Buffer>, usize, u32) {
    const PAGE: usize = 4096;
    let buffer = Arc::new(Buffer::zeroed(5 * PAGE));
    let first = (buffer.addr() as usize).next_multiple_of(PAGE) - buffer.addr() as usize;
    let key = t.node.mem.alloc_mr(t.node.pd.id(), 2).unwrap().lkey;
    let parts = [0, 2].map(|page| {
        let start = first + page * PAGE;
        (Arc::clone(&buffer), start..start + PAGE)
    });
    assert_eq!(t.node.mem.map_buffers(key, &parts, PAGE as u64), Ok(2));
    (buffer, first, key)
}

#[test]
fn a_fast_registration_is_written_to_until_it_is_invalidated() {
    let mut t = Script::rc();
    let (buffer, first, key) = scattered(&t);
    let new_key = key ^ 0x22;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    post(&mut t, 1, SendOp::RegMr { key, new_key, access });
    assert_eq!(t.sent_text(), [""; 0]);
    let va = buffer.addr() + first as u64 + 4094;
    let write = write_with(&t, new_key, va, b"abcd");
    assert_eq!(t.exchange(&[write]), ["ACK 200 msn=1 credit=31"]);
    let at = |page: usize, byte| buffer.byte(first + page * 4096 + byte);
    assert_eq!((at(0, 4095), at(2, 0), at(1, 0)), (b'b', b'c', 0));
    t.post_recv(7, 0, 0);
    let send = t.send_only(RQ_PSN.add(1), b"").invalidate(new_key).ask();
    assert_eq!(t.exchange(&[send]), ["ACK 201 msn=2 credit=31"]);
    assert_eq!(t.received()[0].invalidated_rkey, new_key);
    post(&mut t, 2, SendOp::RegMr { key: new_key, new_key, access });
    post(&mut t, 3, SendOp::LocalInvalidate { key: new_key });
    t.sent();
    let all_good = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(t.completed(), all_good);
}

#[test]
fn a_registration_of_a_valid_key_is_a_bind_error() {
    let mut t = Script::rc();
    let (_, _, key) = scattered(&t);
    let op = SendOp::RegMr { key, new_key: key, access: Access::LOCAL_WRITE };
    post(&mut t, 1, op);
    post(&mut t, 2, op);
    t.sent();
    assert_eq!(t.completed(), [(1, WcStatus::Success), (2, WcStatus::MwBindErr)]);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn unreliable_connections_bind_and_datagrams_do_not() {
    let mut t = Script::uc();
    let window = bind(&t, MwType::One);
    post(&mut t, 1, SendOp::BindMw(window));
    t.sent();
    assert_eq!(t.completed(), [(1, WcStatus::Success)]);
    let write = write_with(&t, window.new_rkey, window.va, b"uc");
    t.exchange(&[write]);
    assert_eq!(t.memory.read(100, 2), b"uc");

    let mut t = Script::ud();
    let (op, flags) = (SendOp::BindMw(bind(&t, MwType::One)), SendFlags::empty());
    let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&[]), ud: None };
    assert_eq!(t.post_wr(&wr).unwrap_err().errno(), 22);
}

/// WRITE with immediate is for both connected services, SEND with invalidate for the reliable
/// one: the unreliable one has no opcode for it (IBTA 9.2).
#[test]
fn immediate_data_and_invalidates_by_service() {
    let imm = Some([1, 2, 3, 4]);
    let write = SendOp::Write { remote_addr: 0x1000, rkey: 1, imm };
    for mut t in [Script::rc(), Script::uc()] {
        t.post(1, write, 0, 2);
        let text = t.sent_text();
        assert!(text[0].ends_with("va=0x1000 len=2 imm=01020304 2B"), "{text:?}");
    }
    let invalidate = SendOp::SendInvalidate { rkey: 1 };
    let wr = |op| SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::empty(),
        data: SendData::Sges(&[]),
        ud: None,
    };
    assert!(Script::rc().post_wr(&wr(invalidate)).is_ok());
    for mut t in [Script::uc(), Script::ud()] {
        assert_eq!(t.post_wr(&wr(invalidate)).unwrap_err().errno(), 22);
    }
    assert_eq!(Script::ud().post_wr(&wr(write)).unwrap_err().errno(), 22);
}

#[test]
fn completions_name_the_operation() {
    let mut t = Script::rc();
    let window = bind(&t, MwType::Two);
    let (_, _, key) = scattered(&t);
    post(&mut t, 1, SendOp::BindMw(window));
    post(&mut t, 2, SendOp::LocalInvalidate { key: window.new_rkey });
    post(&mut t, 3, SendOp::RegMr { key, new_key: key, access: Access::LOCAL_WRITE });
    t.sent();
    let mut wc = [irdma_transport::Wc::default(); 4];
    assert_eq!(t.cqs.send.poll_cq(&mut wc), 3);
    let opcodes = [wc[0].opcode, wc[1].opcode, wc[2].opcode];
    assert_eq!(opcodes, [WcOpcode::BindMw, WcOpcode::LocalInv, WcOpcode::RegMr]);
}
