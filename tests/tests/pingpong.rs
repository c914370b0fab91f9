//! The distribution's four pingpongs, their buffers validated.

use std::time::Duration;

use irdma_tests::host::{Family, Host};
use irdma_tests::pair::{Ready, next_port, run_pair};
use irdma_tests::setup::{PEER, tools};
use irdma_tests::{Lan, Need, Program, need};

const LIMIT: Duration = Duration::from_secs(40);
const PROGRAMS: [&str; 4] =
    ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"];

/// One run: `-c` compares every byte of the last message on both sides.
fn pingpong(server: &Host, client: &Host, family: Family, name: &str, words: &str) {
    let port = next_port();
    let side = |host: &Host| -> Program {
        host.program(name)
            .args(["-c", "-p", &port.to_string()])
            .args(["-d", &host.device()])
            .args(["-g", &host.gid_index(family).to_string()])
            .words(words)
            .within(LIMIT)
    };
    // The programs' servers listen on IPv4; the messages go where the GIDs say.
    let address = server.v4.to_string();
    let (server, client) = run_pair(side(server), Ready::Port(port), side(client).arg(address));
    for end in [&server, &client] {
        end.expect_success().expect_output("iters in");
        assert!(!end.stdout.contains("invalid data"), "{end}");
    }
}

/// Message sizes that each program can be asked for on a 1500 byte link.
fn sizes(name: &str) -> Vec<usize> {
    let limit = match name {
        "ibv_rc_pingpong" | "ibv_srq_pingpong" => 1 << 20,
        "ibv_uc_pingpong" => 1 << 16,
        _ => 1024,
    };
    let all = [1, 2, 3, 4, 33, 255, 1023, 1024, 1025, 4095, 4096, 8193, 65_536, 1_048_576];
    all.into_iter().filter(|&size| size <= limit).collect()
}

fn every_size(server: &Host, client: &Host, name: &str) {
    for size in sizes(name) {
        let rounds = if size > 65_536 { 20 } else { 100 };
        let words = format!("-s {size} -n {rounds}");
        pingpong(server, client, Family::V4, name, &words);
    }
}

/// Defaults, completion events, and 1,000 rounds of 4096 bytes (1024 for datagrams).
fn usual_ways(server: &Host, client: &Host, family: Family) {
    for name in PROGRAMS {
        for words in ["", "-e", "-n 100 -r 20"] {
            let words = match name {
                "ibv_ud_pingpong" => format!("{words} -s 1024"),
                _ => words.to_owned(),
            };
            pingpong(server, client, family, name, &words);
        }
    }
}

#[test]
fn two_processes_on_one_address() {
    need!([Need::Root], tools(PROGRAMS));
    let lan = Lan::one_host();
    for family in Family::ALL {
        usual_ways(lan.a(), lan.a(), family);
    }
}

#[test]
fn two_hosts() {
    need!([Need::Root], tools(PROGRAMS));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        usual_ways(lan.a(), lan.b(), family);
    }
}

#[test]
fn every_size_on_one_address() {
    need!([Need::Root], tools(PROGRAMS));
    let lan = Lan::one_host();
    for name in PROGRAMS {
        every_size(lan.a(), lan.a(), name);
    }
}

#[test]
fn every_size_between_two_hosts() {
    need!([Need::Root], tools(PROGRAMS));
    let lan = Lan::two_hosts();
    for name in PROGRAMS {
        every_size(lan.a(), lan.b(), name);
    }
}

#[test]
fn every_path_mtu() {
    need!([Need::Root], tools(PROGRAMS));
    let lan = Lan::two_hosts();
    for mtu in [256, 512, 1024] {
        let words = format!("-m {mtu} -n 100 -s 5000");
        pingpong(lan.a(), lan.b(), Family::V4, "ibv_rc_pingpong", &words);
    }
}

#[test]
fn the_peer_in_both_roles() {
    need!(PEER, tools(PROGRAMS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for name in PROGRAMS {
        for (server, client) in [(peer, ours), (ours, peer)] {
            for words in ["-n 50 -s 1000", "-n 20 -s 1024 -e"] {
                pingpong(server, client, Family::V4, name, words);
            }
        }
    }
}

#[test]
fn the_peer_over_ipv6_and_with_long_messages() {
    need!(PEER, tools(PROGRAMS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        pingpong(server, client, Family::V6, "ibv_rc_pingpong", "-n 20 -s 5000");
        pingpong(server, client, Family::V4, "ibv_rc_pingpong", "-n 3 -s 1048576");
    }
}
