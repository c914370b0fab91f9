//! Protection domains.

use std::mem::ManuallyDrop;

use crate::boundary::{End, Ends, Errno, Object, Shape};
use crate::context::Context;
use crate::handle;
use crate::types::ibv_pd;

/// A protection domain.
pub struct Pd {
    pub handle: ManuallyDrop<irdma::Pd>,
    pub device: irdma::Device,
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
    let handle = ManuallyDrop::new(context.handle.alloc_pd()?);
    let c = ibv_pd { context: context.as_seen(), handle: handle::next() };
    Ok(Object::new(c, Pd { handle, device: context.handle.device().clone() }))
}
