//! The ports that a process has, and who in it has them.
//!
//! Invariant: a port is taken while it is bound and while one of its new connections may still be
//! asked for anew; the latter alone does not keep this process from binding it again.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_net::port::{self, Port, PortName, Scope};
use irdma_transport::{ErrorKind, Result, VerbsError};

use crate::system::system_error;

/// A port of this process.
#[derive(Debug)]
pub(super) struct Held {
    port: Arc<Port>,
    bound: AtomicBool,
}

impl Held {
    /// Where requests come in that reached other processes.
    pub(super) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// An identifier that is bound to the port has ended.
    pub(super) fn unbind(&self) {
        self.bound.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
pub(super) struct Ports(Mutex<HashMap<PortName, Weak<Held>>>);

impl Ports {
    /// Takes a port to bind to. EADDRINUSE if another one has it.
    pub(super) fn bind(&self, name: PortName) -> Result<Arc<Held>> {
        let mut ports = self.lock();
        if let Some(held) = ports.get(&name).and_then(Weak::upgrade) {
            return match held.bound.swap(true, Ordering::AcqRel) {
                false => Ok(held),
                true => Err(VerbsError::new(
                    ErrorKind::AddressInUse,
                    format!("port {} is bound in this process already", name.port),
                )),
            };
        }
        Port::claim(name).map(|port| insert(&mut ports, port)).map_err(|error| refused(&error))
    }

    /// Takes a free port; `random` chooses.
    pub(super) fn bind_any(&self, space: u16, scope: Scope, random: u64) -> Result<Arc<Held>> {
        let mut ports = self.lock();
        let claimed = Port::claim_any(space, scope, random);
        claimed.map(|port| insert(&mut ports, port)).map_err(|error| refused(&error))
    }

    /// EADDRINUSE if binding to the port would be refused.
    pub(super) fn check_free(&self, name: PortName) -> Result<()> {
        let ports = self.lock();
        let held = ports.get(&name).and_then(Weak::upgrade);
        let taken = match held {
            Some(held) => held.bound.load(Ordering::Acquire),
            None => port::is_taken(&name).map_err(|error| refused(&error))?,
        };
        match taken {
            true => Err(VerbsError::new(
                ErrorKind::AddressInUse,
                format!("port {} is bound already, and not to be shared", name.port),
            )),
            false => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PortName, Weak<Held>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(ports: &mut HashMap<PortName, Weak<Held>>, port: Port) -> Arc<Held> {
    let name = port.name();
    let held = Arc::new(Held { port: Arc::new(port), bound: AtomicBool::new(true) });
    ports.retain(|_, held| held.strong_count() > 0);
    ports.insert(name, Arc::downgrade(&held));
    held
}

fn refused(error: &io::Error) -> VerbsError {
    system_error("no port", error)
}
