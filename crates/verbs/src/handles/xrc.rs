//! Domains of extended reliable connections, within one context (`ibv_open_xrcd(3)`).

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bitflags::bitflags;
use irdma_transport as transport;
use irdma_transport::{ErrorKind, QpCap, QpInit, QpType, Result, SrqAttr, VerbsError};
use irdma_wire::Qpn;
use rustix::fs::fstat;

use super::qp::{QpInner, Uses, check_context};
use super::{Cq, Feed, Pd, Qp, Srq};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::life::{Alive, Life, Use};
use crate::log::Logged;
use crate::profile::Features;

bitflags! {
    /// How a domain is opened, with the values of `open(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct XrcdFlags: u32 {
        /// Make the domain if the file has none.
        const CREAT = 0o100;
        /// Fail if the file has one.
        const EXCL = 0o200;
    }
}

/// A domain of extended reliable connections: shared receive queues, and queue pairs that receive
/// for them.
#[derive(Debug)]
pub struct Xrcd(Arc<XrcdInner>);

#[derive(Debug)]
pub(crate) struct XrcdInner {
    context: Arc<ContextInner>,
    /// Device and inode of the file that names the domain.
    file: Option<(u64, u64)>,
    xrcd: Arc<transport::Xrcd>,
    /// What receiving queue pairs are created with: their keys and completions are those of the
    /// shared queues. Gone once the domain is closed.
    pd: Mutex<Option<Arc<transport::Pd>>>,
    cq: Arc<transport::Cq>,
    qps: Mutex<HashMap<Qpn, Weak<QpInner>>>,
    handles: AtomicU32,
    life: Life,
}

impl Alive for XrcdInner {
    const WHAT: &'static str = "XRC domain";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Xrcd {
    pub(crate) fn open_xrcd(
        context: &Arc<ContextInner>,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Xrcd> {
        context.device.profile().check(Features::XRC)?;
        let file = file.map(fstat).transpose().map_err(|errno| {
            VerbsError::invalid(format!("the file that names the XRC domain: {errno}"))
        })?;
        let file = file.map(|stat| (stat.st_dev, stat.st_ino));
        let mut known = context.xrcds();
        known.retain(|xrcd| xrcd.strong_count() > 0);
        let is_it = |xrcd: &Arc<XrcdInner>| xrcd.file == file && xrcd.life.is_alive();
        let found = file.and_then(|_| known.iter().filter_map(Weak::upgrade).find(is_it));
        match found {
            Some(_) if flags.contains(XrcdFlags::EXCL) => {
                Err(VerbsError::invalid("the file has an XRC domain already; drop EXCL"))
            }
            Some(inner) => {
                inner.handles.fetch_add(1, Ordering::AcqRel);
                Ok(Xrcd(inner))
            }
            None if flags.contains(XrcdFlags::CREAT) => {
                let inner = Arc::new(XrcdInner::new(context, file)?);
                known.push(Arc::downgrade(&inner));
                Ok(Xrcd(inner))
            }
            None if file.is_some() => {
                Err(VerbsError::new(ErrorKind::Again, "the file has no XRC domain; add CREAT"))
            }
            None => Err(VerbsError::invalid("a domain without a file needs CREAT")),
        }
    }

    /// Makes a queue pair of type [`QpType::XrcRecv`] in RESET, for all shared queues of the
    /// domain. It has neither protection domain nor completion queue: those of the shared queue
    /// that a request names count.
    pub fn create_qp(&self) -> Result<Qp> {
        self.0.create_qp().logged("create_qp")
    }

    /// Another handle of a queue pair of the domain (`ibv_open_qp(3)`). It ends with its last
    /// handle, or with the context. EINVAL where there is none of that number.
    pub fn open_qp(&self, qpn: Qpn) -> Result<Qp> {
        self.0.open_qp(qpn).logged("open_qp")
    }

    /// Closes the domain. EBUSY while shared queues or queue pairs are in it and no other handle
    /// of it is open.
    pub fn close_xrcd(self) -> std::result::Result<(), Refused<Self>> {
        let context = Arc::clone(&self.0.context);
        // Nobody opens the domain, or closes it elsewhere, between the count and its end.
        let _others = context.xrcds();
        let is_last = self.0.handles.load(Ordering::Acquire) == 1;
        match if is_last { self.0.life.end(XrcdInner::WHAT) } else { Ok(()) } {
            Ok(()) => {
                drop(self);
                Ok(())
            }
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        self.0.handles.fetch_sub(1, Ordering::AcqRel);
    }
}

impl XrcdInner {
    fn new(context: &Arc<ContextInner>, file: Option<(u64, u64)>) -> Result<Self> {
        let engine = &context.engine;
        Ok(XrcdInner {
            context: Arc::clone(context),
            file,
            xrcd: Arc::default(),
            pd: Mutex::new(Some(engine.pds.alloc_pd()?)),
            cq: Arc::new(transport::Cq::new(engine.next_token(), 1)),
            qps: Mutex::default(),
            handles: AtomicU32::new(1),
            life: Life::default(),
        })
    }

    fn create_qp(self: &Arc<Self>) -> Result<Qp> {
        self.context.check()?;
        let xrcd = Use::of(self)?;
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            pd: pd.ok_or_else(|| VerbsError::invalid("the XRC domain is closed"))?,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            xrcd: Some(Arc::clone(&self.xrcd)),
            cap: QpCap::default(),
            sq_sig_all: false,
            block_self_mcast: false,
        };
        let lane = self.context.engine.lane()?;
        let qp = Qp::new(&self.context, lane, init, Uses::of_xrcd(xrcd))?;
        self.qps().insert(qp.qpn(), Arc::downgrade(&qp.inner));
        Ok(qp)
    }

    fn open_qp(self: &Arc<Self>, qpn: Qpn) -> Result<Qp> {
        self.context.check()?;
        let xrcd = Use::of(self)?;
        let found = self.qps().get(&qpn).and_then(Weak::upgrade);
        found.and_then(|inner| Qp::another(&inner, Uses::of_xrcd(xrcd))).ok_or_else(|| {
            VerbsError::invalid(format!("QP {qpn} is not, or no longer, in the XRC domain"))
        })
    }

    fn qps(&self) -> MutexGuard<'_, HashMap<Qpn, Weak<QpInner>>> {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.retain(|_, qp| qp.strong_count() > 0);
        qps
    }
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.context.engine.check_fork().is_ok()
            && let Some(Err((_, error))) = pd.map(|pd| self.context.engine.pds.dealloc_pd(pd))
        {
            tracing::error!("the protection domain of an XRC domain leaked: {error}");
        }
    }
}

/// What a shared queue of an XRC domain stands on.
#[derive(Debug)]
pub(crate) struct XrcUses {
    pub(crate) xrcd: Use<XrcdInner>,
    /// The queue pairs that receive for it are in the process's own lane.
    pub(crate) feed: Feed,
}

impl XrcUses {
    /// Lets requests reach the queue.
    pub(crate) fn add(&self, srq: &Arc<transport::Srq>) -> Result<()> {
        self.xrcd.xrcd.add(srq)
    }

    /// No request reaches the queue afterwards.
    pub(crate) fn remove(&self, srq: &transport::Srq) {
        self.xrcd.xrcd.remove(srq);
    }
}

impl Pd {
    /// Makes a shared receive queue for extended connections, whose receives complete in `cq`
    /// (`ibv_create_srq_ex(3)`, `IBV_SRQT_XRC`).
    ///
    /// EINVAL as [`Pd::create_srq`], and for objects of another context.
    pub fn create_xrc_srq(&self, attr: SrqAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq> {
        let uses = || {
            check_context(&self.0.context, &xrcd.0.context, "xrcd")?;
            check_context(&self.0.context, &cq.inner.context, "cq")?;
            Ok(XrcUses { xrcd: Use::of(&xrcd.0)?, feed: Feed::new(&cq.inner, None)? })
        };
        uses().and_then(|uses| self.try_create_srq(attr, Some(uses))).logged("create_srq")
    }
}
