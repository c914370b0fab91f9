//! Work requests and completions between their C structures and the device's types.

use std::mem::{MaybeUninit, align_of, offset_of, size_of};
use std::ptr::{self, NonNull};
use std::slice;

use irdma::{
    FULL, Network, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest, Wc,
};

use crate::ah::Ah;
use crate::boundary::{Errno, Object, arg, refuse};
use crate::mw::{self, Mw};
use crate::qp::Qp;
use crate::types::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_recv_wr, ibv_send_wr, ibv_send_wr_ud, ibv_sge,
    ibv_wc,
};

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

impl From<ibv_sge> for Sge {
    fn from(sge: ibv_sge) -> Self {
        Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
    }
}

/// The program's scatter/gather list, in place; EINVAL for more than `max` elements.
///
/// # Safety
/// `list` points to `count` elements that do not change during `'a`, unless it is NULL or `count`
/// is out of bounds.
#[inline]
unsafe fn sges<'a>(
    call: &str,
    list: *mut ibv_sge,
    count: i32,
    max: usize,
) -> Result<&'a [Sge], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    let Some(count) = usize::try_from(count).ok().filter(|count| *count <= max) else {
        let cause = format!("num_sge {count}: the queue was created for 0 to {max}");
        return Err(refuse(call, libc::EINVAL, &cause));
    };
    if list.is_null() || !list.is_aligned() {
        return Err(refuse(call, libc::EINVAL, "sg_list is NULL or not aligned"));
    }
    // SAFETY: as our caller promises; the layouts are the same.
    Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
}

/// A receive request for a queue whose requests have up to `max_sge` elements.
///
/// # Safety
/// As [`sges`].
#[inline]
pub unsafe fn recv_wr<'a>(
    call: &str,
    wr: &ibv_recv_wr,
    max_sge: usize,
) -> Result<RecvWr<'a>, Errno> {
    // SAFETY: our caller promises the same.
    let sges = unsafe { sges(call, wr.sg_list, wr.num_sge, max_sge) }?;
    Ok(RecvWr { wr_id: wr.wr_id, sges })
}

/// Room for the inline data of one request.
pub struct Inline {
    bytes: [MaybeUninit<u8>; FULL.max_inline_data as usize],
}

impl Inline {
    #[inline]
    pub fn new() -> Self {
        Inline { bytes: [MaybeUninit::uninit(); FULL.max_inline_data as usize] }
    }

    /// Copies the data of all elements together.
    ///
    /// # Safety
    /// The elements name memory of the program that can be read.
    unsafe fn copy(&mut self, sges: &[Sge]) -> Result<&[u8], Errno> {
        let mut len = 0;
        for sge in sges {
            let more = sge.length as usize;
            let Some(room) = self.bytes.get_mut(len..len + more) else {
                let cause = format!("more than {} bytes inline", FULL.max_inline_data);
                return Err(refuse("ibv_post_send", libc::EINVAL, &cause));
            };
            let source = ptr::with_exposed_provenance::<MaybeUninit<u8>>(sge.addr as usize);
            // SAFETY: the program's promise, and `room` is ours and of this length.
            unsafe { ptr::copy_nonoverlapping(source, room.as_mut_ptr(), more) }
            len += more;
        }
        let start = NonNull::from(&self.bytes).cast::<u8>();
        // SAFETY: the first `len` bytes were written above.
        Ok(unsafe { slice::from_raw_parts(start.as_ptr(), len) })
    }
}

/// A send request on `qp`, and the window that it binds.
///
/// # Safety
/// As [`sges`], with inline data [`Inline::copy`], and the address handle of a datagram, or the
/// window and region of a bind, are alive.
#[inline]
pub unsafe fn send_wr<'a>(
    wr: &ibv_send_wr,
    qp: &Qp,
    inline: &'a mut Inline,
) -> Result<(SendWr<'a>, Option<&'a Object<Mw>>), Errno> {
    let flags = SendFlags::from_bits(wr.send_flags).ok_or_else(|| {
        let cause = format!("send_flags {:#x} has unknown bits", wr.send_flags);
        refuse("ibv_post_send", libc::EINVAL, &cause)
    })?;
    // SAFETY: our caller promises the same.
    let sges = unsafe { sges("ibv_post_send", wr.sg_list, wr.num_sge, qp.max_send_sge) }?;
    let data = if flags.contains(SendFlags::INLINE) {
        // SAFETY: our caller promises the same.
        SendData::Inline(unsafe { inline.copy(sges) }?)
    } else {
        SendData::Sges(sges)
    };
    let (op, window) = match wr.opcode {
        IBV_WR_BIND_MW => {
            // SAFETY: our caller promises the same.
            let (op, window) = unsafe { mw::request("ibv_post_send", &wr.bind_mw) }?;
            (op, Some(window))
        }
        _ => (operation(wr)?, None),
    };
    let ud = match (qp.handle.qp_type(), op) {
        // SAFETY: requests for datagrams have this member.
        (QpType::Ud, SendOp::Send { .. }) => Some(datagram(unsafe { &wr.wr.ud })?),
        // Of any other request the member may be a remote address.
        _ => None,
    };
    Ok((SendWr { wr_id: wr.wr_id, op, flags, data, ud }, window))
}

fn datagram(ud: &ibv_send_wr_ud) -> Result<UdDest, Errno> {
    // SAFETY: the promise of `send_wr`'s caller.
    let ah = unsafe { arg::<&Object<Ah>>("ibv_post_send", "wr.ud.ah", ud.ah) }?;
    let qpn = Qpn::new(ud.remote_qpn);
    Ok(UdDest { ah: ah.handle.transport().clone(), qpn, qkey: ud.remote_qkey })
}

#[inline]
fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    let imm = wr.imm_data.to_ne_bytes();
    // SAFETY: numbers, whatever the program wrote.
    let rdma = unsafe { wr.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { wr.wr.atomic };
    let write = |imm| SendOp::Write { remote_addr: rdma.remote_addr, rkey: rdma.rkey, imm };
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send { imm: None },
        IBV_WR_SEND_WITH_IMM => SendOp::Send { imm: Some(imm) },
        // The key shares its place with the immediate data, in host order.
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: wr.imm_data },
        IBV_WR_RDMA_WRITE => write(None),
        IBV_WR_RDMA_WRITE_WITH_IMM => write(Some(imm)),
        IBV_WR_RDMA_READ => SendOp::Read { remote_addr: rdma.remote_addr, rkey: rdma.rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote_addr: atomic.remote_addr,
            rkey: atomic.rkey,
            add: atomic.compare_add,
        },
        IBV_WR_ATOMIC_WRITE => {
            SendOp::AtomicWrite { remote_addr: rdma.remote_addr, rkey: rdma.rkey }
        }
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { key: wr.imm_data },
        opcode => {
            let cause = format!("opcode {opcode} is not offered");
            return Err(refuse("ibv_post_send", libc::EINVAL, &cause));
        }
    })
}

/// What Mellanox's devices say in the service level of a received datagram, which has no other
/// meaning on RoCE: UDP, and the kind of IP header. UCX checks the destination by it.
fn packet_kind(network: Network) -> u8 {
    const UDP: u8 = 8;
    match network {
        Network::Ipv6 => UDP | 1,
        Network::Ipv4 => UDP | 2,
    }
}

/// A completion as programs see it.
#[inline]
pub fn seen_completion(wc: &Wc) -> ibv_wc {
    let with_key = wc.flags.contains(irdma::WcFlags::WITH_INV);
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: if with_key { wc.invalidated_rkey } else { u32::from_ne_bytes(wc.imm) },
        qp_num: wc.qpn.get(),
        src_qp: wc.src_qpn.get(),
        wc_flags: wc.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: wc.network.map_or(0, packet_kind),
        dlid_path_bits: 0,
    }
}
