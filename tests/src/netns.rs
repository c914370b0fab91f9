//! Network namespaces that go away with their owner.

use std::fs;
use std::path::Path;
use std::process::id;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Program;

const PREFIX: &str = "irdma-t";

/// A network namespace of this process, with `lo` up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one. The first call also removes those that dead processes left.
    ///
    /// # Panics
    /// When the kernel refuses it.
    #[expect(clippy::new_without_default, reason = "making one has an effect outside")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let name = format!("{PREFIX}-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip ARGUMENTS` inside.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// A cable between two namespaces, or within one: both ends up.
    pub fn cable(&self, end: &str, other: &Namespace, other_end: &str) {
        let there = &other.name;
        self.ip(&format!("link add {end} type veth peer name {other_end} netns {there}"));
        self.ip(&format!("link set {end} up"));
        other.ip(&format!("link set {other_end} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What cannot be removed now is swept by a later run.
        let _ = Program::new("ip").words(&format!("netns del {}", self.name)).run();
    }
}

/// # Panics
/// When `ip` fails.
fn ip(arguments: &str) -> String {
    Program::new("ip").words(arguments).run().expect_success().stdout.clone()
}

/// Removes the namespaces of processes that are gone.
fn sweep() {
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another run may be sweeping too.
            let _ = Program::new("ip").words(&format!("netns del {name}")).run();
        }
    }
}
