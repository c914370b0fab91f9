//! Device memory: here, memory of the library's own (`ibv_alloc_dm(3)`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use irdma_mem::{Access, Buffer};
use irdma_transport::{Result, VerbsError};

use super::Pd;
use super::mr::{Backing, Mr};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::life::{Alive, Life, Use};
use crate::log::Logged;
use crate::profile::Features;

/// What copies to and from device memory are aligned to, in bytes.
const ALIGNMENT: u64 = 4;
/// The largest alignment that can be asked for, as an exponent.
const MAX_LOG_ALIGN: u32 = 12;

/// How much device memory, and how it is aligned (`struct ibv_alloc_dm_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmAttr {
    /// Length in bytes.
    pub length: u64,
    /// Exponent of the alignment of the first byte.
    pub log_align_req: u32,
}

/// Device memory; dropping it gives it back once no region stands on it.
#[derive(Debug)]
pub struct Dm(Arc<DmInner>);

#[derive(Debug)]
pub(crate) struct DmInner {
    context: Arc<ContextInner>,
    buffer: Arc<Buffer>,
    /// Where the memory begins in the buffer, because of its alignment.
    start: usize,
    len: usize,
    _share: Share,
    life: Life,
}

/// Bytes of the device's that are taken.
#[derive(Debug)]
struct Share {
    taken: Arc<AtomicU64>,
    bytes: u64,
}

impl Share {
    /// ENOMEM where fewer bytes are left of `max`.
    fn take(taken: &Arc<AtomicU64>, bytes: u64, max: u64) -> Result<Share> {
        let more = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Share { taken: Arc::clone(taken), bytes }),
            Err(now) => Err(VerbsError::no_memory(format!(
                "{bytes} bytes: {now} of the device's {max} are taken; free some first"
            ))),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Alive for DmInner {
    const WHAT: &'static str = "device memory";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Dm {
    pub(crate) fn alloc_dm(context: &Arc<ContextInner>, attr: DmAttr) -> Result<Dm> {
        context.device.profile().check(Features::DEVICE_MEMORY)?;
        let DmAttr { length, log_align_req } = attr;
        if length == 0 || log_align_req > MAX_LOG_ALIGN {
            return Err(VerbsError::invalid(format!(
                "{length} bytes aligned to 2^{log_align_req}: ask for at least 1, and at most \
                 2^{MAX_LOG_ALIGN}"
            )));
        }
        let max = context.device.limits().max_dm_size;
        let share = Share::take(&context.engine.dm_bytes, length, max)?;
        let align = 1usize << log_align_req;
        let len = length as usize;
        let buffer = Arc::new(Buffer::zeroed(len + align - 1));
        let addr = buffer.addr() as usize;
        Ok(Dm(Arc::new(DmInner {
            context: Arc::clone(context),
            start: addr.next_multiple_of(align) - addr,
            buffer,
            len,
            _share: share,
            life: Life::default(),
        })))
    }

    /// Another handle of the same memory (`ibv_import_dm(3)`). Freed by one handle it is gone for
    /// all.
    pub fn import_dm(&self) -> Dm {
        Dm(Arc::clone(&self.0))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never true: no device memory is of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Copies `data` to `offset` (`ibv_memcpy_to_dm(3)`).
    ///
    /// EINVAL for an offset or length that is no multiple of 4, or past the end.
    pub fn memcpy_to_dm(&self, offset: u64, data: &[u8]) -> Result<()> {
        let at = self.0.check(offset, data.len()).logged("memcpy_to_dm")?;
        self.0.buffer.write(at, data);
        Ok(())
    }

    /// Copies from `offset` to `out` (`ibv_memcpy_from_dm(3)`).
    ///
    /// EINVAL for an offset or length that is no multiple of 4, or past the end.
    pub fn memcpy_from_dm(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = self.0.check(offset, out.len()).logged("memcpy_from_dm")?;
        self.0.buffer.read(at, out);
        Ok(())
    }

    /// Gives the memory back. EBUSY while a region stands on it.
    pub fn free_dm(self) -> std::result::Result<(), Refused<Self>> {
        match self.0.life.end(DmInner::WHAT).logged("free_dm") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl DmInner {
    /// Where a range of the memory starts in its buffer.
    fn check(&self, offset: u64, len: usize) -> Result<usize> {
        self.life.check(Self::WHAT)?;
        let end = offset.checked_add(len as u64);
        let is_aligned = (offset | len as u64).is_multiple_of(ALIGNMENT);
        if !is_aligned || end.is_none_or(|end| end > self.len as u64) {
            return Err(VerbsError::invalid(format!(
                "{len} bytes at {offset}: the memory has {}, copied in multiples of {ALIGNMENT}",
                self.len
            )));
        }
        Ok(self.start + offset as usize)
    }
}

impl Pd {
    /// Registers a part of device memory, named by offsets from its start (`ibv_reg_dm_mr(3)`).
    ///
    /// EINVAL without [`Access::ZERO_BASED`], for a range outside the memory, or of another
    /// context; otherwise as [`Pd::reg_buffer`].
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, len: u64, access: Access) -> Result<Mr> {
        self.try_reg_dm_mr(&dm.0, offset, len, access).logged("reg_dm_mr")
    }

    fn try_reg_dm_mr(
        &self,
        dm: &Arc<DmInner>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr> {
        if !Arc::ptr_eq(&dm.context, &self.0.context) {
            return Err(VerbsError::invalid("the device memory belongs to another context"));
        }
        if !access.contains(Access::ZERO_BASED) {
            return Err(VerbsError::invalid("device memory is named by offsets: add ZERO_BASED"));
        }
        let end = offset.checked_add(len).filter(|end| *end <= dm.len as u64);
        let end = end.ok_or_else(|| {
            let text = format!("{len} bytes at {offset}: the memory has {}", dm.len);
            VerbsError::invalid(text)
        })?;
        let range = dm.start + offset as usize..dm.start + end as usize;
        let backing = Backing::Device { _dm: Use::of(dm)? };
        self.register_on(len, access, backing, |mem, pd| {
            mem.reg_dm_mr(pd, &dm.buffer, range, access)
        })
    }
}
