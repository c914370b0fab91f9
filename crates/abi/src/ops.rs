//! The data path: what `ibv_post_send` and its kin call through the context, without a symbol.
//!
//! Nothing here allocates or logs as long as nothing is refused.

use std::ffi::c_int;

use crate::boundary::{Errno, Object, Status, arg, cross, refuse};
use crate::cq::Cq;
use crate::exported;
use crate::mw::{self, Mw};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::types::{
    ibv_context_ops, ibv_cq, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc,
};
use crate::work::{Inline, recv_wr, seen_completion, send_wr};

/// The table of every context. Entries that nothing calls are NULL, as the headers allow.
pub const TABLE: ibv_context_ops = ibv_context_ops {
    alloc_mw: Some(exported::alloc_mw),
    bind_mw: Some(bind_mw),
    dealloc_mw: Some(exported::dealloc_mw),
    poll_cq: Some(poll_cq),
    req_notify_cq: Some(req_notify_cq),
    post_srq_recv: Some(post_srq_recv),
    post_send: Some(post_send),
    post_recv: Some(post_recv),
    ..ibv_context_ops::zeroed()
};

/// `ibv_poll_cq(3)`: how many, or a negative error number.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    let mut count = 0;
    let status = cross::<Status>("ibv_poll_cq", || {
        // SAFETY: the program's promise of a live queue.
        let cq = unsafe { arg::<&Object<Cq>>("ibv_poll_cq", "cq", cq) }?;
        let room = usize::try_from(room)
            .map_err(|_| refuse("ibv_poll_cq", libc::EINVAL, "num_entries is negative"))?;
        if room > 0 && wcs.is_null() {
            return Err(refuse("ibv_poll_cq", libc::EINVAL, "wc is NULL"));
        }
        let mut place = wcs;
        count = cq.handle.poll_each(room, |wc| {
            // SAFETY: the program's array has `room` places, and no more completions come.
            unsafe { place.write_unaligned(seen_completion(&wc)) }
            place = place.wrapping_add(1);
        })?;
        Ok(())
    });
    if status == 0 { count as c_int } else { -status }
}

/// `ibv_req_notify_cq(3)`.
unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    cross::<Status>("ibv_req_notify_cq", || {
        // SAFETY: the program's promise of a live queue.
        let cq = unsafe { arg::<&Object<Cq>>("ibv_req_notify_cq", "cq", cq) }?;
        Ok(cq.handle.req_notify_cq(solicited_only != 0)?)
    })
}

/// `ibv_post_send(3)`.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = list;
    let status = cross::<Status>("ibv_post_send", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_post_send", "qp", qp) }?;
        qp.check_post("ibv_post_send")?;
        let mut posting = qp.handle.start_post()?;
        let mut inline = Inline::new();
        if at.is_null() {
            return Err(refuse("ibv_post_send", libc::EINVAL, "the list of requests is NULL"));
        }
        while !at.is_null() {
            // SAFETY: an element of the program's list.
            let wr = unsafe { at.read_unaligned() };
            // SAFETY: the program does not touch its requests during the call.
            let (request, window) = unsafe { send_wr(&wr, qp, &mut inline) }?;
            posting.post_xrc_send(&request, wr.qp_type.remote_srqn)?;
            if let Some(window) = window {
                window.set_rkey(wr.bind_mw.rkey);
            }
            at = wr.next;
        }
        Ok(())
    });
    // SAFETY: the program's place for the answer.
    unsafe { blame(status, at, bad) }
}

/// `ibv_post_recv(3)`.
unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    let status = cross::<Status>("ibv_post_recv", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_post_recv", "qp", qp) }?;
        qp.check_post("ibv_post_recv")?;
        let mut posting = qp.handle.start_post()?;
        // SAFETY: the program's list.
        unsafe {
            each_recv("ibv_post_recv", &mut at, qp.max_recv_sge, |wr| Ok(posting.post_recv(&wr)?))
        }
    });
    // SAFETY: the program's place for the answer.
    unsafe { blame(status, at, bad) }
}

/// `ibv_post_srq_recv(3)`.
unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    let status = cross::<Status>("ibv_post_srq_recv", || {
        // SAFETY: the program's promise of a live queue.
        let srq = unsafe { arg::<&Object<Srq>>("ibv_post_srq_recv", "srq", srq) }?;
        // SAFETY: the program's list.
        unsafe {
            each_recv("ibv_post_srq_recv", &mut at, srq.max_sge, |wr| {
                Ok(srq.handle.post_srq_recv(&wr)?)
            })
        }
    });
    // SAFETY: the program's place for the answer.
    unsafe { blame(status, at, bad) }
}

/// Posts each request of the list; `at` stays on the one that fails.
///
/// # Safety
/// `at` is a list whose elements, and what they point to, do not change during the call.
#[inline]
unsafe fn each_recv(
    call: &str,
    at: &mut *mut ibv_recv_wr,
    max_sge: usize,
    mut post: impl FnMut(irdma::RecvWr<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if at.is_null() {
        return Err(refuse(call, libc::EINVAL, "the list of requests is NULL"));
    }
    while !at.is_null() {
        // SAFETY: an element of the list.
        let wr = unsafe { at.read_unaligned() };
        // SAFETY: our caller promises the same.
        post(unsafe { recv_wr(call, &wr, max_sge) }?)?;
        *at = wr.next;
    }
    Ok(())
}

/// Names the request that was refused; those before it were posted.
///
/// # Safety
/// `bad` is NULL or a place for one pointer.
#[inline]
unsafe fn blame<T>(status: c_int, at: *mut T, bad: *mut *mut T) -> c_int {
    if status != 0 && !bad.is_null() {
        // SAFETY: our caller promises it.
        unsafe { bad.write_unaligned(at) }
    }
    status
}

/// `ibv_bind_mw(3)`.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    cross::<Status>("ibv_bind_mw", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_bind_mw", "qp", qp) }?;
        // SAFETY: as above, of a window.
        let mw = unsafe { arg::<&Object<Mw>>("ibv_bind_mw", "mw", mw) }?;
        // SAFETY: the program's filled-in structure.
        mw::bind(qp, mw, unsafe { arg("ibv_bind_mw", "mw_bind", bind.cast_const()) }?)
    })
}
