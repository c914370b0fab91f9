//! What is emitted parses to itself.

use irdma_wire::{Packet, Verdict, emit_headers, headers_len, icrc, parse, wire_len};
use proptest::prelude::*;

use crate::samples::{any_packet, build, flow4, flow6, headers, opcodes, packet};

proptest! {
    #[test]
    fn emitted_packets_parse_to_themselves((headers, payload) in any_packet(), id: u16) {
        for flow in [flow4(), flow6()] {
            let packet = build(&headers, &payload, &flow, id);
            prop_assert_eq!(parse(&packet), Ok(Packet { headers, payload: &payload }));
            prop_assert_eq!(icrc::verify(&flow, id, &packet), Verdict::Good);
        }
    }
}

#[test]
fn lengths_agree() {
    for opcode in opcodes() {
        for payload_len in if opcode.has_payload() { 0..9 } else { 0..1 } {
            let packet = packet(opcode, payload_len, &flow4(), 0);
            let headers = headers(opcode, payload_len);
            let mut emitted = vec![0; headers_len(opcode)];
            assert_eq!(emit_headers(&headers, &mut emitted), headers_len(opcode), "{opcode:?}");
            assert_eq!(packet.len(), wire_len(opcode, payload_len));
            assert!(packet.len().is_multiple_of(4), "{opcode:?} with {payload_len} bytes");
        }
    }
}
