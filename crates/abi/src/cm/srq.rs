//! Shared receive queues of identifiers.

use std::ptr;

use crate::boundary::{Errno, InOut, Object, Owned, arg, refuse, set_field};
use crate::cm::id::CmId;
use crate::cm::qp::domain;
use crate::context::Context;
use crate::pd::Pd;
use crate::srq::{self, Srq};
use crate::types::{IBV_SRQ_INIT_ATTR_PD, ibv_srq_init_attr, ibv_srq_init_attr_ex};

const CALL: &str = "rdma_create_srq";

/// `rdma_create_srq(3)`.
pub fn create(
    id: &Object<CmId>,
    pd: Option<&Object<Pd>>,
    attr: InOut<'_, ibv_srq_init_attr>,
) -> Result<(), Errno> {
    let pd = domain(CALL, id, pd)?;
    check_free(id)?;
    keep(id, pd, srq::create(pd, attr)?);
    Ok(())
}

/// `rdma_create_srq_ex`, which has no page of its own in section 3.
pub fn create_ex(
    id: &Object<CmId>,
    mut attr: InOut<'_, ibv_srq_init_attr_ex>,
) -> Result<(), Errno> {
    let before = attr.get();
    let mut asked = before;
    let named = asked.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0;
    let pd = if named { asked.pd } else { ptr::null_mut() };
    // SAFETY: `comp_mask` says that the program filled it in.
    let pd = unsafe { arg::<Option<&Object<Pd>>>(CALL, "pd", pd) }?;
    let pd = domain(CALL, id, pd)?;
    check_free(id)?;
    asked.pd = pd.as_seen();
    asked.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    attr.set(asked);
    // SAFETY: an identifier that has a device shows its context.
    let context = unsafe { arg::<&Object<Context>>(CALL, "id->verbs", id.seen().verbs) }?;
    match srq::create_ex(context, attr.again()) {
        Ok(srq) => {
            keep(id, pd, srq);
            Ok(())
        }
        Err(errno) => {
            attr.set(before);
            Err(errno)
        }
    }
}

fn check_free(id: &Object<CmId>) -> Result<(), Errno> {
    if !id.seen().srq.is_null() {
        return Err(refuse(CALL, libc::EINVAL, "the identifier has a shared queue already"));
    }
    Ok(())
}

fn keep(id: &Object<CmId>, pd: &Object<Pd>, srq: Box<Object<Srq>>) {
    set_field!(id, pd, pd.as_seen());
    set_field!(id, srq, Object::hand_out(srq));
}

/// `rdma_destroy_srq(3)`.
pub fn destroy(id: &Object<CmId>) -> Result<(), Errno> {
    // SAFETY: `id->srq` is what `rdma_create_srq` made.
    let srq = unsafe { arg::<Owned<Srq>>("rdma_destroy_srq", "id->srq", id.seen().srq) }?;
    srq.end()?;
    set_field!(id, srq, ptr::null_mut());
    Ok(())
}
