//! What a test needs from its machine, and what happens when it is not there.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::paths;

/// One thing a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Root, for network namespaces.
    Root,
    /// A program on the path.
    Tool(&'static str),
    /// A file or folder of a Debian package.
    File(&'static str),
    /// The folder with golden packets and the peer.
    Shared,
}

/// What booting the peer needs.
pub const PEER: [Need; 8] = [
    Need::Root,
    Need::Shared,
    Need::Tool("qemu-system-x86_64"),
    Need::Tool("cpio"),
    Need::Tool("busybox"),
    Need::Tool("socat"),
    Need::Tool("modprobe"),
    Need::Tool("xz"),
];

impl Need {
    /// Why this is not there, or nothing.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root if !rustix::process::getuid().is_root() => {
                Some("not root: network namespaces cannot be made".into())
            }
            Self::Tool(name) if !has_tool(name) => Some(format!("{name} is not installed")),
            Self::File(path) if !Path::new(path).exists() => Some(format!("{path} is missing")),
            Self::Shared if !paths::shared().join("golden").is_dir() => {
                Some(format!("{} is missing (IRDMA_SHARED)", paths::shared().display()))
            }
            _ => None,
        }
    }
}

fn has_tool(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(Into::into));
    folders.iter().any(|folder| folder.join(name).is_file())
}

/// True when the test cannot run here; says so.
///
/// `./test.sh` counts what is written to the file `IRDMA_SKIPS`.
///
/// # Panics
/// In CI (`CI` is `true`), where the set-up must be complete.
pub fn skipped(test: &str, needs: &[Need]) -> bool {
    let Some(reason) = needs.iter().find_map(|need| need.missing()) else { return false };
    assert!(env::var("CI").as_deref() != Ok("true"), "the set-up is not complete: {reason}");
    eprintln!("skipped {test}: {reason}");
    if let Some(file) = env::var_os("IRDMA_SKIPS") {
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .and_then(|mut file| writeln!(file, "{test}: {reason}"));
        written.unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
    }
    true
}

/// Ends the test early, as skipped, unless everything it needs is there.
#[macro_export]
macro_rules! need {
    ($($need:expr),+ $(,)?) => {{
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        let test = format!("{}::{test}", env!("CARGO_CRATE_NAME"));
        if $crate::setup::skipped(&test, &[$(&$need[..]),+].concat()) {
            return;
        }
    }};
}

/// Tools by name, as needs.
pub fn tools<const N: usize>(names: [&'static str; N]) -> [Need; N] {
    names.map(Need::Tool)
}

/// True in `./test.sh soak`: more sizes, more rounds.
pub fn soak() -> bool {
    env::var_os("IRDMA_SOAK").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_is_installed() {
        assert_eq!(Need::Tool("sh").missing(), None);
        let missing = Need::Tool("no-such-tool").missing();
        assert_eq!(missing.as_deref(), Some("no-such-tool is not installed"));
    }
}
