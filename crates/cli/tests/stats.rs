//! `irdma stats` from outside.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{in_namespace, irdma, json, text};
use serde_json::Value;

/// A process that is killed at the end of the test.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = irdma(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Running(command.spawn().expect("irdma starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first process in `report` that has received a packet.
fn busy(report: &Value) -> Option<&Value> {
    let processes = report["processes"].as_array().expect("processes");
    processes.iter().find(|process| process["counters"]["RxUDP"].as_u64() > Some(0))
}

#[test]
fn running_processes_tell_their_counters() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let capture = folder.path().join("x.pcapng");
    let file = capture.to_str().expect("UTF-8");
    let _demo = Running::start(&["demo", "--device", "lo", "--capture", file]);
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end, "no process answers");
        let report = irdma(&["stats", "--json"]).output().expect("irdma starts");
        if let Some(process) = busy(&json(&report)) {
            assert!(process["pid"].as_u64() > Some(0));
            assert!(process["slot"].as_u64() > Some(0));
            assert_eq!(process["counters"]["drop_icrc"], 0);
            break;
        }
    }
    let table = text(&irdma(&["stats", "--all"]).output().expect("irdma starts").stdout);
    for expected in ["process", "slot", "RetransSegs", "CRC errors", "drop_unknown_qp"] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    watch();
}

/// Two lines a second apart: the second one has rates.
fn watch() {
    let mut watch = Running::start(&["stats", "--watch", "--json", "--interval", "0.2"]);
    let lines = BufReader::new(watch.0.stdout.take().expect("a pipe")).lines();
    let report = |line: std::io::Result<String>| -> Value {
        serde_json::from_str(&line.expect("a line")).expect("JSON")
    };
    let reports: Vec<Value> = lines.take(3).map(report).collect();
    let rate = |report: &Value| busy(report).map(|process| process["per_second"]["RxUDP"].clone());
    assert_eq!(rate(&reports[0]), Some(Value::Null));
    assert!(reports[1..].iter().any(|report| rate(report).is_some_and(|rate| rate.is_f64())));
}

#[test]
fn without_a_process_it_says_so() {
    let Some(output) = in_namespace("$IRDMA stats") else { return };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("no process of this user has a queue pair"));
    let Some(output) = in_namespace("$IRDMA stats --json || true") else { return };
    assert_eq!(json(&output)["processes"], Value::Array(Vec::new()));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let script = "{ $IRDMA stats --watch --interval 0.1; echo $? >&2; } | head -n 1";
    let Some(output) = in_namespace(script) else { return };
    assert_eq!(text(&output.stdout), "no process has a queue pair\n");
    assert_eq!(text(&output.stderr), "0\n");
}

#[test]
fn a_wrong_interval_is_explained() {
    let output = irdma(&["stats", "--watch", "--interval", "0"]).output().expect("irdma starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("use 0.1 to 3600 seconds"), "{output:?}");
}
