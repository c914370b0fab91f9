//! What helps to see: captures, injected faults, counters of other processes.

mod common;

use common::process::{Peer, ROLE, connected_to, meet, read_line};
use common::{Node, loopback};
use irdma::{QpType, SendOp, Wc, WcOpcode, WcStatus};
use irdma_wire::ip::Datagram;
use irdma_wire::{FlowKey, Verdict, icrc, parse, pcapng};

const LEN: usize = 1 << 14;

/// Does nothing as a test; is the main function of the other process.
#[test]
fn another_process() {
    if std::env::var(ROLE).as_deref() != Ok("echo") {
        return;
    }
    let node = Node::new(&loopback(), QpType::Rc, LEN);
    (0..8).for_each(|i| node.post_recv(i, 0, LEN));
    meet(&node);
    let ending = std::thread::spawn(read_line);
    while !ending.is_finished() {
        let mut wc = [Wc::default()];
        if node.cq.poll_cq(&mut wc).unwrap() == 1 && wc[0].opcode == WcOpcode::Recv {
            assert_eq!(wc[0].status, WcStatus::Success);
            node.post_recv(wc[0].wr_id, 0, LEN);
            node.post(100, SendOp::Send { imm: None }, 0, wc[0].byte_len as usize);
        }
    }
}

fn ping(node: &Node, rounds: usize, len: usize) {
    for round in 0..rounds {
        node.fill(0, len, round as u8);
        node.post_recv(1, LEN, len);
        node.post(2, SendOp::Send { imm: None }, 0, len);
        node.complete();
        node.complete();
        node.expect_bytes(LEN, len, round as u8);
    }
}

#[test]
fn bytes_are_right_under_every_kind_of_fault() {
    let spec = "drop=3%,dup=3%,reorder=3%,corrupt=3%,seed=11";
    let mut peer = Peer::start_env("echo", &[("IRDMA_FAULTS", spec)]);
    let node = connected_to(&mut peer, 2 * LEN, |_| ());
    ping(&node, 60, LEN);
    peer.finish();
}

#[test]
fn a_capture_holds_both_directions_with_right_checksums() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("capture.pcapng");
    let mut peer = Peer::start_env("echo", &[("IRDMA_CAPTURE", path.to_str().unwrap())]);
    let node = connected_to(&mut peer, 2 * LEN, |_| ());
    ping(&node, 5, LEN);
    peer.finish();
    let bytes = std::fs::read(&path).unwrap();
    let frames = pcapng::read(&bytes).unwrap();
    for direction in [pcapng::Direction::Inbound, pcapng::Direction::Outbound] {
        let payloads: usize = frames
            .iter()
            .filter(|frame| frame.direction == Some(direction))
            .map(|frame| payload_len(frame.ip_packet().unwrap()))
            .sum();
        assert!(payloads >= 5 * LEN, "{direction:?}: {payloads}");
    }
}

/// The length of the RoCE payload of a packet whose ICRC fits its own IP header.
fn payload_len(packet: &[u8]) -> usize {
    let datagram = Datagram::parse(packet).unwrap();
    let flow = FlowKey { src: datagram.ip.src, dst: datagram.ip.dst, src_port: datagram.src_port };
    let verdict = icrc::verify(&flow, datagram.ip.ident.id, datagram.payload);
    assert_eq!(verdict, Verdict::Good);
    parse(datagram.payload).unwrap().payload.len()
}

#[test]
fn the_counters_of_a_running_process_can_be_read() {
    let mut peer = Peer::start("echo");
    let node = connected_to(&mut peer, 2 * LEN, |_| ());
    ping(&node, 3, 100);
    let all = irdma::processes().unwrap();
    let pid = peer.child.id();
    let process = all.iter().find(|process| process.pid == pid).expect("the echoing process");
    assert_eq!(process.slot, peer.ends.qpn.slot());
    assert!(process.program.starts_with("tools"));
    assert_eq!(process.stats.get("InRdmaSends"), Some(3));
    assert!(process.stats.get("ip4InPkts").unwrap() > 3);
    let own = node.context.get_hw_stats();
    assert!(own.get("OutRdmaSends").unwrap() >= 3);
    peer.finish();
}
