//! Memory regions.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use irdma_mem::{Access, Buffer, MemError, MemTable, MrInfo, PdId, Rereg};
use irdma_net::maps;
use irdma_transport::{ErrorKind, Result, VerbsError};

use super::dm::DmInner;
use super::{Pd, PdInner};
use crate::channel::Refused;
use crate::context::ContextInner;
use crate::life::Use;
use crate::log::Logged;
use crate::profile::Features;

/// A registered memory region; dropping it deregisters, and unbinds what windows stand on it.
#[derive(Debug)]
pub struct Mr {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
pub(crate) struct MrInner {
    key: u32,
    context: Arc<ContextInner>,
    state: Mutex<State>,
    backing: Backing,
}

#[derive(Debug)]
struct State {
    info: MrInfo,
    registered: bool,
    _pd: Use<PdInner>,
}

/// What the memory of a region is part of, where it is not the program's.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The program's, or a buffer that the table keeps.
    Program,
    Device {
        _dm: Use<DmInner>,
    },
    File {
        _mapping: super::dmabuf::Mapping,
    },
}

/// Another place for a region (`IBV_REREG_MR_CHANGE_TRANSLATION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Process address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: u64,
    /// The first byte's address for work requests and peers.
    pub iova: u64,
}

/// What [`Mr::rereg_user_mr`] changes; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrChange<'a> {
    /// Another place.
    pub translation: Option<Translation>,
    /// Another protection domain of the same context.
    pub pd: Option<&'a Pd>,
    /// Other access flags.
    pub access: Option<Access>,
}

impl Pd {
    /// Registers `len` bytes at `addr`, which work requests and peers name by addresses from
    /// `iova` on (`ibv_reg_mr_iova(3)`), or from 0 on with [`Access::ZERO_BASED`].
    ///
    /// With [`Access::ON_DEMAND`] pages need not be mapped until they are accessed, and an access
    /// to one that is not is a protection error; 0, `u64::MAX` and 0 then register the whole
    /// address space.
    ///
    /// EINVAL for a length of 0 or above the limit, a range that wraps, or remote write or
    /// atomics without local write; EFAULT for memory that is not mapped, or not writable though
    /// `access` says so; EOPNOTSUPP for flags that the profile does not offer, and for persistent
    /// flushes of memory that is not a shared mapping of a file, or of one that is gone with the
    /// power; ENOMEM when keys are exhausted.
    ///
    /// # Safety
    /// As [`irdma_mem::MemTable::reg_user_mr`]: the memory stays mapped, writable if `access`
    /// holds a write or atomic flag, until the region is deregistered, and no reference to it
    /// is held whose rules a write by a peer would break. With [`Access::ON_DEMAND`] memory may
    /// go and come while no access to it is under way.
    pub unsafe fn reg_user_mr(
        &self,
        addr: usize,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        let on_demand = access.contains(Access::ON_DEMAND);
        if on_demand && (addr, len, iova) == (0, u64::MAX, 0) {
            return self.reg_implicit_mr(access, access).logged("reg_user_mr");
        }
        check_offered(&self.0.context, len, access)
            .and_then(|()| check_mapped(addr as u64, len, access))
            .and_then(|()| {
                let checked = access - Access::FLUSH_PERSISTENT;
                // SAFETY: our caller makes the same promise.
                self.register(len, checked, |mem, pd| unsafe {
                    mem.reg_user_mr(pd, addr, len, iova, access)
                })
            })
            .logged("reg_user_mr")
    }

    /// `asked` is what the program wants, `with` how it is registered.
    fn reg_implicit_mr(&self, asked: Access, with: Access) -> Result<Mr> {
        self.register(0, asked, |mem, pd| mem.reg_implicit_mr(pd, with))
    }

    /// A key for all memory of the process, for the owner's own lists only. An access to what is
    /// not mapped, or not writable, is a protection error.
    ///
    /// EINVAL for remote rights: the peer would reach everything.
    pub fn get_dma_mr(&self, access: Access) -> Result<Mr> {
        let allowed = match Access::LOCAL_WRITE.contains(access) {
            true => Ok(()),
            false => Err(VerbsError::invalid(format!(
                "a key for all memory with {access:?}: only LOCAL_WRITE can be had"
            ))),
        };
        allowed
            .and_then(|()| self.reg_implicit_mr(access, access | Access::ON_DEMAND))
            .logged("get_dma_mr")
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
        let (iova, len) = buffer.part(&range).map_err(verbs_error).logged("reg_buffer")?;
        self.register(len, access, |mem, pd| mem.reg_phys_mr(pd, buffer, range, iova, access))
            .logged("reg_buffer")
    }

    /// A key for the owner's own lists that reads as zeros and swallows writes
    /// (`ibv_alloc_null_mr(3)`). EOPNOTSUPP where the profile has none, ENOMEM when keys are
    /// exhausted.
    pub fn alloc_null_mr(&self) -> Result<Mr> {
        let offered = self.0.context.device.profile().check(Features::ON_DEMAND);
        offered
            .and_then(|()| self.register(0, Access::empty(), MemTable::alloc_null_mr))
            .logged("alloc_null_mr")
    }

    fn register(
        &self,
        len: u64,
        access: Access,
        register: impl FnOnce(&MemTable, PdId) -> std::result::Result<MrInfo, MemError>,
    ) -> Result<Mr> {
        self.register_on(len, access, Backing::Program, register)
    }

    pub(super) fn register_on(
        &self,
        len: u64,
        access: Access,
        backing: Backing,
        register: impl FnOnce(&MemTable, PdId) -> std::result::Result<MrInfo, MemError>,
    ) -> Result<Mr> {
        let context = &self.0.context;
        context.check()?;
        check_offered(context, len, access)?;
        check_lasting(None, access)?;
        let pd = Use::of(&self.0)?;
        let info = register(&context.engine.mem, pd.id).map_err(verbs_error)?;
        let inner = Arc::new(MrInner {
            key: info.lkey,
            context: Arc::clone(context),
            state: Mutex::new(State { info, registered: true, _pd: pd }),
            backing,
        });
        context.add_mr(&inner);
        Ok(Mr { inner })
    }
}

fn check_offered(context: &ContextInner, len: u64, access: Access) -> Result<()> {
    context.device.profile().check_access(access)?;
    let max = context.device.limits().max_mr_size;
    if len > max {
        return Err(VerbsError::invalid(format!("region of {len} bytes: above max_mr_size {max}")));
    }
    Ok(())
}

/// Only what is a file's can be made persistent.
fn check_lasting(range: Option<Range<u64>>, access: Access) -> Result<()> {
    let lasts = |range| maps::lasts(range).unwrap_or(false);
    if access.contains(Access::FLUSH_PERSISTENT) && !range.is_some_and(lasts) {
        return Err(VerbsError::unsupported(
            "access FLUSH_PERSISTENT: this memory loses its content with the power; map a file \
             that does not, shared, or be content with FLUSH_GLOBAL",
        ));
    }
    Ok(())
}

/// What hardware finds out when it pins the pages. A range that wraps is for others to refuse,
/// and where the kernel does not tell the program's promise has to do.
fn check_mapped(addr: u64, len: u64, access: Access) -> Result<()> {
    if access.contains(Access::ON_DEMAND) {
        return check_lasting(None, access);
    }
    let write = access.contains(Access::LOCAL_WRITE);
    let Some(end) = addr.checked_add(len) else { return Ok(()) };
    check_lasting(Some(addr..end), access)?;
    if maps::covers(addr..end, write).unwrap_or(true) {
        return Ok(());
    }
    let lack = if write { "mapped and writable" } else { "mapped" };
    let text = format!("region of {len} bytes at {addr:#x}: not all of it is {lack}");
    Err(VerbsError::new(ErrorKind::Fault, text))
}

pub(super) fn verbs_error(error: MemError) -> VerbsError {
    let kind = match error {
        MemError::InvalidLength { .. }
        | MemError::InvalidAccess(_)
        | MemError::UnknownKey(_)
        | MemError::WrongKind { .. }
        | MemError::PageSize(_)
        | MemError::PageCount(_) => ErrorKind::Invalid,
        MemError::Fault => ErrorKind::Fault,
        MemError::NoKeys { .. } | MemError::ListFull(_) => ErrorKind::NoMemory,
        MemError::Busy(_) => ErrorKind::Busy,
    };
    VerbsError::new(kind, error.to_string())
}

impl Mr {
    /// Addresses, length, keys and rights, as they are now.
    pub fn info(&self) -> MrInfo {
        self.inner.lock().info
    }

    /// The key for the program's own work requests.
    pub fn lkey(&self) -> u32 {
        self.inner.key
    }

    /// The key for the peer's requests.
    pub fn rkey(&self) -> u32 {
        self.inner.key
    }

    pub(super) fn mem(&self) -> &MemTable {
        &self.inner.context.engine.mem
    }

    /// Changes place, protection domain or access, under the same key (`ibv_rereg_mr(3)`).
    /// Requests that are being executed meanwhile find the old or the new registration.
    ///
    /// Errors as [`Pd::reg_user_mr`], EINVAL also for a domain of another context and for a null
    /// or implicit region, EOPNOTSUPP for one of device memory or of a file, EBUSY while windows
    /// are bound. Nothing has changed then.
    ///
    /// # Safety
    /// As [`Pd::reg_user_mr`], for the region as it is afterwards.
    pub unsafe fn rereg_user_mr(&self, change: &MrChange<'_>) -> Result<()> {
        // SAFETY: our caller makes the same promise.
        unsafe { self.inner.rereg(change) }.logged("rereg_user_mr")
    }

    /// Ends the registration: afterwards no use of the keys succeeds and none is under way.
    /// EBUSY while memory windows are bound to the region.
    pub fn dereg_mr(self) -> std::result::Result<(), Refused<Self>> {
        match self.inner.dereg(MemTable::dereg_mr).logged("dereg_mr") {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl MrInner {
    /// The key of the region, which it keeps.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// # Safety
    /// As [`Mr::rereg_user_mr`].
    unsafe fn rereg(&self, change: &MrChange<'_>) -> Result<()> {
        let context = &self.context;
        context.check_device()?;
        let mut state = self.lock();
        check_registered(&state)?;
        if !matches!(self.backing, Backing::Program) {
            return Err(VerbsError::unsupported(
                "the region is of device memory or of a file: deregister it, and register anew",
            ));
        }
        let access = change.access.unwrap_or(state.info.access);
        let Translation { addr, len, .. } = change.translation.unwrap_or(Translation {
            addr: state.info.addr,
            len: state.info.len,
            iova: state.info.iova,
        });
        if change.translation.is_some() || change.access.is_some() {
            check_offered(context, len, access)?;
            check_mapped(addr as u64, len, access)?;
        }
        let foreign = |pd: &&Pd| !Arc::ptr_eq(&pd.0.context, context);
        if change.pd.as_ref().is_some_and(foreign) {
            return Err(VerbsError::invalid("the new domain belongs to another context"));
        }
        let pd = change.pd.map(|pd| Use::of(&pd.0)).transpose()?;
        let rereg = Rereg {
            translation: change.translation.map(|to| (to.addr, to.len, to.iova)),
            pd: pd.as_ref().map(|pd| pd.id),
            access: change.access,
        };
        // SAFETY: our caller makes the same promise.
        let changed = unsafe { context.engine.mem.rereg_user_mr(self.key, &rereg) };
        state.info = changed.map_err(verbs_error)?;
        if let Some(pd) = pd {
            state._pd = pd;
        }
        Ok(())
    }

    fn dereg(&self, how: fn(&MemTable, u32) -> std::result::Result<(), MemError>) -> Result<()> {
        let context = &self.context;
        context.engine.check_fork()?;
        let mut state = self.lock();
        if !state.registered && context.is_removed() {
            return Ok(());
        }
        check_registered(&state)?;
        how(&context.engine.mem, self.key).map_err(verbs_error)?;
        state.registered = false;
        context.remove_mr(self.key);
        Ok(())
    }

    /// Deregisters if that has not happened, whatever windows are bound.
    pub(crate) fn cut(&self) {
        let _ = self.dereg(MemTable::cut_mr);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_registered(state: &State) -> Result<()> {
    if !state.registered {
        return Err(VerbsError::invalid("the region was deregistered with its context"));
    }
    Ok(())
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.inner.cut();
    }
}
