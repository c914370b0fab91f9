//! Many queue pairs in one process: each works, and an idle one is small.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{ALL, Ends, connect, loopback, pattern, poll_one, to_init};
use irdma::{
    Buffer, Cq, Pd, Qp, QpCap, QpInitAttr, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr,
    Sge, WcStatus,
};

/// Bytes that are allocated now.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: our caller makes the same promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: our caller makes the same promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QPS: usize = 10_000;
/// Of an idle queue pair with 64 send and 64 receive requests of one element.
const MAX_BYTES: usize = 8 << 10;
const LEN: usize = 32;

const CAP: QpCap = QpCap {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
};

fn create(pd: &Pd, cq: &Cq) -> Qp {
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    };
    pd.create_qp(&init).expect("a queue pair")
}

#[test]
fn ten_thousand_queue_pairs_work_and_are_small() {
    let context = loopback().open().expect("an open device");
    let pd = context.alloc_pd().expect("a protection domain");
    let cq = context.create_cq(64, None, 0).expect("a completion queue");
    let buffer = Arc::new(Buffer::zeroed(2 * LEN));
    let mr = pd.reg_buffer(&buffer, 0..2 * LEN, ALL).expect("a memory region");
    let gid = context.query_gid(1, 0).expect("a GID");
    // The first one starts the engine, whose memory is not the queue pairs'.
    let first = create(&pd, &cq);
    to_init(&first);

    let before = LIVE.load(Ordering::Relaxed);
    let qps: Vec<Qp> = (0..QPS).map(|_| create(&pd, &cq)).collect();
    qps.iter().for_each(to_init);
    let ends = |qp: &Qp| Ends { qpn: qp.qpn(), gid, addr: 0, rkey: 0 };
    for pair in qps.chunks(2) {
        connect(&pair[0], &ends(&pair[1]), 0, 14);
        connect(&pair[1], &ends(&pair[0]), 0, 14);
    }
    let each = || (LIVE.load(Ordering::Relaxed) - before) / QPS;
    println!("a connected queue pair takes {} bytes", each());

    let part = |offset: usize| {
        [Sge { addr: buffer.addr() + offset as u64, length: LEN as u32, lkey: mr.lkey() }]
    };
    // What waits for messages has its receive queue full.
    for qp in &qps {
        for wr_id in 0..u64::from(CAP.max_recv_wr) {
            qp.post_recv(&RecvWr { wr_id, sges: &part(LEN) }).expect("a receive");
        }
    }
    println!("with 64 receive requests it takes {} bytes", each());
    assert!(each() < MAX_BYTES, "{} bytes each", each());

    for (i, pair) in qps.chunks(2).enumerate() {
        for from in [0, 1] {
            let message = pattern(LEN, (i + from) as u8);
            buffer.write(0, &message);
            let data = part(0);
            let wr = SendWr {
                wr_id: 100,
                op: SendOp::Send { imm: None },
                flags: SendFlags::empty(),
                data: SendData::Sges(&data),
                ud: None,
            };
            pair[from].post_send(&wr).expect("a send");
            let wcs = [poll_one(&cq), poll_one(&cq)];
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?}");
            let mut received = [0; LEN];
            buffer.read(LEN, &mut received);
            assert_eq!(&received[..], message, "pair {i}");
        }
    }
    println!("after a message each way it takes {} bytes", each());
    assert!(each() < MAX_BYTES, "{} bytes each", each());
    for qp in qps {
        qp.destroy_qp().expect("its end");
    }
}
