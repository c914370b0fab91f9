//! Memory regions: register, look up, deregister.

use std::ops::Range;
use std::sync::Arc;

use crate::region::Region;
use crate::slot::{Entry, Memory, Shape};
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
    /// Process address of the first byte; 0 where the bytes are scattered or nowhere.
    pub addr: usize,
    /// Length in bytes.
    pub len: u64,
    /// Address of the first byte as work requests and peers name it.
    pub iova: u64,
    /// Access as asked for.
    pub access: Access,
    /// Level of the page list: 0 none, 1 an array, 2 a root of leaves.
    pub pbl_level: u8,
}

/// What a re-registration changes (`ibv_rereg_mr(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rereg {
    /// Another memory: process address, length in bytes, `iova`.
    pub translation: Option<(usize, u64, u64)>,
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other access flags.
    pub access: Option<Access>,
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
        (Access::FLUSH_GLOBAL, Rights::FLUSH_GLOBAL),
        (Access::FLUSH_PERSISTENT, Rights::FLUSH_PERSISTENT),
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
        let region = Region::of(buffer, range)?;
        self.register(pd, &region, iova, access, Shape::empty(), Some(Arc::clone(buffer)))
    }

    /// Registers memory of the device, always zero-based (`ibv_reg_dm_mr(3)`); the range may be
    /// empty.
    ///
    /// # Errors
    /// As [`MemTable::reg_phys_mr`].
    pub fn reg_dm_mr(
        &self,
        pd: PdId,
        buffer: &Arc<Buffer>,
        range: Range<usize>,
        access: Access,
    ) -> Result<MrInfo, MemError> {
        let region = Region::of_device(buffer, range)?;
        let access = access | Access::ZERO_BASED;
        self.register(pd, &region, 0, access, Shape::DEVICE, Some(Arc::clone(buffer)))
    }

    /// Registers the whole address space (`ibv_reg_mr(3)`, implicit on-demand paging): each
    /// access asks the table's [`crate::Probe`] whether its pages are there.
    ///
    /// # Errors
    /// [`MemError::InvalidAccess`], [`MemError::NoKeys`].
    pub fn reg_implicit_mr(&self, pd: PdId, access: Access) -> Result<MrInfo, MemError> {
        check_access(access)?;
        self.add(&Entry {
            pd,
            memory: Memory::At(0),
            len: u64::MAX,
            iova: 0,
            access: access | Access::ON_DEMAND,
            shape: Shape::PROBED,
            qpn: 0,
        })
    }

    /// A key for the owner's use that reads as zeros and swallows writes, at every address
    /// (`ibv_alloc_null_mr(3)`).
    ///
    /// # Errors
    /// [`MemError::NoKeys`].
    pub fn alloc_null_mr(&self, pd: PdId) -> Result<MrInfo, MemError> {
        self.add(&Entry {
            pd,
            memory: Memory::Nothing,
            len: u64::MAX,
            iova: 0,
            access: Access::LOCAL_WRITE,
            shape: Shape::NULL,
            qpn: 0,
        })
    }

    /// Ends a registration. After `Ok` the key is dead, no [`crate::Grant`] on the region is
    /// out, and its memory may be freed; grants in other threads are waited for.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`], also for the key of a window; [`MemError::Busy`] while windows
    /// are bound. A key of [`MemTable::alloc_mr`] may be any that the region has had.
    pub fn dereg_mr(&self, key: u32) -> Result<(), MemError> {
        let control = self.control();
        let now = self.region_key(key)?;
        control.check_unbound(self.index(key), key)?;
        self.retire(control, now)
    }

    /// As [`MemTable::dereg_mr`], but windows that are bound are unbound.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub fn cut_mr(&self, key: u32) -> Result<(), MemError> {
        let mut control = self.control();
        let now = self.region_key(key)?;
        while let Some(window) = control.window_on(self.index(key)) {
            self.unbind(&mut control, window);
        }
        self.retire(control, now)
    }

    /// The valid key of a region; one for fast registration may have got another low byte.
    fn region_key(&self, key: u32) -> Result<u32, MemError> {
        let unknown = MemError::UnknownKey(key);
        let now = self.current(key).ok_or(unknown)?;
        let shape = self.lookup(now)?.shape;
        let is_region = !shape.contains(Shape::WINDOW);
        let is_meant = now == key || shape.contains(Shape::FAST);
        if is_region && is_meant { Ok(now) } else { Err(unknown) }
    }

    /// Invalidates a key for a work request of, or a request of the peer to, a queue pair: the
    /// key stays reserved for the next bind or fast registration (IBTA 10.6.5).
    ///
    /// # Errors
    /// [`InvalidateError`]; a region made by registration is never invalidated this way.
    pub fn invalidate(&self, key: u32, pd: PdId, qpn: u32) -> Result<(), InvalidateError> {
        let mut control = self.control();
        let entry = self.lookup(key).map_err(|_| InvalidateError::UnknownKey)?;
        let is_bound = !entry.shape.contains(Shape::INVALID);
        if entry.pd != pd {
            return Err(InvalidateError::ForeignPd);
        }
        if !entry.shape.intersects(Shape::TYPE_2 | Shape::FAST) {
            return Err(InvalidateError::Registered);
        }
        if entry.shape.contains(Shape::TYPE_2) && is_bound && entry.qpn != qpn {
            return Err(InvalidateError::ForeignQp);
        }
        let index = self.index(key);
        control.check_unbound(index, key).map_err(|_| InvalidateError::Busy)?;
        if let Some(slot) = self.slot(key)
            && slot.change(key, key, &entry.invalidated())
        {
            control.unbind(index);
        }
        Ok(())
    }

    /// What is registered under `key`.
    pub fn query(&self, key: u32) -> Option<MrInfo> {
        let entry = self.slot(key)?.entry(key)?;
        let is_region = !entry.shape.contains(Shape::WINDOW);
        is_region.then(|| info(key, &entry))
    }

    /// Checks everything, then makes the region valid under a new key.
    pub(crate) fn register(
        &self,
        pd: PdId,
        region: &Region,
        iova: u64,
        access: Access,
        shape: Shape,
        buffer: Option<Arc<Buffer>>,
    ) -> Result<MrInfo, MemError> {
        let entry = hwreg_mr(pd, (region.addr(), region.len()), iova, access, shape)?;
        let info = self.add(&entry)?;
        if let Some(buffer) = buffer {
            self.control().buffers.insert(self.index(info.lkey), buffer);
        }
        Ok(info)
    }

    /// Gives an entry a key.
    pub(crate) fn add(&self, entry: &Entry) -> Result<MrInfo, MemError> {
        let key = self.control().stags.create_stag()?;
        self.make_slot(key).publish(key, entry);
        Ok(info(key, entry))
    }

    pub(crate) fn rereg(
        &self,
        key: u32,
        change: &Rereg,
        region: Option<Region>,
    ) -> Result<MrInfo, MemError> {
        let control = self.control();
        let old = self.lookup(key)?;
        let Memory::At(old_addr) = old.memory else {
            return Err(MemError::WrongKind { key, needs: "a plain region" });
        };
        if !(old.shape - Shape::PROBED).is_empty() || old_addr == 0 {
            return Err(MemError::WrongKind { key, needs: "a plain region" });
        }
        control.check_unbound(self.index(key), key)?;
        let (iova, addr, len) = match (&region, change.translation) {
            (Some(region), Some((_, _, iova))) => (iova, region.addr(), region.len()),
            _ => (old.iova, old_addr, old.len),
        };
        let (pd, access) = (change.pd.unwrap_or(old.pd), change.access.unwrap_or(old.access));
        let odp = access.contains(Access::ON_DEMAND);
        let shape = if odp { Shape::PROBED } else { Shape::empty() };
        let entry = hwreg_mr(pd, (addr, len), iova, access, shape)?;
        if !self.slot(key).is_some_and(|slot| slot.change(key, key, &entry)) {
            return Err(MemError::UnknownKey(key));
        }
        Ok(info(key, &entry))
    }
}

/// The entry that makes a key stand for a region.
fn hwreg_mr(
    pd: PdId,
    (addr, len): (usize, u64),
    iova: u64,
    access: Access,
    shape: Shape,
) -> Result<Entry, MemError> {
    check_access(access)?;
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    if iova.checked_add(len).is_none() {
        return Err(MemError::InvalidLength { addr: iova, len });
    }
    Ok(Entry { pd, memory: Memory::At(addr), len, iova, access, shape, qpn: 0 })
}

/// Whoever lets the peer write must be able to write, IBTA 10.6.3.1.
pub(crate) fn check_access(access: Access) -> Result<(), MemError> {
    let writers = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(writers) && !access.contains(Access::LOCAL_WRITE) {
        return Err(MemError::InvalidAccess(access));
    }
    Ok(())
}

pub(crate) fn info(key: u32, entry: &Entry) -> MrInfo {
    let (addr, pbl_level) = match &entry.memory {
        Memory::At(addr) => (*addr, 0),
        Memory::Pages(list, _) => (0, list.level()),
        Memory::Nothing => (0, 0),
    };
    let Entry { pd, len, iova, access, .. } = *entry;
    MrInfo { lkey: key, rkey: key, pd, addr, len, iova, access, pbl_level }
}
