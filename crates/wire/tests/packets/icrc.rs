//! The ICRC against a slow one written from the definition, and which values are accepted.

use std::collections::HashMap;
use std::net::IpAddr;

use irdma_wire::ip::Ident;
use irdma_wire::{FlowKey, Gid, Opcode, Verdict, icrc};
use proptest::prelude::*;

use crate::samples::{flow4, flow6, packet};

/// The ICRC by the definition (IBTA annex A17), a bit at a time.
fn reference(flow: &FlowKey, ident: Ident, packet: &[u8]) -> u32 {
    let udp_len = (packet.len() + 8) as u16;
    let mut covered = vec![0xFF; 8];
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            covered.extend([0x45, 0xFF]);
            covered.extend((udp_len + 20).to_be_bytes());
            covered.extend(ident.id.to_be_bytes());
            covered.extend([if ident.dont_fragment { 0x40 } else { 0 }, 0, 0xFF, 17, 0xFF, 0xFF]);
            covered.extend(src.octets());
            covered.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            covered.extend([0x6F, 0xFF, 0xFF, 0xFF]);
            covered.extend(udp_len.to_be_bytes());
            covered.extend([17, 0xFF]);
            covered.extend(src.octets());
            covered.extend(dst.octets());
        }
        _ => unreachable!("one family"),
    }
    covered.extend(flow.src_port.to_be_bytes());
    covered.extend(4791u16.to_be_bytes());
    covered.extend(udp_len.to_be_bytes());
    covered.extend([0xFF, 0xFF]);
    let bth = covered.len();
    covered.extend(&packet[..packet.len() - 4]);
    covered[bth + 4] = 0xFF;
    crc32(&covered)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn stored(packet: &[u8]) -> u32 {
    u32::from_le_bytes(*packet.last_chunk().unwrap())
}

fn set(packet: &mut [u8], icrc: u32) {
    *packet.last_chunk_mut().unwrap() = icrc.to_le_bytes();
}

fn send_only() -> Opcode {
    Opcode::from_byte(0x04).unwrap()
}

proptest! {
    #[test]
    fn signs_by_the_definition(len in 0usize..5000, id: u16, src_port: u16, v6: bool) {
        let flow = FlowKey { src_port, ..if v6 { flow6() } else { flow4() } };
        let signed = packet(send_only(), len, &flow, id);
        let ident = Ident { id, dont_fragment: true };
        prop_assert_eq!(stored(&signed), reference(&flow, ident, &signed));
    }

    #[test]
    fn finds_any_identification(
        len in 0usize..65_480, id: u16, dont_fragment: bool, expected: u16,
    ) {
        let ident = Ident { id, dont_fragment };
        let mut packet = packet(send_only(), len, &flow4(), 0);
        let icrc = reference(&flow4(), ident, &packet);
        set(&mut packet, icrc);
        prop_assert_eq!(icrc::ident(&flow4(), &packet), Some(ident));
        let guessed = id == expected && dont_fragment;
        let verdict = if guessed { Verdict::Good } else { Verdict::GoodUnknownId(id) };
        prop_assert_eq!(icrc::verify(&flow4(), expected, &packet), verdict);
    }
}

/// Of all ICRC values, those of the 2^17 identifications and no others are accepted: each of
/// these, and of a million others those that happen to be among them.
#[test]
fn only_values_of_some_identification_are_accepted() {
    let mut packet = packet(send_only(), 20, &flow4(), 0);
    let mut signatures = HashMap::new();
    for id in 0..=u16::MAX {
        for dont_fragment in [false, true] {
            let ident = Ident { id, dont_fragment };
            signatures.insert(reference(&flow4(), ident, &packet), ident);
        }
    }
    assert_eq!(signatures.len(), 1 << 17);
    let scattered = (0..1 << 20).map(|i: u32| i.wrapping_mul(0x9E37_79B1).rotate_left(7));
    for value in signatures.keys().copied().chain(scattered) {
        set(&mut packet, value);
        assert_eq!(icrc::ident(&flow4(), &packet), signatures.get(&value).copied());
    }
}

#[test]
fn over_ipv6_one_value_is_accepted() {
    let good = packet(send_only(), 20, &flow6(), 0);
    assert_eq!(icrc::verify(&flow6(), 77, &good), Verdict::Good);
    for difference in (0..32).map(|bit| 1 << bit).chain([0xFFFF_FFFF, 0x0040_FFFF]) {
        let mut bad = good.clone();
        set(&mut bad, stored(&good) ^ difference);
        assert_eq!(icrc::verify(&flow6(), 0, &bad), Verdict::Bad);
        assert_eq!(icrc::ident(&flow6(), &bad), None);
    }
}

#[test]
fn another_flow_is_bad() {
    for flow in [flow4(), flow6()] {
        let packet = packet(send_only(), 33, &flow, 0);
        let other_port = FlowKey { src_port: flow.src_port + 1, ..flow };
        assert_eq!(icrc::verify(&other_port, 0, &packet), Verdict::Bad);
        for (src, dst) in [(flow.dst, flow.dst), (flow.src, flow.src), (flow.dst, flow.src)] {
            assert_eq!(icrc::verify(&FlowKey { src, dst, ..flow }, 0, &packet), Verdict::Bad);
        }
    }
}

#[test]
fn mapped_addresses_are_ipv4() {
    let mapped = |ip: IpAddr| IpAddr::from(Gid::from(ip).0);
    let flow = FlowKey { src: mapped(flow4().src), dst: mapped(flow4().dst), ..flow4() };
    assert!(flow.src.is_ipv6());
    assert_eq!(packet(send_only(), 5, &flow, 9), packet(send_only(), 5, &flow4(), 9));
}

#[test]
fn lengths_that_no_packet_has_are_bad() {
    for len in [0, 4, 15, 65_508, 70_000] {
        assert_eq!(icrc::verify(&flow4(), 0, &vec![0; len]), Verdict::Bad, "{len} bytes");
    }
}

#[test]
#[should_panic(expected = "no packet has 15 bytes")]
fn signing_less_than_a_packet_panics() {
    icrc::sign(&flow4(), 0, &mut [0; 15]);
}

/// The ICRC that Linux `rdma_rxe` gives a FLUSH goes on over all headers a second time.
#[test]
fn a_flush_may_have_the_icrc_of_rxe_and_nothing_else_may() {
    for flow in [flow4(), flow6()] {
        let mut flush = packet(Opcode::from_byte(0x1C).unwrap(), 0, &flow, 7);
        let right = flush.clone();
        icrc::sign_rxe_flush(&flow, 7, &mut flush);
        assert_ne!(flush, right);
        assert_eq!(icrc::verify(&flow, 7, &flush), Verdict::Good);
        if flow.src.is_ipv4() {
            assert_eq!(icrc::verify(&flow, 9, &flush), Verdict::GoodUnknownId(7));
        }
        let last = flush.len() - 1;
        flush[last] ^= 1;
        assert_eq!(icrc::verify(&flow, 7, &flush), Verdict::Bad);
        let mut send = packet(send_only(), 16, &flow, 7);
        icrc::sign_rxe_flush(&flow, 7, &mut send);
        assert_eq!(icrc::verify(&flow, 7, &send), Verdict::Bad);
    }
}
