//! Thread domains, and the parent domains that bind them to a protection domain.

use std::sync::{Arc, Mutex, PoisonError};

use irdma_transport::{Result, VerbsError};

use super::{Pd, PdInner};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::engine::Lane;
use crate::life::{Alive, Life, Use};
use crate::log::Logged;

/// A thread domain (`ibv_alloc_td(3)`): the queue pairs in it have sockets and a lock of their own,
/// so that threads with a domain each do not wait for one another.
///
/// The first queue pair takes a slot and, as it is set up, 17 descriptors and more; a domain that
/// finds none left shares those of the process, and the log says so.
#[derive(Debug)]
pub struct Td(Arc<TdInner>);

#[derive(Debug)]
pub(crate) struct TdInner {
    context: Arc<ContextInner>,
    /// There from the first queue pair on; the process's own where there was no room for another.
    lane: Mutex<Option<Arc<Lane>>>,
    life: Life,
}

impl Alive for TdInner {
    const WHAT: &'static str = "thread domain";

    fn life(&self) -> &Life {
        &self.life
    }
}

/// What a parent domain stands on.
#[derive(Debug)]
pub(crate) struct Parts {
    pd: Use<PdInner>,
    td: Option<Use<TdInner>>,
}

impl Parts {
    /// Where the queue pairs of the parent domain live.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>> {
        match &self.td {
            Some(td) => td.lane(),
            None => self.pd.lane(),
        }
    }
}

impl Td {
    pub(crate) fn alloc_td(context: &Arc<ContextInner>) -> Td {
        let (context, lane) = (Arc::clone(context), Mutex::default());
        Td(Arc::new(TdInner { context, lane, life: Life::default() }))
    }

    /// Gives the domain back, with its sockets. EBUSY while a parent domain stands on it.
    pub fn dealloc_td(self) -> std::result::Result<(), Refused<Self>> {
        let context = &self.0.context;
        let ended = context.engine.check_fork().and_then(|()| self.0.life.end(TdInner::WHAT));
        match ended.logged("dealloc_td") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { error, handle: self }),
        }
    }
}

impl TdInner {
    fn lane(&self) -> Result<Arc<Lane>> {
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = &*lane {
            return Ok(Arc::clone(lane));
        }
        let opened = self.context.engine.open_domain(&self.context.device)?;
        Ok(Arc::clone(lane.insert(opened)))
    }
}

impl Drop for TdInner {
    fn drop(&mut self) {
        let engine = &self.context.engine;
        let lane = self.lane.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lane) = lane.filter(|_| engine.check_fork().is_ok()) {
            engine.end_domain(&lane);
        }
    }
}

impl Pd {
    /// Makes a parent domain (`ibv_alloc_parent_domain(3)`): objects made on it are in this
    /// protection domain, and in the thread domain. EINVAL if that belongs to another context.
    pub fn alloc_parent_domain(&self, td: Option<&Td>) -> Result<Pd> {
        self.parts(td).and_then(|parts| self.0.child(parts)).logged("alloc_parent_domain")
    }

    /// Another handle of the same domain (`ibv_import_pd(3)`). Deallocated by one handle it is gone
    /// for all.
    pub fn import_pd(&self) -> Pd {
        Pd(Arc::clone(&self.0))
    }

    fn parts(&self, td: Option<&Td>) -> Result<Parts> {
        if td.is_some_and(|td| !Arc::ptr_eq(&td.0.context, &self.0.context)) {
            return Err(VerbsError::invalid("the thread domain belongs to another context"));
        }
        let td = td.map(|td| Use::of(&td.0)).transpose()?;
        Ok(Parts { pd: Use::of(&self.0)?, td })
    }
}
