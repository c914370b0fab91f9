//! What the tests of several modules share.

use std::io::{self, Write};
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::sys::testing::{become_user, unshare_network};
use crate::udp::{RecvMeta, RecvSocket};
use crate::wake::{Interest, Poll};

/// Runs `test` in a thread with a network namespace of its own, its `lo` up; says so and returns
/// where that is not allowed.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        if let Err(error) = unshare_network().and_then(|()| try_ip("link set lo up")) {
            return skip(format_args!("no network namespace: {error}"));
        }
        test();
    };
    std::thread::spawn(run).join().unwrap();
}

/// Runs `test` in a thread that acts for the user nobody; says so and returns nothing where that
/// is not allowed.
pub(crate) fn as_nobody<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    const NOBODY: u32 = 65534;
    let run = move || match become_user(NOBODY) {
        Ok(()) => Some(test()),
        Err(error) => {
            skip(format_args!("cannot become another user: {error}"));
            None
        }
    };
    std::thread::spawn(run).join().unwrap()
}

/// Says on standard error, past the test harness's capture, why a test does not run here.
pub(crate) fn skip(why: impl std::fmt::Display) {
    let _ = io::stderr().write_all(format!("SKIP: {why}\n").as_bytes());
}

/// Runs `ip` of iproute2 with these arguments in the calling thread's namespace.
pub(crate) fn ip(args: &str) {
    try_ip(args).unwrap();
}

/// The same, where it may fail.
pub(crate) fn try_ip(args: &str) -> io::Result<()> {
    let output = Command::new("ip").args(args.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {args}: {text}")))
}

/// Waits for one batch, at most a second.
pub(crate) fn recv(socket: &RecvSocket, buf: &mut [u8]) -> Option<RecvMeta> {
    let poll = Poll::new().unwrap();
    poll.add(socket, 0, Interest::Read).unwrap();
    let mut batch = None;
    eventually(Duration::from_secs(1), || {
        poll.wait(&mut Vec::new(), Some(10_000_000)).unwrap();
        batch = socket.recv(buf).unwrap();
        batch.is_some()
    });
    batch
}

/// Repeats `check` until it holds; `false` when `limit` passed before.
pub(crate) fn eventually(limit: Duration, mut check: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !check() {
        if Instant::now() >= end {
            return false;
        }
    }
    true
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}
