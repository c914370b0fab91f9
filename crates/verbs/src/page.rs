//! The page of counters that a program can look at without a call (seed row 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use irdma_transport::{Result, Stats, VerbsError};

/// Bytes of the page.
const PAGE_LEN: usize = 4096;

/// Written by whoever has run a lane, once somebody looks.
#[derive(Debug)]
pub(crate) struct Page {
    watched: AtomicBool,
    key: u64,
    words: Box<[AtomicU64]>,
}

/// A page with the counters of this process, always up to date, read-only.
#[derive(Clone, Debug)]
pub struct CounterPage(Arc<Page>);

impl Page {
    /// `random` becomes the key: page-aligned like an offset, and no address.
    pub(crate) fn new(random: u64) -> Self {
        let words = (0..PAGE_LEN / 8).map(|_| AtomicU64::new(0)).collect();
        let key = random & !(PAGE_LEN as u64 - 1) | 1 << 52;
        Page { watched: AtomicBool::new(false), key, words }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Maps the page. EINVAL for another key or another size than a page.
    pub(crate) fn mmap(self: &Arc<Self>, key: u64, len: usize) -> Result<CounterPage> {
        if key != self.key || len != PAGE_LEN {
            return Err(VerbsError::invalid(format!(
                "mmap of {len} bytes with key {key:#x}: the key is mmap_key's, the size {PAGE_LEN}"
            )));
        }
        self.watched.store(true, Ordering::Release);
        Ok(CounterPage(Arc::clone(self)))
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Adds what a lane has counted since it published last. The number of updates comes first,
    /// and last of all.
    pub(crate) fn publish(&self, stats: &Stats, published: &mut Vec<u64>) {
        let values = stats.values();
        published.resize(values.len(), 0);
        for ((word, value), before) in self.words[1..].iter().zip(&values).zip(&*published) {
            word.fetch_add(value.wrapping_sub(*before), Ordering::Relaxed);
        }
        *published = values;
        self.words[0].fetch_add(1, Ordering::Release);
    }
}

impl CounterPage {
    /// How often the page was written.
    pub fn updates(&self) -> u64 {
        self.0.words[0].load(Ordering::Acquire)
    }

    /// The value of one of the driver's counters; `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let index = Stats::NAMES.iter().position(|known| *known == name)?;
        Some(self.0.words[1 + index].load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_and_a_whole_page_are_mapped() {
        let page = Arc::new(Page::new(0x1234_5678_9abc));
        assert_eq!(page.key() % PAGE_LEN as u64, 0);
        assert!(!page.is_watched());
        for (key, len) in [(page.key() + 4096, PAGE_LEN), (page.key(), 8192), (0, PAGE_LEN)] {
            assert_eq!(page.mmap(key, len).unwrap_err().errno(), 22);
        }
        assert!(!page.is_watched());
        let mapped = page.mmap(page.key(), PAGE_LEN).unwrap();
        let mut lanes = [Vec::new(), Vec::new()];
        for (lane, rx_udp) in [(0, 5), (1, 2), (0, 7)] {
            page.publish(&Stats { rx_udp, ..Stats::default() }, &mut lanes[lane]);
        }
        assert_eq!((mapped.get("RxUDP"), mapped.updates(), mapped.get("x")), (Some(9), 3, None));
    }
}
