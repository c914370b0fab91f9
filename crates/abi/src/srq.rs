//! Shared receive queues.

use std::ffi::c_int;
use std::mem::ManuallyDrop;

use irdma::SrqAttr;

use crate::boundary::{End, Ends, Errno, In, InOut, Object, Out, Shape, refuse};
use crate::handle;
use crate::pd::Pd;
use crate::types::{IBV_SRQ_LIMIT, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

/// A shared receive queue.
pub struct Srq {
    pub handle: ManuallyDrop<irdma::Srq>,
    pub max_sge: usize,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Srq {
    type C = ibv_srq;
    type Seen = ibv_srq;
}

impl Ends for Srq {
    type Handle = irdma::Srq;
    const END: End<irdma::Srq> = irdma::Srq::destroy_srq;

    fn handle(&self) -> &ManuallyDrop<irdma::Srq> {
        &self.handle
    }
}

/// `ibv_create_srq(3)`.
pub fn create(
    pd: &Object<Pd>,
    mut attr: InOut<'_, ibv_srq_init_attr>,
) -> Result<Box<Object<Srq>>, Errno> {
    let mut asked = attr.get();
    let handle = pd.handle.create_srq(SrqAttr {
        max_wr: asked.attr.max_wr,
        max_sge: asked.attr.max_sge,
        srq_limit: asked.attr.srq_limit,
    })?;
    let granted = handle.query_srq()?;
    asked.attr.max_wr = granted.max_wr;
    attr.set(asked);
    let mut c = ibv_srq::zeroed();
    c.context = pd.seen().context;
    c.srq_context = asked.srq_context;
    c.pd = pd.as_seen();
    c.handle = handle::next();
    let srq = Object::new(
        c,
        Srq { handle: ManuallyDrop::new(handle), max_sge: granted.max_sge as usize },
    );
    srq.handle.set_cookie(srq.cookie());
    Ok(srq)
}

/// `ibv_modify_srq(3)`: arms the limit; the size is fixed, as on the hardware.
pub fn modify(srq: &Object<Srq>, In(attr): In<ibv_srq_attr>, mask: c_int) -> Result<(), Errno> {
    match mask as u32 {
        0 => Ok(()),
        IBV_SRQ_LIMIT => Ok(srq.handle.modify_srq(attr.srq_limit)?),
        _ => Err(refuse("ibv_modify_srq", libc::EINVAL, "only IBV_SRQ_LIMIT can be changed")),
    }
}

/// `ibv_query_srq(3)`.
pub fn query(srq: &Object<Srq>, attr: Out<'_, ibv_srq_attr>) -> Result<(), Errno> {
    let SrqAttr { max_wr, max_sge, srq_limit } = srq.handle.query_srq()?;
    attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit });
    Ok(())
}
