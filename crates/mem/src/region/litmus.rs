//! Two threads: one places messages, one spins on the last byte and looks at the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::Grant;
use crate::{Access, Buffer, MemTable, PdId};

const MARGIN: usize = 32;

/// Where a message goes and how long it is.
#[derive(Clone, Copy, Debug)]
struct Case {
    start: usize,
    len: usize,
}

/// The buffer both threads look at, and how far each has come.
struct Arena {
    buffer: Arc<Buffer>,
    started: AtomicU64,
    seen: AtomicU64,
}

type Write = fn(&Grant<'_>, &[u8]);

/// How many messages were seen torn, of those that each of two ways to write placed in turn,
/// `rounds` (at most 255) of each case.
fn torn(cases: &[Case], rounds: u8, writes: [Write; 2]) -> [u64; 2] {
    let longest = cases.iter().map(|case| case.start + case.len).max().unwrap_or(0);
    let arena = Arena {
        buffer: Arc::new(Buffer::zeroed(longest + MARGIN)),
        started: AtomicU64::new(0),
        seen: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        scope.spawn(|| place(&arena, cases, rounds, writes));
        scope.spawn(|| watch(&arena, cases, rounds)).join().unwrap()
    })
}

fn place(arena: &Arena, cases: &[Case], rounds: u8, writes: [Write; 2]) {
    let (table, pd, access) = (MemTable::new(1, 1), PdId(3), Access::LOCAL_WRITE);
    let buffer = &arena.buffer;
    let key = table.reg_phys_mr(pd, buffer, 0..buffer.len(), 0, access).unwrap().lkey;
    let mut placed = 0;
    for (number, case) in cases.iter().enumerate() {
        arena.started.store(number as u64 + 1, Ordering::Release);
        let grant = table.grant(key, case.start as u64, case.len as u64, access, pd).unwrap();
        for round in 1..=rounds {
            writes[usize::from(round % 2)](&grant, &vec![round; case.len]);
            placed += 1;
            spin_until(|| arena.seen.load(Ordering::Acquire) == placed);
        }
        for outside in case.start.saturating_sub(MARGIN)..case.start {
            assert_eq!(buffer.byte(outside), 0, "{case:?} wrote before its start");
        }
        for outside in case.start + case.len..case.start + case.len + MARGIN {
            assert_eq!(buffer.byte(outside), 0, "{case:?} wrote past its end");
        }
        grant.write_at(0, &vec![0; case.len]);
    }
}

fn watch(arena: &Arena, cases: &[Case], rounds: u8) -> [u64; 2] {
    let mut seen = 0;
    let mut torn = [0; 2];
    for (number, case) in cases.iter().enumerate() {
        spin_until(|| arena.started.load(Ordering::Acquire) == number as u64 + 1);
        for round in 1..=rounds {
            let last = case.start + case.len - 1;
            spin_until(|| arena.buffer.byte(last) == round);
            let is_new = |i: usize| arena.buffer.byte(i) == round;
            // The two ends are what a copy in another order leaves for last.
            let whole = is_new(case.start) && (case.start..last).rev().all(is_new);
            torn[usize::from(round % 2)] += u64::from(!whole);
            seen += 1;
            arena.seen.store(seen, Ordering::Release);
        }
    }
    torn
}

fn spin_until(done: impl Fn() -> bool) {
    for turn in 1..100_000_000u32 {
        if done() {
            return;
        }
        if turn.is_multiple_of(1000) {
            thread::yield_now();
        }
    }
    panic!("the other thread is gone");
}

const ALIGNMENTS: std::ops::Range<usize> = MARGIN..MARGIN + 16;

/// Every length of `lens` at every alignment.
fn cases(lens: impl IntoIterator<Item = usize>) -> Vec<Case> {
    lens.into_iter().flat_map(|len| ALIGNMENTS.map(move |start| Case { start, len })).collect()
}

fn ordered(grant: &Grant<'_>, data: &[u8]) {
    grant.write_at(0, data);
}

fn plain(grant: &Grant<'_>, data: &[u8]) {
    grant.write_plain(data);
}

fn last_byte_first(grant: &Grant<'_>, data: &[u8]) {
    let body_len = data.len() - 1;
    grant.write_at(body_len as u64, &data[body_len..]);
    grant.write_at(0, &data[..body_len]);
}

#[test]
fn who_sees_the_last_byte_sees_the_message() {
    assert_eq!(torn(&cases(1..=8193), 2, [ordered, ordered]), [0, 0]);
}

/// The same, in turn with a writer that is wrong: a run counts when the watcher caught that one,
/// which it cannot while both threads share a processor. Plain `memcpy` is caught as well, up to
/// nine times of ten, but how often depends on processor and libc.
#[test]
fn the_watcher_catches_only_writers_without_order() {
    if thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        return eprintln!("one processor only: nothing can be seen half done");
    }
    let cases = cases([2, 9, 65, 100, 129, 256, 400, 700, 1000, 1024, 1500, 2000, 4096]);
    let caught = (0..100).any(|_| {
        let [right, wrong] = torn(&cases, 101, [ordered, last_byte_first]);
        assert_eq!(right, 0);
        wrong > 0
    });
    assert!(caught, "the watcher sees no torn message where there must be some");

    let [right, memcpy] = torn(&cases, 255, [ordered, plain]);
    eprintln!("memcpy torn {memcpy} times of {}", cases.len() * 128);
    assert_eq!(right, 0);
}

#[test]
fn aligned_words_are_never_seen_half() {
    let (table, pd, access) = (MemTable::new(1, 1), PdId(3), Access::LOCAL_WRITE);
    let key = table.reg_phys_mr(pd, &Arc::new(Buffer::zeroed(64)), 0..64, 0, access).unwrap().lkey;
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let grant = table.grant(key, 0, 64, access, pd).unwrap();
            for turn in 0..200_000u32 {
                for (offset, size) in [(10, 2), (20, 4), (40, 8)] {
                    grant.write_at(offset, &[turn as u8; 8][..size]);
                }
            }
            done.store(1, Ordering::Release);
        });
        let grant = table.grant(key, 0, 64, access, pd).unwrap();
        while done.load(Ordering::Acquire) == 0 {
            for (offset, size) in [(10, 2), (20, 4), (40, 8)] {
                let mut bytes = [0; 8];
                grant.read_at(offset, &mut bytes[..size]);
                assert!(bytes[..size].iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
            }
        }
    });
}
