//! Random sequences against a naive model: one byte vector and a list of regions.

use std::sync::Arc;

use irdma_mem::{
    Access, Buffer, GrantError, MemTable, MrInfo, PdId, Sge, gather, scatter, total_len,
};
use proptest::prelude::*;

const SIZE: usize = 512;
const MAX_MR: u32 = 6;

/// Where a range is aimed: at a region (modulo their number), `va` bytes from its start.
#[derive(Clone, Copy, Debug)]
struct Target {
    region: usize,
    va: i64,
    len: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Register { start: usize, len: usize, iova: u64, access: u32, pd: u32 },
    Deregister { region: usize },
    Write { target: Target, byte: u8, need: u32, pd: u32 },
    Read { target: Target, need: u32, pd: u32 },
    FetchAdd { target: Target, add: u64 },
    CompareSwap { target: Target, guess: bool, swap: u64 },
    Scatter { list: Vec<Target>, cut: (u64, u64), byte: u8, pd: u32 },
    Gather { list: Vec<Target>, cut: (u64, u64), pd: u32 },
}

fn target() -> impl Strategy<Value = Target> {
    let len = prop_oneof![8 => 0..80u64, 1 => 0..600u64, 1 => (u64::MAX - 9)..=u64::MAX];
    (0..12usize, -4..300i64, len).prop_map(|(region, va, len)| Target { region, va, len })
}

fn list() -> impl Strategy<Value = Vec<Target>> {
    let short = target().prop_map(|target| Target { len: target.len % 90, ..target });
    prop::collection::vec(short, 0..5)
}

fn op() -> impl Strategy<Value = Op> {
    let need = prop_oneof![Just(0u32), Just(1), Just(2), Just(4), Just(8), Just(6)];
    let pd = prop_oneof![6 => Just(3u32), 1 => Just(4u32)];
    let iova = prop_oneof![Just(0u64), Just(0x1001), Just(u64::MAX - 300), any::<u64>()];
    let access = prop_oneof![3 => Just(0x0fu32), 2 => 0..64u32];
    prop_oneof![
        3 => (0..SIZE, 0..300usize, iova, access, pd.clone()).prop_map(
            |(start, len, iova, access, pd)| Op::Register { start, len, iova, access, pd }),
        1 => (0..12usize).prop_map(|region| Op::Deregister { region }),
        4 => (target(), any::<u8>(), need.clone(), pd.clone()).prop_map(
            |(target, byte, need, pd)| Op::Write { target, byte, need, pd }),
        2 => (target(), need, pd.clone()).prop_map(
            |(target, need, pd)| Op::Read { target, need, pd }),
        1 => (target(), any::<u64>()).prop_map(|(target, add)| Op::FetchAdd { target, add }),
        1 => (target(), any::<bool>(), any::<u64>()).prop_map(
            |(target, guess, swap)| Op::CompareSwap { target, guess, swap }),
        2 => (list(), any::<(u64, u64)>(), any::<u8>(), pd.clone()).prop_map(
            |(list, cut, byte, pd)| Op::Scatter { list, cut, byte, pd }),
        2 => (list(), any::<(u64, u64)>(), pd).prop_map(
            |(list, cut, pd)| Op::Gather { list, cut, pd }),
    ]
}

/// A region as the model knows it; it stays in the list when it is dead.
struct Known {
    mr: MrInfo,
    start: usize,
    live: bool,
}

/// The table, and beside it what its memory must hold.
struct World {
    table: MemTable,
    buffer: Arc<Buffer>,
    bytes: Vec<u8>,
    regions: Vec<Known>,
}

impl World {
    fn new() -> Self {
        Self {
            table: MemTable::new(11, MAX_MR),
            buffer: Arc::new(Buffer::zeroed(SIZE)),
            bytes: vec![0; SIZE],
            regions: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Register { start, len, iova, access, pd } => {
                let access = Access::from_bits_truncate(access);
                self.register(start, len, iova, access, PdId(pd));
            }
            Op::Deregister { region } => self.deregister(region),
            Op::Write { target, byte, need, pd } => {
                self.write(target, byte, Access::from_bits_truncate(need), PdId(pd));
            }
            Op::Read { target, need, pd } => {
                self.read(target, Access::from_bits_truncate(need), PdId(pd));
            }
            Op::FetchAdd { target, add } => self.fetch_add(target, add),
            Op::CompareSwap { target, guess, swap } => self.compare_swap(target, guess, swap),
            Op::Scatter { list, cut, byte, pd } => self.scatter(&list, cut, byte, PdId(pd)),
            Op::Gather { list, cut, pd } => self.gather(&list, cut, PdId(pd)),
        }
        let mut bytes = vec![0; SIZE];
        self.buffer.read(0, &mut bytes);
        assert_eq!(bytes, self.bytes);
        assert_eq!(self.table.len(), self.live_count());
    }

    fn live_count(&self) -> usize {
        self.regions.iter().filter(|known| known.live).count()
    }

    fn register(&mut self, start: usize, len: usize, iova: u64, access: Access, pd: PdId) {
        let range = start..start + len;
        let result = self.table.reg_phys_mr(pd, &self.buffer, range, iova, access);
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let remote_writer = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let possible = len > 0
            && start + len <= SIZE
            && u128::from(iova) + len as u128 <= u128::from(u64::MAX)
            && (access.contains(Access::LOCAL_WRITE) || !remote_writer)
            && self.live_count() < MAX_MR as usize;
        assert_eq!(result.is_ok(), possible, "{result:?}");
        if let Ok(mr) = result {
            assert!(self.regions.iter().all(|known| known.mr.lkey != mr.lkey), "key reused");
            let addr = self.buffer.addr() as usize + start;
            let (lkey, rkey) = (mr.lkey, mr.lkey);
            assert_eq!(
                mr,
                MrInfo { lkey, rkey, pd, addr, len: len as u64, iova, access, pbl_level: 0 }
            );
            self.regions.push(Known { mr, start, live: true });
        }
    }

    fn deregister(&mut self, region: usize) {
        let count = self.regions.len().max(1);
        let Some(known) = self.regions.get_mut(region % count) else { return };
        assert_eq!(self.table.dereg_mr(known.mr.lkey).is_ok(), known.live);
        known.live = false;
    }

    fn resolve(&self, target: Target) -> (u32, u64, Option<&Known>) {
        match self.regions.get(target.region % self.regions.len().max(1)) {
            Some(known) => {
                (known.mr.rkey, known.mr.iova.wrapping_add_signed(target.va), Some(known))
            }
            None => (0x1234_5678, target.va as u64, None),
        }
    }

    /// Where in `bytes` the range lies, or why it must be refused.
    fn expect(&self, target: Target, need: Access, pd: PdId) -> Result<usize, GrantError> {
        let (key, va, known) = self.resolve(target);
        let known = known.filter(|known| known.live).ok_or(GrantError::UnknownKey)?;
        if known.mr.pd != pd {
            return Err(GrantError::ForeignPd);
        }
        if !known.mr.access.contains(need) {
            return Err(GrantError::Access { missing: need - known.mr.access });
        }
        let (start, region_len, len) = (known.mr.iova, known.mr.len, target.len);
        let end = u128::from(va) + u128::from(len);
        let inside = va >= start && end <= u128::from(start) + u128::from(region_len);
        match (len, inside) {
            (0, _) => Ok(0),
            (_, true) => Ok(known.start + (va - start) as usize),
            _ => Err(GrantError::Bounds { key, start, region_len, va, len }),
        }
    }

    fn write(&mut self, target: Target, byte: u8, need: Access, pd: PdId) {
        let expected = self.expect(target, need, pd);
        let (key, va, _) = self.resolve(target);
        let grant = self.table.grant(key, va, target.len, need, pd);
        assert_eq!(grant.as_ref().err(), expected.as_ref().err());
        if let (Ok(grant), Ok(place)) = (grant, expected) {
            let data: Vec<u8> = (0..target.len).map(|i| byte.wrapping_add(i as u8)).collect();
            grant.write_at(0, &data);
            self.bytes[place..][..data.len()].copy_from_slice(&data);
        }
    }

    fn read(&self, target: Target, need: Access, pd: PdId) {
        let expected = self.expect(target, need, pd);
        let (key, va, _) = self.resolve(target);
        let grant = self.table.grant(key, va, target.len, need, pd);
        assert_eq!(grant.as_ref().err(), expected.as_ref().err());
        if let (Ok(grant), Ok(place)) = (grant, expected) {
            let len = target.len as usize;
            for offset in 0..=len.min(9) {
                let mut out = vec![0; len - offset];
                grant.read_at(offset as u64, &mut out);
                assert_eq!(out, self.bytes[place + offset..place + len]);
            }
        }
    }

    /// The model's word where an atomic operation goes, if the grant allows and aligns it.
    fn word(&self, target: Target) -> Option<(irdma_mem::Grant<'_>, usize, u64)> {
        let (key, va, _) = self.resolve(target);
        let grant = self.table.grant(key, va, 8, Access::REMOTE_ATOMIC, PdId(3));
        let place = self.expect(Target { len: 8, ..target }, Access::REMOTE_ATOMIC, PdId(3));
        assert_eq!(grant.as_ref().err(), place.as_ref().err());
        let (grant, place) = (grant.ok()?, place.ok()?);
        assert_eq!(grant.is_aligned_8(), place.is_multiple_of(8));
        let word = u64::from_ne_bytes(self.bytes[place..place + 8].try_into().unwrap());
        (place.is_multiple_of(8)).then_some((grant, place, word))
    }

    fn fetch_add(&mut self, target: Target, add: u64) {
        let Some((grant, place, word)) = self.word(target) else { return };
        assert_eq!(grant.fetch_add(add), word);
        drop(grant);
        self.set_word(place, word.wrapping_add(add));
    }

    fn compare_swap(&mut self, target: Target, guess: bool, swap: u64) {
        let Some((grant, place, word)) = self.word(target) else { return };
        let compare = if guess { word } else { word ^ 1 };
        assert_eq!(grant.compare_swap(compare, swap), word);
        drop(grant);
        self.set_word(place, if guess { swap } else { word });
    }

    fn set_word(&mut self, place: usize, word: u64) {
        self.bytes[place..place + 8].copy_from_slice(&word.to_ne_bytes());
    }

    fn sges(&self, list: &[Target]) -> Vec<Sge> {
        list.iter()
            .map(|target| {
                let (lkey, addr, _) = self.resolve(*target);
                Sge { addr, length: target.len as u32, lkey }
            })
            .collect()
    }

    /// Where each byte of the cut lies, or the first element that must be refused.
    fn places(
        &self,
        list: &[Target],
        (offset, len): (u64, u64),
        need: Access,
        pd: PdId,
    ) -> Result<Vec<usize>, (usize, GrantError)> {
        let mut places = Vec::new();
        let mut begin = 0;
        for (index, target) in list.iter().enumerate() {
            let first = offset.clamp(begin, begin + target.len) - begin;
            let end = (offset + len).clamp(begin, begin + target.len) - begin;
            begin += target.len;
            if first < end {
                let part = Target { va: target.va + first as i64, len: end - first, ..*target };
                let place = self.expect(part, need, pd).map_err(|error| (index, error))?;
                places.extend(place..place + part.len as usize);
            }
        }
        Ok(places)
    }

    fn scatter(&mut self, list: &[Target], cut: (u64, u64), byte: u8, pd: PdId) {
        let sges = self.sges(list);
        let (offset, len) = cut_to(cut, total_len(&sges));
        let expected = self.places(list, (offset, len), Access::LOCAL_WRITE, pd);
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
        let result = scatter(&self.table, pd, &sges, offset, &data);
        assert_eq!(result.map_err(|e| (e.index, e.error)).err(), expected.clone().err());
        for (place, byte) in expected.into_iter().flatten().zip(data) {
            self.bytes[place] = byte;
        }
    }

    fn gather(&self, list: &[Target], cut: (u64, u64), pd: PdId) {
        let sges = self.sges(list);
        let (offset, len) = cut_to(cut, total_len(&sges));
        let expected = self.places(list, (offset, len), Access::empty(), pd);
        let mut out = vec![0; len as usize];
        let result = gather(&self.table, pd, &sges, offset, &mut out);
        assert_eq!(result.map_err(|e| (e.index, e.error)).err(), expected.clone().err());
        if let Ok(places) = expected {
            assert_eq!(out, places.iter().map(|place| self.bytes[*place]).collect::<Vec<u8>>());
        }
    }
}

/// Some offset and length inside `total` bytes.
fn cut_to((offset, len): (u64, u64), total: u64) -> (u64, u64) {
    let offset = offset % (total + 1);
    (offset, len % (total - offset + 1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_the_model_does(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
    }
}
