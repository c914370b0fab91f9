//! `irdma demo` from outside.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use common::{Copy, as_nobody, in_namespace, in_namespace_with, irdma, json, open_folder, text};
use serde_json::Value;

const KINDS: [(&str, &str); 10] = [
    ("rc", "send"),
    ("rc", "write"),
    ("rc", "write_imm"),
    ("rc", "read"),
    ("rc", "fetch_add"),
    ("rc", "compare_swap"),
    ("uc", "send"),
    ("uc", "write_imm"),
    ("ud", "send"),
    ("multicast", "send"),
];

/// A demo that went well: everything was exchanged, and captured.
fn check(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    let report = json(output);
    let results = report["results"].as_array().expect("results");
    for (service, operation) in KINDS {
        let of_kind = |row: &&Value| row["service"] == service && row["operation"] == operation;
        let rows: Vec<&Value> = results.iter().filter(of_kind).collect();
        assert!(!rows.is_empty(), "{service} {operation}");
        for row in rows {
            assert!(row["messages"].as_u64() > Some(0), "{row}");
            assert!(row["latency_ns"].as_u64() > Some(0), "{row}");
        }
    }
    let multicast = &report["multicast"];
    assert_eq!(multicast["after_leaving"], 0);
    assert_eq!(multicast["while_staying"], multicast["sent"]);
    assert_eq!(multicast["after_all_left"], 0);
    report
}

#[test]
fn it_works_for_this_user_on_the_first_device() {
    let folder = open_folder();
    let capture = folder.path().join("x.pcapng");
    let file = capture.to_str().expect("UTF-8");
    let output = irdma(&["demo", "--quick", "--json", "--capture", file]).output();
    let report = check(&output.expect("irdma starts"));
    assert_eq!(report["capture"]["file"], file);
    assert_eq!(report["capture"]["opcodes"].as_object().expect("opcodes").len(), 28);
    dissect(&capture);
}

/// An independent dissector finds nothing wrong.
fn dissect(capture: &Path) {
    let malformed = "_ws.malformed || _ws.expert.severity >= 0x600000";
    let count = |filter: &[&str]| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(capture).args(["-T", "fields", "-e", "frame.number"]).args(filter);
        command.output().ok().filter(|output| output.status.success())
    };
    let Some(all) = count(&["-Y", "infiniband"]) else {
        eprintln!("SKIPPED: tshark does not run");
        return;
    };
    assert!(text(&all.stdout).lines().count() > 100);
    assert_eq!(count(&["-Y", malformed]).map(|output| text(&output.stdout)), Some(String::new()));
}

#[test]
fn it_works_for_nobody() {
    let Some(nobody) = as_nobody() else { return };
    let copy = Copy::new();
    // Another user's processes on the same addresses would be refused: not those of these tests.
    let script = format!(
        "ip link set lo up; export TMPDIR={}; {nobody} demo --quick --json",
        copy.folder().display()
    );
    let Some(output) = in_namespace_with(&copy.program(), &script) else { return };
    let report = check(&output);
    assert_eq!((&report["device"], &report["interface"]), (&"roce_lo".into(), &"lo".into()));
    let file = report["capture"]["file"].as_str().expect("a name");
    assert!(Path::new(file).starts_with(copy.folder()), "{file}");
    assert_eq!(fs::metadata(file).expect("the capture").uid(), 65534);
}

#[test]
fn it_works_without_ipv6_and_with_nothing_else() {
    let script = "
        if [ -d /proc/sys/net/ipv6 ]; then
            echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
        fi
        ip link set lo up
        $IRDMA demo --quick";
    let Some(output) = in_namespace(script) else { return };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "", "quiet in a pipe");
    let report = text(&output.stdout);
    let file = report.lines().find_map(|line| line.strip_prefix("Capture of a short exchange"));
    let file = file.and_then(|line| line.split(": ").nth(1)).expect("the capture's name");
    fs::remove_file(file).expect("the capture is there");
    for expected in [
        "Three processes on roce_lo (127.0.0.1)",
        "Measured in this run, on this machine",
        "RC compare and swap",
        "UD multicast send",
        "all as sent.",
        "every ICRC right.",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

#[test]
fn without_a_device_it_says_why() {
    let Some(output) = in_namespace("$IRDMA demo") else { return };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("no device: lo is down"), "{output:?}");
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let output = irdma(&["demo", "--device", "roce_9"]).output().expect("irdma starts");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.starts_with("irdma demo: roce_9: no such device; there are "), "{error}");
    assert!(error.contains("roce_lo"), "{error}");
}

#[test]
fn a_capture_that_cannot_be_written_is_named_with_the_remedy() {
    let arguments = ["demo", "--quick", "--device", "lo", "--json", "--capture", "/no/x.pcapng"];
    let output = irdma(&arguments).output().expect("irdma starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("/no/x.pcapng: No such file or directory"), "{error}");
    assert!(error.contains("--capture FILE"), "{error}");
    assert_eq!(json(&output)["ok"], false);
}

#[test]
fn losses_of_an_unreliable_service_are_told_with_operation_and_size() {
    const UC_SEND_ONLY: &str = "drop=20%,opcode=0x24,seed=5";
    let arguments = ["demo", "--quick", "--device", "lo"];
    let output = irdma(&arguments).env("IRDMA_FAULTS", UC_SEND_ONLY).output();
    let output = output.expect("irdma starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.starts_with("irdma demo: UC send, 8 B: "), "{error}");
    assert!(error.contains("an unreliable service lost messages 4 times in a row"), "{error}");
}

#[test]
fn its_processes_are_not_for_people() {
    let output = irdma(&["demo-process"]).output().expect("irdma starts");
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("it is started by `irdma demo`"), "{output:?}");
}
