//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use irdma_mem::{Access, MwBind, MwType};
use irdma_transport::{Result, SendData, SendFlags, SendOp, SendWr, VerbsError};

use super::mr::verbs_error;
use super::{Mr, Pd, PdInner, PostSend, Qp};
use crate::context::ContextInner;
use crate::life::Use;
use crate::log::Logged;
use crate::profile::Features;

/// A memory window; dropping it unbinds it.
#[derive(Debug)]
pub struct Mw {
    inner: Arc<MwInner>,
    mw_type: MwType,
    /// The key that the newest posted bind gives.
    rkey: AtomicU32,
    _pd: Use<PdInner>,
}

#[derive(Debug)]
pub(crate) struct MwInner {
    first_rkey: u32,
    context: Arc<ContextInner>,
    exists: AtomicBool,
}

/// What a window is bound to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwBindInfo<'a> {
    /// The region, registered with [`Access::MW_BIND`] and in the window's protection domain.
    pub mr: &'a Mr,
    /// First address, as the region's key knows it.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// What the peer may do: `REMOTE_*`, and [`Access::ZERO_BASED`] for addresses from 0 on.
    pub access: Access,
}

impl Pd {
    /// Makes a memory window that is bound to nothing (`ibv_alloc_mw(3)`). ENOMEM when keys are
    /// exhausted, EOPNOTSUPP where the profile has none.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        self.try_alloc_mw(mw_type).logged("alloc_mw")
    }

    fn try_alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        let context = &self.0.context;
        context.check()?;
        context.device.profile().check(Features::WINDOWS)?;
        let pd = Use::of(&self.0)?;
        let rkey = context.engine.mem.alloc_mw(pd.id, mw_type).map_err(verbs_error)?;
        let inner = Arc::new(MwInner {
            first_rkey: rkey,
            context: Arc::clone(context),
            exists: AtomicBool::new(true),
        });
        context.add_mw(rkey, &inner);
        Ok(Mw { inner, mw_type, rkey: AtomicU32::new(rkey), _pd: pd })
    }
}

impl Mw {
    /// The kind.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key that the newest posted bind gives; the peer may use it once that has completed.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Acquire)
    }

    /// The request that binds the window, for [`Qp::post_send`]. The key's low byte becomes
    /// `low`.
    pub fn bind_op(&self, info: &MwBindInfo<'_>, low: u8) -> SendOp {
        let rkey = self.rkey();
        SendOp::BindMw(MwBind {
            rkey,
            new_rkey: rkey & !0xff | u32::from(low),
            lkey: info.mr.lkey(),
            va: info.addr,
            len: info.length,
            access: info.access,
        })
    }

    /// Ends the window, bound or not (`ibv_dealloc_mw(3)`).
    pub fn dealloc_mw(self) -> Result<()> {
        self.inner.dealloc().logged("dealloc_mw")
    }
}

impl MwInner {
    fn dealloc(&self) -> Result<()> {
        let context = &self.context;
        context.engine.check_fork()?;
        if !self.exists.swap(false, Ordering::AcqRel) {
            if context.is_removed() {
                return Ok(());
            }
            return Err(VerbsError::invalid("the window ended with its context"));
        }
        context.remove_mw(self.first_rkey);
        context.engine.mem.dealloc_mw(self.first_rkey).map_err(verbs_error)
    }

    /// Ends the window if that has not happened.
    pub(crate) fn cut(&self) {
        let _ = self.dealloc();
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.inner.cut();
    }
}

impl Qp {
    /// Posts a bind of a window and returns its new key, whose low byte is the old one plus 1
    /// (`ibv_bind_mw(3)`, which is for type 1 only; here type 2 is bound so, too).
    ///
    /// EINVAL unless the service is RC or UC, and for a zero-based region; ENOMEM when the queue
    /// is full. What else is wrong shows in the completion, as [`crate::WcStatus::MwBindErr`].
    pub fn bind_mw(
        &self,
        wr_id: u64,
        flags: SendFlags,
        mw: &Mw,
        info: &MwBindInfo<'_>,
    ) -> Result<u32> {
        self.start_post()?.bind_mw(wr_id, flags, mw, info)
    }
}

impl PostSend<'_> {
    /// See [`Qp::bind_mw`].
    pub fn bind_mw(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mw: &Mw,
        info: &MwBindInfo<'_>,
    ) -> Result<u32> {
        let op = mw.bind_op(info, (mw.rkey() as u8).wrapping_add(1));
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&[]), ud: None };
        self.post_send(&wr)?;
        if let SendOp::BindMw(bind) = op {
            mw.rkey.store(bind.new_rkey, Ordering::Release);
        }
        Ok(mw.rkey())
    }
}
