//! Truncated, damaged and random bytes.

use irdma_wire::ip::Datagram;
use irdma_wire::{ParseError, Verdict, ctl, headers_len, icrc, parse, pcapng, wire_len};
use proptest::prelude::*;

use crate::samples::{flow4, flow6, opcodes, packet};

/// What the parser accepts has the length that its headers and payload need.
fn assert_consistent(bytes: &[u8]) {
    if let Ok(packet) = parse(bytes) {
        assert_eq!(wire_len(packet.headers.bth.opcode, packet.payload.len()), bytes.len());
    }
}

#[test]
fn truncated_packets_are_refused_or_consistent() {
    for opcode in opcodes() {
        let whole = packet(opcode, if opcode.has_payload() { 37 } else { 0 }, &flow4(), 0);
        for len in 0..whole.len() {
            let cut = &whole[..len];
            assert_consistent(cut);
            if len < headers_len(opcode) + 4 {
                assert!(matches!(parse(cut), Err(ParseError::TooShort { .. })), "{opcode:?} {len}");
            }
            assert_eq!(icrc::verify(&flow4(), 0, cut), Verdict::Bad, "{opcode:?} cut to {len}");
            assert_eq!(icrc::verify(&flow6(), 0, cut), Verdict::Bad, "{opcode:?} cut to {len}");
        }
    }
}

#[test]
fn each_flipped_bit_is_detected_but_in_the_variant_byte() {
    for flow in [flow4(), flow6()] {
        for opcode in opcodes() {
            let mut packet = packet(opcode, if opcode.has_payload() { 117 } else { 0 }, &flow, 3);
            for bit in 0..packet.len() * 8 {
                packet[bit / 8] ^= 1 << (bit % 8);
                let expected = if bit / 8 == 4 { Verdict::Good } else { Verdict::Bad };
                assert_eq!(icrc::verify(&flow, 3, &packet), expected, "{opcode:?} bit {bit}");
                packet[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_packet_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        assert_consistent(&bytes);
        for flow in [flow4(), flow6()] {
            icrc::verify(&flow, 0, &bytes);
        }
    }

    /// Random bytes rarely pass the first checks; these all do.
    #[test]
    fn no_bytes_after_an_opcode_make_it_panic(
        opcode in prop::sample::select(opcodes().collect::<Vec<_>>()),
        mut bytes in prop::collection::vec(any::<u8>(), 12..120),
    ) {
        bytes[0] = opcode.to_byte();
        bytes[1] &= 0xF0;
        assert_consistent(&bytes);
    }

    #[test]
    fn no_bytes_make_the_other_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = ctl::Control::parse(&bytes);
        let _ = Datagram::parse(&bytes);
        let _ = pcapng::read(&bytes);
    }

    /// A capture with one byte changed still reads or says why not.
    #[test]
    fn a_damaged_capture_does_not_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let mut file = Vec::new();
        pcapng::section_header(&mut file, "damaged");
        pcapng::interface(&mut file, "lo");
        pcapng::packet(&mut file, 0, 1, pcapng::Direction::Inbound, &[b"frame"]);
        let at = at.index(file.len());
        file[at] = byte;
        let frames = pcapng::read(&file).unwrap_or_default();
        for frame in frames {
            let _ = frame.ip_packet().and_then(Datagram::parse);
        }
    }
}
