//! A user without any right, on a machine without RDMA devices.

use std::path::Path;
use std::time::Duration;

use irdma_tests::host::{Family, Host};
use irdma_tests::netns::Namespace;
use irdma_tests::pair::{Ready, next_port, run_pair};
use irdma_tests::perftest::measure;
use irdma_tests::setup::tools;
use irdma_tests::verifier::Verifier;
use irdma_tests::{Lan, Need, need};

const LIMIT: Duration = Duration::from_secs(120);

/// The program has no capability and the machine no RDMA device.
fn expect_no_rights(host: &Host) {
    let status = host.plain("cat").arg("/proc/self/status").run();
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        status.expect_success().expect_output(&format!("{set}:\t0000000000000000"));
    }
    for path in ["/dev/infiniband", "/sys/class/infiniband"] {
        assert!(!Path::new(path).exists(), "{path} is there: this test proves nothing");
    }
}

fn pingpong(server: &Host, client: &Host, family: Family) {
    let port = next_port();
    let side = |host: &Host| {
        let gid = host.gid_index(family).to_string();
        host.program("ibv_rc_pingpong").args(["-c", "-p", &port.to_string(), "-g", &gid])
    };
    let address = server.v4.to_string();
    let (server, client) = run_pair(side(server), Ready::Port(port), side(client).arg(address));
    server.expect_success();
    client.expect_success();
}

#[test]
fn devices_are_there() {
    need!([Need::Root], tools(["setpriv", "ibv_devices", "ibv_devinfo"]));
    let lan = Lan::one_host();
    let host = lan.a().unprivileged();
    expect_no_rights(&host);
    host.program("ibv_devices").run().expect_success().expect_quiet().expect_output("roce_eth0");
    host.program("ibv_devinfo").arg("-v").run().expect_success().expect_output("PORT_ACTIVE");
    host.command().arg("devices").run().expect_success().expect_output("roce_eth0");
}

#[test]
fn programs_talk_on_one_host() {
    need!([Need::Root], tools(["setpriv", "ibv_rc_pingpong", "cc"]));
    let lan = Lan::one_host();
    let host = lan.a().unprivileged();
    for family in Family::ALL {
        pingpong(&host, &host, family);
    }
    let v = Verifier { server: &host, client: &host, family: Family::V4, limit: LIMIT };
    v.run("--sizes 1-100/7,4096,65536").messages();
}

#[test]
fn programs_talk_between_hosts() {
    need!([Need::Root], tools(["setpriv", "ibv_rc_pingpong", "ib_write_bw", "cc"]));
    let lan = Lan::two_hosts();
    let (a, b) = (lan.a().unprivileged(), lan.b().unprivileged());
    pingpong(&a, &b, Family::V4);
    measure(&a, &b, Family::V4, "ib_write_bw", "-n 200", LIMIT).expect_clean();
    let v = Verifier { server: &a, client: &b, family: Family::V6, limit: LIMIT };
    v.run("--sizes 1-100/7,4096,65536").messages();
}

#[test]
fn multicast_needs_no_rights() {
    need!([Need::Root], tools(["setpriv", "cc"]));
    let lan = Lan::one_host();
    let host = lan.a().unprivileged();
    for family in Family::ALL {
        let member = host.c_program("mcast").args(family.option());
        member.words("attach send:3 expect:3 detach").run().expect_success();
    }
}

/// The demo with nothing but loopback, as root and without rights.
#[test]
fn the_demo_runs_for_everybody() {
    need!([Need::Root], tools(["setpriv"]));
    let namespace = Namespace::new();
    let (v4, v6) = (std::net::Ipv4Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    let root = Host::irdma(namespace.name(), "lo", v4, v6);
    for host in [&root, &root.unprivileged()] {
        host.command().arg("demo").within(LIMIT).run().expect_success();
    }
}
