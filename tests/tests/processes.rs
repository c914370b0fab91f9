//! Several processes on one address: one dies, some fork, the others go on.

use std::time::Duration;

use irdma_tests::host::Host;
use irdma_tests::pair::{Ready, await_ready, next_port, run_pair};
use irdma_tests::setup::tools;
use irdma_tests::{Lan, Need, Program, Running, need};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// Two processes of one conversation (`tests/c/chat.c`).
struct Chat {
    server: Running,
    client: Running,
}

fn side(host: &Host, port: u16) -> Program {
    host.c_program("chat").args(["--port", &port.to_string()]).within(LIMIT)
}

impl Chat {
    /// A conversation of some seconds, once messages flow.
    fn start(server: &Host, client: &Host, words: &str) -> Self {
        let port = next_port();
        let mut server_end = side(server, port).arg("-s").start();
        await_ready(&mut server_end, Ready::Port(port));
        let mut client_end = side(client, port).arg(server.v4.to_string()).words(words).start();
        client_end.wait_for("chatting");
        Self { server: server_end, client: client_end }
    }

    fn expect_success(self) {
        self.client.finish().expect_success();
        self.server.finish().expect_success();
    }
}

#[test]
fn four_processes_share_an_address() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    let chats: Vec<Chat> = (0..2).map(|_| Chat::start(lan.a(), lan.a(), "--seconds 3")).collect();
    chats.into_iter().for_each(Chat::expect_success);
}

/// The peer of a killed process learns it by exhausted retries; nobody else notices.
fn one_of_four_is_killed(server: &Host, client: &Host) {
    let doomed = Chat::start(server, client, "--seconds 30");
    let other = Chat::start(server, client, "--seconds 6");
    doomed.server.signal(Signal::KILL);
    doomed.server.finish();
    let end = doomed.client.finish();
    end.expect_code(4);
    assert!(end.stderr.contains("transport retry counter exceeded"), "{end}");
    Chat::start(server, client, "--seconds 1").expect_success();
    other.expect_success();
}

#[test]
fn one_of_four_is_killed_on_one_address() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    one_of_four_is_killed(lan.a(), lan.a());
}

#[test]
fn one_of_four_is_killed_between_two_hosts() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    one_of_four_is_killed(lan.a(), lan.b());
}

/// Killing members over and over moves the places of the others in the kernel's table.
#[test]
fn members_come_and_go() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    let steady = Chat::start(lan.a(), lan.b(), "--seconds 12");
    for _ in 0..8 {
        let brief = Chat::start(lan.a(), lan.b(), "--seconds 30");
        brief.client.signal(Signal::KILL);
        brief.client.finish();
        brief.server.signal(Signal::KILL);
        brief.server.finish();
    }
    steady.expect_success();
}

#[test]
fn every_kind_of_child() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    for kind in ["exit", "live", "exec", "open", "touch"] {
        for init in ["", "--fork-init"] {
            let words = format!("--seconds 2 --fork {kind} {init}");
            Chat::start(lan.a(), lan.a(), &words).expect_success();
        }
    }
}

#[test]
fn a_child_that_lives_takes_no_traffic_from_its_parent() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    for kind in ["live", "open"] {
        let words = format!("--seconds 3 --fork {kind}");
        Chat::start(lan.a(), lan.b(), &words).expect_success();
    }
}

/// A process that ends leaves nothing behind that a next one trips over.
#[test]
fn forty_processes_one_after_the_other() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    for _ in 0..20 {
        let port = next_port();
        let server = side(lan.a(), port).arg("-s");
        let client = side(lan.a(), port).arg(lan.a().v4.to_string()).words("--seconds 0.1");
        let (server, client) = run_pair(server, Ready::Port(port), client);
        client.expect_success();
        server.expect_success();
    }
}
