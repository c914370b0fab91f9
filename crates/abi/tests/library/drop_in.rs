//! The built library in the place of rdma-core's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// The names under which programs look for the library.
const NAMES: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

pub fn folder_of_names() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in NAMES {
        symlink(crate::library(), folder.path().join(name)).expect("the folder is new");
    }
    folder
}

fn run(program: &Path, arguments: &[&str], libraries: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", libraries);
    command.output().expect("the program starts")
}

#[test]
fn dlvsym_finds_what_nccl_asks_for() {
    let names = folder_of_names();
    let program = crate::compile("versions.c", names.path(), &["-ldl"]);
    for name in ["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1"] {
        crate::assert_success(&run(&program, &[name], names.path()), name);
    }
}

/// rdma-core's own library is the oracle.
#[test]
fn functions_without_a_device_answer_as_rdma_core_does() {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return crate::skip("no headers (packages libibverbs-dev, librdmacm-dev)");
    }
    let names = folder_of_names();
    let program = crate::compile("names.c", names.path(), &["-libverbs", "-lrdmacm"]);
    let files = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in [("line", "abc\n"), ("no newline", "abc")] {
        fs::write(files.path().join(name), text).expect("the folder is writable");
    }
    let argument = files.path().to_str().expect("a temporary path is UTF-8");
    let theirs = run(&program, &[argument], Path::new("/nonexistent"));
    let ours = run(&program, &[argument], names.path());
    crate::assert_success(&ours, "ours");
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&ours), text(&theirs));
}

/// What a program sees of objects, queries and events over the loopback device.
#[test]
fn objects_are_what_the_headers_promise() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return crate::skip("no headers (package libibverbs-dev)");
    }
    let names = folder_of_names();
    for source in [
        "queries.c",
        "objects.c",
        "events.c",
        "cqex.c",
        "memory.c",
        "resize.c",
        "wr.c",
        "xrc.c",
        "lanes.c",
    ] {
        let program = crate::compile(source, names.path(), &["-libverbs", "-lpthread"]);
        crate::assert_success(&run(&program, &[], names.path()), source);
    }
}

/// Threads that wait for events may outlive what they wait for.
#[test]
fn who_waits_for_what_is_gone_waits_on() {
    runs_with_both_libraries("gone.c");
}

#[test]
fn a_forked_child_cleans_up_without_harm() {
    runs_with_both_libraries("fork.c");
}

fn runs_with_both_libraries(source: &str) {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return crate::skip("no headers (packages libibverbs-dev, librdmacm-dev)");
    }
    let names = folder_of_names();
    let flags = ["-libverbs", "-lrdmacm", "-lpthread"];
    let program = crate::compile(source, names.path(), &flags);
    crate::assert_success(&run(&program, &[], names.path()), source);
}

/// The profile's refusals are the C interface's, too.
#[test]
fn profiles_refuse_what_c_programs_post() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return crate::skip("no headers (package libibverbs-dev)");
    }
    let names = folder_of_names();
    let program = crate::compile("profiles.c", names.path(), &["-libverbs"]);
    for profile in ["gen2", "gen3"] {
        let mut command = Command::new(&program);
        command.arg(profile).env("LD_LIBRARY_PATH", names.path()).env("IRDMA_PROFILE", profile);
        crate::assert_success(&command.output().expect("the program starts"), profile);
    }
}

/// Providers' constructors and ld.so's version checks run before `main`.
#[test]
fn debians_programs_load() {
    let names = folder_of_names();
    for program in ["/usr/bin/ib_write_bw", "/usr/bin/ib_send_lat", "/usr/bin/raw_ethernet_bw"] {
        let program = Path::new(program);
        if !program.exists() {
            crate::skip(&format!("no {} (package perftest)", program.display()));
            continue;
        }
        let output = run(program, &["--version"], names.path());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(String::from_utf8_lossy(&output.stdout).contains("Version"), "{output:?}");
        assert_eq!(stderr, "", "{}", program.display());
    }
}
