//! Protection domains.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::boundary::{End, Ends, Errno, InOut, Object, Shape, arg, refuse};
use crate::context::Context;
use crate::handle;
use crate::import::{Directory, Listed};
use crate::td::Td;
use crate::types::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
    ibv_parent_domain_init_attr, ibv_pd,
};

/// A protection domain.
pub struct Pd {
    pub handle: ManuallyDrop<irdma::Pd>,
    pub device: irdma::Device,
    pub directory: Arc<Directory>,
    parent: bool,
    _listed: Option<Listed<irdma::Pd>>,
}

impl Pd {
    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parent
    }
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Pd {
    type C = ibv_pd;
    type Seen = ibv_pd;
}

impl Ends for Pd {
    type Handle = irdma::Pd;
    const END: End<irdma::Pd> = irdma::Pd::dealloc_pd;

    fn handle(&self) -> &ManuallyDrop<irdma::Pd> {
        &self.handle
    }
}

/// `ibv_alloc_pd(3)`.
pub fn alloc(context: &Object<Context>) -> Result<Box<Object<Pd>>, Errno> {
    Ok(make(context, context.handle.alloc_pd()?, false))
}

fn make(context: &Object<Context>, handle: irdma::Pd, parent: bool) -> Box<Object<Pd>> {
    let number = handle::next();
    let listed = context.directory.pds.list(number, handle.import_pd());
    show(context, handle, number, parent, Some(listed))
}

/// What `ibv_import_pd` makes of a domain that it found.
pub fn imported(context: &Object<Context>, handle: irdma::Pd, number: u32) -> Box<Object<Pd>> {
    show(context, handle, number, false, None)
}

fn show(
    context: &Object<Context>,
    handle: irdma::Pd,
    number: u32,
    parent: bool,
    listed: Option<Listed<irdma::Pd>>,
) -> Box<Object<Pd>> {
    let c = ibv_pd { context: context.as_seen(), handle: number };
    let own = Pd {
        handle: ManuallyDrop::new(handle),
        device: context.handle.device().clone(),
        directory: Arc::clone(&context.directory),
        parent,
        _listed: listed,
    };
    Object::new(c, own)
}

/// `ibv_alloc_parent_domain(3)`. The program's allocators are never called: no queue here lies in
/// memory that a device reads.
pub fn alloc_parent_domain(
    context: &Object<Context>,
    attr: InOut<'_, ibv_parent_domain_init_attr>,
) -> Result<Box<Object<Pd>>, Errno> {
    const CALL: &str = "ibv_alloc_parent_domain";
    let attr = attr.get();
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if attr.comp_mask & !known != 0 {
        return Err(refuse(CALL, libc::EINVAL, "comp_mask: only ALLOCATORS and PD_CONTEXT"));
    }
    let has = |flag| attr.comp_mask & flag != 0;
    if has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) && (attr.alloc.is_none() || attr.free.is_none())
    {
        return Err(refuse(CALL, libc::EINVAL, "an allocator is NULL"));
    }
    // SAFETY: the program promises that the attributes name live objects.
    let pd = unsafe { arg::<&Object<Pd>>(CALL, "pd", attr.pd) }?;
    // SAFETY: as above.
    let td = unsafe { arg::<Option<&Object<Td>>>(CALL, "td", attr.td) }?;
    let elsewhere = !std::ptr::eq(pd.seen().context, context.as_seen());
    if elsewhere || pd.parent {
        return Err(refuse(CALL, libc::EINVAL, "pd is a parent domain, or of another context"));
    }
    let handle = pd.handle.alloc_parent_domain(td.map(|td| &*td.handle))?;
    Ok(make(context, handle, true))
}
