//! Running the `irdma` command, as other users and in other network namespaces too.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

pub const IRDMA: &str = env!("CARGO_BIN_EXE_irdma");

/// The command, which does not hear of settings around the test.
pub fn irdma(arguments: &[&str]) -> Command {
    let mut command = Command::new(IRDMA);
    command.args(arguments);
    clean(command)
}

/// A copy of the program that every user can start, wherever the target folder is.
pub struct Copy {
    folder: TempDir,
}

impl Copy {
    pub fn new() -> Self {
        let copy = Copy { folder: open_folder() };
        // Not by this process: a file that a thread writes cannot be started by the others.
        let copied = Command::new("cp").arg(IRDMA).arg(copy.program()).status();
        assert!(copied.expect("cp starts").success());
        copy
    }

    pub fn program(&self) -> PathBuf {
        self.folder.path().join("irdma")
    }

    /// A folder that every user can write to.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder that every user can write to.
pub fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    folder
}

/// Says that a test, or the rest of it, is left out.
pub fn skip<T>(why: &str) -> Option<T> {
    eprintln!("SKIPPED: {why}");
    None
}

/// How a shell starts `$IRDMA` as another user; `None`, and a line that says so, if it cannot.
pub fn as_nobody() -> Option<&'static str> {
    match is_root() {
        true => Some("setpriv --reuid=65534 --regid=65534 --clear-groups $IRDMA"),
        false => skip("only root can become another user"),
    }
}

/// A shell script in a network namespace of its own, with `$IRDMA`; `None`, and a line that says
/// so, where that cannot be made.
pub fn in_namespace(script: &str) -> Option<Output> {
    in_namespace_with(Path::new(IRDMA), script)
}

/// As [`in_namespace`], with another copy of the program.
pub fn in_namespace_with(irdma: &Path, script: &str) -> Option<Output> {
    let options = if is_root() { "-n" } else { "-rn" };
    let possible = Command::new("unshare").args([options, "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip("no network namespace can be made");
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return skip("there is no `ip` (package iproute2) to bring an interface up");
    }
    let mut command = Command::new("unshare");
    command.args([options, "sh", "-ec", script]).env("IRDMA", irdma).current_dir("/");
    Some(clean(command).output().expect("unshare starts"))
}

fn clean(mut command: Command) -> Command {
    for variable in ["IRDMA_LOG", "IRDMA_CAPTURE", "IRDMA_FAULTS", "IRDMA_DEVICES"] {
        command.env_remove(variable);
    }
    command
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").expect("/proc is mounted").uid() == 0
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The only JSON value in the output.
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}
