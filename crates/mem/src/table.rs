//! The key table: finds the region of a key without a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::region::{Grant, Slot};
use crate::stag::{MAX_KEYS, StagLayout, Stags};
use crate::{Access, Buffer, GrantError};

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
}

/// What registration and deregistration change; grants never look here.
pub(crate) struct Control {
    pub(crate) stags: Stags,
    /// Buffers of the library's own registrations, kept alive by key.
    pub(crate) buffers: BTreeMap<u32, Arc<Buffer>>,
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
            }),
        }
    }

    /// Regions registered now.
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
    /// # Errors
    /// See [`GrantError`]; checked in the order key, protection domain, access, bounds.
    #[inline]
    pub fn grant(
        &self,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
        pd: PdId,
    ) -> Result<Grant<'_>, GrantError> {
        let slot = self.slot(key).ok_or(GrantError::UnknownKey)?;
        slot.grant(key, va, len, need, pd)
    }

    /// The slot where a key would be; none for index 0 and where no key ever was.
    #[inline]
    pub(crate) fn slot(&self, key: u32) -> Option<&Slot> {
        let index = self.layout.index(key) as usize;
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
