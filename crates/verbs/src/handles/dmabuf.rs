//! Regions on memory of a file descriptor (`ibv_reg_dmabuf_mr(3)`).

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use irdma_mem::Access;
use irdma_transport::{ErrorKind, Result, VerbsError};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Pd;
use super::mr::{Backing, Mr};
use crate::log::Logged;
use crate::pages::PAGE;

/// `DMA_BUF_MAGIC` of `linux/magic.h`.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// A part of a file in this process; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: usize,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let place = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: nobody else knows the mapping, and its region is deregistered.
        let _ = unsafe { munmap(place, self.len) };
    }
}

/// What kind of memory a descriptor stands for.
enum Kind {
    DmaBuf,
    /// A memfd, and whether it can lose pages under us.
    Memory {
        may_shrink: bool,
    },
}

impl Pd {
    /// Registers `len` bytes from `offset` of a dma-buf, or of a memfd, named by addresses from
    /// `iova` on. The descriptor may be closed afterwards.
    ///
    /// EINVAL for a length of 0, a range past the end of the file, or an `iova` that differs from
    /// `offset` within a page; EOPNOTSUPP for other kinds of files, and dma-bufs whose exporter
    /// offers no mapping; otherwise as [`Pd::reg_user_mr`].
    pub fn reg_dmabuf_mr(
        &self,
        offset: u64,
        len: u64,
        iova: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> Result<Mr> {
        self.try_reg_dmabuf_mr(offset, len, iova, fd, access).logged("reg_dmabuf_mr")
    }

    fn try_reg_dmabuf_mr(
        &self,
        offset: u64,
        len: u64,
        iova: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> Result<Mr> {
        let kind = kind_of(fd)?;
        let within = offset % PAGE as u64;
        if len == 0 || iova % PAGE as u64 != within {
            return Err(VerbsError::invalid(format!(
                "{len} bytes at {offset} as {iova:#x}: 0 bytes, or other places in a page"
            )));
        }
        let mapping = map(fd, &kind, offset - within, len.saturating_add(within), access)?;
        let addr = mapping.addr + within as usize;
        let odp = matches!(kind, Kind::Memory { may_shrink: true });
        let with = if odp { access | Access::ON_DEMAND } else { access };
        self.register_on(len, access, Backing::File { _mapping: mapping }, |mem, pd| {
            // SAFETY: the mapping lives as long as the region; of a file that may shrink each
            // access asks first.
            unsafe { mem.reg_user_mr(pd, addr, len, iova, with) }
        })
    }
}

fn kind_of(fd: BorrowedFd<'_>) -> Result<Kind> {
    let file = fstatfs(fd).map_err(|errno| failed("the descriptor", errno))?;
    if file.f_type as u64 == DMA_BUF_MAGIC {
        return Ok(Kind::DmaBuf);
    }
    match fcntl_get_seals(fd) {
        Ok(seals) => Ok(Kind::Memory { may_shrink: !seals.contains(SealFlags::SHRINK) }),
        Err(_) => Err(VerbsError::unsupported(
            "the descriptor is neither a dma-buf nor a memfd; this device has no other memory",
        )),
    }
}

fn map(fd: BorrowedFd<'_>, kind: &Kind, offset: u64, len: u64, access: Access) -> Result<Mapping> {
    if let Kind::Memory { .. } = kind {
        let size = fstat(fd).map_err(|errno| failed("the file", errno))?.st_size as u64;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let text = format!("{len} bytes at {offset}: the file has {size}");
            return Err(VerbsError::invalid(text));
        }
    }
    let write = access.contains(Access::LOCAL_WRITE);
    let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let len = usize::try_from(len).map_err(|_| VerbsError::invalid("too long"))?;
    // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
    let place = unsafe { mmap(null_mut::<c_void>(), len, prot, MapFlags::SHARED, fd, offset) };
    let place = place.map_err(|errno| failed("mapping the file", errno))?;
    Ok(Mapping { addr: place.expose_provenance(), len })
}

fn failed(what: &str, errno: Errno) -> VerbsError {
    let kind = match errno {
        Errno::NODEV | Errno::OPNOTSUPP => ErrorKind::Unsupported,
        Errno::ACCESS | Errno::PERM => ErrorKind::NotPermitted,
        Errno::NOMEM => ErrorKind::NoMemory,
        _ => ErrorKind::Invalid,
    };
    VerbsError::new(kind, format!("{what}: {errno}"))
}
