//! The distribution's perftest: exit status 0 and nothing on stderr.

use std::time::Duration;

use irdma_tests::host::{Family, Host};
use irdma_tests::perftest::{TOOLS, measure, measure_with};
use irdma_tests::program::Program;
use irdma_tests::setup::{PEER, tools};
use irdma_tests::{Lan, Need, need};

const LIMIT: Duration = Duration::from_secs(60);

fn run(server: &Host, client: &Host, tool: &str, words: &str) {
    measure(server, client, Family::V4, tool, words, LIMIT).expect_clean();
}

/// The services each tool offers.
fn services(tool: &str) -> &'static [&'static str] {
    match tool {
        "ib_send_bw" | "ib_send_lat" => &["RC", "UC", "UD"],
        "ib_write_bw" | "ib_write_lat" => &["RC", "UC"],
        _ => &["RC"],
    }
}

fn is_bandwidth(tool: &str) -> bool {
    tool.ends_with("_bw")
}

/// Everything a tool can do with one service, in few iterations. `all_sizes`: with -a, for which
/// perftest measures the speed of the processor once a size, five seconds in all.
fn ways(tool: &str, service: &str, all_sizes: bool) -> Vec<String> {
    let basic = format!("-c {service} -n 200");
    let sized = |size: u32| format!("{basic} -s {size}");
    let mut ways = match (tool, service) {
        ("ib_atomic_bw" | "ib_atomic_lat", _) => vec![basic.clone()],
        // -a asks for 8 MiB, which an unreliable service may lose for good, or cannot send.
        (_, "UC") => [2, 1025, 65_536].map(sized).to_vec(),
        (_, "UD") => [2, 1024].map(sized).to_vec(),
        // Cycles, or a latency tool measures the processor twice a size.
        _ if all_sizes && is_bandwidth(tool) => vec![format!("-c {service} -n 20 -a")],
        _ if all_sizes => vec![format!("-c {service} -n 20 -a -C")],
        _ => [2, 1 << 20].map(sized).to_vec(),
    };
    let usual = if service == "RC" { basic } else { ways[ways.len() - 1].clone() };
    // Nothing of a WRITE completes at its receiver: there is no event to sleep on.
    if !tool.starts_with("ib_write") {
        ways.push(format!("{usual} -e"));
    }
    if is_bandwidth(tool) {
        ways.push(format!("{usual} -b"));
        ways.push(format!("{usual} -q 16"));
    }
    ways
}

/// One test a tool, on one address and between two hosts.
macro_rules! every_way_of {
    ($($tool:ident),+) => {$(
        mod $tool {
            use super::*;

            fn every_service(server: &Host, client: &Host, all_sizes: bool) {
                let tool = stringify!($tool);
                for service in services(tool) {
                    for words in ways(tool, service, all_sizes) {
                        run(server, client, tool, &words);
                    }
                }
            }

            #[test]
            fn two_processes_on_one_address() {
                need!([Need::Root], tools(TOOLS));
                let lan = Lan::one_host();
                every_service(lan.a(), lan.a(), false);
            }

            #[test]
            fn two_hosts() {
                need!([Need::Root], tools(TOOLS));
                let lan = Lan::two_hosts();
                every_service(lan.a(), lan.b(), true);
            }
        }
    )+};
}

every_way_of!(
    ib_send_bw,
    ib_send_lat,
    ib_write_bw,
    ib_write_lat,
    ib_read_bw,
    ib_read_lat,
    ib_atomic_bw,
    ib_atomic_lat
);

#[test]
fn two_hosts_over_ipv6() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for tool in TOOLS {
        measure(lan.a(), lan.b(), Family::V6, tool, "-n 100", LIMIT).expect_clean();
    }
}

#[test]
fn both_atomics() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        for tool in ["ib_atomic_bw", "ib_atomic_lat"] {
            run(lan.a(), lan.b(), tool, &format!("-n 500 -A {kind}"));
        }
    }
}

#[test]
fn runs_of_a_given_duration() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        run(lan.a(), lan.b(), tool, "-D 2");
    }
}

/// The middle of the measured round trips, in microseconds, when the background thread looks so
/// often whether the program still polls.
fn median_us(server: &Host, client: &Host, (tool, words): (&str, &str), stand_back: &str) -> f64 {
    let adjust = |program: Program| program.env("IRDMA_STAND_BACK", stand_back);
    let ends = measure_with(server, client, Family::V4, tool, words, LIMIT, &adjust);
    ends.expect_clean();
    // Columns: bytes, iterations, minimum, maximum, typical, average, ...
    ends.rows()[0][4]
}

/// Spinning on memory, polling, sleeping: a tick a hundred times longer, of 5 ms, leaves a round
/// trip what it was.
#[test]
fn latency_stands_on_no_timer() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for what in [
        ("ib_write_lat", "-n 2000"),
        ("ib_read_lat", "-n 2000"),
        ("ib_send_lat", "-n 2000"),
        ("ib_send_lat", "-n 2000 -e"),
    ] {
        let usual = median_us(lan.a(), lan.b(), what, "50us");
        let slow = median_us(lan.a(), lan.b(), what, "5ms");
        assert!(slow < 8.0 * usual, "{what:?}: {usual} us, with a slow tick {slow} us");
    }
}

#[test]
fn the_peer_in_both_roles() {
    need!(PEER, tools(TOOLS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for tool in TOOLS {
        for (server, client) in [(peer, ours), (ours, peer)] {
            let ends = measure(server, client, Family::V4, tool, "-n 20", LIMIT);
            ends.server.expect_success();
            ends.client.expect_success();
            let ours = if server.is_peer() { &ends.client } else { &ends.server };
            ours.expect_quiet();
        }
    }
}

#[test]
fn the_peer_with_many_queue_pairs_and_services() {
    need!(PEER, tools(TOOLS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        for (tool, words) in [
            ("ib_send_bw", "-n 20 -q 16 -s 2000"),
            ("ib_send_bw", "-n 20 -c UD -s 512"),
            ("ib_send_bw", "-n 20 -c UC -s 3000"),
            ("ib_write_bw", "-n 20 -s 33"),
            ("ib_read_bw", "-n 10 -s 65536"),
        ] {
            let ends = measure(server, client, Family::V4, tool, words, LIMIT);
            ends.server.expect_success();
            ends.client.expect_success();
        }
    }
}
