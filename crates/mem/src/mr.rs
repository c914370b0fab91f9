//! Memory regions: register, look up, deregister.

use std::ops::Range;
use std::sync::Arc;

use crate::region::Region;
use crate::{Access, Buffer, InvalidateError, MemError, MemTable, PdId, Rights};

/// What a program knows of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// Key for the owner's own work requests.
    pub lkey: u32,
    /// Key for the peer's requests; the same number as `lkey`.
    pub rkey: u32,
    /// Protection domain the region belongs to.
    pub pd: PdId,
    /// Process address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: u64,
    /// Address of the first byte as work requests and peers name it.
    pub iova: u64,
    /// Access as asked for.
    pub access: Access,
}

/// The rights that access flags give; flags that give none are ignored.
#[inline]
pub const fn get_mr_access(access: Access) -> Rights {
    let mut rights = Rights::LOCAL_READ;
    let table = [
        (Access::LOCAL_WRITE, Rights::LOCAL_WRITE),
        (Access::REMOTE_WRITE, Rights::REMOTE_WRITE),
        (Access::REMOTE_READ, Rights::REMOTE_READ),
        (Access::REMOTE_ATOMIC, Rights::REMOTE_ATOMIC),
        (Access::MW_BIND, Rights::BIND_WINDOW),
        (Access::ZERO_BASED, Rights::ZERO_BASED),
    ];
    let mut i = 0;
    while i < table.len() {
        if access.contains(table[i].0) {
            rights = rights.union(table[i].1);
        }
        i += 1;
    }
    rights
}

impl MemTable {
    /// Registers a range of memory that the library owns; the table keeps the buffer alive
    /// until [`MemTable::dereg_mr`].
    ///
    /// # Errors
    /// As [`MemTable::reg_user_mr`], and [`MemError::InvalidLength`] where the range is not
    /// inside the buffer.
    pub fn reg_phys_mr(
        &self,
        pd: PdId,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        iova: u64,
        access: Access,
    ) -> Result<MrInfo, MemError> {
        self.register(pd, Region::of(buffer, range)?, iova, access, Some(Arc::clone(buffer)))
    }

    /// Ends a registration. After `Ok` the key is dead, no [`crate::Grant`] on the region is
    /// out, and its memory may be freed; grants in other threads are waited for.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub fn dereg_mr(&self, key: u32) -> Result<(), MemError> {
        let retired = self.slot(key).is_some_and(|slot| slot.retire(key));
        if !retired {
            return Err(MemError::UnknownKey(key));
        }
        let mut control = self.control();
        control.stags.free_stag(key);
        control.buffers.remove(&key);
        Ok(())
    }

    /// Invalidates a key for a work request or a peer of `pd`.
    ///
    /// # Errors
    /// [`InvalidateError`]; a region made by registration is never invalidated this way.
    pub fn invalidate(&self, key: u32, pd: PdId) -> Result<(), InvalidateError> {
        match self.query(key) {
            None => Err(InvalidateError::UnknownKey),
            Some(info) if info.pd != pd => Err(InvalidateError::ForeignPd),
            Some(_) => Err(InvalidateError::Registered),
        }
    }

    /// What is registered under `key`.
    pub fn query(&self, key: u32) -> Option<MrInfo> {
        self.slot(key)?.info(key)
    }

    /// Checks everything, then takes a key, then makes it valid.
    pub(crate) fn register(
        &self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
        buffer: Option<Arc<Buffer>>,
    ) -> Result<MrInfo, MemError> {
        let writers = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writers) && !access.contains(Access::LOCAL_WRITE) {
            return Err(MemError::InvalidAccess(access));
        }
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if iova.checked_add(region.len()).is_none() {
            return Err(MemError::InvalidLength { addr: iova, len: region.len() });
        }
        let mut control = self.control();
        let key = control.stags.create_stag()?;
        control.buffers.extend(buffer.map(|buffer| (key, buffer)));
        drop(control);
        Ok(self.hwreg_mr(key, pd, region, iova, access))
    }

    /// The one step after which the key works, for all threads at once.
    fn hwreg_mr(&self, key: u32, pd: PdId, region: Region, iova: u64, access: Access) -> MrInfo {
        let (addr, len) = (region.addr(), region.len());
        self.make_slot(key).publish(key, pd, region, iova, access);
        MrInfo { lkey: key, rkey: key, pd, addr, len, iova, access }
    }
}
