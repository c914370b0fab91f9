//! The `ibv_wr_*` family: the functions in an `ibv_qp_ex`.

use std::ffi::{c_int, c_void};

use irdma::{Features, Placement, Profile, QpType, Qpn, SendFlags, SendOp, Sge, UdDest};

use crate::ah::Ah;
use crate::batch::Batch;
use crate::boundary::{Ended, Errno, In, Kept, Object, Status, arg, cross, read_program, refuse};
use crate::mw;
use crate::qp::Qp;
use crate::types::{
    IBV_FLUSH_MR, IBV_FLUSH_RANGE, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_mw,
    ibv_mw_bind_info, ibv_qp_ex, ibv_send_wr_bind, ibv_sge,
};

/// `ex` with its functions. All are there, whatever the queue pair was created for: those that
/// it was not created for fail their batch.
pub fn functions(ex: ibv_qp_ex) -> ibv_qp_ex {
    ibv_qp_ex {
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: Some(wr_flush),
        ..ex
    }
}

const ATOMICS: u64 = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
const MEMORY: u64 = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH;

/// The operations that a profile does not have, as flags of `send_ops_flags`.
pub fn lacking(profile: Profile) -> u64 {
    let bound = [
        (Features::ATOMICS, ATOMICS),
        (Features::PERSISTENCE, MEMORY),
        (Features::WINDOWS, IBV_QP_EX_WITH_BIND_MW),
    ];
    let lacks = |feature| !profile.features().contains(feature);
    bound.iter().filter(|(feature, _)| lacks(*feature)).fold(0, |all, (_, flags)| all | flags)
}

/// The operations that a service offers, as flags of `send_ops_flags`.
pub fn offered(service: QpType) -> u64 {
    const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const READS: u64 = IBV_QP_EX_WITH_RDMA_READ | ATOMICS;
    const KEYS: u64 = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    match service {
        QpType::Rc => SENDS | IBV_QP_EX_WITH_SEND_WITH_INV | WRITES | READS | MEMORY | KEYS,
        QpType::Uc => SENDS | WRITES | KEYS,
        QpType::Ud => SENDS,
        QpType::XrcSend => offered(QpType::Rc),
        QpType::XrcRecv => 0,
    }
}

/// `ibv_wr_start(3)`.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    cross::<Ended>("ibv_wr_start", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_wr_start", "qp", qp.cast()) }?;
        let mut batch = qp.batch.take();
        batch.clear();
        batch.keep();
        Ok(())
    });
}

/// `ibv_wr_complete(3)`: 0, or the first error of the batch; nothing was posted then.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    cross::<Status>("ibv_wr_complete", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_wr_complete", "qp", qp.cast()) }?;
        // SAFETY: a batch is the affair of the thread that started it.
        let batch = unsafe { qp.batch.resume() };
        let batch = batch.ok_or_else(|| not_started("ibv_wr_complete"))?;
        qp.check_post("ibv_wr_complete")?;
        batch.post(&qp.handle)
    })
}

/// `ibv_wr_abort(3)`.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    cross::<Ended>("ibv_wr_abort", || {
        // SAFETY: the program's promise of a live queue pair.
        let qp = unsafe { arg::<&Object<Qp>>("ibv_wr_abort", "qp", qp.cast()) }?;
        // SAFETY: as in `wr_complete`.
        drop(unsafe { qp.batch.resume() });
        Ok(())
    });
}

fn not_started(call: &str) -> Errno {
    refuse(call, libc::EINVAL, "no batch was started: call ibv_wr_start first")
}

/// Works on the batch that the calling thread builds on `qp`; a refusal fails the whole batch.
///
/// # Safety
/// `qp` is NULL or a live queue pair, and its batch is the calling thread's.
#[inline]
unsafe fn build(
    call: &'static str,
    qp: *mut ibv_qp_ex,
    work: impl FnOnce(&Object<Qp>, &mut Batch) -> Result<(), Errno>,
) {
    cross::<Ended>(call, || {
        // SAFETY: our caller promises it.
        let qp = unsafe { arg::<&Object<Qp>>(call, "qp", qp.cast()) }?;
        // SAFETY: as above.
        let mut batch = unsafe { qp.batch.resume() }.ok_or_else(|| not_started(call))?;
        if let Err(error) = work(qp, &mut batch) {
            batch.fail(error);
        }
        batch.keep();
        Ok(())
    });
}

/// Begins a request under the `wr_id` and `wr_flags` that the program has put into the structure.
///
/// # Safety
/// As [`build`].
#[inline]
unsafe fn begin(call: &'static str, qp: *mut ibv_qp_ex, needs: u64, op: SendOp) {
    // SAFETY: our caller promises it.
    unsafe { build(call, qp, |qp, batch| start_request(call, qp, batch, needs, op)) }
}

#[inline]
fn start_request(
    call: &str,
    qp: &Object<Qp>,
    batch: &mut Batch,
    needs: u64,
    op: SendOp,
) -> Result<(), Errno> {
    if qp.send_ops & needs == 0 {
        let cause = "the queue pair was not created for it: see send_ops_flags";
        return Err(refuse(call, libc::EINVAL, cause));
    }
    let c = qp.c();
    // SAFETY: the structure lives as long as the object, and the program wrote it before.
    let wr_id = unsafe { (*c).wr_id };
    // SAFETY: as above.
    let bits = unsafe { (*c).wr_flags };
    let flags = SendFlags::from_bits(bits).ok_or_else(|| {
        refuse(call, libc::EINVAL, &format!("wr_flags {bits:#x} has unknown bits"))
    })?;
    batch.begin(wr_id, op, flags);
    Ok(())
}

/// Defines functions that begin a request: the C name, its arguments, the flag of
/// `send_ops_flags` that it needs, the operation.
macro_rules! requests {
    ($($name:ident($($arg:ident: $ty:ty),*) needs $flag:ident = $op:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: the program's live queue pair, on which it builds a batch.
            unsafe { begin(concat!("ibv_", stringify!($name)), qp, $flag, $op) }
        }
    )* };
}

requests! {
    wr_send() needs IBV_QP_EX_WITH_SEND = SendOp::Send { imm: None };
    wr_send_imm(imm: u32) needs IBV_QP_EX_WITH_SEND_WITH_IMM
        = SendOp::Send { imm: Some(imm.to_ne_bytes()) };
    wr_send_inv(rkey: u32) needs IBV_QP_EX_WITH_SEND_WITH_INV = SendOp::SendInvalidate { rkey };
    wr_rdma_write(rkey: u32, remote_addr: u64) needs IBV_QP_EX_WITH_RDMA_WRITE
        = SendOp::Write { remote_addr, rkey, imm: None };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32)
        needs IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        = SendOp::Write { remote_addr, rkey, imm: Some(imm.to_ne_bytes()) };
    wr_rdma_read(rkey: u32, remote_addr: u64) needs IBV_QP_EX_WITH_RDMA_READ
        = SendOp::Read { remote_addr, rkey };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64)
        needs IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        = SendOp::CompareSwap { remote_addr, rkey, compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64)
        needs IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = SendOp::FetchAdd { remote_addr, rkey, add };
    wr_local_inv(key: u32) needs IBV_QP_EX_WITH_LOCAL_INV = SendOp::LocalInvalidate { key };
}

/// `ibv_wr_atomic_write(3)`: the 8 bytes are copied now.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    value: *const c_void,
) {
    let op = SendOp::AtomicWrite { remote_addr, rkey };
    // SAFETY: as our caller promises.
    unsafe { begin("ibv_wr_atomic_write", qp, IBV_QP_EX_WITH_ATOMIC_WRITE, op) }
    // SAFETY: as above; there are 8 bytes.
    unsafe { wr_set_inline_data(qp, value.cast_mut(), 8) }
}

/// `ibv_wr_flush(3)`.
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    const CALL: &str = "ibv_wr_flush";
    let work = |qp: &Object<Qp>, batch: &mut Batch| {
        let op = flush(rkey, remote_addr, len, placement, level)
            .map_err(|cause| refuse(CALL, libc::EINVAL, &cause))?;
        start_request(CALL, qp, batch, IBV_QP_EX_WITH_FLUSH, op)
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}

fn flush(
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) -> Result<SendOp, String> {
    let len = u32::try_from(len).map_err(|_| format!("len {len}: a FLUSH has 32 bits for it"))?;
    let placement = Placement::from_bits(placement)
        .filter(|placement| !placement.is_empty())
        .ok_or_else(|| format!("type {placement:#x}: GLOBAL, PERSISTENT or both"))?;
    let whole_region = match level {
        IBV_FLUSH_RANGE => false,
        IBV_FLUSH_MR => true,
        _ => return Err(format!("level {level}: a range or the region")),
    };
    Ok(SendOp::Flush { remote_addr, rkey, len, placement, whole_region })
}

/// `ibv_wr_bind_mw(3)`.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    const CALL: &str = "ibv_wr_bind_mw";
    let work = |qp: &Object<Qp>, batch: &mut Batch| {
        // SAFETY: the program's filled-in structure.
        let In(bind_info) = unsafe { arg(CALL, "bind_info", info) }?;
        // SAFETY: the program promises a live window and region.
        let (op, window) = unsafe { mw::request(CALL, &ibv_send_wr_bind { mw, rkey, bind_info }) }?;
        start_request(CALL, qp, batch, IBV_QP_EX_WITH_BIND_MW, op)?;
        // SAFETY: the program keeps the window until it has posted or given up the batch.
        batch.set_window(unsafe { Kept::new(window) });
        Ok(())
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}

/// `ibv_wr_set_ud_addr(3)`.
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    const CALL: &str = "ibv_wr_set_ud_addr";
    let work = |_: &Object<Qp>, batch: &mut Batch| {
        // SAFETY: the program's promise of a live handle.
        let ah = unsafe { arg::<&Object<Ah>>(CALL, "ah", ah) }?;
        let ah = ah.handle.transport().clone();
        let set = batch.set_ud(UdDest { ah, qpn: Qpn::new(qpn), qkey });
        set.map_err(|cause| refuse(CALL, libc::EINVAL, cause))
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}

/// `ibv_wr_set_xrc_srqn(3)`.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    const CALL: &str = "ibv_wr_set_xrc_srqn";
    let work = |_: &Object<Qp>, batch: &mut Batch| {
        batch.set_srqn(srqn).map_err(|cause| refuse(CALL, libc::EINVAL, cause))
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as our caller promises; the list is ours.
    unsafe { wr_set_sge_list(qp, 1, &raw const sge) }
}

/// `ibv_wr_set_sge_list(3)`.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    const CALL: &str = "ibv_wr_set_sge_list";
    let work = |qp: &Object<Qp>, batch: &mut Batch| {
        check_list(CALL, count, list)?;
        if count > qp.max_send_sge {
            let cause = format!("{count} elements, the queue pair takes {}", qp.max_send_sge);
            return Err(refuse(CALL, libc::EINVAL, &cause));
        }
        let sges = (0..count).map(|at| {
            // SAFETY: the program's list has `count` elements.
            Sge::from(unsafe { list.wrapping_add(at).read_unaligned() })
        });
        batch.set_sges(sges).map_err(|cause| refuse(CALL, libc::EINVAL, cause))
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}

fn check_list<T>(call: &str, count: usize, list: *const T) -> Result<(), Errno> {
    if count > 0 && list.is_null() {
        return Err(refuse(call, libc::EINVAL, "the list is NULL"));
    }
    Ok(())
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as our caller promises; the list is ours.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) }
}

/// `ibv_wr_set_inline_data_list(3)`.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    const CALL: &str = "ibv_wr_set_inline_data_list";
    let work = |_: &Object<Qp>, batch: &mut Batch| {
        check_list(CALL, count, list)?;
        let buffers = (0..count).map(|at| {
            // SAFETY: the program's list has `count` elements.
            let buffer = unsafe { list.wrapping_add(at).read_unaligned() };
            (buffer.addr.cast_const().cast::<u8>(), buffer.length)
        });
        let read = |from: *const u8, to: &mut [u8]| {
            // SAFETY: the program's buffer is as long as it says, which is the length of `to`.
            unsafe { read_program(from, to) }
        };
        batch.set_inline(buffers, read).map_err(|cause| refuse(CALL, libc::EINVAL, cause))
    };
    // SAFETY: the program's live queue pair, on which it builds a batch.
    unsafe { build(CALL, qp, work) }
}
