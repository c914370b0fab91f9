//! Memory windows: keys for a part of a region, made and unmade by work requests (IBTA 10.6.6).

use crate::slot::{Entry, Memory, Shape};
use crate::table::Control;
use crate::{Access, BindError, MemError, MemTable, PdId};

/// What a peer may be given through a window.
const WINDOW_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The kind of a window, numbered as `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MwType {
    /// Any queue pair of the protection domain may use it; each bind makes a new key.
    One = 1,
    /// Only the queue pair that bound it may use it (2B); the owner chooses the key's low byte.
    Two = 2,
}

/// A bind, as its work request describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window, by any key that it has had.
    pub rkey: u32,
    /// The window's key from now on; differs in its low byte at most.
    pub new_rkey: u32,
    /// The region, by its own key.
    pub lkey: u32,
    /// First address of the window, as the region's key knows it.
    pub va: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What the peer may do, a subset of the `REMOTE_*` flags, and [`Access::ZERO_BASED`] for
    /// a window whose addresses count from 0.
    pub access: Access,
}

impl MemTable {
    /// Makes a window that is bound to nothing; returns its key.
    ///
    /// # Errors
    /// [`MemError::NoKeys`].
    pub fn alloc_mw(&self, pd: PdId, mw_type: MwType) -> Result<u32, MemError> {
        let kind = match mw_type {
            MwType::One => Shape::WINDOW,
            MwType::Two => Shape::WINDOW | Shape::TYPE_2,
        };
        self.hw_alloc_mw(&Entry::reserved(pd, kind))
    }

    fn hw_alloc_mw(&self, window: &Entry) -> Result<u32, MemError> {
        self.add(window).map(|info| info.rkey)
    }

    /// Ends a window, bound or not; afterwards no use of its key succeeds and none is under way.
    /// `rkey` may be any key that the window has had.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`], also for the key of a region.
    pub fn dealloc_mw(&self, rkey: u32) -> Result<(), MemError> {
        let mut control = self.control();
        let key = self.current(rkey).ok_or(MemError::UnknownKey(rkey))?;
        if !self.lookup(key)?.shape.contains(Shape::WINDOW) {
            return Err(MemError::UnknownKey(rkey));
        }
        control.unbind(self.index(key));
        self.retire(control, key)
    }

    /// Binds a window for a queue pair of `pd`, or unbinds one of type 1.
    ///
    /// # Errors
    /// See [`BindError`]; the window is then as it was.
    pub fn bind_mw(&self, bind: &MwBind, pd: PdId, qpn: u32) -> Result<(), BindError> {
        let mut control = self.control();
        let rkey = self.current(bind.rkey).unwrap_or(bind.rkey);
        let bind = &MwBind { rkey, ..*bind };
        let window = self.find_window(bind, pd)?;
        let is_type_2 = window.shape.contains(Shape::TYPE_2);
        let unbinds = bind.len == 0 && !is_type_2;
        let entry = match unbinds {
            true => window.invalidated(),
            false => self.bound_entry(&window, bind, qpn)?,
        };
        let slot = self.slot(bind.rkey).ok_or(BindError::NoWindow(bind.rkey))?;
        if !slot.change(bind.rkey, bind.new_rkey, &entry) {
            return Err(BindError::NoWindow(bind.rkey));
        }
        let index = self.index(bind.rkey);
        match unbinds {
            true => control.unbind(index),
            false => control.bind(index, self.index(bind.lkey), is_type_2.then_some(qpn)),
        }
        Ok(())
    }

    /// Unbinds all windows of type 2 that are bound to a queue pair.
    pub fn unbind_all(&self, qpn: u32) {
        let mut control = self.control();
        while let Some(index) = control.window_of(qpn) {
            self.unbind(&mut control, index);
        }
    }

    /// Makes a bound window one that is bound to nothing.
    pub(crate) fn unbind(&self, control: &mut Control, index: u32) {
        control.unbind(index);
        if let Some(slot) = self.slot_at(index)
            && let Some((key, entry)) = slot.current()
        {
            slot.change(key, key, &entry.invalidated());
        }
    }

    /// The window that a bind names, in a state that allows it.
    fn find_window(&self, bind: &MwBind, pd: PdId) -> Result<Entry, BindError> {
        let window = self.lookup(bind.rkey).ok();
        let window = window.filter(|entry| entry.shape.contains(Shape::WINDOW));
        let window = window.ok_or(BindError::NoWindow(bind.rkey))?;
        if window.pd != pd {
            return Err(BindError::ForeignPd);
        }
        if window.shape.contains(Shape::TYPE_2) && !window.shape.contains(Shape::INVALID) {
            return Err(BindError::InUse(bind.rkey));
        }
        check_low_byte(bind.rkey, bind.new_rkey)?;
        Ok(window)
    }

    /// Checks region, rights and range; returns what the window's key stands for when bound.
    fn bound_entry(&self, window: &Entry, bind: &MwBind, qpn: u32) -> Result<Entry, BindError> {
        let region = self.lookup(bind.lkey).map_err(|_| BindError::Region(bind.lkey))?;
        let no_parent = Shape::WINDOW | Shape::INVALID | Shape::NULL;
        let zero_based = region.access.contains(Access::ZERO_BASED);
        if region.shape.intersects(no_parent) || zero_based {
            return Err(BindError::Region(bind.lkey));
        }
        if region.pd != window.pd {
            return Err(BindError::ForeignPd);
        }
        check_rights(region.access, bind.access)?;
        let bounds = BindError::Bounds { va: bind.va, len: bind.len };
        let offset = bind.va.checked_sub(region.iova).ok_or(bounds)?;
        if bind.len == 0 || bind.len > region.len || offset > region.len - bind.len {
            return Err(bounds);
        }
        let memory = match region.memory {
            Memory::At(addr) => Memory::At(addr.wrapping_add(offset as usize)),
            Memory::Pages(list, start) => Memory::Pages(list, start + offset),
            Memory::Nothing => return Err(BindError::Region(bind.lkey)),
        };
        let based = bind.access.contains(Access::ZERO_BASED);
        Ok(Entry {
            pd: window.pd,
            memory,
            len: bind.len,
            iova: if based { 0 } else { bind.va },
            access: bind.access,
            shape: (window.shape - Shape::INVALID) | (region.shape & Shape::PROBED),
            qpn,
        })
    }
}

/// A window gives what its region allows, and writes only where the owner may write, too.
fn check_rights(region: Access, window: Access) -> Result<(), BindError> {
    let foreign = window - (WINDOW_ACCESS | Access::ZERO_BASED);
    if !foreign.is_empty() {
        return Err(BindError::Access { missing: foreign });
    }
    let mut needs = Access::MW_BIND;
    if window.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
        needs |= Access::LOCAL_WRITE;
    }
    let missing = needs - region;
    if missing.is_empty() { Ok(()) } else { Err(BindError::Access { missing }) }
}

/// The owner of a key may change its low byte.
pub(crate) fn check_low_byte(old: u32, new: u32) -> Result<(), BindError> {
    if (old ^ new) & !0xff != 0 {
        return Err(BindError::Key { old, new });
    }
    Ok(())
}
