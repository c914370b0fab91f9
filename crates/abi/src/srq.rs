//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;

use irdma::SrqAttr;

use crate::boundary::{End, Ends, Errno, In, InOut, Object, Out, Shape, arg, refuse};
use crate::context::Context;
use crate::cq::Cq;
use crate::handle;
use crate::pd::Pd;
use crate::types::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_LIMIT, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::xrc;

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
    let handle = pd.handle.create_srq(sizes(&asked.attr))?;
    let max_sge = grant(&mut asked.attr, &handle)?;
    attr.set(asked);
    Ok(finish(pd, asked.srq_context, max_sge, handle))
}

/// `ibv_create_srq_ex(3)`: basic queues, and those of extended connections.
pub fn create_ex(
    context: &Object<Context>,
    mut attr: InOut<'_, ibv_srq_init_attr_ex>,
) -> Result<Box<Object<Srq>>, Errno> {
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ
        | IBV_SRQ_INIT_ATTR_TM;
    let mut asked = attr.get();
    let has = |mask| asked.comp_mask & mask == mask;
    if asked.comp_mask & !KNOWN != 0 {
        let cause = format!("comp_mask {:#x} has unknown bits", asked.comp_mask);
        return Err(refuse(CREATE_EX, libc::EINVAL, &cause));
    }
    if !has(IBV_SRQ_INIT_ATTR_PD) {
        return Err(refuse(CREATE_EX, libc::EINVAL, "comp_mask lacks PD"));
    }
    // SAFETY: the program promises that the attributes name live objects.
    let pd = unsafe { arg::<&Object<Pd>>(CREATE_EX, "pd", asked.pd) }?;
    if !std::ptr::eq(pd.seen().context, context.as_seen()) {
        return Err(refuse(CREATE_EX, libc::EINVAL, "pd is of another context"));
    }
    let handle = match if has(IBV_SRQ_INIT_ATTR_TYPE) { asked.srq_type } else { IBV_SRQT_BASIC } {
        IBV_SRQT_BASIC => pd.handle.create_srq(sizes(&asked.attr))?,
        IBV_SRQT_XRC => create_xrc(pd, &asked)?,
        other => {
            let cause = format!("srq_type {other}: only basic and XRC");
            return Err(refuse(CREATE_EX, libc::EOPNOTSUPP, &cause));
        }
    };
    let max_sge = grant(&mut asked.attr, &handle)?;
    attr.set(asked);
    Ok(finish(pd, asked.srq_context, max_sge, handle))
}

const CREATE_EX: &str = "ibv_create_srq_ex";

fn create_xrc(pd: &Object<Pd>, asked: &ibv_srq_init_attr_ex) -> Result<irdma::Srq, Errno> {
    const NEEDED: u32 = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if asked.comp_mask & NEEDED != NEEDED {
        return Err(refuse(CREATE_EX, libc::EINVAL, "comp_mask lacks XRCD or CQ"));
    }
    // SAFETY: the program promises that the attributes name live objects.
    let xrcd = unsafe { xrc::named(CREATE_EX, asked.xrcd) }?;
    // SAFETY: as above.
    let cq = unsafe { arg::<&Object<Cq>>(CREATE_EX, "cq", asked.cq) }?;
    Ok(pd.handle.create_xrc_srq(sizes(&asked.attr), &xrcd.handle, &cq.handle)?)
}

fn sizes(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit }
}

/// Tells the program how many requests it got; returns how many elements each may have, which may
/// be more than were asked.
fn grant(attr: &mut ibv_srq_attr, handle: &irdma::Srq) -> Result<u32, Errno> {
    let granted = handle.query_srq()?;
    attr.max_wr = granted.max_wr;
    Ok(granted.max_sge)
}

fn finish(
    pd: &Object<Pd>,
    srq_context: *mut c_void,
    max_sge: u32,
    handle: irdma::Srq,
) -> Box<Object<Srq>> {
    let mut c = ibv_srq::zeroed();
    c.context = pd.seen().context;
    c.srq_context = srq_context;
    c.pd = pd.as_seen();
    c.handle = handle::next();
    let max_sge = max_sge as usize;
    let srq = Object::new(c, Srq { handle: ManuallyDrop::new(handle), max_sge });
    srq.handle.set_cookie(srq.cookie());
    srq
}

/// `ibv_get_srq_num(3)`: the number that peers name a queue of extended connections by.
pub fn number(srq: &Object<Srq>, number: Out<'_, u32>) -> Result<(), Errno> {
    number.write(srq.handle.get_srq_num()?);
    Ok(())
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
