//! Packets built by scapy (`testdata/roce.py`): each opcode, each pad, IPv4 and IPv6.

use std::collections::BTreeSet;
use std::fmt::Write;

use irdma_wire::ip::Datagram;
use irdma_wire::{Headers, Opcode, Packet, Service, emit_headers, icrc, parse, wire_len};

use crate::judge::{flow, judge};

const VECTORS: &str = include_str!("../../testdata/roce.txt");

/// Calls `check` with the description and the IP packet of each vector.
pub fn for_each_vector(mut check: impl FnMut(&str, &[u8])) {
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let (description, packet) = line.split_once(" | ").unwrap();
        check(description, &hex(packet));
    }
}

fn hex(text: &str) -> Vec<u8> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    assert!(odd.is_empty());
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.iter().map(|pair| byte(pair)).collect()
}

/// A packet in the notation of the vectors.
fn describe(packet: &Packet) -> String {
    let Headers { bth, deth, feth, reth, atomic, aeth, atomic_ack, imm, ieth, .. } = packet.headers;
    let mut text = format!(
        "{} se={} mig={} pkey={:04x} fecn={} becn={} qpn={:06x} ack={} psn={:06x}",
        name(bth.opcode),
        u8::from(bth.solicited),
        u8::from(bth.migreq),
        bth.pkey,
        u8::from(bth.fecn),
        u8::from(bth.becn),
        bth.dest_qpn.get(),
        u8::from(bth.ack_request),
        bth.psn.get(),
    );
    let mut add = |shown: Option<String>| text.extend(shown.map(|shown| format!(" {shown}")));
    add(deth.map(|h| format!("deth={:08x}/{:06x}", h.qkey, h.src_qpn.get())));
    add(feth.map(|h| format!("feth={}/{}", h.selectivity, h.placement)));
    add(reth.map(|h| format!("reth={:016x}/{:08x}/{:08x}", h.va, h.rkey, h.len)));
    add(atomic.map(|h| {
        format!("atomic={:016x}/{:08x}/{:016x}/{:016x}", h.va, h.rkey, h.swap_or_add, h.compare)
    }));
    add(aeth.map(|h| format!("aeth={:02x}/{:06x}", h.syndrome.to_byte(), h.msn)));
    add(atomic_ack.map(|value| format!("original={value:016x}")));
    add(imm.map(|bytes| format!("imm={:08x}", u32::from_be_bytes(bytes))));
    add(ieth.map(|rkey| format!("ieth={rkey:08x}")));
    text.push_str(" payload=");
    for byte in packet.payload {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// The specification's name of an opcode: `RC WRITE_ONLY_IMM`.
fn name(opcode: Opcode) -> String {
    let mut operation = String::new();
    for letter in format!("{:?}", opcode.operation).chars() {
        if letter.is_uppercase() && !operation.is_empty() {
            operation.push('_');
        }
        operation.push(letter.to_ascii_uppercase());
    }
    if matches!(operation.as_str(), "SEND" | "WRITE" | "READ_RESPONSE") {
        write!(operation, "_{:?}", opcode.position).unwrap();
    }
    let suffix = match (opcode.immediate, opcode.invalidate) {
        (true, _) => "_IMM",
        (_, true) => "_INV",
        _ => "",
    };
    format!("{:?} {operation}{suffix}", opcode.service).to_ascii_uppercase()
}

#[test]
fn parses_to_what_was_put_in() {
    for_each_vector(|description, packet| {
        let datagram = Datagram::parse(packet).expect(description);
        let parsed = parse(datagram.payload).expect(description);
        assert_eq!(describe(&parsed), description);
        let judgement = judge(&datagram);
        assert!(judgement.icrc_good && judgement.re_emitted_identically, "{description}");
    });
}

#[test]
fn signs_as_scapy_does() {
    for_each_vector(|description, packet| {
        let datagram = Datagram::parse(packet).unwrap();
        if datagram.ip.src.is_ipv4() && !datagram.ip.ident.dont_fragment {
            return;
        }
        let parsed = parse(datagram.payload).unwrap();
        let mut ours = vec![0; wire_len(parsed.headers.bth.opcode, parsed.payload.len())];
        let at = emit_headers(&parsed.headers, &mut ours);
        ours[at..at + parsed.payload.len()].copy_from_slice(parsed.payload);
        icrc::sign(&flow(&datagram), datagram.ip.ident.id, &mut ours);
        assert_eq!(ours, datagram.payload, "{description}");
    });
}

#[test]
fn every_opcode_and_pad_is_covered_on_both_families() {
    let mut seen = BTreeSet::new();
    for_each_vector(|_, packet| {
        let datagram = Datagram::parse(packet).unwrap();
        let bth = parse(datagram.payload).unwrap().headers.bth;
        seen.insert((bth.opcode.to_byte(), bth.pad, datagram.ip.src.is_ipv4()));
    });
    // Extended connections are unknown to scapy.
    let known = |opcode: &Opcode| opcode.service != Service::Xrc;
    for opcode in (0..=255).filter_map(Opcode::from_byte).filter(known) {
        let one_length = opcode.to_byte() == 0x1D || !opcode.has_payload();
        for pad in 0..if one_length { 1 } else { 4 } {
            assert!(seen.contains(&(opcode.to_byte(), pad, true)), "IPv4 {opcode:?} pad {pad}");
            assert!(seen.contains(&(opcode.to_byte(), pad, false)), "IPv6 {opcode:?} pad {pad}");
        }
    }
}

#[test]
fn ip_and_udp_headers_are_written_as_scapy_does() {
    for_each_vector(|description, packet| {
        let datagram = Datagram::parse(packet).unwrap();
        let mut headers = [0; Datagram::HEADERS_LEN];
        let len = datagram.emit(&mut headers);
        let mut expected = packet[..len].to_vec();
        if datagram.ip.src.is_ipv6() {
            // The flow label is not kept.
            expected[1] &= 0xF0;
            expected[2..4].fill(0);
        }
        assert_eq!(headers[..len], expected, "{description}");
    });
}
