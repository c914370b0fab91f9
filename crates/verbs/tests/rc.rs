//! Reliable connections over the loopback interface: every operation, every byte.

mod common;

use common::pair;
use irdma::{QpType, SendOp, WcOpcode};

const SIZES: [usize; 9] = [0, 1, 33, 1023, 1024, 1025, 8193, 65536, 1 << 20];

#[test]
fn sends_arrive_whole_and_in_order() {
    let (a, b) = pair(QpType::Rc, 2 << 20);
    for (i, len) in SIZES.into_iter().enumerate() {
        a.fill(0, len, i as u8);
        b.post_recv(100 + i as u64, 0, len);
        a.post(i as u64, SendOp::Send { imm: None }, 0, len);
        let received = b.complete();
        assert_eq!((received.wr_id, received.byte_len), (100 + i as u64, len as u32));
        assert_eq!(received.opcode, WcOpcode::Recv);
        b.expect_bytes(0, len, i as u8);
        assert_eq!(a.complete().wr_id, i as u64);
    }
}
