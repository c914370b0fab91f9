//! Fast registration: regions that work requests make valid. An extension; C programs have no
//! such calls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use irdma_mem::{Access, Buffer, MemTable, Piece};
use irdma_transport::{Result, SendData, SendFlags, SendOp, SendWr};

use super::mr::verbs_error;
use super::{Mr, Pd, PostSend, Qp};
use crate::channel::Refused;
use crate::log::Logged;

/// A region of scattered pages: reserved once, then mapped, registered by [`Qp::reg_mr`] and
/// invalidated by [`SendOp::LocalInvalidate`] or the peer, again and again.
#[derive(Debug)]
pub struct FastMr {
    mr: Mr,
    /// The key that the newest posted registration gives.
    key: AtomicU32,
}

impl Pd {
    /// Reserves a region of up to `max_pages` pages (the kernel's `ib_alloc_mr`).
    ///
    /// EINVAL for 0 pages or more than [`crate::Limits::max_fast_reg_page_list_len`], ENOMEM when
    /// keys are exhausted.
    pub fn alloc_mr(&self, max_pages: u32) -> Result<FastMr> {
        let mr = self.register_on(0, Access::empty(), super::mr::Backing::Program, |mem, pd| {
            mem.alloc_mr(pd, max_pages)
        });
        let mr = mr.logged("alloc_mr")?;
        Ok(FastMr { key: AtomicU32::new(mr.lkey()), mr })
    }
}

impl FastMr {
    /// The key that the newest posted registration gives, local and remote.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Maps parts of buffers for the next registration (the kernel's `ib_map_mr_sg`); returns how
    /// many fit. The first part's own address becomes the region's.
    ///
    /// Only the first part may start, and only the last may end, inside a page of `page_size`
    /// bytes; a part that continues the one before it is part of it. The mapping ends where that
    /// does not hold, or with the list.
    ///
    /// EINVAL for a page size other than 4 KiB, 2 MiB or 1 GiB, an empty part, or one outside its
    /// buffer; ENOMEM where not even the first part fits.
    pub fn map_buffers(
        &self,
        parts: &[(Arc<Buffer>, Range<usize>)],
        page_size: u64,
    ) -> Result<usize> {
        let mapped = self.mem().map_buffers(self.current(), parts, page_size);
        mapped.map_err(verbs_error).logged("map_mr_sg")
    }

    /// As [`FastMr::map_buffers`], for any memory.
    ///
    /// # Safety
    /// As [`Pd::reg_user_mr`], for every piece, until the key is invalidated, or mapped and
    /// registered anew, or the region deregistered.
    pub unsafe fn map_mr_sg(&self, pieces: &[Piece], page_size: u64) -> Result<usize> {
        // SAFETY: our caller makes the same promise.
        let mapped = unsafe { self.mem().map_mr_sg(self.current(), pieces, page_size) };
        mapped.map_err(verbs_error).logged("map_mr_sg")
    }

    /// Level of the page list of what is registered now: 0 none, 1 an array, 2 a root of leaves.
    pub fn pbl_level(&self) -> u8 {
        self.mem().query(self.current()).map_or(0, |info| info.pbl_level)
    }

    /// Ends the region, registered or not. EBUSY while windows are bound to it.
    pub fn dereg_mr(self) -> std::result::Result<(), Refused<Self>> {
        let key = self.key;
        self.mr.dereg_mr().map_err(|Refused { handle, error }| Refused {
            handle: FastMr { mr: handle, key },
            error,
        })
    }

    fn mem(&self) -> &MemTable {
        self.mr.mem()
    }

    /// The key that is valid in this moment: posted registrations may wait.
    fn current(&self) -> u32 {
        self.mem().current(self.mr.lkey()).unwrap_or(self.mr.lkey())
    }
}

impl Qp {
    /// Posts the registration of what was mapped last, and returns the region's new key, whose
    /// low byte is the old one plus 1 (the kernel's `IB_WR_REG_MR`).
    ///
    /// EINVAL unless the service is RC or UC, ENOMEM when the queue is full. What else is wrong,
    /// such as a key that was not invalidated, shows in the completion, as
    /// [`crate::WcStatus::MwBindErr`].
    pub fn reg_mr(&self, wr_id: u64, flags: SendFlags, mr: &FastMr, access: Access) -> Result<u32> {
        self.start_post()?.reg_mr(wr_id, flags, mr, access)
    }
}

impl PostSend<'_> {
    /// See [`Qp::reg_mr`].
    pub fn reg_mr(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mr: &FastMr,
        access: Access,
    ) -> Result<u32> {
        let key = mr.key();
        let new_key = key & !0xff | key.wrapping_add(1) & 0xff;
        let op = SendOp::RegMr { key, new_key, access };
        self.post_send(&SendWr { wr_id, op, flags, data: SendData::Sges(&[]), ud: None })?;
        mr.key.store(new_key, Ordering::Release);
        Ok(new_key)
    }
}
