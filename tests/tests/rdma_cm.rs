//! Connections by address: rdma_cm's programs, and those that connect by it.

use std::time::Duration;

use irdma_tests::capture::Tap;
use irdma_tests::host::{Family, Host};
use irdma_tests::pair::{Ready, await_ready, next_port, run_pair};
use irdma_tests::setup::{PEER, soak, tools};
use irdma_tests::{Finished, Lan, Need, Program, need};

const LIMIT: Duration = Duration::from_secs(60);
const TOOLS: [&str; 4] = ["rping", "ucmatose", "udaddy", "cmtime"];

/// The port that udaddy cannot be talked out of.
const UDADDY_PORT: u16 = 7174;

/// Both ends of one run, which found nothing wrong.
fn expect_both((server, client): (Finished, Finished)) {
    assert!(server.succeeded() && client.succeeded(), "{server}\n{client}");
}

fn address(host: &Host, family: Family) -> String {
    host.address(family).to_string()
}

/// `-V` compares every byte that came back.
fn rping(server: &Host, client: &Host, family: Family, words: &str) {
    let port = next_port();
    let side = |host: &Host, role: &str| {
        host.program("rping")
            .args([role, "-V", "-p", &port.to_string(), "-a", &address(server, family)])
            .words(words)
            .within(LIMIT)
    };
    let ends = run_pair(side(server, "-s"), Ready::Rdma(port), side(client, "-c"));
    for end in [&ends.0, &ends.1] {
        assert!(!end.stderr.contains("data mismatch"), "{end}");
    }
    expect_both(ends);
}

fn ucmatose(server: &Host, client: &Host, family: Family, words: &str) {
    let port = next_port();
    let side = |host: &Host| {
        let program = host.program("ucmatose").args(["-p", &port.to_string()]);
        program.args(["-b", &address(host, family)]).words(words).within(LIMIT)
    };
    let client = side(client).args(["-s", &address(server, family)]);
    let (server, client) = run_pair(side(server), Ready::Rdma(port), client);
    for end in [&server, &client] {
        end.expect_success().expect_output("return status 0");
    }
}

fn udaddy(server: &Host, client: &Host, family: Family, words: &str) {
    let side = |host: &Host| {
        let program = host.program("udaddy").args(["-b", &address(host, family)]);
        program.words(words).within(LIMIT)
    };
    let client = side(client).args(["-s", &address(server, family)]);
    let (server, client) = run_pair(side(server), Ready::Rdma(UDADDY_PORT), client);
    for end in [&server, &client] {
        end.expect_success().expect_output("return status 0");
    }
}

fn cmtime(server: &Host, client: &Host, family: Family, words: &str) {
    let port = next_port();
    let side = |host: &Host| {
        let program = host.program("cmtime").args(["-p", &port.to_string()]);
        program.args(["-b", &address(host, family)]).words(words).within(LIMIT)
    };
    let client = side(client).args(["-s", &address(server, family)]);
    let mut server = side(server).start();
    await_ready(&mut server, Ready::Rdma(port));
    client.run().expect_success().expect_output("disconnect");
    // The server serves for ever.
}

/// What each program is for, in few rounds.
fn every_program(server: &Host, client: &Host, family: Family) {
    rping(server, client, family, "-C 100");
    rping(server, client, family, "-C 20 -q");
    ucmatose(server, client, family, "");
    ucmatose(server, client, family, "-c 10 -C 20 -S 4096 -m");
    udaddy(server, client, family, "");
    udaddy(server, client, family, "-c 3 -C 20 -S 512");
    cmtime(server, client, family, "-c 20");
}

#[test]
fn two_processes_on_one_address() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::one_host();
    for family in Family::ALL {
        every_program(lan.a(), lan.a(), family);
    }
}

#[test]
fn two_hosts() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        every_program(lan.a(), lan.b(), family);
    }
}

#[test]
fn the_peer_in_both_roles() {
    need!(PEER, tools(TOOLS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        rping(server, client, Family::V4, "-C 20");
        ucmatose(server, client, Family::V4, "-c 3");
        udaddy(server, client, Family::V4, "");
        cmtime(server, client, Family::V4, "-c 5");
    }
}

#[test]
fn the_peer_over_ipv6() {
    need!(PEER, tools(TOOLS));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        rping(server, client, Family::V6, "-C 20");
        udaddy(server, client, Family::V6, "");
    }
}

/// Programs of the distribution's that the loopback interface serves.
#[test]
fn the_loopback_address() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::one_host();
    let port = next_port();
    let side = |role: &str| {
        let words = format!("{role} -V -C 100 -a 127.0.0.1 -p {port}");
        lan.a().program("rping").words(&words).within(LIMIT)
    };
    expect_both(run_pair(side("-s"), Ready::Rdma(port), side("-c")));
}

#[test]
fn every_size_of_rping() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    for size in [23, 33, 64, 1023, 1024, 1025, 4096, 8193, 65_535] {
        rping(lan.a(), lan.b(), Family::V4, &format!("-C 10 -S {size}"));
    }
}

/// One server, many clients, one of which is killed.
#[test]
fn a_persistent_server() {
    need!([Need::Root], tools(TOOLS));
    let lan = Lan::two_hosts();
    let port = next_port().to_string();
    let words = ["-p", &port, "-a", "0.0.0.0"];
    let mut server = lan.a().program("rping").words("-s -P -V").args(words).within(LIMIT).start();
    await_ready(&mut server, Ready::Rdma(port.parse().expect("a port")));
    let client = |host: &Host, words: &str| {
        let to = lan.a().v4.to_string();
        host.program("rping").words("-c -V").args(["-p", &port, "-a", &to]).words(words)
    };
    let endless: Vec<_> = (0..3).map(|_| client(lan.b(), "-C 1000000").start()).collect();
    for host in [lan.a(), lan.b()] {
        for _ in 0..5 {
            client(host, "-C 20").within(LIMIT).run().expect_success();
        }
    }
    drop(endless);
    client(lan.b(), "-C 20").within(LIMIT).run().expect_success();
    assert!(server.is_alive(), "the server ended");
}

/// Endpoints: calls that wait, by rdma_getaddrinfo and rdma_create_ep.
#[test]
fn endpoints() {
    need!([Need::Root], tools(["rdma_server", "rdma_client"]));
    for lan in [Lan::one_host(), Lan::two_hosts()] {
        for family in Family::ALL {
            let port = next_port();
            let at = address(lan.a(), family);
            let side = |host: &Host, name: &str| {
                host.program(name).args(["-s", &at, "-p", &port.to_string()]).within(LIMIT)
            };
            let server = side(lan.a(), "rdma_server");
            expect_both(run_pair(server, Ready::Rdma(port), side(lan.b(), "rdma_client")));
        }
    }
}

/// perftest over connections of rdma_cm, which it makes to IPv4 addresses only.
fn perftest(server: &Host, client: &Host, tool: &str, words: &str) {
    let port = next_port();
    let side = |host: &Host| -> Program {
        host.program(tool).words("-F -R").args(["-p", &port.to_string()]).words(words).within(LIMIT)
    };
    let client = side(client).arg(server.v4.to_string());
    let (server, client) = run_pair(side(server), Ready::Rdma(port), client);
    for end in [&server, &client] {
        end.expect_success();
        // On a busy machine the program doubts its own measurement of the processor's clock.
        let doubt = |line: &&str| line.starts_with("Correlation coefficient");
        assert!(end.stderr.lines().all(|line| doubt(&line)), "expected an empty stderr: {end}");
    }
}

const PERFTEST: [(&str, &str); 12] = [
    ("ib_write_bw", "-n 200"),
    ("ib_write_lat", "-n 200"),
    ("ib_read_bw", "-n 200"),
    ("ib_read_lat", "-n 200"),
    ("ib_send_bw", "-n 200"),
    ("ib_send_lat", "-n 200"),
    ("ib_atomic_bw", "-n 200"),
    ("ib_atomic_lat", "-n 200"),
    ("ib_send_bw", "-n 200 -c UD -s 512"),
    ("ib_send_lat", "-n 200 -c UD -s 512"),
    ("ib_write_bw", "-n 200 -q 8"),
    ("ib_send_bw", "-n 200 -e"),
];

#[test]
fn perftest_on_one_address() {
    need!([Need::Root], tools(["ib_write_bw"]));
    let lan = Lan::one_host();
    for (tool, words) in PERFTEST {
        perftest(lan.a(), lan.a(), tool, words);
    }
}

#[test]
fn perftest_between_two_hosts() {
    need!([Need::Root], tools(["ib_write_bw"]));
    let lan = Lan::two_hosts();
    for (tool, words) in PERFTEST {
        perftest(lan.a(), lan.b(), tool, words);
    }
}

#[test]
fn perftest_with_the_peer() {
    need!(PEER, tools(["ib_write_bw"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        for (tool, words) in [
            ("ib_write_bw", "-n 20"),
            ("ib_send_bw", "-n 20 -c UD -s 512"),
            ("ib_read_lat", "-n 20"),
        ] {
            perftest(server, client, tool, words);
        }
    }
}

fn rounds(server: &Host, client: &Host, family: Family, count: u32, size: u32) {
    let port = next_port();
    let side = |host: &Host, role: &str| {
        host.c_program("cm_rounds")
            .args([role, &address(server, family), &port.to_string(), &count.to_string()])
            .arg(size.to_string())
            .env("IRDMA_LOG", "info")
            .within(Duration::from_secs(600))
    };
    let ends = run_pair(side(server, "-s"), Ready::Rdma(port), side(client, "-c"));
    let all = format!("{count} rounds");
    ends.1.expect_output(&all);
    expect_both(ends);
}

/// Connect, transfer, disconnect: none of them is refused.
#[test]
fn round_after_round() {
    need!([Need::Root], tools(["cc"]));
    let count = if soak() { 2000 } else { 100 };
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        rounds(lan.a(), lan.b(), family, count, 5000);
    }
    let lan = Lan::one_host();
    rounds(lan.a(), lan.a(), Family::V4, count, 5000);
}

#[test]
fn rounds_with_the_peer() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        rounds(server, client, Family::V4, if soak() { 200 } else { 20 }, 5000);
    }
}

#[test]
fn wrong_calls() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    for family in Family::ALL {
        let program = lan.a().c_program("cm_badargs").arg(address(lan.a(), family)).arg("--null");
        program.within(LIMIT).run().expect_success();
    }
}

/// Attribute ids of the messages that make and end a connection (IBTA 16.7.1).
const MESSAGES: [(&str, &str); 5] = [
    ("0x0010", "REQ"),
    ("0x0013", "REP"),
    ("0x0014", "RTU"),
    ("0x0015", "DREQ"),
    ("0x0016", "DREP"),
];

#[test]
fn the_wire_carries_every_message() {
    need!([Need::Root, Need::Shared], tools(["rping", "tshark", "python3", "tcpdump", "ethtool"]));
    let lan = Lan::two_hosts();
    lan.cut_batches();
    for family in Family::ALL {
        let tap = Tap::on(lan.a());
        rping(lan.a(), lan.b(), family, "-C 10");
        let capture = tap.finish();
        capture.check();
        let seen = capture.fields(&["infiniband.mad.attributeid"]);
        for (id, name) in MESSAGES {
            assert!(seen.iter().any(|row| row[0] == id), "no {name} among {seen:?}");
        }
    }
}
