//! Packets to try things on.

use irdma_wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, FlowKey, Headers, Opcode, Psn, Qpn, Reth, Syndrome,
    emit_headers, icrc, roce, wire_len,
};
use proptest::prelude::*;

/// Every opcode there is.
pub fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=255).filter_map(Opcode::from_byte)
}

/// A flow over IPv4.
pub fn flow4() -> FlowKey {
    FlowKey { src: [10, 77, 0, 2].into(), dst: [10, 77, 0, 3].into(), src_port: 0xC123 }
}

/// A flow over IPv6.
pub fn flow6() -> FlowKey {
    let address = |last| [0xFD, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into();
    FlowKey { src: address(2), dst: address(3), src_port: 0xC123 }
}

/// A packet with the headers of `opcode`, filled with values that differ from each other.
pub fn headers(opcode: Opcode, payload_len: usize) -> Headers {
    let bth = Bth {
        solicited: true,
        ack_request: true,
        pad: roce::pad_len(payload_len),
        ..Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0xAB_CDEF))
    };
    let reth = Reth { va: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 0x2122_2324 };
    let atomic = AtomicEth {
        va: 0x3132_3334_3536_3738,
        rkey: 0x4142_4344,
        swap_or_add: 0x5152_5354_5556_5758,
        compare: 0x6162_6364_6566_6768,
    };
    Headers {
        bth,
        deth: opcode.has_deth().then_some(Deth { qkey: 0x7172_7374, src_qpn: Qpn::new(0x65_4321) }),
        xrceth: opcode.has_xrceth().then_some(0x71_7273),
        feth: opcode.has_feth().then_some(Feth { placement: 2, selectivity: 1 }),
        reth: opcode.has_reth().then_some(reth),
        atomic: opcode.has_atomic_eth().then_some(atomic),
        aeth: opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 7 }),
        atomic_ack: opcode.has_atomic_ack().then_some(0x8182_8384_8586_8788),
        imm: opcode.immediate.then_some(*b"\xCA\xFE\x00\x01"),
        ieth: opcode.invalidate.then_some(0x9192_9394),
    }
}

/// The signed packet.
pub fn build(headers: &Headers, payload: &[u8], flow: &FlowKey, id: u16) -> Vec<u8> {
    let mut packet = vec![0; wire_len(headers.bth.opcode, payload.len())];
    let at = emit_headers(headers, &mut packet);
    packet[at..at + payload.len()].copy_from_slice(payload);
    icrc::sign(flow, id, &mut packet);
    packet
}

/// A signed packet of `opcode`.
pub fn packet(opcode: Opcode, payload_len: usize, flow: &FlowKey, id: u16) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload_len).map(|i| (7 * i + 1) as u8).collect();
    build(&headers(opcode, payload_len), &payload, flow, id)
}

/// Any headers with a payload that they may carry.
pub fn any_packet() -> impl Strategy<Value = (Headers, Vec<u8>)> {
    let opcode = prop::sample::select(opcodes().collect::<Vec<_>>());
    let payload = prop::collection::vec(any::<u8>(), 0..100);
    let words = prop::array::uniform16(any::<u32>());
    (opcode, payload, words).prop_map(|(opcode, mut payload, words)| {
        if !opcode.has_payload() {
            payload.clear();
        }
        (headers_of(opcode, payload.len(), words), payload)
    })
}

fn headers_of(opcode: Opcode, payload_len: usize, words: [u32; 16]) -> Headers {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = words;
    let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let bth = Bth {
        opcode,
        solicited: a & 1 != 0,
        migreq: a & 2 != 0,
        pad: roce::pad_len(payload_len),
        pkey: (a >> 16) as u16,
        fecn: a & 4 != 0,
        becn: a & 8 != 0,
        dest_qpn: Qpn::new(b),
        ack_request: a & 16 != 0,
        psn: Psn::new(c),
    };
    let atomic =
        AtomicEth { va: wide(e, f), rkey: g, swap_or_add: wide(h, i), compare: wide(j, k) };
    let aeth = Aeth { syndrome: Syndrome::from_byte(l as u8), msn: l >> 8 };
    Headers {
        bth,
        deth: opcode.has_deth().then_some(Deth { qkey: d, src_qpn: Qpn::new(e) }),
        xrceth: opcode.has_xrceth().then_some(d & 0xFF_FFFF),
        feth: opcode
            .has_feth()
            .then_some(Feth { placement: a as u8 & 15, selectivity: b as u8 & 3 }),
        reth: opcode.has_reth().then_some(Reth { va: wide(e, f), rkey: g, len: h }),
        atomic: opcode.has_atomic_eth().then_some(atomic),
        aeth: opcode.has_aeth().then_some(aeth),
        atomic_ack: opcode.has_atomic_ack().then_some(wide(m, n)),
        imm: opcode.immediate.then_some(o.to_le_bytes()),
        ieth: opcode.invalidate.then_some(p),
    }
}
