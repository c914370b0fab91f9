//! Each example runs, both of its ends in one process.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Cargo builds examples beside the tests.
fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
    profile.join("examples").join(name)
}

/// Runs an example; returns what it printed.
fn run(name: &str) -> String {
    let mut child = Command::new(path(name))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}; cargo build --examples makes it"));
    let end = Instant::now() + LIMIT;
    while child.try_wait().expect("its status").is_none() {
        if Instant::now() > end {
            child.kill().expect("its end");
            panic!("{name}: still running after {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "{name}: {}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn rc_pingpong() {
    assert!(run("rc_pingpong").starts_with("1000 round trips of 64 bytes, "));
}

#[test]
fn cm_ping_pong() {
    let wanted = "connected by address; 1000 round trips of 64 bytes, ";
    assert!(run("cm_ping_pong").starts_with(wanted));
}

#[test]
fn one_sided() {
    let said = run("one_sided");
    assert!(said.contains("client: wrote and read back 1048576 bytes\n"), "{said}");
    assert!(said.contains("server: 1048576 bytes came without a call\n"), "{said}");
}

#[test]
fn atomic_counter() {
    let wanted = "4 clients drew 1000 different numbers; the counter says 1000\n";
    assert_eq!(run("atomic_counter"), wanted);
}

#[test]
fn srq_server() {
    let wanted = "3 clients, 100 messages each, 16 receive requests for all\n";
    assert_eq!(run("srq_server"), wanted);
}

#[test]
fn async_events() {
    assert!(run("async_events").starts_with("50 messages at "));
}

#[test]
fn multicast_chat() {
    let names = ["ann", "ben", "cat"];
    let wanted: String = names
        .iter()
        .flat_map(|from| names.iter().map(move |to| format!("{to} hears \"{from}: hello\"\n")))
        .collect();
    assert_eq!(run("multicast_chat"), wanted);
}
