//! Memory windows: what a bind needs, what the key then allows, how it ends.

use std::sync::Arc;

use irdma_mem::{
    Access, BindError, Buffer, GrantError, InvalidateError, MemError, MemTable, MrInfo, MwBind,
    MwType, PdId,
};

const PD: PdId = PdId(3);
const OTHER_PD: PdId = PdId(4);
const QP: u32 = 77;
const OTHER_QP: u32 = 78;
const IOVA: u64 = 0x1000;
const LEN: usize = 4096;
const PARENT: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

struct World {
    table: MemTable,
    buffer: Arc<Buffer>,
    mr: MrInfo,
}

fn world_with(access: Access) -> World {
    let table = MemTable::new(1, 64);
    let buffer = Arc::new(Buffer::zeroed(LEN));
    let mr = table.reg_phys_mr(PD, &buffer, 0..LEN, IOVA, access).unwrap();
    World { table, buffer, mr }
}

fn world() -> World {
    world_with(PARENT)
}

impl World {
    /// A bind of the middle kilobyte, with the low byte of the key raised by one.
    fn bind(&self, rkey: u32) -> MwBind {
        let new_rkey = rkey & !0xff | (rkey + 1) & 0xff;
        let (va, len) = (IOVA + 1024, 1024);
        MwBind { rkey, new_rkey, lkey: self.mr.lkey, va, len, access: REMOTE }
    }

    fn bound(&self, mw_type: MwType) -> MwBind {
        let bind = self.bind(self.table.alloc_mw(PD, mw_type).unwrap());
        self.table.bind_mw(&bind, PD, QP).unwrap();
        bind
    }

    fn peer(&self, rkey: u32, va: u64, len: u64, need: Access) -> Result<(), GrantError> {
        self.table.grant_to_peer(rkey, (va, len), need, (PD, QP)).map(drop)
    }
}

#[test]
fn a_bound_window_shows_its_part_of_the_region() {
    for mw_type in [MwType::One, MwType::Two] {
        let w = world();
        let bind = w.bound(mw_type);
        let key = bind.new_rkey;
        let grant = w.table.grant_to_peer(key, (bind.va + 4, 3), REMOTE, (PD, QP)).unwrap();
        grant.write_at(0, b"abc");
        drop(grant);
        assert_eq!(w.buffer.byte(1024 + 4), b'a');
        let out = |va, len| match w.peer(key, va, len, Access::REMOTE_READ) {
            Err(GrantError::Bounds { .. }) => true,
            other => panic!("{other:?}"),
        };
        assert!(out(bind.va - 1, 1) && out(bind.va + 1024, 1) && out(bind.va, 1025));
        assert_eq!(w.peer(key, bind.va, 1024, Access::REMOTE_WRITE), Ok(()));
        let missing = Err(GrantError::Access { missing: Access::REMOTE_ATOMIC });
        assert_eq!(w.peer(key, bind.va, 8, Access::REMOTE_ATOMIC), missing);
        assert_eq!(w.peer(bind.rkey, bind.va, 1, Access::REMOTE_READ), Err(GrantError::UnknownKey));
        let own = w.table.grant(key, bind.va, 1, Access::empty(), PD).map(drop);
        assert_eq!(own, Err(GrantError::Window));
    }
}

#[test]
fn a_window_of_type_2_is_tied_to_its_queue_pair_and_one_of_type_1_to_its_domain() {
    let w = world();
    let use_by = |key, qpn| {
        w.table.grant_to_peer(key, (IOVA + 1024, 1), Access::REMOTE_READ, (PD, qpn)).map(drop)
    };
    let (one, two) = (w.bound(MwType::One).new_rkey, w.bound(MwType::Two).new_rkey);
    assert_eq!((use_by(one, OTHER_QP), use_by(two, QP)), (Ok(()), Ok(())));
    assert_eq!(use_by(two, OTHER_QP), Err(GrantError::ForeignQp));
    for key in [one, two] {
        let foreign = w.table.grant_to_peer(key, (IOVA + 1024, 1), REMOTE, (OTHER_PD, QP));
        assert_eq!(foreign.map(drop), Err(GrantError::ForeignPd));
    }
}

#[test]
fn an_unbound_window_allows_nothing() {
    let w = world();
    for mw_type in [MwType::One, MwType::Two] {
        let key = w.table.alloc_mw(PD, mw_type).unwrap();
        assert_eq!(w.peer(key, IOVA, 1, Access::REMOTE_READ), Err(GrantError::Invalid));
        assert_eq!(w.table.query(key), None);
    }
}

#[test]
fn a_zero_based_window_counts_from_its_start() {
    let w = world();
    let mut bind = w.bind(w.table.alloc_mw(PD, MwType::One).unwrap());
    bind.access |= Access::ZERO_BASED;
    w.table.bind_mw(&bind, PD, QP).unwrap();
    let grant = w.table.grant_to_peer(bind.new_rkey, (1023, 1), REMOTE, (PD, QP)).unwrap();
    grant.write_at(0, b"z");
    assert_eq!(w.buffer.byte(2047), b'z');
    drop(grant);
    assert!(w.peer(bind.new_rkey, 1024, 1, REMOTE).is_err());
    assert!(w.peer(bind.new_rkey, bind.va, 1, REMOTE).is_err());
}

#[test]
fn a_bind_that_may_not_be_is_refused_and_changes_nothing() {
    let w = world();
    let read_only = world_with(Access::MW_BIND);
    let zero_based = world_with(PARENT | Access::ZERO_BASED);
    let no_bind = world_with(Access::LOCAL_WRITE);
    type Spoil = fn(&mut MwBind);
    type Expected = fn(&MwBind) -> BindError;
    let rows: [(&World, Spoil, Expected); 9] = [
        (&w, |b| b.rkey ^= 0x100, |b| BindError::NoWindow(b.rkey)),
        (&w, |b| b.new_rkey ^= 0x100, |b| BindError::Key { old: b.rkey, new: b.new_rkey }),
        (&w, |b| b.lkey ^= 1, |b| BindError::Region(b.lkey)),
        (&w, |b| b.va = IOVA - 1, |b| BindError::Bounds { va: b.va, len: b.len }),
        (&w, |b| b.len = 3073, |b| BindError::Bounds { va: b.va, len: b.len }),
        (
            &w,
            |b| b.access |= Access::LOCAL_WRITE,
            |_| BindError::Access { missing: Access::LOCAL_WRITE },
        ),
        (&read_only, |_| (), |_| BindError::Access { missing: Access::LOCAL_WRITE }),
        (&zero_based, |_| (), |b| BindError::Region(b.lkey)),
        (&no_bind, |_| (), |_| BindError::Access { missing: Access::MW_BIND }),
    ];
    for (i, (w, spoil, expected)) in rows.into_iter().enumerate() {
        for mw_type in [MwType::One, MwType::Two] {
            let mut bind = w.bind(w.table.alloc_mw(PD, mw_type).unwrap());
            let good = bind;
            spoil(&mut bind);
            assert_eq!(w.table.bind_mw(&bind, PD, QP), Err(expected(&bind)), "row {i}");
            assert_eq!(w.table.bind_mw(&good, OTHER_PD, QP), Err(BindError::ForeignPd));
            assert_eq!(w.peer(good.rkey, good.va, 1, REMOTE), Err(GrantError::Invalid));
        }
    }
}

#[test]
fn length_0_unbinds_type_1_and_is_refused_for_type_2() {
    let w = world();
    let one = w.bound(MwType::One);
    let mut again = w.bind(one.new_rkey);
    again.len = 0;
    w.table.bind_mw(&again, PD, QP).unwrap();
    assert_eq!(w.peer(one.new_rkey, one.va, 1, REMOTE), Err(GrantError::UnknownKey));
    assert_eq!(w.peer(again.new_rkey, one.va, 1, REMOTE), Err(GrantError::Invalid));
    let mut two = w.bind(w.table.alloc_mw(PD, MwType::Two).unwrap());
    two.len = 0;
    let empty = BindError::Bounds { va: two.va, len: 0 };
    assert_eq!(w.table.bind_mw(&two, PD, QP), Err(empty));
    w.table.dereg_mr(w.mr.lkey).unwrap();
}

#[test]
fn type_1_is_bound_anew_at_will_and_type_2_after_an_invalidate() {
    let w = world();
    let one = w.bound(MwType::One);
    w.table.bind_mw(&w.bind(one.new_rkey), PD, QP).unwrap();
    let two = w.bound(MwType::Two);
    let again = w.bind(two.new_rkey);
    assert_eq!(w.table.bind_mw(&again, PD, QP), Err(BindError::InUse(two.new_rkey)));
    w.table.invalidate(two.new_rkey, PD, QP).unwrap();
    assert_eq!(w.peer(two.new_rkey, two.va, 1, REMOTE), Err(GrantError::Invalid));
    w.table.bind_mw(&again, PD, OTHER_QP).unwrap();
    assert_eq!(w.peer(again.new_rkey, two.va, 1, REMOTE), Err(GrantError::ForeignQp));
}

/// A program posts binds before it knows which of the earlier ones succeed.
#[test]
fn any_key_that_a_window_has_had_names_it_in_a_bind() {
    let w = world();
    let first = w.bound(MwType::One);
    let again = MwBind { new_rkey: first.new_rkey ^ 0x80, ..first };
    w.table.bind_mw(&again, PD, QP).unwrap();
    assert_eq!(w.peer(first.new_rkey, first.va, 1, REMOTE), Err(GrantError::UnknownKey));
    assert_eq!(w.peer(again.new_rkey, first.va, 1, REMOTE), Ok(()));
}

#[test]
fn who_may_invalidate_what() {
    let w = world();
    let (one, two) = (w.bound(MwType::One).new_rkey, w.bound(MwType::Two).new_rkey);
    let rows = [
        (w.mr.lkey, PD, QP, InvalidateError::Registered),
        (one, PD, QP, InvalidateError::Registered),
        (two, OTHER_PD, QP, InvalidateError::ForeignPd),
        (two, PD, OTHER_QP, InvalidateError::ForeignQp),
        (two ^ 1, PD, QP, InvalidateError::UnknownKey),
    ];
    for (key, pd, qpn, error) in rows {
        assert_eq!(w.table.invalidate(key, pd, qpn), Err(error));
    }
    assert_eq!(w.peer(two, IOVA + 1024, 1, REMOTE), Ok(()));
}

#[test]
fn bound_windows_keep_their_region_and_its_registration() {
    let w = world();
    let (one, two) = (w.bound(MwType::One), w.bound(MwType::Two));
    let busy = Err(MemError::Busy(w.mr.lkey));
    assert_eq!(w.table.dereg_mr(w.mr.lkey), busy);
    w.table.dealloc_mw(one.new_rkey).unwrap();
    assert_eq!(w.table.dereg_mr(w.mr.lkey), busy);
    assert_eq!(w.table.dereg_mr(two.new_rkey), Err(MemError::UnknownKey(two.new_rkey)));
    w.table.unbind_all(OTHER_QP);
    assert_eq!(w.table.dereg_mr(w.mr.lkey), busy);
    w.table.unbind_all(QP);
    assert_eq!(w.peer(two.new_rkey, two.va, 1, REMOTE), Err(GrantError::Invalid));
    w.table.dereg_mr(w.mr.lkey).unwrap();
    w.table.dealloc_mw(two.new_rkey).unwrap();
    assert_eq!(w.table.dealloc_mw(two.new_rkey), Err(MemError::UnknownKey(two.new_rkey)));
    assert!(w.table.is_empty());
}

#[test]
fn a_region_that_is_cut_leaves_its_windows_unbound() {
    let w = world();
    let (one, two) = (w.bound(MwType::One), w.bound(MwType::Two));
    w.table.cut_mr(w.mr.lkey).unwrap();
    for bind in [one, two] {
        assert_eq!(w.peer(bind.new_rkey, bind.va, 1, REMOTE), Err(GrantError::Invalid));
        // Any key that the window has had names it.
        w.table.dealloc_mw(bind.rkey).unwrap();
    }
    assert!(w.table.is_empty());
}

/// A window that one thread binds and invalidates is all there or not at all for another.
#[test]
fn a_bind_is_seen_whole() {
    let w = world();
    let key = w.table.alloc_mw(PD, MwType::Two).unwrap();
    let low = w.bind(key);
    // The key that the binder starts with.
    w.table.bind_mw(&low, PD, QP).unwrap();
    w.table.invalidate(low.new_rkey, PD, QP).unwrap();
    let high = MwBind { va: IOVA, len: 64, access: Access::REMOTE_READ, ..low };
    std::thread::scope(|scope| {
        let binder = scope.spawn(|| {
            for turn in 0..20_000u32 {
                let bind = if turn % 2 == 0 { low } else { high };
                let bind = MwBind { rkey: low.new_rkey, new_rkey: low.new_rkey, ..bind };
                w.table.bind_mw(&bind, PD, QP).unwrap();
                w.table.invalidate(low.new_rkey, PD, QP).unwrap();
            }
        });
        while !binder.is_finished() {
            match w.peer(low.new_rkey, IOVA + 1024, 1024, Access::REMOTE_WRITE) {
                Ok(()) | Err(GrantError::Invalid) => {}
                Err(GrantError::Access { missing }) => assert_eq!(missing, Access::REMOTE_WRITE),
                other => panic!("{other:?}"),
            }
        }
    });
}
