//! Memory regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use irdma_mem::{Access, Buffer, MemError, MemTable, MrInfo, PdId};
use irdma_net::maps;
use irdma_transport::{ErrorKind, Result, VerbsError};

use super::{Pd, PdInner};
use crate::context::ContextInner;
use crate::life::Use;
use crate::log::Logged;

/// A registered memory region; dropping it deregisters.
#[derive(Debug)]
pub struct Mr {
    inner: Arc<MrInner>,
    _pd: Use<PdInner>,
}

#[derive(Debug)]
pub(crate) struct MrInner {
    pub(crate) info: MrInfo,
    context: Arc<ContextInner>,
    registered: AtomicBool,
}

impl Pd {
    /// Registers `len` bytes at `addr`, which work requests and peers name by addresses from
    /// `iova` on (`ibv_reg_mr_iova(3)`).
    ///
    /// EINVAL for a length of 0 or above the limit, a range that wraps, or remote write or
    /// atomics without local write; EFAULT for memory that is not mapped, or not writable though
    /// `access` says so; ENOMEM when keys are exhausted.
    ///
    /// # Safety
    /// As [`irdma_mem::MemTable::reg_user_mr`]: the memory stays mapped, writable if `access`
    /// holds a write or atomic flag, until the region is deregistered, and no reference to it
    /// is held whose rules a write by a peer would break.
    pub unsafe fn reg_user_mr(
        &self,
        addr: usize,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        self.check_len(len)
            .and_then(|()| check_mapped(addr as u64, len, access))
            .and_then(|()| {
                // SAFETY: our caller makes the same promise.
                self.register(|mem, pd| unsafe { mem.reg_user_mr(pd, addr, len, iova, access) })
            })
            .logged("reg_user_mr")
    }

    /// Registers a part of a buffer, named by its own addresses.
    ///
    /// Errors as [`Pd::reg_user_mr`], and EINVAL for a range that is not inside the buffer.
    pub fn reg_buffer(
        &self,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Mr> {
        let iova = buffer.addr() + range.start as u64;
        self.register(|mem, pd| mem.reg_phys_mr(pd, buffer, range, iova, access))
            .logged("reg_buffer")
    }

    fn check_len(&self, len: u64) -> Result<()> {
        let max = self.0.context.device.limits().max_mr_size;
        if len > max {
            return Err(VerbsError::invalid(format!(
                "region of {len} bytes: above max_mr_size {max}"
            )));
        }
        Ok(())
    }

    fn register(
        &self,
        register: impl FnOnce(&MemTable, PdId) -> std::result::Result<MrInfo, MemError>,
    ) -> Result<Mr> {
        let context = &self.0.context;
        context.check()?;
        let pd = Use::of(&self.0)?;
        let info = register(&context.engine.mem, pd.id).map_err(verbs_error)?;
        let registered = AtomicBool::new(true);
        let inner = Arc::new(MrInner { info, context: Arc::clone(context), registered });
        context.add_mr(&inner);
        Ok(Mr { inner, _pd: pd })
    }
}

/// What hardware finds out when it pins the pages. A range that wraps is for others to refuse,
/// and where the kernel does not tell the program's promise has to do.
fn check_mapped(addr: u64, len: u64, access: Access) -> Result<()> {
    let write = access.contains(Access::LOCAL_WRITE);
    let Some(end) = addr.checked_add(len) else { return Ok(()) };
    if maps::covers(addr..end, write).unwrap_or(true) {
        return Ok(());
    }
    let lack = if write { "mapped and writable" } else { "mapped" };
    let text = format!("region of {len} bytes at {addr:#x}: not all of it is {lack}");
    Err(VerbsError::new(ErrorKind::Fault, text))
}

fn verbs_error(error: MemError) -> VerbsError {
    let kind = match error {
        MemError::InvalidLength { .. } | MemError::InvalidAccess(_) | MemError::UnknownKey(_) => {
            ErrorKind::Invalid
        }
        MemError::Fault => ErrorKind::Fault,
        MemError::NoKeys { .. } => ErrorKind::NoMemory,
        MemError::Busy(_) => ErrorKind::Busy,
    };
    VerbsError::new(kind, error.to_string())
}

impl Mr {
    /// Addresses, length, keys and rights.
    pub fn info(&self) -> &MrInfo {
        &self.inner.info
    }

    /// The key for the program's own work requests.
    pub fn lkey(&self) -> u32 {
        self.inner.info.lkey
    }

    /// The key for the peer's requests.
    pub fn rkey(&self) -> u32 {
        self.inner.info.rkey
    }

    /// Ends the registration: afterwards no use of the keys succeeds and none is under way.
    pub fn dereg_mr(self) -> Result<()> {
        self.inner.dereg().logged("dereg_mr")
    }
}

impl MrInner {
    fn dereg(&self) -> Result<()> {
        let context = &self.context;
        context.engine.check_fork()?;
        if !self.registered.swap(false, Ordering::AcqRel) {
            if context.is_removed() {
                return Ok(());
            }
            return Err(VerbsError::invalid("the region was deregistered with its context"));
        }
        context.remove_mr(self.info.lkey);
        context.engine.mem.dereg_mr(self.info.lkey).map_err(verbs_error)
    }

    /// Deregisters if that has not happened.
    pub(crate) fn cut(&self) {
        let _ = self.dereg();
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.inner.cut();
    }
}
