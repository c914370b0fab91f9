//! One entry of the key table: what a key stands for, and who is using it.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use bitflags::bitflags;

use crate::pbl::PageList;
use crate::region::{Grant, Place};
use crate::{Access, GrantError, PdId, Rights, get_mr_access};

bitflags! {
    /// What a key is beside a plain region; stored above the [`Rights`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Shape: u32 {
        /// A memory window.
        const WINDOW = 1 << 16;
        /// A window of type 2: tied to the queue pair that binds it.
        const TYPE_2 = 1 << 17;
        /// A region for fast registration.
        const FAST = 1 << 18;
        /// Reserved, but nothing is bound or registered.
        const INVALID = 1 << 19;
        /// The bytes lie in pages of a list.
        const PAGED = 1 << 20;
        /// Pages may come and go: each access asks first.
        const PROBED = 1 << 21;
        /// Reads as zeros, swallows writes.
        const NULL = 1 << 22;
        /// Memory of the device: registered by itself only.
        const DEVICE = 1 << 23;
    }
}

/// Asks whether `len` bytes at an address can be read, or written, without a fault.
pub type Probe = fn(addr: usize, len: usize, write: bool) -> bool;

/// Writes `len` bytes at an address to where they outlive a loss of power; false if it fails.
pub type Persist = fn(addr: usize, len: usize) -> bool;

/// Where the bytes of a key are.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// At a process address, one after the other.
    At(usize),
    /// In pages, from this byte of the list on.
    Pages(Arc<PageList>, u64),
    /// Nowhere.
    Nothing,
}

/// What a key stands for.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pd: PdId,
    pub(crate) memory: Memory,
    pub(crate) len: u64,
    pub(crate) iova: u64,
    pub(crate) access: Access,
    pub(crate) shape: Shape,
    /// The queue pair that a type 2 window is bound to.
    pub(crate) qpn: u32,
}

impl Entry {
    /// A key that is reserved and does not work yet.
    pub(crate) fn reserved(pd: PdId, shape: Shape) -> Self {
        let (memory, access) = (Memory::Nothing, Access::empty());
        Entry { pd, memory, len: 0, iova: 0, access, shape: shape | Shape::INVALID, qpn: 0 }
    }

    /// What is left of the key when it is invalidated.
    pub(crate) fn invalidated(&self) -> Self {
        Self::reserved(self.pd, self.shape & (Shape::WINDOW | Shape::TYPE_2 | Shape::FAST))
    }
}

/// One entry of the key table, on a cache line of its own.
///
/// `state` is the key in its high half (0: none), and in its low half the number of pins and
/// whether the entry is being changed, so that one atomic addition both pins the entry and tells
/// whether the key is the right one.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    state: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
    pd: AtomicU32,
    access: AtomicU32,
    /// [`Rights`] and [`Shape`].
    rights: AtomicU32,
    qpn: AtomicU32,
    pages: Mutex<Option<Arc<PageList>>>,
}

const _: () = assert!(size_of::<Slot>() == 64);

const PIN: u64 = 1;
const FROZEN: u64 = 1 << 31;
const KEY_SHIFT: u32 = 32;
const PIN_MASK: u64 = FROZEN - 1;

fn key_of(state: u64) -> u32 {
    (state >> KEY_SHIFT) as u32
}

impl Slot {
    /// Makes a key valid: the step after which it works, for all threads at once.
    pub(crate) fn publish(&self, key: u32, entry: &Entry) {
        self.store(entry);
        // Added, not stored: a late user of an old key may have the entry pinned for a moment.
        self.state.fetch_add(u64::from(key) << KEY_SHIFT, Release);
    }

    fn store(&self, entry: &Entry) {
        let (addr, pages, paged) = match &entry.memory {
            Memory::At(addr) => (*addr as u64, None, Shape::empty()),
            Memory::Pages(list, start) => (*start, Some(Arc::clone(list)), Shape::PAGED),
            Memory::Nothing => (0, None, Shape::empty()),
        };
        let shape = (entry.shape - Shape::PAGED) | paged;
        self.addr.store(addr, Relaxed);
        self.len.store(entry.len, Relaxed);
        self.iova.store(entry.iova, Relaxed);
        self.pd.store(entry.pd.0, Relaxed);
        self.access.store(entry.access.bits(), Relaxed);
        self.rights.store(get_mr_access(entry.access).bits() | shape.bits(), Relaxed);
        self.qpn.store(entry.qpn, Relaxed);
        *self.lock_pages() = pages;
    }

    /// Changes what a key stands for, and its low byte with it. Users see the old or the new
    /// entry: the change lets no more grants out and waits for those that are. One change at a
    /// time; false if the key is not valid.
    pub(crate) fn change(&self, old: u32, new: u32, entry: &Entry) -> bool {
        let freeze = |state: u64| (key_of(state) == old).then_some(state | FROZEN);
        if self.state.fetch_update(Acquire, Relaxed, freeze).is_err() {
            return false;
        }
        // Who pins the entry from now on sees that it is frozen, and looks at nothing else of it.
        let mut looks = 0;
        while self.state.load(Acquire) & PIN_MASK != 0 {
            pause(&mut looks);
        }
        self.store(entry);
        let idle = u64::from(old) << KEY_SHIFT;
        let step = (u64::from(new) << KEY_SHIFT).wrapping_sub(idle).wrapping_sub(FROZEN);
        self.state.fetch_add(step, Release);
        true
    }

    /// Makes the key invalid; false if it is not valid. Grants may still be out.
    pub(crate) fn clear_key(&self, key: u32) -> bool {
        let clear =
            |state: u64| (key_of(state) == key && state & FROZEN == 0).then_some(state & PIN_MASK);
        self.state.fetch_update(AcqRel, Relaxed, clear).is_ok()
    }

    /// Waits until no grant is out; looks for a moment before it sleeps, because copies are short.
    pub(crate) fn wait_until_free(&self) {
        let is_held = || self.state.load(Acquire) != 0;
        if (0..100).all(|_| is_held()) {
            let guard = LAST_PIN.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(LAST_PIN.1.wait_while(guard, |()| is_held()));
        }
        *self.lock_pages() = None;
    }

    /// What `key` stands for.
    pub(crate) fn entry(&self, key: u32) -> Option<Entry> {
        let _pin = self.pin(key)?;
        let shape = self.shape();
        let addr = self.addr.load(Relaxed);
        let memory = match &*self.lock_pages() {
            Some(list) => Memory::Pages(Arc::clone(list), addr),
            None if shape.intersects(Shape::INVALID | Shape::NULL) => Memory::Nothing,
            None => Memory::At(addr as usize),
        };
        Some(Entry {
            pd: PdId(self.pd.load(Relaxed)),
            memory,
            len: self.len.load(Relaxed),
            iova: self.iova.load(Relaxed),
            access: Access::from_bits_retain(self.access.load(Relaxed)),
            shape,
            qpn: self.qpn.load(Relaxed),
        })
    }

    /// The valid key and what it stands for.
    pub(crate) fn current(&self) -> Option<(u32, Entry)> {
        let key = key_of(self.state.load(Acquire));
        self.entry(key).filter(|_| key != 0).map(|entry| (key, entry))
    }

    fn shape(&self) -> Shape {
        Shape::from_bits_truncate(self.rights.load(Relaxed))
    }

    /// Checks key, protection domain, rights and range, in this order, and with a `probe` the
    /// pages that may come and go. `qpn` is that of a queue pair that got the key from its peer,
    /// none for its own use.
    // Inlined everywhere, or the result goes through memory, which costs more than the checks.
    #[inline(always)]
    pub(crate) fn grant(
        &self,
        key: u32,
        (va, len): (u64, u64),
        need: Access,
        (pd, qpn): (PdId, Option<u32>),
        probe: Option<&OnceLock<Probe>>,
    ) -> Result<Grant<'_>, GrantError> {
        let pin = self.pin(key).ok_or(GrantError::UnknownKey)?;
        if self.pd.load(Relaxed) != pd.0 {
            return Err(GrantError::ForeignPd);
        }
        let word = self.rights.load(Relaxed);
        if word & Shape::all().bits() != 0 {
            self.check_shape(qpn)?;
        }
        let rights = Rights::from_bits_truncate(word);
        if !rights.contains(get_mr_access(need)) {
            return Err(missing(need, rights));
        }
        let addr = self.addr.load(Relaxed).wrapping_add(self.offset(key, va, len)?);
        let mut place = Place { addr: addr as usize, pages: None };
        if word & Shape::all().bits() != 0 {
            place = self.special_place(addr, len, need, probe)?;
        }
        Ok(Grant::new(pin, place, len))
    }

    /// Where the bytes of a key are that is not a plain region; `addr` is where they would be.
    #[cold]
    #[inline(never)]
    fn special_place(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        probe: Option<&OnceLock<Probe>>,
    ) -> Result<Place, GrantError> {
        let shape = self.shape();
        if shape.contains(Shape::NULL) {
            return Ok(Place::NULL);
        }
        if let Some(list) = &*self.lock_pages() {
            return Ok(Place { addr: 0, pages: Some(Box::new((Arc::clone(list), addr))) });
        }
        if let Some(probe) = probe
            && shape.contains(Shape::PROBED)
            && len > 0
        {
            let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let writes = need.intersects(writes);
            let is_there = probe.get().is_some_and(|ask| ask(addr as usize, len as usize, writes));
            if !is_there {
                return Err(GrantError::Unmapped { addr, len });
            }
        }
        Ok(Place { addr: addr as usize, pages: None })
    }

    /// What windows and reserved keys ask for beside the domain.
    #[cold]
    #[inline(never)]
    fn check_shape(&self, qpn: Option<u32>) -> Result<(), GrantError> {
        let shape = self.shape();
        if shape.contains(Shape::INVALID) {
            return Err(GrantError::Invalid);
        }
        match qpn {
            None if shape.contains(Shape::WINDOW) => Err(GrantError::Window),
            Some(_) if shape.contains(Shape::NULL) => Err(GrantError::UnknownKey),
            Some(user) if shape.contains(Shape::TYPE_2) && user != self.qpn.load(Relaxed) => {
                Err(GrantError::ForeignQp)
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn offset(&self, key: u32, va: u64, len: u64) -> Result<u64, GrantError> {
        let start = self.iova.load(Relaxed);
        let region_len = self.len.load(Relaxed);
        if len == 0 {
            return Ok(0);
        }
        match va.checked_sub(start) {
            Some(offset) if len <= region_len && offset <= region_len - len => Ok(offset),
            _ => Err(GrantError::Bounds { key, start, region_len, va, len }),
        }
    }

    /// Holds the entry in place if it has this key.
    #[inline(always)]
    fn pin(&self, key: u32) -> Option<Pin<'_>> {
        // A look first: wrong keys must not keep a retiring thread waiting.
        if key_of(self.state.load(Relaxed)) != key {
            return None;
        }
        let state = self.state.fetch_add(PIN, Acquire);
        let pin = Pin(self);
        if state & FROZEN != 0 {
            drop(pin);
            return self.pin_when_changed(key);
        }
        (key_of(state) == key).then_some(pin)
    }

    /// Holds the entry in place once a change has ended.
    #[cold]
    #[inline(never)]
    fn pin_when_changed(&self, key: u32) -> Option<Pin<'_>> {
        let mut looks = 0;
        while self.state.load(Relaxed) & FROZEN != 0 {
            pause(&mut looks);
        }
        self.pin(key)
    }

    fn lock_pages(&self) -> std::sync::MutexGuard<'_, Option<Arc<PageList>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the other thread finish its copy or its change.
#[cold]
#[inline(never)]
fn pause(looks: &mut u32) {
    *looks += 1;
    if *looks < 100 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cold]
fn missing(need: Access, rights: Rights) -> GrantError {
    let missing = need.iter().filter(|flag| !rights.contains(get_mr_access(*flag))).collect();
    GrantError::Access { missing }
}

/// Where a retiring thread sleeps until the last pin is gone.
static LAST_PIN: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Holds an entry in place.
pub(crate) struct Pin<'a>(&'a Slot);

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        // No key and this pin only: somebody may be waiting for it.
        if self.0.state.fetch_sub(PIN, Release) == PIN {
            wake_retiring();
        }
    }
}

/// The lock makes sure that whoever saw the pin is asleep by now, or looks again.
#[cold]
fn wake_retiring() {
    drop(LAST_PIN.0.lock().unwrap_or_else(PoisonError::into_inner));
    LAST_PIN.1.notify_all();
}
