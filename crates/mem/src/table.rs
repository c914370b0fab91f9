//! The key table: finds the region of a key without a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::fast::FastPages;
use crate::region::Grant;
use crate::slot::{Entry, Persist, Probe, Slot};
use crate::stag::{MAX_KEYS, StagLayout, Stags};
use crate::{Access, Buffer, GrantError, MemError};

/// Slots are made in chunks of a page, when one of their keys is first used.
const CHUNK: usize = 64;

/// Number of a protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// All registered memory of a process, shared by all threads.
pub struct MemTable {
    layout: StagLayout,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    control: Mutex<Control>,
    probe: OnceLock<Probe>,
    persist: OnceLock<Persist>,
}

/// What registration, binding and their ends change, all by index; grants never look here.
pub(crate) struct Control {
    pub(crate) stags: Stags,
    /// Buffers of the library's own registrations, kept alive.
    pub(crate) buffers: BTreeMap<u32, Arc<Buffer>>,
    /// The next lists of regions for fast registration.
    pub(crate) fast: BTreeMap<u32, FastPages>,
    /// How many windows are bound to a region.
    windows: BTreeMap<u32, u32>,
    /// Bound windows: their region, and the queue pair of one of type 2.
    bound: BTreeMap<u32, (u32, Option<u32>)>,
    /// Windows of type 2 by the queue pair they are bound to.
    by_qp: BTreeSet<(u32, u32)>,
}

impl Control {
    /// EBUSY while windows are bound to a region.
    pub(crate) fn check_unbound(&self, index: u32, key: u32) -> Result<(), MemError> {
        if self.windows.contains_key(&index) { Err(MemError::Busy(key)) } else { Ok(()) }
    }

    /// Notes that a window stands on a region, and no longer on the one before.
    pub(crate) fn bind(&mut self, window: u32, region: u32, qpn: Option<u32>) {
        self.unbind(window);
        *self.windows.entry(region).or_default() += 1;
        self.bound.insert(window, (region, qpn));
        self.by_qp.extend(qpn.map(|qpn| (qpn, window)));
    }

    /// Notes that a window stands on nothing; also where it did not before.
    pub(crate) fn unbind(&mut self, window: u32) {
        let Some((region, qpn)) = self.bound.remove(&window) else { return };
        if let Some(qpn) = qpn {
            self.by_qp.remove(&(qpn, window));
        }
        if let Some(count) = self.windows.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                self.windows.remove(&region);
            }
        }
    }

    /// A window that is bound to a region.
    pub(crate) fn window_on(&self, region: u32) -> Option<u32> {
        let on = |(_, (parent, _)): &(&u32, &(u32, Option<u32>))| *parent == region;
        self.bound.iter().find(on).map(|(window, _)| *window)
    }

    /// A window of type 2 that is bound to a queue pair.
    pub(crate) fn window_of(&self, qpn: u32) -> Option<u32> {
        self.by_qp.range((qpn, 0)..=(qpn, u32::MAX)).next().map(|(_, window)| *window)
    }
}

impl MemTable {
    /// An empty table for at most `max_mr` keys (2^24 - 1 where more are asked for); the keys
    /// are as unpredictable as `seed` is.
    pub fn new(seed: u64, max_mr: u32) -> Self {
        let max_mr = max_mr.min(MAX_KEYS);
        let chunk_count = max_mr as usize / CHUNK + 1;
        Self {
            layout: StagLayout::new(max_mr),
            chunks: (0..chunk_count).map(|_| OnceLock::new()).collect(),
            control: Mutex::new(Control {
                stags: Stags::new(seed, max_mr),
                buffers: BTreeMap::new(),
                fast: BTreeMap::new(),
                windows: BTreeMap::new(),
                bound: BTreeMap::new(),
                by_qp: BTreeSet::new(),
            }),
            probe: OnceLock::new(),
            persist: OnceLock::new(),
        }
    }

    /// Says how to ask whether pages are there, once; without it nothing registered on demand
    /// can be accessed.
    pub fn set_probe(&self, probe: Probe) {
        self.probe.get_or_init(|| probe);
    }

    /// Says how to make bytes persistent, once; without it nothing can be.
    pub fn set_persist(&self, persist: Persist) {
        self.persist.get_or_init(|| persist);
    }

    /// Makes a range of a region persistent, or the whole region where there is none, for a FLUSH
    /// that the peer sent to queue pair `qpn` of `pd`; false if the bytes cannot be written.
    ///
    /// # Errors
    /// See [`GrantError`]; the region needs [`Access::FLUSH_PERSISTENT`].
    pub fn persist(
        &self,
        key: u32,
        range: Option<(u64, u64)>,
        who: (PdId, u32),
    ) -> Result<bool, GrantError> {
        let whole = || self.query(key).map(|info| (info.iova, info.len));
        let range = range.or_else(whole).ok_or(GrantError::UnknownKey)?;
        let grant = self.grant_to_peer(key, range, Access::FLUSH_PERSISTENT, who)?;
        Ok(self.persist.get().is_some_and(|persist| grant.persist(*persist)))
    }

    /// Regions and windows that exist now.
    pub fn len(&self) -> usize {
        self.control().stags.live() as usize
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Proves that `len` bytes at `va` may be used as `need` says, by a queue pair of `pd`.
    ///
    /// `need` is empty for a gather (send, WRITE source), [`Access::LOCAL_WRITE`] for a scatter
    /// (receive, READ result), a `REMOTE_*` flag for a request of the peer. A range of 0 bytes
    /// may be anywhere.
    ///
    /// A thread holds one grant at a time: whoever changes what the key stands for waits for it,
    /// and the next grant waits for the change.
    ///
    /// # Errors
    /// See [`GrantError`]; checked in the order key, protection domain, access, bounds.
    #[inline(always)]
    pub fn grant(
        &self,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
        pd: PdId,
    ) -> Result<Grant<'_>, GrantError> {
        let slot = self.slot(key).ok_or(GrantError::UnknownKey)?;
        slot.grant(key, (va, len), need, (pd, None), Some(&self.probe))
    }

    /// As [`MemTable::grant`], for a request that the peer sent to queue pair `qpn` of `pd`: such
    /// a request may use windows, those of type 2 only if they are bound to that queue pair.
    ///
    /// # Errors
    /// See [`GrantError`].
    #[inline(always)]
    pub fn grant_to_peer(
        &self,
        key: u32,
        (va, len): (u64, u64),
        need: Access,
        (pd, qpn): (PdId, u32),
    ) -> Result<Grant<'_>, GrantError> {
        let slot = self.slot(key).ok_or(GrantError::UnknownKey)?;
        slot.grant(key, (va, len), need, (pd, Some(qpn)), Some(&self.probe))
    }

    /// What [`MemTable::grant_to_peer`] says of a range that is accessed later, piece by piece:
    /// pages that may come and go are not asked for yet.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn check_for_peer(
        &self,
        key: u32,
        range: (u64, u64),
        need: Access,
        (pd, qpn): (PdId, u32),
    ) -> Result<(), GrantError> {
        let slot = self.slot(key).ok_or(GrantError::UnknownKey)?;
        slot.grant(key, range, need, (pd, Some(qpn)), None).map(drop)
    }

    /// What a valid key stands for.
    pub(crate) fn lookup(&self, key: u32) -> Result<Entry, MemError> {
        let entry = self.slot(key).and_then(|slot| slot.entry(key));
        entry.ok_or(MemError::UnknownKey(key))
    }

    /// The valid key that differs from `key` in its low byte at most.
    pub fn current(&self, key: u32) -> Option<u32> {
        let (now, _) = self.slot(key)?.current()?;
        ((now ^ key) & !0xff == 0).then_some(now)
    }

    /// The part of a key that stays when its low byte changes.
    pub(crate) fn index(&self, key: u32) -> u32 {
        self.layout.index(key)
    }

    /// Ends a key and waits for its grants, without the lock.
    pub(crate) fn retire(
        &self,
        control: MutexGuard<'_, Control>,
        key: u32,
    ) -> Result<(), MemError> {
        let unknown = MemError::UnknownKey(key);
        let slot = self.slot(key).ok_or(unknown)?;
        if !slot.clear_key(key) {
            return Err(unknown);
        }
        drop(control);
        slot.wait_until_free();
        let mut control = self.control();
        control.stags.free_stag(key);
        control.buffers.remove(&self.index(key));
        control.fast.remove(&self.index(key));
        Ok(())
    }

    /// The slot where a key would be; none for index 0 and where no key ever was.
    #[inline]
    pub(crate) fn slot(&self, key: u32) -> Option<&Slot> {
        self.slot_at(self.layout.index(key))
    }

    #[inline]
    pub(crate) fn slot_at(&self, index: u32) -> Option<&Slot> {
        let index = index as usize;
        if index == 0 {
            return None;
        }
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// The slot of a key that [`Stags`] made, with its chunk.
    pub(crate) fn make_slot(&self, key: u32) -> &Slot {
        let index = self.layout.index(key) as usize;
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| std::iter::repeat_with(Slot::default).take(CHUNK).collect());
        &chunk[index % CHUNK]
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
