//! Thread domains.

use std::mem::ManuallyDrop;

use crate::boundary::{End, Ends, Errno, InOut, Object, Shape, refuse};
use crate::context::Context;
use crate::types::{ibv_td, ibv_td_init_attr};

/// A thread domain.
pub struct Td {
    pub handle: ManuallyDrop<irdma::Td>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Td {
    type C = ibv_td;
    type Seen = ibv_td;
}

impl Ends for Td {
    type Handle = irdma::Td;
    const END: End<irdma::Td> = irdma::Td::dealloc_td;

    fn handle(&self) -> &ManuallyDrop<irdma::Td> {
        &self.handle
    }
}

/// `ibv_alloc_td(3)`.
pub fn alloc(
    context: &Object<Context>,
    attr: InOut<'_, ibv_td_init_attr>,
) -> Result<Box<Object<Td>>, Errno> {
    if attr.get().comp_mask != 0 {
        return Err(refuse("ibv_alloc_td", libc::EINVAL, "comp_mask has unknown bits"));
    }
    let handle = ManuallyDrop::new(context.handle.alloc_td()?);
    Ok(Object::new(ibv_td { context: context.as_seen() }, Td { handle }))
}
