//! rdma-core's own test suite, as Debian ships it with the package of that name.
//!
//! Nothing of it may fail, and whatever it skips must be in `docs/pyverbs.md` with a reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use irdma_tests::setup::tools;
use irdma_tests::{Finished, Host, Lan, Need, Program, need, paths};

const SUITE: &str = "/usr/share/doc/rdma-core/tests";
const BINDINGS: &str = "/usr/lib/python3/dist-packages/pyverbs";
const LIMIT: Duration = Duration::from_secs(300);

/// Tests that pass on every machine; three more where huge pages are set aside.
const PASSES: usize = 132;

/// The suite, its compressed files unpacked.
fn unpacked() -> PathBuf {
    let folder = paths::fresh("rdma-core");
    let script = format!("mkdir {0} && cp -r {SUITE} {0} && gunzip -r {0}", folder.display());
    Program::new("sh").args(["-c", &script]).run().expect_success();
    folder.join("tests")
}

/// One run on the host's device. The bindings are those of Debian's own interpreter.
fn run(host: &Host, suite: &Path) -> Finished {
    host.program("/usr/bin/python3")
        .arg(suite.join("run_tests.py"))
        .args(["-v", "--dev", &host.device()])
        .within(LIMIT)
        .run()
}

/// Tests of connections that need no group.
const CONNECTIONS: [&str; 7] = [
    "test_rdmacm_sync_traffic",
    "test_rdmacm_async_traffic",
    "test_rdmacm_async_reject_traffic",
    "test_rdmacm_async_traffic_external_qp",
    "test_rdmacm_async_udp_traffic",
    "test_rdmacm_async_read",
    "test_rdmacm_async_write",
];

/// Runs those tests where the suite finds the host's interface in sysfs, as that of its device.
fn run_connections(host: &Host, suite: &Path) -> Finished {
    let extra = paths::fresh("sysfs");
    let class = format!("infiniband/{}/device/net/{}", host.device(), host.netdev);
    fs::create_dir_all(extra.join(class)).expect("the folder is writable");
    let script = "mount -t overlay overlay -o lowerdir=$0:/sys/class /sys/class && exec \"$@\"";
    let filters = CONNECTIONS.iter().flat_map(|name| ["-k", name]);
    host.plain("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(&extra)
        .arg(paths::irdma())
        .args(["run", "--", "/usr/bin/python3"])
        .arg(suite.join("run_tests.py"))
        .args(["-v", "--dev", &host.device()])
        .args(filters)
        .within(LIMIT)
        .run()
}

/// How many tests ran, from the line that sums up.
fn ran(report: &str) -> usize {
    let number = |line: &str| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok();
    report.lines().find_map(number).unwrap_or_else(|| panic!("no sum:\n{report}"))
}

/// The skipped tests, as module, class and name. A test is named on a line of its own, or on that
/// of its verdict.
fn skipped(report: &str) -> Vec<&str> {
    let mut name = "";
    let mut skipped = Vec::new();
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("(tests.") {
            name = rest.split(')').next().unwrap_or(rest);
        }
        if line.contains("... skipped ") {
            skipped.push(name);
        }
    }
    skipped
}

/// The tests that the page names in its tables; a `*` at the end stands for any rest.
fn documented(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0)).collect()
}

fn covers(pattern: &str, test: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => test.starts_with(start),
        None => test == pattern,
    }
}

#[test]
fn its_tests_of_connections_pass() {
    need!([Need::Root, Need::File(SUITE), Need::File(BINDINGS)], tools(["gunzip", "unshare"]));
    let lan = Lan::one_host();
    let done = run_connections(lan.a(), &unpacked());
    done.expect_success();
    let passed = done.stderr.lines().filter(|line| line.ends_with("... ok")).count();
    assert_eq!(passed, CONNECTIONS.len(), "{done}");
}

#[test]
fn the_suite_of_rdma_core_passes() {
    need!([Need::Root, Need::File(SUITE), Need::File(BINDINGS)], tools(["gunzip"]));
    let lan = Lan::one_host();
    let done = run(lan.a(), &unpacked());
    let report = &done.stderr;
    done.expect_success();
    let skipped = skipped(report);
    assert!(report.contains(&format!("OK (skipped={})", skipped.len())), "{done}");
    let passed = ran(report) - skipped.len();
    assert!(passed >= PASSES, "{passed} passed: {done}");

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pyverbs.md");
    let page = fs::read_to_string(page).expect("docs/pyverbs.md is readable");
    let documented = documented(&page);
    let unexplained: Vec<_> =
        skipped.iter().filter(|test| !documented.iter().any(|row| covers(row, test))).collect();
    assert!(unexplained.is_empty(), "not in docs/pyverbs.md: {unexplained:#?}");
}
