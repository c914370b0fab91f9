//! Thread domains, and the parent domains that bind them to a protection domain.

use std::sync::Arc;

use irdma_transport::{Result, VerbsError};

use super::{Pd, PdInner};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::life::{Alive, Life, Use};
use crate::log::Logged;

/// A thread domain (`ibv_alloc_td(3)`): a promise of the program, which needs no locks less here.
#[derive(Debug)]
pub struct Td(Arc<TdInner>);

#[derive(Debug)]
pub(crate) struct TdInner {
    context: Arc<ContextInner>,
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
    _pd: Use<PdInner>,
    _td: Option<Use<TdInner>>,
}

impl Td {
    pub(crate) fn alloc_td(context: &Arc<ContextInner>) -> Td {
        Td(Arc::new(TdInner { context: Arc::clone(context), life: Life::default() }))
    }

    /// Gives the domain back. EBUSY while a parent domain stands on it.
    pub fn dealloc_td(self) -> std::result::Result<(), Refused<Self>> {
        let context = &self.0.context;
        let ended = context.engine.check_fork().and_then(|()| self.0.life.end(TdInner::WHAT));
        match ended.logged("dealloc_td") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { error, handle: self }),
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
        Ok(Parts { _pd: Use::of(&self.0)?, _td: td })
    }
}
