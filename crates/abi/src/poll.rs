//! Polling extended completion queues: the functions in an `ibv_cq_ex`.

use std::ffi::c_int;

use crate::boundary::{Errno, Object, Status, arg, cross, refuse, set_field};
use crate::cq::{Cq, Polled};
use crate::types::{ibv_cq_ex, ibv_poll_cq_attr};
use crate::work::seen_completion;

/// `ex` with its functions; those for tag matching stay away.
pub fn functions(ex: ibv_cq_ex) -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
        read_cvlan: Some(read_cvlan),
        read_flow_tag: Some(read_flow_tag),
        ..ex
    }
}

/// `ibv_start_poll(3)`: ENOENT when nothing waits; there is nothing to end then.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    cross::<Status>("ibv_start_poll", || {
        // SAFETY: the program's promise of a live queue.
        let cq = unsafe { arg::<&Object<Cq>>("ibv_start_poll", "cq", cq.cast()) }?;
        // SAFETY: NULL, or the program's attributes.
        if !attr.is_null() && unsafe { attr.read_unaligned() }.comp_mask != 0 {
            return Err(refuse("ibv_start_poll", libc::EINVAL, "comp_mask has unknown bits"));
        }
        let turn = cq.polling.take();
        step(cq)?;
        turn.keep();
        Ok(())
    })
}

/// `ibv_next_poll(3)`: ENOENT when nothing more waits; the poll has to be ended all the same.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    cross::<Status>("ibv_next_poll", || {
        // SAFETY: the program's promise of a live queue.
        let cq = unsafe { arg::<&Object<Cq>>("ibv_next_poll", "cq", cq.cast()) }?;
        // SAFETY: a poll is the affair of the thread that started it.
        let turn = unsafe { cq.polling.resume() }
            .ok_or_else(|| refuse("ibv_next_poll", libc::EINVAL, "no poll was started"))?;
        turn.keep();
        step(cq)
    })
}

/// `ibv_end_poll(3)`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    cross::<Status>("ibv_end_poll", || {
        // SAFETY: the program's promise of a live queue.
        let cq = unsafe { arg::<&Object<Cq>>("ibv_end_poll", "cq", cq.cast()) }?;
        // SAFETY: as in `next_poll`.
        drop(unsafe { cq.polling.resume() });
        Ok(())
    });
}

/// Moves the poll to the next completion.
#[inline]
fn step(cq: &Object<Cq>) -> Result<(), Errno> {
    let mut stamp = None;
    cq.handle.poll_each(1, |wc| {
        set_field!(cq, ex.wr_id, wc.wr_id);
        set_field!(cq, ex.status, wc.status as u32);
        set_field!(cq, wc, seen_completion(&wc));
        set_field!(cq, timestamp_ns, wc.timestamp_ns);
        stamp = Some(wc.timestamp_ns);
    })?;
    let stamp = stamp.ok_or(Errno(libc::ENOENT))?;
    if cq.wants_wallclock {
        // Reads clocks, which the queue's lock is not held for.
        set_field!(cq, wallclock_ns, cq.handle.wallclock_ns(stamp));
    }
    Ok(())
}

/// Defines accessors of the completion that the poll stands on.
macro_rules! readers {
    ($($name:ident: $ty:ty = $field:ident $(. $part:ident)?;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the program's live queue, which lies in a `Polled`.
            (unsafe { (*cq.cast::<Polled>()).$field$(.$part)? }).into()
        }
    )* };
}

readers! {
    read_opcode: u32 = wc.opcode;
    read_vendor_err: u32 = wc.vendor_err;
    read_byte_len: u32 = wc.byte_len;
    read_imm_data: u32 = wc.imm_data;
    read_qp_num: u32 = wc.qp_num;
    read_src_qp: u32 = wc.src_qp;
    read_wc_flags: u32 = wc.wc_flags;
    read_slid: u32 = wc.slid;
    read_sl: u8 = wc.sl;
    read_dlid_path_bits: u8 = wc.dlid_path_bits;
    read_completion_ts: u64 = timestamp_ns;
    read_completion_wallclock_ns: u64 = wallclock_ns;
}

/// The kernel's IP stack adds and removes VLAN tags.
unsafe extern "C" fn read_cvlan(_: *mut ibv_cq_ex) -> u16 {
    0
}

/// No flow is ever tagged.
unsafe extern "C" fn read_flow_tag(_: *mut ibv_cq_ex) -> u32 {
    0
}
