//! Pages that may come and go: asking the kernel before an access.

use std::ffi::c_void;

use irdma_net::maps;
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags, madvise, msync};

/// The smallest page.
pub(crate) const PAGE: usize = 4096;

/// Whether `len` bytes at `addr` can be read, or written: brings their pages in, as a device with
/// on-demand paging does (`madvise(2)`, `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`).
///
/// Mappings of devices, and kernels before 5.14, cannot be asked so; there the list of mappings
/// tells.
pub(crate) fn populate(addr: usize, len: usize, write: bool) -> bool {
    let start = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(len) else { return false };
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let place = std::ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: these advices bring pages in and change no byte; a bad range is refused.
    match unsafe { madvise(place, end - start, advice) } {
        Ok(()) => true,
        Err(Errno::INVAL) => maps::covers(addr as u64..end as u64, write).unwrap_or(false),
        Err(_) => false,
    }
}

/// Writes `len` bytes at `addr` to their file (`msync(2)`, `MS_SYNC`); false if that fails.
pub(crate) fn persist(addr: usize, len: usize) -> bool {
    let start = addr & !(PAGE - 1);
    let place = std::ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: this changes no byte of memory; a bad range is refused.
    unsafe { msync(place, addr + len - start, MsyncFlags::SYNC) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_there_or_not() {
        static CONSTANT: [u8; 64] = [7; 64];
        let mut heap = vec![0u8; 3 * PAGE];
        let place = heap.as_mut_ptr().expose_provenance();
        assert!(populate(place + 1, 2 * PAGE, true));
        let constant = CONSTANT.as_ptr().expose_provenance();
        assert!(populate(constant, 64, false));
        assert!(!populate(constant, 64, true));
        assert!(!populate(8, 8, false));
        assert!(!populate(usize::MAX - 8, 16, false));
    }
}
