//! Whole packets: captured, built by others, made up and damaged.

use std::io::Write;

mod capture;
mod cm;
mod golden;
mod hostile;
mod icrc;
mod judge;
mod round_trip;
mod samples;
mod scapy;

/// Says, past the test harness's capture, that a test did not run.
#[expect(clippy::explicit_write, reason = "the harness captures what eprintln! prints")]
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
}
