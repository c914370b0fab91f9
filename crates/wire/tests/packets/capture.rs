//! Captures that others read.

use std::collections::BTreeSet;
use std::process::Command;

use irdma_wire::ip::{Datagram, IpHeader};
use irdma_wire::pcapng::{self, Direction, Frame, LINK_RAW};
use irdma_wire::{FlowKey, Opcode, Operation, Service, UDP_PORT, icrc};

use crate::samples::{flow4, flow6, opcodes, packet};
use crate::skip;

/// What each frame of the capture holds.
pub struct Sent {
    pub flow: FlowKey,
    pub opcode: Opcode,
    pub packet: Vec<u8>,
}

impl Sent {
    fn datagram(&self) -> Datagram<'_> {
        let ip = IpHeader {
            src: self.flow.src,
            dst: self.flow.dst,
            traffic_class: 0xB8,
            hop_limit: 64,
            ident: icrc::ident(&self.flow, &self.packet).unwrap(),
            payload_len: (8 + self.packet.len()) as u16,
        };
        Datagram { ip, src_port: self.flow.src_port, dst_port: UDP_PORT, payload: &self.packet }
    }
}

fn every_opcode() -> Vec<Sent> {
    let send = |flow: FlowKey, opcode: Opcode| {
        let payload_len = if opcode.has_payload() { 8 } else { 0 };
        Sent { flow, opcode, packet: packet(opcode, payload_len, &flow, 0x0102) }
    };
    [flow4(), flow6()].iter().flat_map(|&flow| opcodes().map(move |op| send(flow, op))).collect()
}

fn direction(index: usize) -> Direction {
    if index.is_multiple_of(2) { Direction::Outbound } else { Direction::Inbound }
}

fn timestamp_ns(index: usize) -> u64 {
    1_700_000_000_123_456_789 + index as u64
}

pub fn write(sent: &[Sent]) -> Vec<u8> {
    let mut file = Vec::new();
    pcapng::section_header(&mut file, "ein Kommentar");
    pcapng::interface(&mut file, "roce_lo");
    for (index, sent) in sent.iter().enumerate() {
        let mut headers = [0; Datagram::HEADERS_LEN];
        let len = sent.datagram().emit(&mut headers);
        let parts = [&headers[..len], &sent.packet];
        pcapng::packet(&mut file, 0, timestamp_ns(index), direction(index), &parts);
    }
    file
}

#[test]
fn what_is_written_is_read() {
    let sent = every_opcode();
    let file = write(&sent);
    let frames = pcapng::read(&file).unwrap();
    assert_eq!(frames.len(), sent.len());
    for (index, (frame, sent)) in frames.iter().zip(&sent).enumerate() {
        let Frame { link_type, timestamp_ns: at, direction: way, .. } = *frame;
        assert_eq!((link_type, at, way), (LINK_RAW, timestamp_ns(index), Some(direction(index))));
        assert_eq!(frame.ip_packet().and_then(Datagram::parse), Some(sent.datagram()));
    }
}

/// The fields of each frame as tshark sees them.
pub fn dissect(file: &[u8], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let path = tempfile::Builder::new().suffix(".pcapng").tempfile().unwrap();
    std::fs::write(&path, file).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(path.path()).args(["-n", "-T", "fields", "-E", "occurrence=f"]);
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    // Takes any SEND payload for its own.
    tshark.args(["--disable-protocol", "rpcordma"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = match tshark.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip("tshark is not installed");
            return None;
        }
        Err(error) => panic!("tshark: {error}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

#[test]
fn tshark_sees_every_packet_as_it_was_sent() {
    const GOOD: &str = "1";
    let sent = every_opcode();
    let fields = [
        "_ws.malformed",
        "udp.checksum.status",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "frame.time_epoch",
        "frame.packet_flags_direction",
        "frame.interface_name",
    ];
    let Some(frames) = dissect(&write(&sent), &fields) else { return };
    assert_eq!(frames.len(), sent.len());
    let mut dissected = BTreeSet::new();
    for (index, (frame, sent)) in frames.iter().zip(&sent).enumerate() {
        let opcode = sent.opcode.to_byte();
        dissected.insert(frame[2].clone());
        let expected = [
            "",
            GOOD,
            &opcode.to_string(),
            "0x123456",
            &0xAB_CDEF.to_string(),
            &format!("1700000000.{}", 123_456_789 + index),
            if direction(index) == Direction::Inbound { "0x00000001" } else { "0x00000002" },
            "roce_lo",
        ];
        assert_eq!(frame, &expected, "{:?}", sent.opcode);
    }
    assert_eq!(dissected.len(), opcodes().count());
}

#[test]
fn tshark_sees_the_extension_headers() {
    let mut sent = every_opcode();
    // tshark 4.0 does not know what follows the BTH of annex A19's opcodes, and nothing of annex
    // A14's.
    sent.retain(|Sent { opcode, .. }| {
        let is_new = matches!(opcode.operation, Operation::Flush | Operation::AtomicWrite);
        !is_new && opcode.service != Service::Xrc
    });
    let fields = [
        "infiniband.reth.va",
        "infiniband.reth.r_key",
        "infiniband.reth.dmalen",
        "infiniband.deth.srcqp",
        "infiniband.aeth.msn",
        "infiniband.atomiceth.cmpdt",
        "infiniband.immdt",
        "infiniband.ieth",
    ];
    let Some(frames) = dissect(&write(&sent), &fields) else { return };
    let shown = |present: bool, value: &str| if present { value.to_owned() } else { String::new() };
    for (frame, sent) in frames.iter().zip(&sent) {
        let opcode = sent.opcode;
        // tshark names address and key of an AtomicETH like those of a RETH.
        let (va, rkey) = match opcode.has_atomic_eth() {
            true => ("0x3132333435363738", "0x41424344"),
            false => ("0x0102030405060708", "0x11121314"),
        };
        let has_address = opcode.has_reth() || opcode.has_atomic_eth();
        let expected = [
            shown(has_address, va),
            shown(has_address, rkey),
            shown(opcode.has_reth(), &0x2122_2324.to_string()),
            shown(opcode.service == Service::Ud, "0x00654321"),
            shown(opcode.has_aeth(), "7"),
            shown(opcode.has_atomic_eth(), &0x6162_6364_6566_6768u64.to_string()),
            shown(opcode.immediate, "cafe0001"),
            shown(opcode.invalidate, "91929394"),
        ];
        assert_eq!(frame, &expected, "{opcode:?}");
    }
}
