//! Memory regions.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma::{Access, Advice, AdviseFlags, MrChange, Sge, Translation};

use crate::boundary::{Errno, FromC, Object, Owned, Shape, refuse, set_field};
use crate::dm::Dm;
use crate::handle;
use crate::import::Listed;
use crate::pd::Pd;
use crate::types::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_ADVICE_PREFETCH,
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, ibv_mr,
    ibv_pd, ibv_sge,
};

/// A memory region.
pub struct Mr {
    /// `None` in an imported region, and once deregistration has failed half-way, as in a forked
    /// child.
    handle: Mutex<Option<irdma::Mr>>,
    _listed: Option<Listed<Keys>>,
}

/// The keys of a region.
#[derive(Clone, Copy)]
pub struct Keys {
    lkey: u32,
    rkey: u32,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Mr {
    type C = ibv_mr;
    type Seen = ibv_mr;
}

/// `ibv_reg_mr(3)`: the region's addresses are those of its memory.
pub fn reg(
    pd: &Object<Pd>,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> Result<Box<Object<Mr>>, Errno> {
    reg_iova(pd, addr, len, addr.addr() as u64, access)
}

/// `ibv_reg_mr_iova(3)`.
pub fn reg_iova(
    pd: &Object<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> Result<Box<Object<Mr>>, Errno> {
    reg_iova2(pd, addr, len, iova, access as u32)
}

/// What `ibv_reg_mr` of newer headers calls.
pub fn reg_iova2(
    pd: &Object<Pd>,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> Result<Box<Object<Mr>>, Errno> {
    let access = access_flags("ibv_reg_mr", access)?;
    // SAFETY: the promise of whoever calls `ibv_reg_mr`: the memory stays until `ibv_dereg_mr`.
    let handle = unsafe { pd.handle.reg_user_mr(addr.addr(), len as u64, iova, access) }?;
    Ok(make(pd, addr, len, handle))
}

/// `ibv_reg_dmabuf_mr(3)`.
pub fn reg_dmabuf(
    pd: &Object<Pd>,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> Result<Box<Object<Mr>>, Errno> {
    const CALL: &str = "ibv_reg_dmabuf_mr";
    let access = access_flags(CALL, access as u32)?;
    if fd < 0 {
        return Err(refuse(CALL, libc::EBADF, &format!("{fd} is no file descriptor")));
    }
    // SAFETY: the program's descriptor, which it does not close during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let handle = pd.handle.reg_dmabuf_mr(offset, len as u64, iova, fd, access)?;
    Ok(make(pd, ptr::null_mut(), len, handle))
}

/// `ibv_reg_dm_mr(3)`.
pub fn reg_dm(
    pd: &Object<Pd>,
    dm: &Object<Dm>,
    offset: u64,
    len: usize,
    access: u32,
) -> Result<Box<Object<Mr>>, Errno> {
    let access = access_flags("ibv_reg_dm_mr", access)?;
    let handle = pd.handle.reg_dm_mr(&dm.handle, offset, len as u64, access)?;
    Ok(make(pd, ptr::null_mut(), len, handle))
}

/// `ibv_alloc_null_mr(3)`.
pub fn alloc_null(pd: &Object<Pd>) -> Result<Box<Object<Mr>>, Errno> {
    let handle = pd.handle.alloc_null_mr()?;
    Ok(make(pd, ptr::null_mut(), 0, handle))
}

fn make(pd: &Object<Pd>, addr: *mut c_void, len: usize, handle: irdma::Mr) -> Box<Object<Mr>> {
    let keys = Keys { lkey: handle.lkey(), rkey: handle.rkey() };
    let number = handle::next();
    let mut c = structure(pd, keys, number);
    c.addr = addr;
    c.length = len;
    let listed = pd.directory.mrs.list(number, keys);
    Object::new(c, Mr { handle: Mutex::new(Some(handle)), _listed: Some(listed) })
}

/// What `ibv_import_mr` makes of a region that it found: its keys, without address and length.
pub fn imported(pd: &Object<Pd>, keys: Keys, number: u32) -> Box<Object<Mr>> {
    let own = Mr { handle: Mutex::new(None), _listed: None };
    Object::new(structure(pd, keys, number), own)
}

fn structure(pd: &Object<Pd>, keys: Keys, number: u32) -> ibv_mr {
    let mut c = ibv_mr::zeroed();
    c.context = pd.seen().context;
    c.pd = pd.as_seen();
    c.handle = number;
    c.lkey = keys.lkey;
    c.rkey = keys.rkey;
    c
}

/// `ibv_advise_mr(3)`.
pub fn advise(
    pd: &Object<Pd>,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> Result<(), Errno> {
    const CALL: &str = "ibv_advise_mr";
    let advice = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
        _ => return Err(refuse(CALL, libc::EOPNOTSUPP, "advice: there are 0, 1 and 2")),
    };
    if list.is_null() && count > 0 {
        return Err(refuse(CALL, libc::EINVAL, "sg_list is NULL"));
    }
    let sge = |at| {
        // SAFETY: the program's list has `count` elements.
        Sge::from(unsafe { list.wrapping_add(at).read_unaligned() })
    };
    let sges: Vec<Sge> = (0..count as usize).map(sge).collect();
    Ok(pd.handle.advise_mr(advice, AdviseFlags::from_bits_retain(flags), &sges)?)
}

/// Flags that the device may ignore are ignored; unknown others are refused.
fn access_flags(call: &str, flags: u32) -> Result<Access, Errno> {
    let unknown_is_fine = Access::from_bits_truncate(flags & IBV_ACCESS_OPTIONAL_RANGE);
    let access = Access::from_bits(flags & !IBV_ACCESS_OPTIONAL_RANGE).ok_or_else(|| {
        refuse(call, libc::EINVAL, &format!("access {flags:#x}: leave unknown flags out"))
    })?;
    Ok(access | unknown_is_fine)
}

/// `ibv_dereg_mr(3)`.
pub fn dereg(mr: Owned<Mr>) -> Result<(), Errno> {
    let handle = mr.get().lock().take();
    let handle = handle.ok_or_else(|| {
        refuse("ibv_dereg_mr", libc::EINVAL, "done before, or an imported region")
    })?;
    if let Err(refused) = handle.dereg_mr() {
        *mr.get().lock() = Some(refused.handle);
        return Err(refused.error.into());
    }
    drop(mr.take());
    Ok(())
}

/// `ibv_rereg_mr(3)`: the keys stay. A refused call leaves the region as it was, which
/// `IBV_REREG_MR_ERR_INPUT` says.
///
/// `pd` is looked at only if it is to change: programs pass anything otherwise.
pub fn rereg(
    mr: &Object<Mr>,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> Result<(), Errno> {
    const CALL: &str = "ibv_rereg_mr";
    let known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags == 0 || flags & !known != 0 {
        return Err(refuse(CALL, libc::EINVAL, "flags: none, or unknown ones"));
    }
    let asked = |flag| flags & flag != 0;
    // SAFETY: the program promises a live domain.
    let pd = asked(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { <&Object<Pd>>::from_c(pd) });
    let pd = pd.transpose().map_err(|code| refuse(CALL, code.0, "pd is NULL"))?;
    let access = asked(IBV_REREG_MR_CHANGE_ACCESS).then(|| access_flags(CALL, access as u32));
    let translation = asked(IBV_REREG_MR_CHANGE_TRANSLATION).then(|| Translation {
        addr: addr.addr(),
        len: len as u64,
        iova: addr.addr() as u64,
    });
    let moved = translation.is_some();
    let change =
        MrChange { translation, pd: pd.map(|pd| &*pd.handle), access: access.transpose()? };
    let handle = mr.lock();
    let handle = handle
        .as_ref()
        .ok_or_else(|| refuse(CALL, libc::EINVAL, "deregistered, or an imported region"))?;
    // SAFETY: as for `ibv_reg_mr`: the memory stays.
    unsafe { handle.rereg_user_mr(&change) }?;
    if moved {
        set_field!(mr, addr, addr);
        set_field!(mr, length, len);
    }
    if let Some(pd) = pd {
        set_field!(mr, pd, pd.as_seen());
    }
    Ok(())
}

impl Mr {
    fn lock(&self) -> MutexGuard<'_, Option<irdma::Mr>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
