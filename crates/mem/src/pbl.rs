//! Page lists: regions whose bytes lie in scattered pages.
//!
//! A list is as simple as its pages allow: none where they follow each other, up to four
//! addresses in the region itself, one array, or a root of leaves. A leaf is one page of entries.

use std::sync::Arc;

use crate::Buffer;

/// Entries of a leaf: a page of 8-byte addresses.
const LEAF_LEN: usize = 512;
/// Addresses that need no list.
const FEW: usize = 4;
/// Page sizes of the device, in bytes.
pub(crate) const PAGE_SIZES: [u64; 3] = [4 << 10, 2 << 20, 1 << 30];

/// Addresses of equal pages, in the order of the region's bytes.
#[derive(Debug)]
pub struct PageList {
    page_size: u64,
    entries: Entries,
    /// Buffers that the pages are of; alive as long as the list.
    _buffers: Vec<Arc<Buffer>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Entries {
    /// Each page follows the one before it.
    Contiguous(u64),
    Few([u64; FEW]),
    One(Box<[u64]>),
    Two(Box<[Box<[u64]>]>),
}

/// True if each page lies where the one before it ends.
pub fn check_mem_contiguous(pages: &[u64], page_size: u64) -> bool {
    (0..).zip(pages).all(|(i, page)| {
        let step = page_size.checked_mul(i);
        step.and_then(|step| pages[0].checked_add(step)) == Some(*page)
    })
}

/// The addresses of the pages that a range touches, up to `max` of them.
pub(crate) fn copy_user_pgaddrs(
    addr: u64,
    len: u64,
    page_size: u64,
    max: usize,
) -> impl Iterator<Item = u64> {
    let first = addr & !(page_size - 1);
    let count = (addr - first + len).div_ceil(page_size);
    (0..count).map(move |i| first + i * page_size).take(max)
}

impl PageList {
    /// Makes the simplest list that holds `pages`, at least one.
    pub(crate) fn setup_pbles(pages: &[u64], page_size: u64, buffers: Vec<Arc<Buffer>>) -> Self {
        let entries = match pages.len() {
            count if count <= FEW => {
                let mut few = [0; FEW];
                few[..pages.len()].copy_from_slice(pages);
                Entries::Few(few)
            }
            count if count <= LEAF_LEN => Entries::One(pages.into()),
            _ => Entries::Two(pages.chunks(LEAF_LEN).map(Into::into).collect()),
        };
        let mut list = PageList { page_size, entries, _buffers: buffers };
        if list.check_mr_contiguous(pages.len()) {
            list.entries = Entries::Contiguous(pages[0]);
        }
        list
    }

    /// True if the first `count` pages follow each other, so that no list is needed.
    fn check_mr_contiguous(&self, count: usize) -> bool {
        let leaf_bytes = self.page_size.checked_mul(LEAF_LEN as u64);
        match &self.entries {
            Entries::Contiguous(_) => true,
            Entries::Few(pages) => check_mem_contiguous(&pages[..count], self.page_size),
            Entries::One(pages) => check_mem_contiguous(pages, self.page_size),
            Entries::Two(leaves) => {
                let firsts: Vec<u64> = leaves.iter().map(|leaf| leaf[0]).collect();
                leaf_bytes.is_some_and(|bytes| check_mem_contiguous(&firsts, bytes))
                    && leaves.iter().all(|leaf| check_mem_contiguous(leaf, self.page_size))
            }
        }
    }

    /// 0 without a list, 1 for an array, 2 for a root of leaves.
    pub(crate) fn level(&self) -> u8 {
        match self.entries {
            Entries::Contiguous(_) | Entries::Few(_) => 0,
            Entries::One(_) => 1,
            Entries::Two(_) => 2,
        }
    }

    /// The address of a page of the list.
    fn page(&self, index: usize) -> u64 {
        match &self.entries {
            Entries::Contiguous(first) => first + index as u64 * self.page_size,
            Entries::Few(pages) => pages[index],
            Entries::One(pages) => pages[index],
            Entries::Two(leaves) => leaves[index / LEAF_LEN][index % LEAF_LEN],
        }
    }

    /// The process address of a byte of the list, and how many bytes follow it in its page.
    fn next_pbl_addr(&self, offset: u64) -> (usize, usize) {
        let within = offset & (self.page_size - 1);
        let page = self.page((offset / self.page_size) as usize);
        ((page + within) as usize, (self.page_size - within) as usize)
    }

    /// Cuts `len` bytes from `offset` on into runs: address and length of each.
    pub(crate) fn runs(&self, offset: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let (addr, room) = self.next_pbl_addr(offset + done as u64);
            let run = room.min(len - done);
            done += run;
            Some((addr, run))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn scattered(count: u64) -> Vec<u64> {
        (0..count).map(|i| PAGE * (1 + i * 2)).collect()
    }

    fn list(pages: &[u64]) -> PageList {
        PageList::setup_pbles(pages, PAGE, Vec::new())
    }

    #[test]
    fn a_list_is_as_simple_as_its_pages_allow() {
        for (count, level) in [(1, 0), (4, 0), (5, 1), (512, 1), (513, 2), (1500, 2)] {
            let pages = scattered(count);
            assert_eq!(list(&pages).level(), level, "{count} scattered pages");
            let straight: Vec<u64> = (7..7 + count).map(|i| i * PAGE).collect();
            let straight = list(&straight);
            assert_eq!(straight.entries, Entries::Contiguous(7 * PAGE), "{count} pages in a row");
            for (i, page) in pages.iter().enumerate() {
                assert_eq!(list(&pages).page(i), *page);
                assert_eq!(straight.page(i), (7 + i as u64) * PAGE);
            }
        }
    }

    #[test]
    fn one_page_out_of_its_place_keeps_the_list() {
        for broken in [0usize, 1, 511, 512, 1023, 1024, 1499] {
            let mut pages: Vec<u64> = (7..1507).map(|i| i * PAGE).collect();
            pages[broken] += PAGE * 5000;
            assert_eq!(list(&pages).level(), 2, "page {broken}");
        }
        // The sum wraps where products are taken in 32 bits.
        assert!(!check_mem_contiguous(&[0, 1 << 30, 2 << 30, 3 << 30, 0], 1 << 30));
        assert!(check_mem_contiguous(&[0, 1 << 30, 2 << 30, 3 << 30, 4 << 30], 1 << 30));
    }

    #[test]
    fn runs_end_with_their_pages() {
        let list = list(&scattered(3));
        let runs: Vec<_> = list.runs(4000, 5000).collect();
        assert_eq!(runs, [(4096 + 4000, 96), (3 * 4096, 4096), (5 * 4096, 808)]);
        assert_eq!(list.runs(5, 0).count(), 0);
    }

    #[test]
    fn a_range_touches_the_pages_it_starts_and_ends_in() {
        let of = |addr, len, max| copy_user_pgaddrs(addr, len, PAGE, max).collect::<Vec<_>>();
        assert_eq!(of(4100, 1, 9), [4096]);
        assert_eq!(of(8191, 2, 9), [4096, 8192]);
        assert_eq!(of(4096, 8192, 9), [4096, 8192]);
        assert_eq!(of(4096, 8193, 2), [4096, 8192]);
    }
}
