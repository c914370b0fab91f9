//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use irdma_transport as transport;
use irdma_transport::{RecvWr, Result, SrqAttr, VerbsError};

use super::xrc::XrcUses;
use super::{Pd, PdInner};
use crate::channel::{AsyncSource, Refused, Subject};
use crate::context::ContextInner;
use crate::life::{Alive, Life, Unacked, Use};
use crate::limits::Place;
use crate::log::Logged;
use crate::profile::{Features, at_most};

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
    _pd: Use<PdInner>,
    _place: Place,
}

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) srq: Arc<transport::Srq>,
    /// With extended connections.
    xrc: Option<XrcUses>,
    unacked: Unacked,
    cookie: AtomicU64,
    life: Life,
}

impl Alive for SrqInner {
    const WHAT: &'static str = "shared receive queue";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Pd {
    /// Makes a shared receive queue; `attr.srq_limit` is ignored. Profiles of hardware grant more
    /// than was asked, see [`Srq::query_srq`].
    ///
    /// EOPNOTSUPP where the profile has none, EINVAL for sizes of 0 or above the limits.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<Srq> {
        self.try_create_srq(attr, None).logged("create_srq")
    }

    pub(super) fn try_create_srq(&self, attr: SrqAttr, xrc: Option<XrcUses>) -> Result<Srq> {
        let context = &self.0.context;
        let transport_pd = self.0.transport()?;
        let profile = context.device.profile();
        context.device.mode().check_roce("shared receive queues")?;
        profile.check(Features::SRQ)?;
        let attr = profile.size_srq(&attr)?;
        let pd = Use::of(&self.0)?;
        let place = context.engine.srqs.take()?;
        let token = context.engine.next_token();
        let srq = match &xrc {
            None => transport::Srq::create_srq(token, transport_pd, attr)?,
            Some(uses) => {
                let cq = Arc::clone(&uses.feed.cq.cq);
                transport::Srq::create_xrc_srq(token, transport_pd, attr, cq)?
            }
        };
        let inner = Arc::new(SrqInner {
            context: Arc::clone(context),
            srq: Arc::new(srq),
            xrc,
            unacked: Unacked::default(),
            cookie: AtomicU64::new(0),
            life: Life::default(),
        });
        if let Some(uses) = &inner.xrc {
            uses.add(&inner.srq)?;
        }
        context.engine.targets.add_srq(&inner);
        Ok(Srq { inner, _pd: pd, _place: place })
    }
}

impl Srq {
    /// Sizes and the armed limit.
    pub fn query_srq(&self) -> Result<SrqAttr> {
        self.inner.check().logged("query_srq")?;
        Ok(self.inner.srq.query_srq())
    }

    /// Arms the low-water mark: one event when fewer requests wait. EINVAL above the size; profiles
    /// of hardware cut it to 4095.
    pub fn modify_srq(&self, srq_limit: u32) -> Result<()> {
        self.inner.modify(srq_limit).logged("modify_srq")
    }

    /// Adds a receive request. EINVAL with too many elements, ENOMEM when full.
    pub fn post_srq_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.inner.check().and_then(|()| self.inner.srq.post_srq_recv(wr)).logged("post_srq_recv")
    }

    /// The number that the peer's requests name the queue by (`ibv_get_srq_num(3)`). EINVAL
    /// unless it is one for extended connections.
    pub fn get_srq_num(&self) -> Result<u32> {
        let number = self.inner.xrc.as_ref().map(|_| self.inner.srq.number());
        let only = || VerbsError::invalid("only the queues of an XRC domain have a number");
        number.ok_or_else(only).logged("get_srq_num")
    }

    /// The number that events name the queue by.
    pub fn set_cookie(&self, cookie: u64) {
        self.inner.cookie.store(cookie, Ordering::Release);
    }

    /// Acknowledges `count` asynchronous events.
    pub fn ack_async_events(&self, count: u32) {
        self.inner.unacked.ack(count);
    }

    /// Destroys the queue and its waiting requests, once every event about it is
    /// acknowledged. EBUSY while queue pairs use it.
    pub fn destroy_srq(self) -> std::result::Result<(), Refused<Self>> {
        match self.inner.destroy().logged("destroy_srq") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl SrqInner {
    pub(super) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    fn check(&self) -> Result<()> {
        self.context.check_device()?;
        self.life.check(Self::WHAT)
    }

    fn modify(&self, srq_limit: u32) -> Result<()> {
        self.check()?;
        let max_wr = self.srq.query_srq().max_wr;
        at_most("srq_limit", srq_limit, max_wr)?;
        self.srq.modify_srq(self.context.device.profile().srq_limit(srq_limit))
    }

    fn destroy(&self) -> Result<()> {
        self.context.engine.check_fork()?;
        self.life.end(Self::WHAT)?;
        self.srq_free_rsrc();
        self.context.events.purge(|event| event.is_about(self));
        self.unacked.wait();
        Ok(())
    }
}

impl SrqInner {
    /// No event and no request finds the queue afterwards.
    fn srq_free_rsrc(&self) {
        self.context.engine.targets.remove_srq(self.srq.token());
        if let Some(uses) = &self.xrc {
            uses.remove(&self.srq);
        }
        self.srq.srq_free_rsrc();
    }
}

impl Subject for SrqInner {
    fn source(&self) -> AsyncSource {
        AsyncSource::Srq(self.cookie.load(Ordering::Acquire))
    }

    fn unacked(&self) -> &Unacked {
        &self.unacked
    }

    fn is_alive(&self) -> bool {
        self.life.is_alive()
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if self.context.engine.check_fork().is_ok() {
            self.srq_free_rsrc();
        }
    }
}
