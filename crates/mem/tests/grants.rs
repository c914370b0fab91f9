//! What each key allows, and how every refusal reads.

use std::sync::Arc;

use irdma_mem::{
    Access, Buffer, GrantError, InvalidateError, MemError, MemTable, MrInfo, PdId, Rights,
    get_mr_access,
};

const PD: PdId = PdId(3);
const IOVA: u64 = 0x7000_0000_1000;

fn table_with(access: Access, iova: u64) -> (MemTable, MrInfo, Arc<Buffer>) {
    let table = MemTable::new(5, 100);
    let buffer = Arc::new(Buffer::zeroed(4096));
    let mr = table.reg_phys_mr(PD, &buffer, 0..4096, iova, access).unwrap();
    (table, mr, buffer)
}

/// functions.md row 35: flags to rights.
#[test]
fn access_flags_give_the_rights_of_the_hardware() {
    let rows = [
        (Access::empty(), 0x01),
        (Access::LOCAL_WRITE, 0x03),
        (Access::REMOTE_READ, 0x05),
        (Access::REMOTE_WRITE, 0x0b),
        (Access::MW_BIND, 0x11),
        (Access::ZERO_BASED, 0x21),
        (Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE, 0x0f),
        (Access::REMOTE_ATOMIC, 0x41),
        (Access::RELAXED_ORDERING | Access::HUGETLB | Access::ON_DEMAND, 0x01),
        (Access::FLUSH_GLOBAL, 0x81),
        (Access::FLUSH_PERSISTENT, 0x101),
    ];
    for (access, rights) in rows {
        assert_eq!(get_mr_access(access), Rights::from_bits_retain(rights), "{access:?}");
    }
}

#[test]
fn access_flags_have_the_numbers_of_verbs_h() {
    let rows = [
        (Access::LOCAL_WRITE, 1),
        (Access::REMOTE_WRITE, 2),
        (Access::REMOTE_READ, 4),
        (Access::REMOTE_ATOMIC, 8),
        (Access::MW_BIND, 16),
        (Access::ZERO_BASED, 32),
        (Access::ON_DEMAND, 64),
        (Access::HUGETLB, 128),
        (Access::FLUSH_GLOBAL, 1 << 8),
        (Access::FLUSH_PERSISTENT, 1 << 9),
        (Access::RELAXED_ORDERING, 1 << 20),
    ];
    for (access, bits) in rows {
        assert_eq!(access.bits(), bits);
    }
}

/// Every registration that is accepted against every use.
#[test]
fn a_region_allows_what_it_was_registered_for_and_nothing_else() {
    let uses =
        [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for bits in 0..16 {
        let access = Access::from_bits_truncate(bits);
        let writers = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writers) && !access.contains(Access::LOCAL_WRITE) {
            continue;
        }
        let (table, mr, _) = table_with(access, IOVA);
        assert!(table.grant(mr.lkey, IOVA, 8, Access::empty(), PD).is_ok());
        for need in uses {
            let grant = table.grant(mr.lkey, IOVA, 8, need, PD).map(|grant| grant.len());
            let refused = Err(GrantError::Access { missing: need });
            assert_eq!(grant, if access.contains(need) { Ok(8) } else { refused }, "{access:?}");
        }
    }
}

#[test]
fn only_the_missing_flags_are_named() {
    let (table, mr, _) = table_with(Access::LOCAL_WRITE | Access::REMOTE_READ, IOVA);
    let need = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let error = table.grant(mr.rkey, IOVA, 8, need, PD).err();
    let missing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    assert_eq!(error, Some(GrantError::Access { missing }));
}

#[test]
fn wrong_keys_and_foreign_domains_are_refused() {
    let (table, mr, _) = table_with(Access::empty(), IOVA);
    let refused = |key, pd| table.grant(key, IOVA, 1, Access::empty(), pd).err();
    assert_eq!(refused(mr.lkey, PdId(4)), Some(GrantError::ForeignPd));
    for bit in 0..32 {
        assert_eq!(refused(mr.lkey ^ 1 << bit, PD), Some(GrantError::UnknownKey), "bit {bit}");
    }
    for key in [0, 1, 255, 256, u32::MAX] {
        assert_eq!(refused(key, PD), Some(GrantError::UnknownKey), "key {key}");
    }
}

#[test]
fn ranges_must_lie_inside_the_region() {
    let (table, mr, _) = table_with(Access::empty(), IOVA);
    let granted = |va, len| match table.grant(mr.lkey, va, len, Access::empty(), PD) {
        Ok(grant) => {
            assert_eq!(grant.len(), len);
            true
        }
        Err(error) => {
            let bounds =
                GrantError::Bounds { key: mr.lkey, start: IOVA, region_len: 4096, va, len };
            assert_eq!(error, bounds);
            false
        }
    };
    for (va, len) in [(IOVA, 4096), (IOVA, 1), (IOVA + 4095, 1), (IOVA + 1, 4095)] {
        assert!(granted(va, len), "{va:#x}+{len}");
    }
    for (va, len) in [
        (IOVA, 4097),
        (IOVA - 1, 1),
        (IOVA - 1, 4096),
        (IOVA + 4096, 1),
        (IOVA + 4095, 2),
        (IOVA, u64::MAX),
        (IOVA + 1, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0, 1),
        (IOVA + 4000, u64::MAX - IOVA - 3999),
    ] {
        assert!(!granted(va, len), "{va:#x}+{len}");
    }
}

#[test]
fn ranges_of_no_bytes_may_be_anywhere_but_need_the_key() {
    let (table, mr, _) = table_with(Access::LOCAL_WRITE, IOVA);
    for va in [0, IOVA, IOVA + 4096, IOVA + 5000, u64::MAX] {
        let grant = table.grant(mr.lkey, va, 0, Access::LOCAL_WRITE, PD).unwrap();
        assert!(grant.is_empty());
        grant.write_at(0, &[]);
        grant.read_at(0, &mut []);
    }
    let error = table.grant(mr.lkey, 0, 0, Access::REMOTE_READ, PD).err();
    assert_eq!(error, Some(GrantError::Access { missing: Access::REMOTE_READ }));
}

#[test]
fn zero_based_regions_start_at_0() {
    let (table, mr, buffer) = table_with(Access::LOCAL_WRITE | Access::ZERO_BASED, IOVA);
    assert_eq!((mr.iova, mr.addr as u64), (0, buffer.addr()));
    table.grant(mr.lkey, 7, 1, Access::LOCAL_WRITE, PD).unwrap().write_at(0, &[9]);
    assert_eq!(buffer.byte(7), 9);
    assert!(table.grant(mr.lkey, IOVA, 1, Access::LOCAL_WRITE, PD).is_err());
}

#[test]
fn a_region_may_end_at_the_last_address_but_not_wrap() {
    let table = MemTable::new(5, 100);
    let buffer = Arc::new(Buffer::zeroed(16));
    let top = u64::MAX - 16;
    let mr = table.reg_phys_mr(PD, &buffer, 0..16, top, Access::empty()).unwrap();
    assert!(table.grant(mr.lkey, top, 16, Access::empty(), PD).is_ok());
    assert!(table.grant(mr.lkey, top + 1, 16, Access::empty(), PD).is_err());
    let wraps = table.reg_phys_mr(PD, &buffer, 0..16, top + 1, Access::empty());
    assert_eq!(wraps, Err(MemError::InvalidLength { addr: top + 1, len: 16 }));
}

#[test]
fn refused_registrations_leave_no_trace() {
    let table = MemTable::new(5, 1);
    let buffer = Arc::new(Buffer::zeroed(16));
    let register = |range, access| table.reg_phys_mr(PD, &buffer, range, IOVA, access);
    for access in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        assert_eq!(register(0..16, access), Err(MemError::InvalidAccess(access)));
    }
    for range in [0..0, 16..16, 0..17, 16..17] {
        let refused = register(range.clone(), Access::empty());
        assert!(matches!(refused, Err(MemError::InvalidLength { .. })), "{range:?}");
    }
    assert_eq!((table.len(), Arc::strong_count(&buffer)), (0, 1));

    register(0..16, Access::empty()).unwrap();
    assert_eq!(register(0..16, Access::empty()), Err(MemError::NoKeys { max_mr: 1 }));
    assert_eq!((table.len(), Arc::strong_count(&buffer)), (1, 2));
}

#[test]
fn a_deregistered_key_is_dead_and_lets_its_buffer_go() {
    let (table, mr, buffer) = table_with(Access::empty(), IOVA);
    assert_eq!(table.query(mr.lkey), Some(mr));
    assert_eq!(mr.lkey, mr.rkey);
    table.dereg_mr(mr.lkey).unwrap();
    assert_eq!(table.dereg_mr(mr.lkey), Err(MemError::UnknownKey(mr.lkey)));
    assert_eq!(table.query(mr.lkey), None);
    let grant = table.grant(mr.lkey, IOVA, 1, Access::empty(), PD).err();
    assert_eq!(grant, Some(GrantError::UnknownKey));
    assert_eq!((table.len(), Arc::strong_count(&buffer)), (0, 1));
}

#[test]
fn a_registered_region_is_never_invalidated() {
    let (table, mr, _) = table_with(Access::empty(), IOVA);
    assert_eq!(table.invalidate(mr.rkey, PD, 1), Err(InvalidateError::Registered));
    assert_eq!(table.invalidate(mr.rkey, PdId(4), 1), Err(InvalidateError::ForeignPd));
    assert_eq!(table.invalidate(mr.rkey ^ 1, PD, 1), Err(InvalidateError::UnknownKey));
    assert_eq!(table.query(mr.rkey), Some(mr));
}

#[test]
fn registration_errors_say_what_to_do() {
    let rows = [
        (MemError::InvalidLength { addr: 0x10, len: 0 }, "region 0x10+0"),
        (MemError::InvalidAccess(Access::REMOTE_WRITE), "need LOCAL_WRITE"),
        (MemError::UnknownKey(0x300), "0x00000300"),
        (MemError::Fault, "address 0"),
        (MemError::NoKeys { max_mr: 8 }, "all 8 keys"),
        (MemError::Busy(0x300), "windows"),
    ];
    for (error, part) in rows {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn refused_grants_explain_themselves() {
    let bounds =
        |va, len| GrantError::Bounds { key: 0xabc00, start: 0x1000, region_len: 4096, va, len };
    let rows = [
        (
            bounds(0x1800, 4096),
            "0x1800+4096 ends 2048 bytes past the region of key 0x000abc00 (0x1000+4096)",
        ),
        (
            bounds(0xff0, 32),
            "0xff0+32 starts 16 bytes before the region of key 0x000abc00 (0x1000+4096)",
        ),
        (
            bounds(u64::MAX, u64::MAX),
            "0xffffffffffffffff+18446744073709551615 ends 36893488147419095038 bytes past \
             the region of key 0x000abc00 (0x1000+4096)",
        ),
        (
            GrantError::Access { missing: Access::REMOTE_READ | Access::REMOTE_ATOMIC },
            "the region lacks Access(REMOTE_READ | REMOTE_ATOMIC); register it with that access",
        ),
        (
            GrantError::ForeignPd,
            "the region belongs to another protection domain; register it in the queue pair's",
        ),
        (
            GrantError::UnknownKey,
            "the key names no region: never registered, deregistered, or a wrong number",
        ),
    ];
    for (error, text) in rows {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn atomics_return_the_old_word_and_wrap() {
    let (table, mr, _) = table_with(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC, IOVA);
    let grant = table.grant(mr.rkey, IOVA + 8, 8, Access::REMOTE_ATOMIC, PD).unwrap();
    assert!(grant.is_aligned_8());
    grant.write_at(0, &u64::MAX.to_ne_bytes());
    assert_eq!(grant.fetch_add(3), u64::MAX);
    assert_eq!(grant.compare_swap(1, 77), 2);
    assert_eq!(grant.compare_swap(2, 77), 2);
    assert_eq!(grant.fetch_add(0), 77);
    let mut word = [0; 8];
    grant.read_at(0, &mut word);
    assert_eq!(u64::from_ne_bytes(word), 77);
    assert!(!table.grant(mr.rkey, IOVA + 9, 8, Access::empty(), PD).unwrap().is_aligned_8());
}

#[test]
fn a_grant_cannot_be_overrun() {
    let (table, mr, _) = table_with(Access::LOCAL_WRITE, IOVA);
    let touch = |what: fn(&irdma_mem::Grant<'_>)| {
        let grant = table.grant(mr.lkey, IOVA + 9, 8, Access::LOCAL_WRITE, PD).unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(&grant))).is_err()
    };
    assert!(touch(|grant| grant.write_at(1, &[0; 8])));
    assert!(touch(|grant| grant.write_at(9, &[])));
    assert!(touch(|grant| grant.write_at(u64::MAX, &[0])));
    assert!(touch(|grant| grant.read_at(8, &mut [0])));
    assert!(touch(|grant| _ = grant.fetch_add(1)));
    assert!(touch(|grant| _ = grant.compare_swap(1, 1)));
    assert!(!touch(|grant| grant.write_at(0, &[0; 8])));
}

#[test]
fn parts_of_a_buffer_are_inside_it() {
    let buffer = Buffer::zeroed(10);
    assert_eq!(buffer.part(&(4..10)), Ok((buffer.addr() + 4, 6)));
    assert_eq!(buffer.part(&(10..10)), Ok((buffer.addr() + 10, 0)));
    let most = usize::MAX;
    for (start, end) in [(0, 11), (11, 11), (9, 4), (most, most), (most, 4), (0, most)] {
        let refused = buffer.part(&(start..end)).unwrap_err();
        assert!(matches!(refused, MemError::InvalidLength { .. }), "{start}..{end}");
    }
}

#[test]
#[should_panic(expected = "byte 10 of a buffer of 10")]
fn a_buffer_ends_where_it_says() {
    Buffer::zeroed(10).byte(10);
}
