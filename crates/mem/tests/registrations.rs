//! Regions beyond the plain ones: scattered pages, on-demand, null, re-registered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use irdma_mem::{
    Access, BindError, Buffer, GrantError, InvalidateError, MAX_FAST_REG_PAGES, MemError, MemTable,
    MwBind, MwType, PdId, Rereg, Sge, gather, scatter,
};

const PD: PdId = PdId(3);
const OTHER_PD: PdId = PdId(4);
const QP: u32 = 9;
const PAGE: usize = 4096;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// A buffer and the offset of its first whole page.
fn pages(count: usize) -> (Arc<Buffer>, usize) {
    let buffer = Arc::new(Buffer::zeroed((count + 1) * PAGE));
    let first = (buffer.addr() as usize).next_multiple_of(PAGE) - buffer.addr() as usize;
    (buffer, first)
}

/// A region of every second page of a buffer.
struct Scattered {
    table: MemTable,
    buffer: Arc<Buffer>,
    first: usize,
    key: u32,
    iova: u64,
}

fn scattered(count: usize) -> Scattered {
    let table = MemTable::new(1, 64);
    let (buffer, first) = pages(count * 2);
    let mr = table.alloc_mr(PD, count as u32).unwrap();
    let parts: Vec<_> = (0..count)
        .map(|i| {
            let start = first + i * 2 * PAGE;
            (Arc::clone(&buffer), start..start + PAGE)
        })
        .collect();
    assert_eq!(table.map_buffers(mr.lkey, &parts, PAGE as u64), Ok(count));
    let iova = buffer.addr() + first as u64;
    Scattered { table, buffer, first, key: mr.lkey, iova }
}

fn register(s: &Scattered) -> u32 {
    let new = s.key ^ 0x55;
    s.table.fast_register(s.key, new, ALL, PD).unwrap();
    new
}

#[test]
fn a_reserved_key_works_only_once_registered() {
    let s = scattered(3);
    let grant = |key| s.table.grant(key, s.iova, 1, Access::empty(), PD).map(drop);
    assert_eq!(grant(s.key), Err(GrantError::Invalid));
    let key = register(&s);
    assert_eq!((grant(s.key), grant(key)), (Err(GrantError::UnknownKey), Ok(())));
    s.table.invalidate(key, PD, QP).unwrap();
    assert_eq!(grant(key), Err(GrantError::Invalid));
    assert_eq!(s.table.fast_register(key, key, ALL, PD), Ok(()));
    s.table.dereg_mr(s.key).unwrap();
    assert_eq!(grant(key), Err(GrantError::UnknownKey));
    assert!(s.table.is_empty());
}

/// Requests are posted before it is known which of the earlier ones succeed.
#[test]
fn any_key_that_a_region_has_had_names_it_in_a_registration() {
    let s = scattered(3);
    assert_eq!(s.table.fast_register(s.key ^ 0x11, s.key ^ 0x12, ALL, PD), Ok(()));
    assert!(s.table.query(s.key ^ 0x12).is_some());
}

#[test]
fn scattered_pages_are_one_region() {
    for count in [2usize, 4, 5, 512, 513] {
        let s = scattered(count);
        let key = register(&s);
        let level = if count <= 4 { 0 } else { 1 + u8::from(count > 512) };
        let info = s.table.query(key).unwrap();
        assert_eq!((info.pbl_level, info.len), (level, (count * PAGE) as u64));
        // Across the border of every page.
        for page in 1..count {
            let va = s.iova + (page * PAGE) as u64 - 3;
            let data = [page as u8, 2, 3, 4, 5, 6, 7];
            let sge = [Sge { addr: va, length: 7, lkey: key }];
            scatter(&s.table, PD, &sge, 0, &data).unwrap();
            let mut back = [0; 7];
            gather(&s.table, PD, &sge, 0, &mut back).unwrap();
            assert_eq!(back, data);
            let ends = s.first + (page * 2 - 1) * PAGE;
            let next = s.first + page * 2 * PAGE;
            assert_eq!((s.buffer.byte(ends - 1), s.buffer.byte(next + 3)), (3, 7));
            assert_eq!((s.buffer.byte(ends), s.buffer.byte(next - 1)), (0, 0), "between pages");
        }
        let end = s.iova + (count * PAGE) as u64;
        assert!(s.table.grant(key, end - 1, 2, Access::empty(), PD).is_err());
    }
}

#[test]
fn atomics_and_windows_work_on_scattered_pages() {
    let s = scattered(6);
    let key = register(&s);
    let va = s.iova + 3 * PAGE as u64 + 8;
    let grant = s.table.grant_to_peer(key, (va, 8), Access::REMOTE_ATOMIC, (PD, QP)).unwrap();
    assert!(grant.is_aligned_8());
    assert_eq!((grant.fetch_add(5), grant.compare_swap(5, 9), grant.fetch_add(0)), (0, 5, 9));
    drop(grant);
    let at = s.first + 3 * 2 * PAGE + 8;
    assert_eq!(s.buffer.byte(at), 9);

    let mw = s.table.alloc_mw(PD, MwType::Two).unwrap();
    let access = Access::REMOTE_READ;
    let bind = MwBind { rkey: mw, new_rkey: mw, lkey: key, va, len: PAGE as u64, access };
    s.table.bind_mw(&bind, PD, QP).unwrap();
    let grant = s.table.grant_to_peer(mw, (va, PAGE as u64), access, (PD, QP)).unwrap();
    let mut byte = [0];
    grant.read_at(0, &mut byte);
    assert_eq!(byte, [9]);
    drop(grant);
    assert_eq!(s.table.invalidate(key, PD, QP), Err(InvalidateError::Busy));
    assert_eq!(s.table.dereg_mr(key), Err(MemError::Busy(key)));
    s.table.invalidate(mw, PD, QP).unwrap();
    s.table.invalidate(key, PD, QP).unwrap();
}

/// What `ib_map_mr_sg` maps of a list of pieces.
#[test]
fn a_mapping_ends_at_the_first_gap_or_with_the_list() {
    let (buffer, first) = pages(16);
    let table = MemTable::new(1, 64);
    let key = table.alloc_mr(PD, 4).unwrap().lkey;
    let map = |pieces: &[(usize, usize)]| {
        let part = |(start, len): &(usize, usize)| {
            (Arc::clone(&buffer), first + start..first + start + len)
        };
        let parts: Vec<_> = pieces.iter().map(part).collect();
        table.map_buffers(key, &parts, PAGE as u64)
    };
    let mapped = |pieces: &[(usize, usize)]| {
        map(pieces).map(|count| {
            table.fast_register(key, key, ALL, PD).unwrap();
            let len = table.query(key).unwrap().len;
            table.invalidate(key, PD, QP).unwrap();
            (count, len)
        })
    };
    assert_eq!(mapped(&[(100, 50)]), Ok((1, 50)));
    assert_eq!(mapped(&[(100, 50), (150, 20)]), Ok((2, 70)), "a continued piece");
    assert_eq!(mapped(&[(100, 50), (151, 20)]), Ok((1, 50)), "a gap");
    assert_eq!(mapped(&[(PAGE - 8, 8), (4 * PAGE, 100)]), Ok((2, 108)));
    assert_eq!(mapped(&[(PAGE - 8, 7), (4 * PAGE, 100)]), Ok((1, 7)));
    assert_eq!(mapped(&[(0, PAGE), (0, PAGE), (0, PAGE)]), Ok((3, 3 * PAGE as u64)), "one page");
    assert_eq!(mapped(&[(0, 4 * PAGE), (8 * PAGE, 1)]), Ok((1, 4 * PAGE as u64)), "the list");
    assert_eq!(map(&[(0, 5 * PAGE)]), Err(MemError::ListFull(4)));
    assert!(matches!(map(&[(0, 0)]), Err(MemError::InvalidLength { len: 0, .. })));
    assert!(matches!(map(&[(0, 18 * PAGE)]), Err(MemError::InvalidLength { .. })));
    assert_eq!(table.map_buffers(key, &[], 8192), Err(MemError::PageSize(8192)));
}

#[test]
fn a_fast_registration_that_may_not_be_is_refused() {
    let s = scattered(2);
    let plain = s.table.reg_phys_mr(PD, &s.buffer, 0..8, 0, ALL).unwrap().lkey;
    let reg = |key, new, access, pd| s.table.fast_register(key, new, access, pd);
    assert_eq!(reg(plain, plain, ALL, PD), Err(BindError::NoFastRegion(plain)));
    assert_eq!(reg(s.key, s.key, ALL, OTHER_PD), Err(BindError::ForeignPd));
    let other = s.key ^ 0x100;
    assert_eq!(reg(s.key, other, ALL, PD), Err(BindError::Key { old: s.key, new: other }));
    let missing = Err(BindError::Access { missing: Access::LOCAL_WRITE });
    assert_eq!(reg(s.key, s.key, Access::REMOTE_WRITE, PD), missing);
    let missing = Err(BindError::Access { missing: Access::FLUSH_PERSISTENT });
    assert_eq!(reg(s.key, s.key, Access::FLUSH_PERSISTENT, PD), missing, "pages of no file");
    let empty = s.table.alloc_mr(PD, 1).unwrap().lkey;
    assert_eq!(reg(empty, empty, ALL, PD), Err(BindError::NothingMapped));
    assert_eq!(reg(s.key, s.key, ALL, PD), Ok(()));
    assert_eq!(reg(s.key, s.key, ALL, PD), Err(BindError::InUse(s.key)));
    for count in [0, MAX_FAST_REG_PAGES + 1] {
        assert_eq!(s.table.alloc_mr(PD, count), Err(MemError::PageCount(count)));
    }
    let wrong = MemError::WrongKind { key: plain, needs: "a region of alloc_mr" };
    assert_eq!(s.table.map_buffers(plain, &[], PAGE as u64), Err(wrong));
}

#[test]
fn zero_based_fast_registrations_count_from_0() {
    let s = scattered(3);
    s.table.fast_register(s.key, s.key, ALL | Access::ZERO_BASED, PD).unwrap();
    let grant = s.table.grant(s.key, PAGE as u64, 1, Access::LOCAL_WRITE, PD).unwrap();
    grant.write_at(0, b"q");
    assert_eq!(s.buffer.byte(s.first + 2 * PAGE), b'q');
}

#[test]
fn a_null_region_reads_as_zeros_and_swallows_writes() {
    let table = MemTable::new(1, 4);
    let key = table.alloc_null_mr(PD).unwrap().lkey;
    let sge = [Sge { addr: u64::MAX - 100, length: 50, lkey: key }];
    scatter(&table, PD, &sge, 0, &[7; 50]).unwrap();
    let mut back = [1; 50];
    gather(&table, PD, &sge, 0, &mut back).unwrap();
    assert_eq!(back, [0; 50]);
    let peer = table.grant_to_peer(key, (0, 1), Access::empty(), (PD, QP)).map(drop);
    assert_eq!(peer, Err(GrantError::UnknownKey), "the key is the owner's only");
    table.dereg_mr(key).unwrap();
}

static PERSISTED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn what_is_made_persistent_is_the_range_or_the_whole_region() {
    let table = MemTable::new(1, 4);
    let buffer = Arc::new(Buffer::zeroed(64));
    let flush = Access::FLUSH_PERSISTENT;
    let mr = table.reg_phys_mr(PD, &buffer, 8..64, 0x100, flush).unwrap();
    let persist = |range| table.persist(mr.rkey, range, (PD, QP));
    assert_eq!(persist(None), Ok(false), "nobody can");
    table.set_persist(|addr, len| {
        PERSISTED.store(addr + len, Ordering::Relaxed);
        len != 3
    });
    assert_eq!(persist(None), Ok(true));
    assert_eq!(PERSISTED.load(Ordering::Relaxed), buffer.addr() as usize + 64);
    assert_eq!(persist(Some((0x102, 4))), Ok(true));
    assert_eq!(PERSISTED.load(Ordering::Relaxed), buffer.addr() as usize + 8 + 2 + 4);
    assert_eq!(persist(Some((0x102, 3))), Ok(false), "a failure");
    assert!(persist(Some((0x102, 64))).is_err(), "past the end");
    let plain = table.reg_phys_mr(PD, &buffer, 0..64, 0, ALL).unwrap();
    let missing = Err(GrantError::Access { missing: flush });
    assert_eq!(table.persist(plain.rkey, None, (PD, QP)), missing);
}

static MAPPED: AtomicBool = AtomicBool::new(true);

#[test]
fn on_demand_memory_is_asked_for_at_each_access() {
    let table = MemTable::new(1, 4);
    let (buffer, _) = pages(1);
    let va = buffer.addr();
    let implicit = table.reg_implicit_mr(PD, ALL).unwrap();
    assert_eq!((implicit.addr, implicit.len, implicit.iova), (0, u64::MAX, 0));
    let grant = |access| table.grant(implicit.lkey, va, 4, access, PD).map(drop);
    let unmapped = Err(GrantError::Unmapped { addr: va, len: 4 });
    assert_eq!(grant(Access::empty()), unmapped, "nobody to ask");
    table.set_probe(|_, _, write| MAPPED.load(Ordering::Relaxed) && !write);
    assert_eq!((grant(Access::empty()), grant(Access::LOCAL_WRITE)), (Ok(()), unmapped));
    MAPPED.store(false, Ordering::Relaxed);
    assert_eq!(grant(Access::empty()), unmapped);
    let check = |len| table.check_for_peer(implicit.rkey, (va, len), ALL, (PD, 7));
    assert_eq!(check(4), Ok(()), "nothing is accessed yet");
    assert!(matches!(check(u64::MAX), Err(GrantError::Bounds { .. })));
    MAPPED.store(true, Ordering::Relaxed);
    let write_only = table.reg_implicit_mr(PD, Access::REMOTE_WRITE);
    assert_eq!(write_only, Err(MemError::InvalidAccess(Access::REMOTE_WRITE)));
}

/// Every combination of what a re-registration can change.
#[test]
fn a_re_registration_changes_what_it_names() {
    let (old, new) = (Arc::new(Buffer::zeroed(64)), Arc::new(Buffer::zeroed(32)));
    for flags in 1..8u32 {
        let table = MemTable::new(1, 8);
        let before = table.reg_phys_mr(PD, &old, 0..64, 0x100, Access::LOCAL_WRITE).unwrap();
        let change = Rereg {
            translation: (flags & 1 != 0).then(|| (new.addr() as usize, 32, 0x900)),
            pd: (flags & 2 != 0).then_some(OTHER_PD),
            access: (flags & 4 != 0).then_some(Access::REMOTE_READ),
        };
        // SAFETY: both buffers outlive the table.
        let after = unsafe { table.rereg_user_mr(before.lkey, &change) }.unwrap();
        assert_eq!(after.lkey, before.lkey, "the key is kept");
        let moved = flags & 1 != 0;
        assert_eq!((after.len, after.iova), if moved { (32, 0x900) } else { (64, 0x100) });
        assert_eq!(after.addr as u64, if moved { new.addr() } else { old.addr() });
        assert_eq!(after.pd, if flags & 2 != 0 { OTHER_PD } else { PD });
        let access = if flags & 4 != 0 { Access::REMOTE_READ } else { Access::LOCAL_WRITE };
        assert_eq!((after.access, table.query(before.lkey)), (access, Some(after)));
    }
}

#[test]
fn a_re_registration_that_may_not_be_leaves_the_region_as_it_was() {
    let table = MemTable::new(1, 8);
    let buffer = Arc::new(Buffer::zeroed(64));
    let mr = table.reg_phys_mr(PD, &buffer, 0..64, 0x100, ALL).unwrap();
    // SAFETY: refused calls touch no memory.
    let rereg = |key, change: Rereg| unsafe { table.rereg_user_mr(key, &change) };
    let access = |access| Rereg { access: Some(access), ..Rereg::default() };
    let refused = Err(MemError::InvalidAccess(Access::REMOTE_WRITE));
    assert_eq!(rereg(mr.lkey, access(Access::REMOTE_WRITE)), refused);
    let empty = Rereg { translation: Some((8, 0, 0)), ..Rereg::default() };
    assert_eq!(rereg(mr.lkey, empty), Err(MemError::InvalidLength { addr: 8, len: 0 }));
    assert_eq!(rereg(mr.lkey ^ 1, access(ALL)), Err(MemError::UnknownKey(mr.lkey ^ 1)));
    let null = table.alloc_null_mr(PD).unwrap().lkey;
    assert!(matches!(rereg(null, access(ALL)), Err(MemError::WrongKind { .. })));
    let dm = table.reg_dm_mr(PD, &buffer, 0..64, ALL).unwrap();
    assert_eq!(dm.iova, 0);
    assert!(matches!(rereg(dm.lkey, access(ALL)), Err(MemError::WrongKind { .. })));
    let mw = table.alloc_mw(PD, MwType::One).unwrap();
    let bind = MwBind {
        rkey: mw,
        new_rkey: mw,
        lkey: mr.lkey,
        va: 0x100,
        len: 8,
        access: Access::REMOTE_READ,
    };
    table.bind_mw(&bind, PD, QP).unwrap();
    assert_eq!(rereg(mr.lkey, access(ALL)), Err(MemError::Busy(mr.lkey)));
    assert_eq!(table.query(mr.lkey), Some(mr));
}

/// While one thread re-registers, another always finds the key, with the old or the new memory.
#[test]
fn users_never_find_a_region_that_is_being_re_registered_missing() {
    let table = MemTable::new(1, 8);
    let (a, b) = (Arc::new(Buffer::zeroed(64)), Arc::new(Buffer::zeroed(64)));
    a.write(0, &[1; 64]);
    b.write(0, &[2; 64]);
    let mr = table.reg_phys_mr(PD, &a, 0..64, 0, ALL).unwrap();
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for turn in 0..20_000 {
                let to = if turn % 2 == 0 { &b } else { &a };
                let translation = Some((to.addr() as usize, 64, 0));
                let change = Rereg { translation, ..Rereg::default() };
                // SAFETY: both buffers outlive the table.
                unsafe { table.rereg_user_mr(mr.lkey, &change) }.unwrap();
            }
        });
        while !changer.is_finished() {
            let grant = table.grant(mr.lkey, 0, 64, Access::empty(), PD).unwrap();
            let mut bytes = [0; 64];
            grant.read_at(0, &mut bytes);
            assert!(bytes == [1; 64] || bytes == [2; 64]);
        }
    });
}
