//! Fast registration: regions whose pages are mapped in advance and made valid by work requests
//! (IBTA 10.6.3.2, the kernel's `ib_alloc_mr` and `ib_map_mr_sg`).

use std::sync::Arc;

use crate::mr::check_access;
use crate::mw::check_low_byte;
use crate::pbl::{PAGE_SIZES, PageList, copy_user_pgaddrs};
use crate::slot::{Entry, Memory, Shape};
use crate::{Access, BindError, Buffer, MemError, MemTable, MrInfo, PdId};

/// Pages of the longest list (`max_fast_reg_page_list_len`).
pub const MAX_FAST_REG_PAGES: u32 = 262_144;

/// A piece of memory to be mapped: process address and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Process address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The list that the next registration of a key takes.
#[derive(Debug)]
pub(crate) struct FastPages {
    max: u32,
    page_size: u64,
    pages: Vec<u64>,
    iova: u64,
    len: u64,
    buffers: Vec<Arc<Buffer>>,
}

impl FastPages {
    /// Adds a page to the list. ENOMEM when it is full.
    fn set_page(&mut self, addr: u64) -> Result<(), MemError> {
        if self.pages.len() == self.max as usize {
            return Err(MemError::ListFull(self.max));
        }
        self.pages.push(addr);
        Ok(())
    }

    /// Adds the pages of a piece; a first page that is the newest of the list is there already.
    fn add_piece(&mut self, piece: Piece) -> Result<(), MemError> {
        let before = self.pages.len();
        let room = self.max as usize + 1;
        for page in copy_user_pgaddrs(piece.addr, piece.len, self.page_size, room) {
            let is_begun = page < piece.addr && self.pages.last() == Some(&page);
            if is_begun {
                continue;
            }
            if let Err(error) = self.set_page(page) {
                self.pages.truncate(before);
                return Err(error);
            }
        }
        self.len += piece.len;
        Ok(())
    }
}

impl MemTable {
    /// Reserves a key for fast registrations of up to `max_pages` pages; it is not valid yet.
    ///
    /// # Errors
    /// [`MemError::PageCount`] for 0 or more than [`MAX_FAST_REG_PAGES`]; [`MemError::NoKeys`].
    pub fn alloc_mr(&self, pd: PdId, max_pages: u32) -> Result<MrInfo, MemError> {
        if !(1..=MAX_FAST_REG_PAGES).contains(&max_pages) {
            return Err(MemError::PageCount(max_pages));
        }
        let info = self.hw_alloc_stag(pd)?;
        let list = FastPages {
            max: max_pages,
            page_size: PAGE_SIZES[0],
            pages: Vec::new(),
            iova: 0,
            len: 0,
            buffers: Vec::new(),
        };
        self.control().fast.insert(self.index(info.lkey), list);
        Ok(info)
    }

    /// Takes a key that works only once a registration has run.
    fn hw_alloc_stag(&self, pd: PdId) -> Result<MrInfo, MemError> {
        self.add(&Entry::reserved(pd, Shape::FAST))
    }

    /// As [`MemTable::map_mr_sg`], for parts of buffers, which stay alive as long as the key may
    /// use them.
    ///
    /// # Errors
    /// As [`MemTable::map_mr_sg`], and [`MemError::InvalidLength`] for a range outside its buffer.
    pub fn map_buffers(
        &self,
        key: u32,
        parts: &[(Arc<Buffer>, std::ops::Range<usize>)],
        page_size: u64,
    ) -> Result<usize, MemError> {
        let mut pieces = Vec::with_capacity(parts.len());
        for (buffer, range) in parts {
            let (addr, len) = buffer.part(range)?;
            pieces.push(Piece { addr, len });
        }
        let buffers = parts.iter().map(|(buffer, _)| Arc::clone(buffer)).collect();
        map_pieces(self, key, &pieces, page_size, buffers)
    }

    /// Registers what was mapped last, for a work request of a queue pair of `pd`: the region's key
    /// works from now on, as `new_key`. `key` may be any that the region has had, since requests
    /// that were posted before this one may have been flushed.
    ///
    /// # Errors
    /// See [`BindError`]; nothing has changed then.
    pub fn fast_register(
        &self,
        key: u32,
        new_key: u32,
        access: Access,
        pd: PdId,
    ) -> Result<(), BindError> {
        let control = self.control();
        let key = self.current(key).unwrap_or(key);
        let entry = self.lookup(key).ok().filter(|entry| entry.shape.contains(Shape::FAST));
        let entry = entry.ok_or(BindError::NoFastRegion(key))?;
        if entry.pd != pd {
            return Err(BindError::ForeignPd);
        }
        if !entry.shape.contains(Shape::INVALID) {
            return Err(BindError::InUse(key));
        }
        check_low_byte(key, new_key)?;
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(BindError::Access { missing: Access::FLUSH_PERSISTENT });
        }
        check_access(access).map_err(|_| BindError::Access { missing: Access::LOCAL_WRITE })?;
        let mapped = control.fast.get(&self.index(key)).filter(|mapped| mapped.len > 0);
        let mapped = mapped.ok_or(BindError::NothingMapped)?;
        let list = PageList::setup_pbles(&mapped.pages, mapped.page_size, mapped.buffers.clone());
        let start = mapped.iova & (mapped.page_size - 1);
        let zero_based = access.contains(Access::ZERO_BASED);
        let entry = Entry {
            pd,
            memory: Memory::Pages(Arc::new(list), start),
            len: mapped.len,
            iova: if zero_based { 0 } else { mapped.iova },
            access,
            shape: Shape::FAST,
            qpn: 0,
        };
        let slot = self.slot(key).ok_or(BindError::NoFastRegion(key))?;
        slot.change(key, new_key, &entry).then_some(()).ok_or(BindError::NoFastRegion(key))
    }
}

/// Replaces what is mapped for a key; returns how many pieces fit.
pub(crate) fn map_pieces(
    table: &MemTable,
    key: u32,
    pieces: &[Piece],
    page_size: u64,
    buffers: Vec<Arc<Buffer>>,
) -> Result<usize, MemError> {
    if !PAGE_SIZES.contains(&page_size) {
        return Err(MemError::PageSize(page_size));
    }
    let bad = |piece: &&Piece| piece.len == 0 || piece.addr.checked_add(piece.len).is_none();
    if let Some(Piece { addr, len }) = pieces.iter().find(bad) {
        return Err(MemError::InvalidLength { addr: *addr, len: *len });
    }
    let mut control = table.control();
    table.lookup(key)?;
    let wrong = MemError::WrongKind { key, needs: "a region of alloc_mr" };
    let list = control.fast.get_mut(&table.index(key)).ok_or(wrong)?;
    let iova = pieces.first().map_or(0, |piece| piece.addr);
    let mut next = FastPages { max: list.max, page_size, pages: Vec::new(), iova, len: 0, buffers };
    let (mut count, mut end) = (0, iova);
    for piece in pieces {
        let aligned = (piece.addr | end).is_multiple_of(page_size);
        let joins = piece.addr == end || aligned;
        if count > 0 && !joins {
            break;
        }
        match next.add_piece(*piece) {
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => (count, end) = (count + 1, piece.addr + piece.len),
        }
    }
    *list = next;
    Ok(count)
}
