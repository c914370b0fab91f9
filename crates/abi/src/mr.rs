//! Memory regions.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma::{Access, MrInfo};

use crate::boundary::{Errno, Kept, Object, Owned, Shape, refuse, set_field};
use crate::handle;
use crate::pd::Pd;
use crate::types::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, ibv_mr,
};

/// A memory region.
pub struct Mr(Mutex<Registration>);

struct Registration {
    /// `None` once deregistration has failed half-way, as in a forked child.
    handle: Option<irdma::Mr>,
    pd: Kept<Pd>,
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
    let handle = register(pd, addr.addr(), len as u64, iova, access)?;
    let mut c = ibv_mr::zeroed();
    c.context = pd.seen().context;
    c.pd = pd.as_seen();
    c.addr = addr;
    c.length = len;
    c.handle = handle::next();
    c.lkey = handle.lkey();
    c.rkey = handle.rkey();
    // SAFETY: the region stands on the domain.
    let pd = unsafe { Kept::new(pd) };
    Ok(Object::new(c, Mr(Mutex::new(Registration { handle: Some(handle), pd }))))
}

/// Flags that the device may ignore are ignored; unknown others are refused.
fn access_flags(call: &str, flags: u32) -> Result<Access, Errno> {
    let unknown_is_fine = Access::from_bits_truncate(flags & IBV_ACCESS_OPTIONAL_RANGE);
    match Access::from_bits(flags & !IBV_ACCESS_OPTIONAL_RANGE) {
        Some(access) if !access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) => {
            Ok(access | unknown_is_fine)
        }
        _ => {
            let cause = format!("access {flags:#x}: flush or unknown flags, leave them out");
            Err(refuse(call, libc::EINVAL, &cause))
        }
    }
}

fn register(
    pd: &Object<Pd>,
    addr: usize,
    len: u64,
    iova: u64,
    access: Access,
) -> Result<irdma::Mr, Errno> {
    // SAFETY: the promise of whoever calls `ibv_reg_mr`: the memory stays until `ibv_dereg_mr`.
    Ok(unsafe { pd.handle.reg_user_mr(addr, len, iova, access) }?)
}

/// `ibv_dereg_mr(3)`.
pub fn dereg(mr: Owned<Mr>) -> Result<(), Errno> {
    let handle = mr.get().lock().handle.take();
    let handle = handle.ok_or_else(|| refuse("ibv_dereg_mr", libc::EINVAL, "done before"))?;
    if let Err(refused) = handle.dereg_mr() {
        mr.get().lock().handle = Some(refused.handle);
        return Err(refused.error.into());
    }
    drop(mr.take());
    Ok(())
}

/// `ibv_rereg_mr(3)`: registers anew under new keys, and ends the old registration if that
/// succeeded. A refused call leaves the region as it was, which `IBV_REREG_MR_ERR_INPUT` says.
pub fn rereg(
    mr: &Object<Mr>,
    flags: c_int,
    pd: Option<&Object<Pd>>,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> Result<(), Errno> {
    let mut registration = mr.lock();
    let known =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags == 0 || flags & !known != 0 {
        return Err(refuse("ibv_rereg_mr", libc::EINVAL, "flags: none, or unknown ones"));
    }
    let old = registration.info()?;
    let moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let (addr, len, iova) = if moved {
        (addr.addr(), len as u64, addr.addr() as u64)
    } else {
        (old.addr, old.len, old.iova)
    };
    let access = match flags & IBV_REREG_MR_CHANGE_ACCESS {
        0 => old.access,
        _ => access_flags("ibv_rereg_mr", access as u32)?,
    };
    let pd = match flags & IBV_REREG_MR_CHANGE_PD {
        0 => &*registration.pd,
        _ => pd.filter(|pd| pd.seen().context == mr.seen().context).ok_or_else(|| {
            refuse("ibv_rereg_mr", libc::EINVAL, "the new PD is NULL or of another context")
        })?,
    };
    let new = register(pd, addr, len, iova, access)?;
    show(mr, &new, pd);
    // SAFETY: the new region stands on the domain.
    let pd = unsafe { Kept::new(pd) };
    // Dropping the old registration ends it.
    *registration = Registration { handle: Some(new), pd };
    Ok(())
}

fn show(mr: &Object<Mr>, handle: &irdma::Mr, pd: &Object<Pd>) {
    let info = handle.info();
    set_field!(mr, pd, pd.as_seen());
    set_field!(mr, addr, std::ptr::with_exposed_provenance_mut(info.addr));
    set_field!(mr, length, info.len as usize);
    set_field!(mr, lkey, info.lkey);
    set_field!(mr, rkey, info.rkey);
}

impl Mr {
    fn lock(&self) -> MutexGuard<'_, Registration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    fn info(&self) -> Result<MrInfo, Errno> {
        let info = self.handle.as_ref().map(irdma::Mr::info);
        info.ok_or_else(|| refuse("ibv_rereg_mr", libc::EINVAL, "deregistered"))
    }
}
