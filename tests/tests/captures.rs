//! What goes over the wire, as tshark and an independent checker see it.

use std::time::Duration;

use irdma_tests::capture::Tap;
use irdma_tests::host::{Family, Host};
use irdma_tests::setup::{PEER, tools};
use irdma_tests::verifier::{EVERY_OP, Verifier};
use irdma_tests::{Capture, Lan, Need, need, paths};

const LIMIT: Duration = Duration::from_secs(120);
const TOOLS: [&str; 4] = ["cc", "tshark", "python3", "tcpdump"];

/// Three packets and more at a path MTU of 1024, and each number of pad bytes.
const SIZES: &str = "--sizes 0,1,2,3,4,3000,5001";

/// Each operation that [`EVERY_OP`] with [`SIZES`] must put on the wire.
const OPERATIONS: [&str; 34] = [
    "RC SEND_FIRST",
    "RC SEND_MIDDLE",
    "RC SEND_LAST",
    "RC SEND_LAST_IMM",
    "RC SEND_ONLY",
    "RC SEND_ONLY_IMM",
    "RC WRITE_FIRST",
    "RC WRITE_MIDDLE",
    "RC WRITE_LAST",
    "RC WRITE_LAST_IMM",
    "RC WRITE_ONLY",
    "RC WRITE_ONLY_IMM",
    "RC READ_REQUEST",
    "RC READ_RESP_FIRST",
    "RC READ_RESP_MIDDLE",
    "RC READ_RESP_LAST",
    "RC READ_RESP_ONLY",
    "RC ACK",
    "RC ATOMIC_ACK",
    "RC CMP_SWAP",
    "RC FETCH_ADD",
    "UC SEND_FIRST",
    "UC SEND_MIDDLE",
    "UC SEND_LAST",
    "UC SEND_LAST_IMM",
    "UC SEND_ONLY",
    "UC SEND_ONLY_IMM",
    "UC WRITE_FIRST",
    "UC WRITE_MIDDLE",
    "UC WRITE_LAST",
    "UC WRITE_LAST_IMM",
    "UC WRITE_ONLY",
    "UD SEND_ONLY",
    "UD SEND_ONLY_IMM",
];

fn talk(server: &Host, client: &Host, family: Family) {
    let v = Verifier { server, client, family, limit: LIMIT };
    v.run(&format!("{EVERY_OP} {SIZES}")).messages();
}

fn with_capture(host: &Host) -> (Host, Capture) {
    let path = paths::fresh("own.pcapng");
    let option = path.to_string_lossy().into_owned();
    (host.with_options(&["--capture", &option]), Capture::of(path))
}

#[test]
fn our_own_captures_hold_every_operation() {
    need!([Need::Root, Need::Shared], tools(TOOLS));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        let (server, at_server) = with_capture(lan.a());
        let (client, at_client) = with_capture(lan.b());
        talk(&server, &client, family);
        for capture in [at_server, at_client] {
            capture.check().expect_operations(&OPERATIONS);
        }
    }
}

#[test]
fn one_host_captures_itself() {
    need!([Need::Root, Need::Shared], tools(TOOLS));
    let lan = Lan::one_host();
    let (server, at_server) = with_capture(lan.a());
    let (client, at_client) = with_capture(lan.a());
    talk(&server, &client, Family::V4);
    for capture in [at_server, at_client] {
        capture.check().expect_operations(&OPERATIONS);
    }
}

/// The kernel's own view, with the addresses and identifications it really sent.
#[test]
fn the_cable_carries_what_we_say() {
    need!([Need::Root, Need::Shared], tools(TOOLS), tools(["ethtool"]));
    let lan = Lan::two_hosts();
    lan.cut_batches();
    for family in Family::ALL {
        let tap = Tap::on(lan.a());
        talk(lan.a(), lan.b(), family);
        tap.finish().check().expect_operations(&OPERATIONS);
    }
}

#[test]
fn the_peers_packets_and_ours() {
    need!(PEER, tools(TOOLS), tools(["ethtool"]));
    let lan = Lan::with_peer();
    lan.cut_batches();
    let tap = Tap::on(lan.a());
    talk(lan.b(), lan.a(), Family::V4);
    tap.finish().check().expect_operations(&OPERATIONS);
}

/// MigReq is 1 in every packet of ours, the P_Key is the default one, reserved bits are 0.
#[test]
fn fixed_fields_have_their_values() {
    need!([Need::Root, Need::Shared], tools(TOOLS), tools(["ethtool"]));
    let lan = Lan::two_hosts();
    lan.cut_batches();
    let tap = Tap::on(lan.a());
    talk(lan.a(), lan.b(), Family::V4);
    let names = ["infiniband.bth.m", "infiniband.bth.p_key", "infiniband.bth.reserved7"];
    for row in tap.finish().fields(&names) {
        assert!(row[0] == "1" || row[0] == "True", "MigReq {row:?}");
        assert_eq!(row[1], "65535", "P_Key {row:?}");
    }
}
