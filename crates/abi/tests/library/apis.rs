//! The plain and the extended interfaces put the same packets on the wire.

use std::fs;
use std::path::Path;
use std::process::Command;

use irdma_wire::pcapng::{self, Direction};

/// In front of a RoCEv2 packet that came over IPv4.
const HEADERS: usize = 20 + 8;
/// The ICRC, which covers the port that the kernel chose for the sender.
const ICRC: usize = 4;
/// The bits of a queue pair number that tell the processes of an address apart.
const SLOT: [u8; 2] = [0xff, 0xc0];

/// The opcode of RC's acknowledgements: how many requests one stands for depends on when the
/// threads run.
const ACKNOWLEDGE: u8 = 0x11;

/// The packets that a run of the program sends, as far as two runs can agree. One that the
/// machine's load had repeated is there once; acknowledgements and the control datagrams are left
/// out.
fn packets(program: &Path, libraries: &Path, post: &str, poll: &str) -> Vec<Vec<u8>> {
    let capture = libraries.join(format!("{post}-{poll}.pcapng"));
    let mut command = Command::new(program);
    command.args([post, poll]).env("LD_LIBRARY_PATH", libraries);
    command.env("IRDMA_CAPTURE", &capture).env("IRDMA_SEED", "7");
    crate::assert_success(&command.output().expect("the program starts"), "apis.c");
    let file = fs::read(capture).expect("a capture");
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for frame in pcapng::read(&file).expect("a readable capture") {
        let sent = frame.direction == Some(Direction::Outbound);
        let ip = frame.ip_packet().filter(|_| sent);
        let Some(packet) = ip.and_then(|ip| comparable(&ip[HEADERS..ip.len() - ICRC])) else {
            continue;
        };
        if !packets.contains(&packet) {
            packets.push(packet);
        }
    }
    packets
}

/// A packet without what differs from process to process: the slot in queue pair numbers.
fn comparable(packet: &[u8]) -> Option<Vec<u8>> {
    const DEST_QPN: usize = 5;
    const UD_SRC_QPN: usize = 17;
    let mut packet = packet.to_vec();
    let index = u16::from_be_bytes([packet[DEST_QPN + 1], packet[DEST_QPN + 2]]) & 0x3fff;
    let is_ud = packet[0] >> 5 == 3;
    for at in [Some(DEST_QPN), is_ud.then_some(UD_SRC_QPN)].into_iter().flatten() {
        packet[at] &= !SLOT[0];
        packet[at + 1] &= !SLOT[1];
    }
    (index != 0 && packet[0] != ACKNOWLEDGE).then_some(packet)
}

#[test]
fn both_interfaces_send_the_same_packets() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return crate::skip("no headers (package libibverbs-dev)");
    }
    let names = crate::drop_in::folder_of_names();
    let program = crate::compile("apis.c", names.path(), &["-libverbs"]);
    let plain = packets(&program, names.path(), "plain", "plain");
    assert!(plain.len() > 50, "{} packets", plain.len());
    for (post, poll) in [("plain", "extended"), ("extended", "plain"), ("extended", "extended")] {
        let other = packets(&program, names.path(), post, poll);
        let differs = plain.iter().zip(&other).position(|(plain, other)| plain != other);
        assert_eq!(
            differs,
            None,
            "{post} {poll}: {:02x?}\n{:02x?}",
            differs.map(|at| &plain[at]),
            differs.map(|at| &other[at])
        );
        assert_eq!(plain.len(), other.len(), "{post} {poll}");
    }
}
