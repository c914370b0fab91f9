//! Keys ("stags"): 32 bits = random driver bits, the region's index, a random low byte.
//!
//! Indices rise, wrap and are reused only when the cursor has come round. One lap hands out an
//! index at most once, and the random bits of an index are a permutation of the lap number, so
//! a freed key comes back only after all the others of its index.

use crate::MemError;

/// Bits of the low part of a key, which its owner may change (fast registration, window binding).
const LOW_BITS: u32 = 8;
/// The index field is never narrower than this.
const MIN_INDEX_BITS: u32 = 14;
/// The index field is never wider than this: above it is the end of the key.
const MAX_INDEX_BITS: u32 = 24;

/// The largest number of keys a table can have: index 0 is reserved.
pub(crate) const MAX_KEYS: u32 = (1 << MAX_INDEX_BITS) - 1;

/// Where the index stands in a key.
#[derive(Clone, Copy)]
pub(crate) struct StagLayout {
    index_bits: u32,
}

impl StagLayout {
    pub(crate) fn new(max_mr: u32) -> Self {
        Self { index_bits: (u32::BITS - max_mr.leading_zeros()).max(MIN_INDEX_BITS) }
    }

    /// The index part of any 32-bit number, key or not.
    #[inline]
    pub(crate) fn index(self, key: u32) -> u32 {
        (key >> LOW_BITS) & ((1 << self.index_bits) - 1)
    }

    fn random_bits(self) -> u32 {
        u32::BITS - self.index_bits
    }

    fn key(self, index: u32, random: u32) -> u32 {
        let low = random & ((1 << LOW_BITS) - 1);
        let driver = (random >> LOW_BITS).checked_shl(self.index_bits + LOW_BITS).unwrap_or(0);
        driver | index << LOW_BITS | low
    }
}

/// Which indices are taken, and the next one to try.
///
/// Indices come from a window that doubles when more than half of it is taken at the end of a
/// lap: a program that registers and deregisters for ever touches few slots, whatever `max_mr`.
pub(crate) struct Stags {
    layout: StagLayout,
    seed: u64,
    max_mr: u32,
    window: u32,
    cursor: u32,
    lap: u32,
    live: u32,
    taken: Vec<u64>,
}

impl Stags {
    pub(crate) fn new(seed: u64, max_mr: u32) -> Self {
        let window = max_mr.min((1 << MIN_INDEX_BITS) - 1);
        let cursor = 1 + (mix(seed) % u64::from(window.max(1))) as u32;
        let layout = StagLayout::new(max_mr);
        let taken = vec![0; words(window)];
        Self { layout, seed, max_mr, window, cursor, lap: 0, live: 0, taken }
    }

    /// Keys in use.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Takes the next free index and makes a key for it.
    pub(crate) fn create_stag(&mut self) -> Result<u32, MemError> {
        if self.live == self.max_mr {
            return Err(MemError::NoKeys { max_mr: self.max_mr });
        }
        let index = loop {
            match self.free_from(self.cursor) {
                Some(index) => break index,
                None => self.end_lap(),
            }
        };
        self.taken[index as usize / 64] |= 1 << (index % 64);
        self.cursor = index + 1;
        self.live += 1;
        Ok(self.layout.key(index, self.random(index)))
    }

    /// Gives the index of a key back.
    pub(crate) fn free_stag(&mut self, key: u32) {
        let index = self.layout.index(key);
        self.taken[index as usize / 64] &= !(1 << (index % 64));
        self.live -= 1;
    }

    fn free_from(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let mut below = (1u64 << (from % 64)) - 1;
        for (word, taken) in self.taken.iter().enumerate().skip(first) {
            let free = !(taken | below);
            if free != 0 {
                let index = word as u32 * 64 + free.trailing_zeros();
                return (index <= self.window).then_some(index);
            }
            below = 0;
        }
        None
    }

    fn end_lap(&mut self) {
        if self.live > self.window / 2 && self.window < self.max_mr {
            self.cursor = self.window + 1;
            self.window = (self.window * 2 + 1).min(self.max_mr);
            self.taken.resize(words(self.window), 0);
        } else {
            self.cursor = 1;
            self.lap = self.lap.wrapping_add(1);
        }
    }

    /// The random bits of an index in this lap: invertible steps, so no two laps agree until
    /// all values were used.
    fn random(&self, index: u32) -> u32 {
        let bits = self.layout.random_bits();
        let mask = (1 << bits) - 1;
        let secret = mix(self.seed ^ u64::from(index) << 32);
        let mut x = self.lap.wrapping_add(secret as u32) & mask;
        for odd in [(secret >> 14) as u32 | 1, (secret >> 40) as u32 | 1] {
            x = x.wrapping_mul(odd) & mask;
            x ^= x >> (bits / 2);
        }
        x
    }
}

fn words(window: u32) -> usize {
    window as usize / 64 + 1
}

/// One step of splitmix64: every output bit depends on every input bit.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_have_their_index_in_the_middle_and_are_never_below_256() {
        for (max_mr, index_bits) in [(1, 14), (16_383, 14), (16_384, 15), (1 << 20, 21)] {
            let mut stags = Stags::new(7, max_mr);
            for _ in 0..max_mr.min(5000) {
                let cursor = stags.cursor;
                let key = stags.create_stag().unwrap();
                assert!(key >= 256, "{key:#x}");
                let index = key >> 8 & ((1 << index_bits) - 1);
                assert_eq!(index, stags.layout.index(key));
                assert!(index == cursor || index == 1, "index {index} after cursor {cursor}");
            }
        }
    }

    #[test]
    fn live_keys_differ_and_run_out_at_the_limit() {
        let max_mr = 40_000;
        let mut stags = Stags::new(7, max_mr);
        let keys: Vec<u32> = (0..max_mr).map(|_| stags.create_stag().unwrap()).collect();
        let indices: HashSet<u32> = keys.iter().map(|key| stags.layout.index(*key)).collect();
        assert_eq!(indices.len(), keys.len());
        assert!(indices.iter().all(|index| (1..=max_mr).contains(index)));
        assert_eq!(stags.create_stag(), Err(MemError::NoKeys { max_mr }));

        stags.free_stag(keys[1234]);
        let key = stags.create_stag().unwrap();
        assert_eq!(stags.layout.index(key), stags.layout.index(keys[1234]));
        assert_ne!(key, keys[1234]);
        assert_eq!(stags.live(), max_mr);
    }

    #[test]
    fn a_freed_key_does_not_come_back_for_many_laps() {
        let mut stags = Stags::new(7, 3);
        let mut last_use = [0; 4];
        let mut keys = HashSet::new();
        for turn in 1..=600_000 {
            let key = stags.create_stag().unwrap();
            assert!(keys.insert(key), "{key:#x} again in turn {turn}");
            let last = &mut last_use[stags.layout.index(key) as usize];
            assert!(*last == 0 || turn - *last >= 3, "index reused at once");
            *last = turn;
            stags.free_stag(key);
        }
    }

    #[test]
    fn registering_and_freeing_for_ever_uses_few_indices() {
        for (live_count, limit) in [(1, 1 << 14), (8000, 1 << 14), (10_000, 1 << 15)] {
            let mut stags = Stags::new(7, MAX_KEYS);
            for _ in 1..live_count {
                stags.create_stag().unwrap();
            }
            for _ in 0..100_000 {
                let key = stags.create_stag().unwrap();
                assert!(stags.layout.index(key) < limit, "{live_count} live");
                stags.free_stag(key);
            }
        }
    }

    #[test]
    fn the_seed_decides_the_keys() {
        let keys = |seed| {
            let mut stags = Stags::new(seed, 1000);
            std::array::from_fn::<u32, 100, _>(|_| stags.create_stag().unwrap())
        };
        assert_eq!(keys(1), keys(1));
        let random = |key: u32| (key >> 22, key & 0xff);
        let same = keys(1).into_iter().zip(keys(2)).filter(|(a, b)| random(*a) == random(*b));
        assert!(same.count() <= 1);
    }

    #[test]
    fn a_table_of_no_keys_has_none() {
        assert_eq!(Stags::new(7, 0).create_stag(), Err(MemError::NoKeys { max_mr: 0 }));
    }
}
