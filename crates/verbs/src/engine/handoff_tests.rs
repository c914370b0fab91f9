//! The rules of the hand-off, one by one; its schedules are the model's.

use super::handoff::{HandOff, Memory, Sleeper, Turn};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const NEVER: u64 = u64::MAX;

fn is_back(turn: Turn) -> bool {
    matches!(turn, Turn::StandBack(_))
}

/// A program that called at 10 ms, and its thread.
fn after_call(found: bool) -> (HandOff, Memory) {
    let hand_off = HandOff::new(50 * US);
    hand_off.note_call(10 * MS, found);
    (hand_off, Memory::default())
}

#[test]
fn packets_of_a_program_that_never_calls_are_the_threads() {
    let hand_off = HandOff::new(50 * US);
    assert_eq!(hand_off.on_work(&mut Memory::default(), 10 * MS), Turn::Run);
}

#[test]
fn the_thread_stands_back_while_polls_come_back_empty() {
    let (hand_off, mut memory) = after_call(false);
    assert!(is_back(hand_off.on_work(&mut memory, 10 * MS + 19 * US)));
    assert!(is_back(hand_off.on_tick(&mut memory, 10 * MS + 49 * US)));
    assert_eq!(hand_off.on_tick(&mut memory, 10 * MS + 51 * US), Turn::Run);
}

#[test]
fn a_call_that_found_something_holds_the_thread_back_for_a_moment_only() {
    let (hand_off, mut memory) = after_call(true);
    assert!(is_back(hand_off.on_work(&mut memory, 10 * MS + 4 * US)));
    assert_eq!(hand_off.on_work(&mut memory, 10 * MS + 6 * US), Turn::Run);
}

#[test]
fn ticks_grow_to_a_bound() {
    let (hand_off, mut memory) = after_call(false);
    let ticks: Vec<Turn> = (0..4).map(|_| hand_off.on_tick(&mut memory, 10 * MS)).collect();
    let grown = [50, 100, 200, 200].map(|us| Turn::StandBack(us * US));
    assert_eq!(ticks, grown);
}

#[test]
fn a_thread_that_keeps_finding_work_stays_until_the_program_calls_all_the_time() {
    let (hand_off, mut memory) = after_call(true);
    for _ in 0..3 {
        assert_eq!(hand_off.on_work(&mut memory, 11 * MS), Turn::Run);
        hand_off.on_run(&mut memory, 11 * MS, true);
    }
    assert!(hand_off.waits_its_turn(&memory));
    hand_off.note_call(12 * MS, false);
    let turns: Vec<Turn> = (0..16).map(|_| hand_off.on_work(&mut memory, 12 * MS)).collect();
    assert!(turns[..15].iter().all(|turn| *turn == Turn::Run));
    assert!(is_back(turns[15]));
}

#[test]
fn arming_calls_the_thread_back_from_polls_but_not_from_a_leader() {
    let (hand_off, mut memory) = after_call(false);
    hand_off.on_work(&mut memory, 10 * MS);
    assert!(hand_off.note_armed());
    assert_eq!(hand_off.on_tick(&mut memory, 10 * MS + US), Turn::Run);
    assert!(hand_off.enter_leader());
    assert!(is_back(hand_off.on_work(&mut memory, 11 * MS)));
    assert!(!hand_off.note_armed());
}

#[test]
fn there_is_one_leader_and_leaving_wakes_a_parked_thread() {
    let (hand_off, mut memory) = after_call(false);
    assert!(hand_off.enter_leader());
    assert!(!hand_off.enter_leader());
    assert!(!hand_off.leave_leader());
    assert!(hand_off.enter_leader());
    while hand_off.on_tick(&mut memory, 20 * MS) != Turn::Park {}
    assert!(hand_off.leave_leader());
    assert_eq!(hand_off.on_tick(&mut memory, 20 * MS), Turn::Run);
}

#[test]
fn only_a_sleeper_that_would_miss_the_deadline_is_woken() {
    let (hand_off, mut memory) = after_call(true);
    assert_eq!(hand_off.note_deadline(15 * MS), None);
    assert_eq!(hand_off.thread_sleeps(&memory, 11 * MS, 14 * MS, 4 * MS), 14 * MS);
    assert_eq!(hand_off.note_deadline(15 * MS), None);
    assert_eq!(hand_off.note_deadline(13 * MS), Some(Sleeper::Thread));
    assert_eq!(hand_off.note_deadline(13 * MS), None);
    hand_off.leader_sleeps(NEVER);
    assert_eq!(hand_off.note_deadline(15 * MS), Some(Sleeper::Leader));
    hand_off.on_run(&mut memory, 20 * MS, true);
    assert_eq!(hand_off.thread_sleeps(&memory, 20 * MS, NEVER, 4 * MS), 24 * MS);
    assert_eq!(hand_off.thread_sleeps(&memory, 40 * MS, NEVER, 4 * MS), NEVER);
}
