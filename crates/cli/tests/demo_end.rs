//! `irdma demo` when its processes are killed or stopped: it ends, and leaves nothing behind.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{irdma, text};

/// Longer than a demo waits for a process that does not answer.
const LIMIT: Duration = Duration::from_secs(60);

/// A demo that has started its processes, and their ids.
struct Demo {
    child: Child,
    processes: Vec<u32>,
}

impl Demo {
    fn start() -> Self {
        let mut command = irdma(&["demo", "--device", "lo"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("irdma starts");
        let mut demo = Demo { child, processes: Vec::new() };
        let end = Instant::now() + LIMIT;
        while demo.processes.len() < 3 {
            assert!(Instant::now() < end, "the demo starts no processes");
            thread::sleep(Duration::from_millis(10));
            demo.processes = children(demo.child.id());
        }
        // Into the measurement.
        thread::sleep(Duration::from_millis(500));
        demo
    }

    fn output(self) -> Output {
        let start = Instant::now();
        let output = self.child.wait_with_output().expect("the demo ends");
        assert!(start.elapsed() < LIMIT);
        output
    }
}

/// Ids of processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let folders = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name before is in parentheses and may hold anything; state and parent follow.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    })
    .collect()
}

fn signal(name: &str, process: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -s {name} {process}")]).status();
    assert!(status.expect("sh starts").success());
}

fn is_gone(process: u32) -> bool {
    !Path::new(&format!("/proc/{process}")).exists()
}

fn all_gone(processes: &[u32]) {
    let end = Instant::now() + LIMIT;
    while !processes.iter().copied().all(is_gone) {
        assert!(Instant::now() < end, "processes of the demo are left");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_process_is_named() {
    for index in 0..3 {
        let demo = Demo::start();
        let processes = demo.processes.clone();
        signal("KILL", processes[index]);
        let output = demo.output();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let expected = format!("(process {}): ended early, signal: 9", processes[index]);
        assert!(text(&output.stderr).contains(&expected), "{output:?}");
        all_gone(&processes);
    }
}

#[test]
fn a_stopped_process_does_not_hang_the_demo() {
    let demo = Demo::start();
    let processes = demo.processes.clone();
    signal("STOP", processes[1]);
    let output = demo.output();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = format!("(process {}): no answer within 15 s", processes[1]);
    assert!(text(&output.stderr).contains(&expected), "{output:?}");
    all_gone(&processes);
}

#[test]
fn its_processes_end_with_a_killed_demo() {
    let mut demo = Demo::start();
    demo.child.kill().expect("the demo runs");
    demo.child.wait().expect("the demo ends");
    all_gone(&demo.processes);
}
