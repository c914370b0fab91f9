//! Every operation of every service, every byte compared (`tests/c/verify.c`).

use std::time::Duration;

use irdma_tests::host::{Family, Host};
use irdma_tests::pair::run_linked;
use irdma_tests::setup::{PEER, soak, tools};
use irdma_tests::verifier::{EVERY_OP, Verifier};
use irdma_tests::{Lan, Need, need};

const LIMIT: Duration = Duration::from_secs(240);

const SMALL: &str = "--sizes 0,1,2,3,4,7,8,9,33,63,64,65,1023,1024,1025,2048,4097";

fn verifier<'a>(server: &'a Host, client: &'a Host, family: Family) -> Verifier<'a> {
    let limit = if soak() { 10 * LIMIT } else { LIMIT };
    Verifier { server, client, family, limit }
}

/// The lists of sizes: everything in soak, else every size once and a sample both ways.
fn dense(server: &Host, client: &Host) {
    let v = verifier(server, client, Family::V4);
    let bare = "--ops write,read,send --services rc";
    let others = "--ops send,send_imm,write,write_imm";
    if soak() {
        v.run("--sizes 1-8193").messages();
        return;
    }
    v.run(&format!("{bare} --sizes 1-8193 --direction out --depth 2")).messages();
    v.run(&format!("{bare} --sizes 1-8193/37 --direction in")).messages();
    v.run(&format!("{others} --services uc,ud --sizes 1-8193/29")).messages();
    v.run("--ops send_imm,write_imm --services rc --sizes 1-8193/31").messages();
}

fn long_messages(server: &Host, client: &Host) {
    let v = verifier(server, client, Family::V4);
    let large = "--sizes pow2:8192-16777216 --pool-mib 64 --deadline 60";
    v.run(&format!("{large} --services rc --ops write,read,send")).messages();
    v.run("--sizes pow2:8192-65536 --services uc --ops send,write,write_imm").messages();
}

/// Queue pairs, ways to wait, SGEs and inline, each with every operation.
fn every_dimension(server: &Host, client: &Host, family: Family) {
    let v = verifier(server, client, family);
    v.run(&format!("{EVERY_OP} {SMALL} --strict --qps 1,4,16 --wait poll,event,solicited"))
        .messages();
    v.run(&format!("{EVERY_OP} {SMALL} --strict --sges 1,2,3,max --inline 0,64")).messages();
}

#[test]
fn one_host_every_size() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    dense(lan.a(), lan.a());
}

#[test]
fn one_host_long_messages() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    long_messages(lan.a(), lan.a());
}

#[test]
fn one_host_every_dimension() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    for family in Family::ALL {
        every_dimension(lan.a(), lan.a(), family);
    }
}

#[test]
fn two_hosts_every_size() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    dense(lan.a(), lan.b());
}

#[test]
fn two_hosts_long_messages() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    long_messages(lan.a(), lan.b());
}

#[test]
fn two_hosts_every_dimension() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        every_dimension(lan.a(), lan.b(), family);
    }
}

/// ATOMIC WRITE and FLUSH; Debian's library in the peer has no call for the latter.
#[test]
fn persistence_between_two_hosts_and_with_the_peer() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::two_hosts();
    run_linked("persist", (lan.a(), lan.b()), "flush", LIMIT);
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    let output = run_linked("persist", (peer, ours), "flush", LIMIT);
    assert!(output.contains("flush of the region") && output.contains("atomic write"), "{output}");
    run_linked("persist", (ours, peer), "", LIMIT);
}

#[test]
fn the_peer_in_both_roles() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        let v = verifier(server, client, Family::V4);
        v.run(&format!("{EVERY_OP} --sizes 0-5,33,1023-1025,4095-4097,8193")).messages();
        v.run(&format!("{EVERY_OP} --sizes 1,1500 --qps 4 --sges 1,3,max --inline 0,32"))
            .messages();
        v.run("--sizes 100,2000 --wait event,solicited").messages();
    }
}

#[test]
fn the_peer_over_ipv6_and_with_long_messages() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    verifier(peer, ours, Family::V6).run("--sizes 1,2,3,1025,4096").messages();
    let long = "--services rc --ops write,read,send --sizes 65536,262145,1048576 --deadline 60";
    verifier(peer, ours, Family::V4).run(long).messages();
}
