//! Deregistration and re-registration while other threads hold and ask for grants.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use irdma_mem::{Access, Buffer, GrantError, MemError, MemTable, PdId, Rereg, Sge, scatter};

const PD: PdId = PdId(3);
const ACCESS: Access = Access::LOCAL_WRITE;

#[test]
fn deregistration_waits_for_a_grant_and_lets_no_new_one_out() {
    let table = MemTable::new(5, 100);
    let buffer = Arc::new(Buffer::zeroed(64));
    let key = table.reg_phys_mr(PD, &buffer, 0..64, 0, ACCESS).unwrap().lkey;
    let returned = AtomicBool::new(false);
    let grant = table.grant(key, 0, 64, ACCESS, PD).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            table.dereg_mr(key).unwrap();
            returned.store(true, Ordering::Release);
        });
        while table.query(key).is_some() {
            thread::yield_now();
        }
        let refused = table.grant(key, 0, 1, ACCESS, PD).err();
        assert_eq!(refused, Some(GrantError::UnknownKey));
        assert_eq!(table.dereg_mr(key), Err(MemError::UnknownKey(key)));
        thread::sleep(Duration::from_millis(20));
        assert!(!returned.load(Ordering::Acquire), "returned while a grant is out");
        grant.write_at(0, &[1; 64]);
        drop(grant);
    });
    assert!(returned.load(Ordering::Acquire));
}

/// Gives a region the access that it has.
fn rereg(table: &MemTable, key: u32) {
    let change = Rereg { access: Some(ACCESS), ..Rereg::default() };
    // SAFETY: the memory stays what it was.
    unsafe { table.rereg_user_mr(key, &change) }.unwrap();
}

/// Of so many threads one or another always has a grant out.
#[test]
fn a_change_is_not_kept_waiting_by_those_who_come_later() {
    let table = MemTable::new(5, 4);
    let buffer = Arc::new(Buffer::zeroed(8));
    let key = table.reg_phys_mr(PD, &buffer, 0..8, 0, ACCESS).unwrap().lkey;
    let limit = Duration::from_secs(5);
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && start.elapsed() < limit {
                    let _grant = table.grant(key, 0, 8, ACCESS, PD).unwrap();
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        thread::sleep(Duration::from_millis(20));
        (0..10).for_each(|_| rereg(&table, key));
        assert!(start.elapsed() < limit, "it ended only with the others");
    });
}

/// Several elements may be of one region.
#[test]
fn a_list_is_written_while_its_region_changes() {
    let table = MemTable::new(5, 4);
    let buffer = Arc::new(Buffer::zeroed(64));
    let key = table.reg_phys_mr(PD, &buffer, 0..64, 0, ACCESS).unwrap().lkey;
    let sges = [0, 16, 32].map(|addr| Sge { addr, length: 16, lkey: key });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    scatter(&table, PD, &sges, 0, &[7; 48]).unwrap();
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        (0..2000).for_each(|_| rereg(&table, key));
        while buffer.byte(47) == 0 {
            thread::yield_now();
        }
    });
    assert_eq!((buffer.byte(47), buffer.byte(48)), (7, 0));
}

/// Tells the other threads to stop, also when a check fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writers hammer whatever key is current; once a key is deregistered its memory stays as it is.
#[test]
fn memory_is_never_written_after_deregistration() {
    let table = MemTable::new(5, 4);
    let current = AtomicU32::new(0);
    let stop = AtomicBool::new(false);
    let writes = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let key = current.load(Ordering::Relaxed);
                    if let Ok(grant) = table.grant(key, 0, 256, ACCESS, PD) {
                        grant.write_at(0, &[1; 256]);
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        for _ in 0..1000 {
            let buffer = Arc::new(Buffer::zeroed(256));
            let key = table.reg_phys_mr(PD, &buffer, 0..256, 0, ACCESS).unwrap().lkey;
            current.store(key, Ordering::Relaxed);
            while buffer.byte(255) == 0 {
                thread::yield_now();
            }
            table.dereg_mr(key).unwrap();
            assert_eq!(Arc::strong_count(&buffer), 1);
            buffer.write(0, &[0; 256]);
            for _ in 0..20 {
                assert!((0..256).all(|i| buffer.byte(i) == 0), "written after deregistration");
            }
        }
    });
    assert!(writes.load(Ordering::Relaxed) >= 1000);
}

#[test]
fn of_two_deregistrations_one_succeeds() {
    let table = MemTable::new(5, 4);
    let buffer = Arc::new(Buffer::zeroed(8));
    for _ in 0..500 {
        let key = table.reg_phys_mr(PD, &buffer, 0..8, 0, ACCESS).unwrap().lkey;
        let start = Barrier::new(2);
        let dereg = || {
            start.wait();
            u32::from(table.dereg_mr(key).is_ok())
        };
        let succeeded = thread::scope(|scope| {
            let other = scope.spawn(dereg);
            dereg() + other.join().unwrap()
        });
        assert_eq!(succeeded, 1);
    }
}

#[test]
fn threads_that_register_at_once_get_keys_of_their_own() {
    let table = MemTable::new(5, 4000);
    let buffer = Arc::new(Buffer::zeroed(8));
    let register = || {
        let one = || table.reg_phys_mr(PD, &buffer, 0..8, 0, ACCESS).unwrap().lkey;
        (0..1000).map(|_| one()).collect::<Vec<u32>>()
    };
    let keys: HashSet<u32> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(register)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((keys.len(), table.len()), (4000, 4000));
    assert!(keys.iter().all(|key| table.query(*key).is_some_and(|mr| mr.rkey == *key)));
}
