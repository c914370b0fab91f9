//! Device memory.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;

use irdma::DmAttr;

use crate::boundary::{
    End, Ends, Errno, InOut, Object, Shape, Status, arg, cross, read_program, refuse, write_program,
};
use crate::context::Context;
use crate::handle;
use crate::import::Listed;
use crate::types::{ibv_alloc_dm_attr, ibv_dm};

/// Device memory.
pub struct Dm {
    pub handle: ManuallyDrop<irdma::Dm>,
    _listed: Option<Listed<irdma::Dm>>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Dm {
    type C = ibv_dm;
    type Seen = ibv_dm;
}

impl Ends for Dm {
    type Handle = irdma::Dm;
    const END: End<irdma::Dm> = irdma::Dm::free_dm;

    fn handle(&self) -> &ManuallyDrop<irdma::Dm> {
        &self.handle
    }
}

/// `ibv_alloc_dm(3)`.
pub fn alloc(
    context: &Object<Context>,
    attr: InOut<'_, ibv_alloc_dm_attr>,
) -> Result<Box<Object<Dm>>, Errno> {
    let asked = attr.get();
    if asked.comp_mask != 0 {
        return Err(refuse("ibv_alloc_dm", libc::EINVAL, "comp_mask has unknown bits"));
    }
    let attr = DmAttr { length: asked.length as u64, log_align_req: asked.log_align_req };
    let handle = context.handle.alloc_dm(attr)?;
    let number = handle::next();
    let listed = context.directory.dms.list(number, handle.import_dm());
    Ok(make(context, handle, number, Some(listed)))
}

/// The structure of device memory, which is found again while it is listed.
pub fn make(
    context: &Object<Context>,
    handle: irdma::Dm,
    number: u32,
    listed: Option<Listed<irdma::Dm>>,
) -> Box<Object<Dm>> {
    let c = ibv_dm {
        context: context.as_seen(),
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle: number,
    };
    Object::new(c, Dm { handle: ManuallyDrop::new(handle), _listed: listed })
}

/// `ibv_memcpy_to_dm(3)`.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host: *const c_void,
    len: usize,
) -> c_int {
    cross::<Status>("ibv_memcpy_to_dm", || {
        // SAFETY: the program's promise of live device memory.
        let dm = unsafe { arg::<&Object<Dm>>("ibv_memcpy_to_dm", "dm", dm) }?;
        check("ibv_memcpy_to_dm", dm, host, len)?;
        let mut bytes = vec![0; len];
        // SAFETY: the program's buffer has `len` bytes.
        unsafe { read_program(host.cast(), &mut bytes) }
        Ok(dm.handle.memcpy_to_dm(offset, &bytes)?)
    })
}

/// `ibv_memcpy_from_dm(3)`.
unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    cross::<Status>("ibv_memcpy_from_dm", || {
        // SAFETY: the program's promise of live device memory.
        let dm = unsafe { arg::<&Object<Dm>>("ibv_memcpy_from_dm", "dm", dm) }?;
        check("ibv_memcpy_from_dm", dm, host, len)?;
        let mut bytes = vec![0; len];
        dm.handle.memcpy_from_dm(offset, &mut bytes)?;
        // SAFETY: the program's buffer has `len` bytes.
        unsafe { write_program(&bytes, host.cast()) }
        Ok(())
    })
}

/// Before memory is taken for the copy.
fn check(call: &str, dm: &Object<Dm>, host: *const c_void, len: usize) -> Result<(), Errno> {
    if host.is_null() || len > dm.handle.len() {
        let cause = "host_addr is NULL, or length more than the memory has";
        return Err(refuse(call, libc::EINVAL, cause));
    }
    Ok(())
}
