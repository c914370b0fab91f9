//! What belongs to one process: a forked child starts with nothing.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use irdma_net::fork::{self, ForkGuard, PerProcess};
use irdma_transport::{EventKind, EventSource, Result, VerbsError};

use crate::config::{Config, ConfigError};
use crate::context::ContextInner;
use crate::device::ib_dealloc_device;
use crate::engine::Engine;
use crate::log;
use crate::port::GidTable;
use crate::system::system_error;

static PROCESS: PerProcess<Process> = PerProcess::new();

/// The root of everything that a process shares.
#[derive(Default)]
pub(crate) struct Process {
    guard: OnceLock<ForkGuard>,
    config: OnceLock<std::result::Result<Config, ConfigError>>,
    /// The engine, and how many use it.
    engine: Mutex<(Weak<Engine>, usize)>,
    gids: Mutex<Vec<(String, Arc<GidTable>)>>,
    /// Devices that the program took out of the list.
    unregistered: Mutex<BTreeSet<String>>,
}

impl Process {
    /// The record of the calling process.
    pub(crate) fn current() -> &'static Process {
        PROCESS.get()
    }

    /// The configuration; read from the environment, and its log level applied, at first use.
    pub(crate) fn config(&self) -> Result<&Config> {
        let read = self.config.get_or_init(|| self.apply(Config::from_env()));
        read.as_ref().map_err(|error| VerbsError::invalid(error.to_string()))
    }

    /// Uses `config` in place of the environment. EBUSY after the first use.
    pub(crate) fn configure(&self, config: Config) -> Result<()> {
        let read = self.apply(Ok(config));
        self.config.set(read).map_err(|_| {
            VerbsError::busy("the process has used its devices already; configure before that")
        })
    }

    fn apply(
        &self,
        config: std::result::Result<Config, ConfigError>,
    ) -> std::result::Result<Config, ConfigError> {
        match &config {
            Ok(config) => config.log.map_or((), log::init),
            Err(_) => log::init(tracing::Level::ERROR),
        }
        config.inspect_err(|error| tracing::error!("{error}"))
    }

    /// The GID table of an interface, the same one at every call.
    pub(crate) fn gid_table(&self, netdev: &str) -> Arc<GidTable> {
        let mut tables = self.gids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = tables.iter().find(|(name, _)| name == netdev) {
            return Arc::clone(table);
        }
        let table = Arc::new(GidTable::default());
        tables.push((netdev.into(), Arc::clone(&table)));
        table
    }

    /// Tells this process from its children; made once, because it costs a page.
    fn guard(&self) -> Result<&ForkGuard> {
        if let Some(guard) = self.guard.get() {
            return Ok(guard);
        }
        let guard = fork::close_in_children().and_then(|()| ForkGuard::new());
        let guard = guard.map_err(|error| system_error("no guard against fork", &error))?;
        Ok(self.guard.get_or_init(|| guard))
    }

    /// Counts a user of the engine, mostly an open context; returns the engine, a new one for the
    /// first.
    pub(crate) fn open_engine(&'static self) -> Result<Arc<Engine>> {
        let config = self.config()?;
        let guard = self.guard()?;
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let found = engine.0.upgrade().filter(|_| engine.1 > 0);
        let opened = match found {
            Some(opened) => opened,
            None => Engine::new(config.clone(), guard)?,
        };
        *engine = (Arc::downgrade(&opened), engine.1 + 1);
        Ok(opened)
    }

    /// The names of devices that the program took out of the list.
    pub(crate) fn unregistered(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unregistered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open contexts.
    pub(crate) fn contexts(&self) -> Vec<Arc<ContextInner>> {
        self.engine().map(|engine| engine.targets.contexts()).unwrap_or_default()
    }

    /// The engine, while something uses it.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).0.upgrade()
    }

    /// Counts a user as gone; the last one stops the engine.
    pub(crate) fn close_engine(&self, closed: &Engine) {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.1 -= 1;
        if engine.1 == 0 {
            engine.0 = Weak::new();
            drop(engine);
            ib_dealloc_device(closed);
        }
    }
}

/// Keeps the engine running, as an open context does.
#[derive(Debug)]
pub(crate) struct EngineUse(Arc<Engine>);

impl EngineUse {
    pub(crate) fn open() -> Result<Self> {
        Process::current().open_engine().map(EngineUse)
    }
}

impl Deref for EngineUse {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for EngineUse {
    fn drop(&mut self) {
        // A child's record has never counted what it inherited.
        if self.0.check_fork().is_ok() {
            Process::current().close_engine(&self.0);
        }
    }
}

/// Tells every open context that the device is broken (`IBV_EVENT_DEVICE_FATAL`): what has to be
/// done after a panic, which may have left anything half-changed.
pub fn device_fatal() {
    let engine = Process::current().engine.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = engine.0.upgrade() {
        engine.targets.notify(EventKind::DeviceFatal, EventSource::Device);
    }
}

/// Uses `config` in this process, in place of what `IRDMA_*` variables say.
///
/// EBUSY once devices were listed.
pub fn configure(config: Config) -> Result<()> {
    Process::current().configure(config)
}
