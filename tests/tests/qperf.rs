//! qperf: every RDMA test that `qperf --help tests` of the distribution names and has.

use std::time::Duration;

use irdma_tests::host::Host;
use irdma_tests::pair::{Ready, await_ready, next_port};
use irdma_tests::setup::{PEER, tools};
use irdma_tests::{Finished, Lan, Need, need};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// Reliable connections can be made by rdma_cm.
const RC: [&str; 12] = [
    "rc_bi_bw",
    "rc_bw",
    "rc_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];
/// The program knows the other host by its LID alone for these.
const UC: [&str; 6] = [
    "uc_bi_bw",
    "uc_bw",
    "uc_lat",
    "uc_rdma_write_bw",
    "uc_rdma_write_lat",
    "uc_rdma_write_poll_lat",
];
const UD: [&str; 3] = ["ud_bi_bw", "ud_bw", "ud_lat"];

fn qperf(server: &Host, client: &Host, tests: &[&str], words: &str) {
    let port = next_port();
    let listen = ["-lp", &port.to_string()];
    let mut running = server.program("qperf").args(listen).within(LIMIT).start();
    await_ready(&mut running, Ready::Port(port));
    for test in tests {
        let to = server.v4.to_string();
        let program = client.program("qperf").args(listen).arg(to).words(words);
        let done = program.args(["-t", "1", test]).within(LIMIT).run();
        done.expect_success().expect_output(test);
        assert!(!done.stdout.contains("failed"), "{done}");
    }
}

/// Sizes are for an Ethernet of 1500 bytes; the program does not ask the port.
fn by_lid(lan: &Lan) {
    let hosts: Vec<Host> =
        lan.hosts.iter().map(|host| host.with_options(&["--lids", "yes"])).collect();
    let (server, client) = (&hosts[0], &hosts[hosts.len() - 1]);
    qperf(server, client, &UC, "-mt 1024");
    qperf(server, client, &UD, "-m 1024");
    qperf(server, client, &["rc_lat", "rc_rdma_read_bw", "ver_rc_fetch_add"], "-mt 1024");
}

#[test]
fn by_rdma_cm_on_one_address() {
    need!([Need::Root], tools(["qperf"]));
    let lan = Lan::one_host();
    let sample =
        ["rc_bi_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_write_poll_lat", "rc_fetch_add_mr"];
    qperf(lan.a(), lan.a(), &sample, "-cm 1");
}

#[test]
fn by_rdma_cm_between_two_hosts() {
    need!([Need::Root], tools(["qperf"]));
    let lan = Lan::two_hosts();
    qperf(lan.a(), lan.b(), &RC, "-cm 1");
}

#[test]
fn by_rdma_cm_with_the_peer() {
    need!(PEER, tools(["qperf"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for (server, client) in [(peer, ours), (ours, peer)] {
        qperf(server, client, &["rc_lat", "rc_rdma_write_bw", "ver_rc_fetch_add"], "-cm 1");
    }
}

#[test]
fn by_lid_on_one_address() {
    need!([Need::Root], tools(["qperf"]));
    by_lid(&Lan::one_host());
}

#[test]
fn by_lid_between_two_hosts() {
    need!([Need::Root], tools(["qperf"]));
    by_lid(&Lan::two_hosts());
}

/// Without LIDs, as on every RoCE device, the refusal says what to do: at the side that comes to it
/// first, which ends the other side.
#[test]
fn a_lid_is_refused_with_the_remedy() {
    need!([Need::Root], tools(["qperf"]));
    let lan = Lan::one_host();
    let logging = lan.a().with_options(&["--log", "info"]);
    let port = next_port();
    let listen = ["-lp", &port.to_string()];
    let mut server = logging.program("qperf").args(listen).within(LIMIT).start();
    await_ready(&mut server, Ready::Port(port));
    let client = logging.program("qperf").args(listen).arg(lan.a().v4.to_string());
    let done = client.args(["-mt", "1024", "-t", "1", "uc_lat"]).within(LIMIT).run();
    server.signal(Signal::TERM);
    let served = server.finish();
    let told = |end: &Finished| end.stderr.contains("run with --lids yes");
    assert!(told(&done) || told(&served), "{done}\n{served}");
}
