//! Memory windows.

use irdma::{Access, MwBind, MwType, SendData, SendFlags, SendOp, SendWr};

use crate::boundary::{Errno, In, Object, Owned, Shape, arg, refuse, set_field};
use crate::handle;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::types::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_send_wr_bind,
};

/// A memory window.
pub struct Mw {
    handle: irdma::Mw,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Mw {
    type C = ibv_mw;
    type Seen = ibv_mw;
}

/// `ibv_alloc_mw(3)`.
pub fn alloc(pd: &Object<Pd>, mw_type: u32) -> Result<Box<Object<Mw>>, Errno> {
    let kind = match mw_type {
        IBV_MW_TYPE_1 => MwType::One,
        IBV_MW_TYPE_2 => MwType::Two,
        _ => {
            let cause = format!("type {mw_type}: there are 1 and 2");
            return Err(refuse("ibv_alloc_mw", libc::EINVAL, &cause));
        }
    };
    let handle = pd.handle.alloc_mw(kind)?;
    let c = ibv_mw {
        context: pd.seen().context,
        pd: pd.as_seen(),
        rkey: handle.rkey(),
        handle: handle::next(),
        r#type: mw_type,
    };
    Ok(Object::new(c, Mw { handle }))
}

/// `ibv_dealloc_mw(3)`.
pub fn dealloc(mw: Owned<Mw>) -> Result<(), Errno> {
    Ok(mw.take().into_own().handle.dealloc_mw()?)
}

/// `ibv_bind_mw(3)`: the window has its new key at once.
pub fn bind(qp: &Object<Qp>, mw: &Object<Mw>, In(bind): In<ibv_mw_bind>) -> Result<(), Errno> {
    const CALL: &str = "ibv_bind_mw";
    qp.check_post(CALL)?;
    let flags = SendFlags::from_bits(bind.send_flags)
        .ok_or_else(|| refuse(CALL, libc::EINVAL, "send_flags has unknown bits"))?;
    let rkey = mw.handle.rkey() & !0xff | mw.seen().rkey.wrapping_add(1) & 0xff;
    let op = operation(CALL, mw, rkey, &bind.bind_info)?;
    let data = SendData::Sges(&[]);
    qp.handle.post_send(&SendWr { wr_id: bind.wr_id, op, flags, data, ud: None })?;
    mw.set_rkey(rkey);
    Ok(())
}

/// The bind that a send request asks for, and its window.
///
/// # Safety
/// The request names a live window and region.
pub unsafe fn request<'a>(
    call: &str,
    wr: &ibv_send_wr_bind,
) -> Result<(SendOp, &'a Object<Mw>), Errno> {
    // SAFETY: our caller promises it.
    let mw = unsafe { arg::<&Object<Mw>>(call, "bind_mw.mw", wr.mw) }?;
    Ok((operation(call, mw, wr.rkey, &wr.bind_info)?, mw))
}

/// The operation that binds `mw` under the key `rkey`.
fn operation(
    call: &str,
    mw: &Object<Mw>,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    let flags = info.mw_access_flags;
    let access = Access::from_bits(flags).ok_or_else(|| {
        refuse(call, libc::EINVAL, &format!("mw_access_flags {flags:#x} has unknown bits"))
    })?;
    // A window is for the peer; programs ask for local rights all the same.
    let access = access - Access::LOCAL_WRITE;
    // SAFETY: the program promises that the binding names a live region, or none.
    let mr = unsafe { arg::<Option<&Object<Mr>>>(call, "bind_info.mr", info.mr) }?;
    if mr.is_none() && info.length > 0 {
        return Err(refuse(call, libc::EINVAL, "bind_info.mr is NULL, but not the length 0"));
    }
    Ok(SendOp::BindMw(MwBind {
        // Its first key: which one it has when the request is carried out, nobody knows yet.
        rkey: mw.handle.rkey(),
        new_rkey: rkey,
        lkey: mr.map_or(0, |mr| mr.seen().lkey),
        va: info.addr,
        len: info.length,
        access,
    }))
}

impl Object<Mw> {
    /// Shows the key of a bind that was posted.
    pub fn set_rkey(&self, rkey: u32) {
        set_field!(self, rkey, rkey);
    }
}
