//! A server and its client.

use std::fs;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use crate::peer::Peer;
use crate::{Finished, Host, Program, Running};

/// How a server shows that clients may come.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// It listens on this TCP port.
    Port(u16),
    /// It listens on this port of the connection manager, in whichever port space.
    Rdma(u16),
    /// It wrote this to its standard output.
    Output(&'static str),
}

/// A TCP port that no other pair of this process uses.
pub fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Starts the server, waits until it is ready, runs the client, and returns the ends of both.
///
/// # Panics
/// When the server is not ready within its limit.
pub fn run_pair(server: Program, ready: Ready, client: Program) -> (Finished, Finished) {
    let mut server = server.start();
    await_ready(&mut server, ready);
    let client = client.run();
    (server.finish(), client)
}

/// Runs a C program that is built on `tests/c/link.h` on two hosts, `words` at the client; returns
/// what the client wrote.
///
/// # Panics
/// Unless both ends succeed.
pub fn run_linked(
    name: &str,
    (server, client): (&Host, &Host),
    words: &str,
    limit: Duration,
) -> String {
    let port = next_port();
    let (address, port_word) = (server.v4.to_string(), port.to_string());
    let client = client.c_program(name).args([&address, &port_word]).words(words);
    let server = server.c_program(name).args(["-s", &port_word]);
    let (server, client) = run_pair(server.within(limit), Ready::Port(port), client.within(limit));
    server.expect_success();
    client.expect_success().stdout.clone()
}

/// # Panics
/// When the server is not ready within its limit.
pub fn await_ready(server: &mut Running, ready: Ready) {
    match ready {
        Ready::Output(text) => server.wait_for(text),
        Ready::Port(port) if server.is_in_guest() => Peer::await_listener(port),
        Ready::Rdma(port) if server.is_in_guest() => Peer::await_rdma_listener(port),
        Ready::Port(port) => {
            server.wait_until(&format!("a listener on port {port}"), |running| {
                listens(running.pid(), port)
            });
        }
        Ready::Rdma(port) => {
            server.wait_until(&format!("a listener on port {port} of rdma_cm"), |running| {
                listens_rdma(running.pid(), port)
            });
            // The port has its name when it is bound, a moment before it is listened on.
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// True when something in the network namespace of `pid` has this port of the connection manager,
/// whose name reads `@irdma/cm/SPACE/PORT/ADDRESS`.
fn listens_rdma(pid: u32, port: u16) -> bool {
    let names = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let mut names = names.lines().filter_map(|line| line.split_once("@irdma/cm/"));
    names.any(|(_, name)| name.split('/').nth(1) == Some(&port.to_string()))
}

/// True when something in the network namespace of `pid` listens on `port`.
fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}"))
            .is_ok_and(|table| table.lines().any(|line| is_listener(line, port)))
    })
}

/// Lines read `sl local_address:PORT remote_address STATE`; state 0A is listening.
fn is_listener(line: &str, port: u16) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next().unwrap_or_default();
    let state = fields.nth(1).unwrap_or_default();
    state == "0A" && local.ends_with(&format!(":{port:04X}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sees_a_listener_and_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        // The kernel's table skips rows while sockets come and go, so one look may miss it.
        let becomes = |wanted: bool| {
            (0..100).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                listens(std::process::id(), port) == wanted
            })
        };
        assert!(becomes(true));
        drop(listener);
        assert!(becomes(false));
    }
}
