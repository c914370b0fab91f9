//! Domains of extended reliable connections, and the queue pairs that receive for them.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr;

use irdma::{Qpn, XrcdFlags};

use crate::boundary::{End, Ends, Errno, InOut, Object, Shape, arg, refuse};
use crate::context::Context;
use crate::qp::{self, Qp};
use crate::types::{
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPT_XRC_RECV, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_qp_init_attr,
    ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr,
};

/// A domain of extended reliable connections.
pub struct Xrcd {
    pub handle: ManuallyDrop<irdma::Xrcd>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Xrcd {
    type C = ibv_xrcd;
    type Seen = ibv_xrcd;
}

impl Ends for Xrcd {
    type Handle = irdma::Xrcd;
    const END: End<irdma::Xrcd> = irdma::Xrcd::close_xrcd;

    fn handle(&self) -> &ManuallyDrop<irdma::Xrcd> {
        &self.handle
    }
}

/// `ibv_open_xrcd(3)`; the file descriptor -1 stands for no file.
pub fn open(
    context: &Object<Context>,
    attr: InOut<'_, ibv_xrcd_init_attr>,
) -> Result<Box<Object<Xrcd>>, Errno> {
    const CALL: &str = "ibv_open_xrcd";
    let asked = attr.get();
    if asked.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return Err(refuse(CALL, libc::EINVAL, "comp_mask: name FD and OFLAGS"));
    }
    let flags = XrcdFlags::from_bits(asked.oflags as u32)
        .ok_or_else(|| refuse(CALL, libc::EINVAL, "oflags: only O_CREAT and O_EXCL"))?;
    if asked.fd < -1 {
        return Err(refuse(CALL, libc::EBADF, "fd is no file descriptor"));
    }
    // SAFETY: the program's descriptor, which it does not close during the call.
    let file = (asked.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(asked.fd) });
    let handle = ManuallyDrop::new(context.handle.open_xrcd(file, flags)?);
    Ok(Object::new(ibv_xrcd { context: context.as_seen() }, Xrcd { handle }))
}

/// The domain that `xrcd`, an attribute, names.
///
/// # Safety
/// It is NULL or a live domain.
pub unsafe fn named<'a>(call: &str, xrcd: *mut ibv_xrcd) -> Result<&'a Object<Xrcd>, Errno> {
    // SAFETY: our caller promises it.
    unsafe { arg(call, "xrcd", xrcd) }
}

/// A queue pair that receives for a domain; it has no protection domain and no completion queue.
pub fn create_qp(
    context: &Object<Context>,
    xrcd: &Object<Xrcd>,
    attr: &ibv_qp_init_attr,
) -> Result<Box<Object<Qp>>, Errno> {
    let handle = xrcd.handle.create_qp()?;
    let qp = receiving(context, attr, handle);
    qp.hear_events();
    Ok(qp)
}

/// `ibv_open_qp(3)`. Events go to who made the queue pair.
pub fn open_qp(
    context: &Object<Context>,
    attr: InOut<'_, ibv_qp_open_attr>,
) -> Result<Box<Object<Qp>>, Errno> {
    const CALL: &str = "ibv_open_qp";
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let asked = attr.get();
    if asked.comp_mask & !IBV_QP_OPEN_ATTR_CONTEXT != NEEDED {
        return Err(refuse(CALL, libc::EINVAL, "comp_mask: name NUM, XRCD and TYPE"));
    }
    if asked.qp_type != IBV_QPT_XRC_RECV {
        return Err(refuse(CALL, libc::EINVAL, "qp_type: only XRC_RECV is shared"));
    }
    // SAFETY: the program promises a live domain.
    let xrcd = unsafe { named(CALL, asked.xrcd) }?;
    let handle = xrcd.handle.open_qp(Qpn::new(asked.qp_num))?;
    let mut attr = ibv_qp_init_attr::zeroed();
    attr.qp_type = asked.qp_type;
    if asked.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
        attr.qp_context = asked.qp_context;
    }
    Ok(receiving(context, &attr, handle))
}

fn receiving(
    context: &Object<Context>,
    attr: &ibv_qp_init_attr,
    handle: irdma::Qp,
) -> Box<Object<Qp>> {
    let mut shown = ibv_qp_init_attr::zeroed();
    shown.qp_context = attr.qp_context;
    shown.qp_type = attr.qp_type;
    qp::finish(context.as_seen(), ptr::null_mut(), &shown, 0, handle)
}
