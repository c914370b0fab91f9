//! The peer: a second host with a stock Linux kernel and its `rdma_rxe`.
//!
//! It boots once, when the first test asks for it, and serves all test processes of a user, one
//! test at a time. `peer-idle.sh` takes it down when nobody has used it for a minute.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::{Program, paths};

const NAMESPACE: &str = "irdma-peer";
const BOOT_LIMIT: Duration = Duration::from_secs(400);

/// The right to use the peer alone.
#[derive(Clone, Debug)]
pub struct Peer {
    _turn: Arc<Turn>,
}

/// Both locks are released when the files close.
#[derive(Debug)]
struct Turn {
    _exclusive: File,
    _user: File,
}

impl Peer {
    /// The guest's address.
    pub const V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    /// The guest's global IPv6 address.
    pub const V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
    /// The address of the host's end of the wire.
    pub const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// The global IPv6 address of the host's end of the wire.
    pub const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

    /// Waits for its turn and boots the peer when it is not up.
    ///
    /// # Panics
    /// When it does not boot.
    pub fn take() -> Self {
        let exclusive = lock_file("turn.lock");
        exclusive.lock().expect("the lock file can be locked");
        let boot = lock_file("boot.lock");
        boot.lock().expect("the lock file can be locked");
        let user = lock_file("users.lock");
        user.lock_shared().expect("the lock file can be locked");
        if !is_up() {
            boot_peer();
        }
        Self { _turn: Arc::new(Turn { _exclusive: exclusive, _user: user }) }
    }

    /// The namespace with our end of the wire.
    pub fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    /// A program in the guest. It writes both streams to its standard output; status 124 says that
    /// its time limit ended it.
    pub fn program(&self, name: &str) -> Program {
        guest_program(name)
    }

    /// Waits until something in the guest listens on `port`.
    ///
    /// # Panics
    /// When nothing does in time.
    pub(crate) fn await_listener(port: u16) {
        // Every network namespace of the guest, through the processes in it; 0A is listening.
        let tables = "cat /proc/[0-9]*/net/tcp /proc/[0-9]*/net/tcp6 2>/dev/null";
        let listens = format!("{tables} | grep -q ':{port:04X} [0-9A-F]*:0000 0A'");
        guest_program("sh").arg("-c").arg(until(&listens)).run().expect_success();
    }

    /// Waits until something in the guest listens on this port of the connection manager.
    ///
    /// # Panics
    /// When nothing does in time.
    pub(crate) fn await_rdma_listener(port: u16) {
        let listens = format!("rdma resource show cm_id | grep LISTEN | grep -q ':{port} '");
        guest_program("sh").arg("-c").arg(until(&listens)).run().expect_success();
    }
}

/// What the guest is asked until the answer is yes.
fn until(condition: &str) -> String {
    format!(
        "i=0; while [ $i -lt 300 ]; do {condition} && exit 0; i=$((i+1)); sleep 0.1; done; exit 1"
    )
}

/// Where the peer keeps its kernel, console and locks.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    let cache = env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
    let folder = cache.join("irdma-tests");
    fs::create_dir_all(&folder)
        .unwrap_or_else(|e| panic!("cannot create {}: {e}", folder.display()));
    folder
}

fn lock_file(name: &str) -> File {
    let path = cache().join(name);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    file.unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()))
}

/// The words that start the peer's own command.
fn peer_vm() -> Vec<String> {
    let script = paths::shared().join("peer-vm/peer-vm");
    let cache = cache();
    vec![
        "env".into(),
        format!("PEER_NS={NAMESPACE}"),
        format!("PEER_CACHE={}", cache.display()),
        script.to_string_lossy().into_owned(),
    ]
}

fn vm_command(word: &str) -> Program {
    let words = peer_vm();
    Program::new(&words[0]).args(&words[1..]).arg(word)
}

fn guest_program(name: &str) -> Program {
    let mut shell = peer_vm();
    shell.push("sh".into());
    Program::new(name).in_guest(shell)
}

fn is_up() -> bool {
    cache().join("pid").exists()
        && guest_program("true").within(Duration::from_secs(10)).run().succeeded()
}

fn boot_peer() {
    vm_command("down").run();
    let boot = || vm_command("up").arg("rxe").within(BOOT_LIMIT).run();
    let mut booted = boot();
    if !booted.succeeded() {
        vm_command("down").run();
        booted = boot();
    }
    booted.expect_success();
    start_idle_watch();
}

/// The watch outlives this process, in a session of its own.
fn start_idle_watch() {
    let words = peer_vm();
    let script = paths::workspace().join("tests/peer-idle.sh");
    let detached = "setsid \"$@\" </dev/null >/dev/null 2>&1 &";
    Program::new(&words[0])
        .args(&words[1..3])
        .args(["sh", "-c", detached, "sh"])
        .arg(script)
        .arg(&words[3])
        .run()
        .expect_success();
}
