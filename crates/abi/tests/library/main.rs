//! The built library as programs find it: its symbols, and its conduct in rdma-core's place.

mod apis;
mod drop_in;
mod page;
#[path = "../../src/surface.rs"]
mod surface;
mod symbols;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The shared object that cargo built for this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let library = test.with_file_name("libirdma_abi.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Compiles `source`, a file beside this one, into `folder`.
fn compile(source: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join(Path::new(source).with_extension(""));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library").join(source);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-O1", "-o"]).arg(&program).arg(&source).args(flags);
    assert_success(&cc.output().expect("cc starts"), &source.display().to_string());
    program
}

/// Fails with everything that the program printed.
fn assert_success(output: &Output, what: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
}

/// Says on the terminal why a test does nothing; in CI the lack is a failure.
fn skip(reason: &str) {
    assert!(env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
}
