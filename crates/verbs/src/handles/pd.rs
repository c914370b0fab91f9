//! Protection domains.

use std::sync::{Arc, Mutex, PoisonError};

use irdma_mem::PdId;
use irdma_transport as transport;
use irdma_transport::Result;

use super::td::Parts;
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::engine::Lane;
use crate::life::{Alive, Life};
use crate::log::Logged;

/// A protection domain: what objects must share to work together.
#[derive(Debug)]
pub struct Pd(pub(crate) Arc<PdInner>);

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) id: PdId,
    /// Gone once the number was given back.
    pd: Mutex<Option<Arc<transport::Pd>>>,
    /// Of a parent domain, whose number is another's.
    parts: Option<Parts>,
    life: Life,
}

impl Alive for PdInner {
    const WHAT: &'static str = "protection domain";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Pd {
    pub(crate) fn alloc_pd(context: &Arc<ContextInner>) -> Result<Pd> {
        let pd = context.engine.pds.alloc_pd()?;
        Ok(Pd(Arc::new(PdInner {
            context: Arc::clone(context),
            id: pd.id(),
            pd: Mutex::new(Some(pd)),
            parts: None,
            life: Life::default(),
        })))
    }

    /// Gives the domain back. EBUSY while any object stands on it.
    pub fn dealloc_pd(self) -> std::result::Result<(), Refused<Self>> {
        match self.0.dealloc().logged("dealloc_pd") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl PdInner {
    fn dealloc(&self) -> Result<()> {
        self.context.engine.check_fork()?;
        self.life.end(Self::WHAT)?;
        self.give_back();
        Ok(())
    }

    /// A parent domain of this one.
    pub(crate) fn child(&self, parts: Parts) -> Result<Pd> {
        Ok(Pd(Arc::new(PdInner {
            context: Arc::clone(&self.context),
            id: self.id,
            pd: Mutex::new(Some(self.transport()?)),
            parts: Some(parts),
            life: Life::default(),
        })))
    }

    /// Where queue pairs made on the domain live.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>> {
        match &self.parts {
            Some(parts) => parts.lane(),
            None => self.context.engine.lane(),
        }
    }

    fn give_back(&self) {
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.parts.is_some() {
            return;
        }
        if let Some(Err((_, error))) = pd.map(|pd| self.context.engine.pds.dealloc_pd(pd)) {
            tracing::error!("protection domain {:?} leaked: {error}", self.id);
        }
    }

    /// The domain as the transport knows it; there is one as long as the life has not ended.
    pub(crate) fn transport(&self) -> Result<Arc<transport::Pd>> {
        self.context.check()?;
        self.life.check(Self::WHAT)?;
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        pd.clone().ok_or_else(|| transport::VerbsError::invalid("the protection domain is gone"))
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.context.engine.check_fork().is_ok() {
            self.give_back();
        }
    }
}
