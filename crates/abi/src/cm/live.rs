//! Identifiers that a program leaves behind. A kernel ends them with the channel or the process;
//! here the library does, as far as it is asked: by `rdma_destroy_event_channel` and `exit`.
//!
//! Invariant: what is listed is alive, since its destruction begins with leaving the list.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use irdma_net::fork::PerProcess;

use crate::boundary::{Kept, Object};
use crate::cm::channel::EventChannel;
use crate::cm::id::CmId;
use crate::types::rdma_event_channel;

/// How long peers may be told at exit: the exiting thread may hold what that needs.
const PARTING: Duration = Duration::from_millis(200);

/// Identifiers by their cookies.
static LIVE: PerProcess<Mutex<BTreeMap<u64, Kept<CmId>>>> = PerProcess::new();
/// The process that has them, and not a child of it.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn live() -> MutexGuard<'static, BTreeMap<u64, Kept<CmId>>> {
    LIVE.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists a new identifier.
pub fn enter(id: &Object<CmId>) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: the library is never unloaded.
        unsafe { libc::atexit(part) };
    });
    OWNER.store(process::id(), Ordering::Relaxed);
    // SAFETY: whoever destroys the identifier takes it off the list before.
    live().insert(id.cookie(), unsafe { Kept::new(id) });
}

/// Takes an identifier off the list.
pub fn leave(id: &Object<CmId>) {
    live().remove(&id.cookie());
}

/// Ends the identifiers of a channel that goes.
pub fn close(channel: &Object<EventChannel>) {
    let seen: *mut rdma_event_channel = channel.as_seen();
    for id in live().values().filter(|id| std::ptr::eq(id.seen().channel, seen)) {
        id.handle.abandon();
    }
}

/// At exit: tells every peer.
extern "C" fn part() {
    if OWNER.load(Ordering::Relaxed) != process::id() {
        return;
    }
    let (done, wait) = mpsc::channel();
    let parting = move || {
        live().values().for_each(|id| id.handle.abandon());
        // Those that the program ended may have something to say, too.
        irdma::cm::part(PARTING);
        // Nobody waits any more when the time has passed.
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(parting).is_ok() {
        let _ = wait.recv_timeout(PARTING);
    }
}
