//! Who runs the lane: the program's threads, or the background thread.
//!
//! The thread stands back while the program does the work itself: while its polls come back empty,
//! or while one of its threads waits for an event and runs the lane meanwhile (the leader). A poll
//! that found something says the program may now spin on memory, an armed completion queue says it
//! may sleep: both call the thread back.
//!
//! Invariant: whenever nobody runs the lane, the thread either waits for packets, or looks again
//! within `MAX_TICKS` times the configured stand-back, or the one who keeps it parked will wake it.

use super::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// An empty poll this recent means that the program polls.
const RECENT_EMPTY_NS: u64 = 20_000;
/// A post, or a poll that found something, this recently: the program is about to call again.
const RECENT_CALL_NS: u64 = 5_000;
/// The slowest pace at which a thread that stands back looks at the program, in stand-backs.
const MAX_TICKS: u64 = 4;
/// Runs in a row in which the thread, back at work, finds some before the program does: the program
/// spins on memory, and the thread stays.
const STICKY_AFTER: i32 = 3;
/// Runs in a row in which it finds none: the program does the work after all.
const LOOSE_AFTER: i32 = 64;
/// Wake-ups in a row at which the program had called a moment ago: it does not spin on memory.
const CALLING_AFTER: u32 = 16;
/// Ticks in a row with the same leader before the thread parks.
const PARK_AFTER: u32 = if cfg!(test) { 5 } else { 50 };

/// A thread that had work this recently expects more.
const ACTIVE_NS: u64 = 10_000_000;

/// What the thread does, as others see it.
const WAITING: u8 = 0;
/// It stands back from a program that polls.
const BEHIND_POLLS: u8 = 1;
/// It stands back from a leader.
const BEHIND_LEADER: u8 = 2;
/// It sleeps until a leader wakes it.
const PARKED: u8 = 3;

/// What the thread shall do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Run the lane, then wait for packets.
    Run,
    /// Look again after this time or when woken.
    StandBack(u64),
    /// Look again when woken.
    Park,
}

/// Who is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleeper {
    /// The program's thread that runs the lane while it waits.
    Leader,
    /// The background thread.
    Thread,
}

/// What the program and the thread tell each other, without locks.
#[derive(Debug)]
pub(crate) struct HandOff {
    /// After this long without an empty poll the program does not poll any more; a thread that
    /// stands back looks as often at first.
    stand_back_ns: u64,
    /// Time of the program's last call, in nanoseconds; the low bit tells a post, or a poll that
    /// found something, from a poll that did not.
    last_call: AtomicU64,
    leader: AtomicBool,
    /// Counts the leaders that came and went.
    leaders: AtomicU32,
    thread: AtomicU8,
    /// The thread sleeps no longer than until then; 0 while it is awake.
    sleeps_until: AtomicU64,
    leader_until: AtomicU64,
}

/// What only the thread knows.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    sticky: bool,
    /// Runs in a row that found work, or below 0 that did not.
    streak: i32,
    /// Wake-ups in a row at which the program had called a moment ago.
    calling: u32,
    /// When it last had work.
    worked_ns: u64,
    tick_ns: u64,
    leaders: u32,
    same_leader: u32,
}

impl HandOff {
    pub(crate) fn new(stand_back_ns: u64) -> Self {
        HandOff {
            stand_back_ns,
            last_call: AtomicU64::new(0),
            leader: AtomicBool::new(false),
            leaders: AtomicU32::new(0),
            thread: AtomicU8::new(WAITING),
            sleeps_until: AtomicU64::new(0),
            leader_until: AtomicU64::new(0),
        }
    }

    /// The program posted, or polled; `found` unless a poll came back empty.
    #[inline]
    pub(crate) fn note_call(&self, now_ns: u64, found: bool) {
        self.last_call.store(now_ns & !1 | u64::from(found), Ordering::Relaxed);
    }

    /// The program asked for an event. `true`: wake the thread.
    pub(crate) fn note_armed(&self) -> bool {
        // The polls so far are not those of a program that goes on polling.
        self.last_call.store(0, Ordering::SeqCst);
        // Behind a leader it looks again soon enough, and is not to be woken at every event.
        self.thread.load(Ordering::SeqCst) == BEHIND_POLLS
    }

    /// A waiting thread of the program offers to run the lane; `false`: another does already.
    pub(crate) fn enter_leader(&self) -> bool {
        let entered =
            self.leader.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if entered {
            self.leaders.fetch_add(1, Ordering::SeqCst);
        }
        entered
    }

    /// The leader goes back to the program. `true`: wake the thread.
    ///
    /// A thread that waits for packets needs no call: what woke the leader is there for it, too.
    pub(crate) fn leave_leader(&self) -> bool {
        self.leader_until.store(0, Ordering::SeqCst);
        self.leader.store(false, Ordering::SeqCst);
        self.thread.load(Ordering::SeqCst) == PARKED
    }

    /// The leader is about to sleep until `until_ns`; it must look at the deadline once more
    /// afterwards.
    pub(crate) fn leader_sleeps(&self, until_ns: u64) {
        self.leader_until.store(until_ns, Ordering::SeqCst);
    }

    /// The thread is about to wait for packets; returns until when. It must look at the deadline
    /// once more afterwards.
    ///
    /// A thread that had work lately sleeps no longer than `grace_ns`, the shortest timer that a
    /// post can set, so that not every post after a lull has to wake it.
    pub(crate) fn thread_sleeps(
        &self,
        memory: &Memory,
        now_ns: u64,
        deadline_ns: u64,
        grace_ns: u64,
    ) -> u64 {
        let active = now_ns.saturating_sub(memory.worked_ns) < ACTIVE_NS;
        let until_ns = if active { deadline_ns.min(now_ns + grace_ns) } else { deadline_ns };
        self.thread.store(WAITING, Ordering::SeqCst);
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        until_ns
    }

    /// The thread is awake.
    pub(crate) fn thread_wakes(&self) {
        self.sleeps_until.store(0, Ordering::SeqCst);
    }

    /// A deadline was set: who sleeps past it and is to be woken?
    pub(crate) fn note_deadline(&self, deadline_ns: u64) -> Option<Sleeper> {
        if self.leader_until.load(Ordering::SeqCst) > deadline_ns {
            self.leader_until.store(deadline_ns, Ordering::SeqCst);
            return Some(Sleeper::Leader);
        }
        if self.sleeps_until.load(Ordering::SeqCst) > deadline_ns {
            self.sleeps_until.store(deadline_ns, Ordering::SeqCst);
            return Some(Sleeper::Thread);
        }
        None
    }

    /// Packets arrived or a timer is due: is it for the thread to run the lane?
    pub(crate) fn on_work(&self, memory: &mut Memory, now_ns: u64) -> Turn {
        if self.leader.load(Ordering::SeqCst) {
            return self.stand_back(memory, BEHIND_LEADER);
        }
        let (idle_ns, found) = self.last_call(now_ns);
        let recent = idle_ns < if found { RECENT_CALL_NS } else { RECENT_EMPTY_NS };
        memory.calling = if recent { memory.calling + 1 } else { 0 };
        memory.sticky &= memory.calling < CALLING_AFTER;
        if !memory.sticky && recent {
            return self.stand_back(memory, BEHIND_POLLS);
        }
        self.run(memory)
    }

    /// The thread ran the lane because packets arrived, or anew after standing back.
    pub(crate) fn on_run(&self, memory: &mut Memory, now_ns: u64, found_work: bool) {
        if found_work {
            memory.worked_ns = now_ns;
        }
        if found_work && memory.calling == 0 {
            memory.streak = (memory.streak.max(0) + 1).min(STICKY_AFTER);
            memory.sticky |= memory.streak == STICKY_AFTER;
        } else if !found_work {
            memory.streak = (memory.streak.min(0) - 1).max(-LOOSE_AFTER);
            memory.sticky &= memory.streak > -LOOSE_AFTER;
        }
    }

    /// Someone else runs the lane: does the thread wait for its turn?
    pub(crate) fn waits_its_turn(&self, memory: &Memory) -> bool {
        memory.sticky
    }

    /// Someone else runs the lane, and the thread does not wait.
    pub(crate) fn on_busy(&self, memory: &mut Memory) -> Turn {
        self.stand_back(memory, BEHIND_POLLS)
    }

    /// The thread stood back for a while: does it come back?
    pub(crate) fn on_tick(&self, memory: &mut Memory, now_ns: u64) -> Turn {
        let leaders = self.leaders.load(Ordering::SeqCst);
        let changed = leaders != memory.leaders;
        memory.leaders = leaders;
        if self.leader.load(Ordering::SeqCst) {
            return self.behind_leader(memory, changed);
        }
        memory.same_leader = 0;
        if changed {
            return self.stand_back(memory, BEHIND_LEADER);
        }
        let (idle_ns, found) = self.last_call(now_ns);
        if idle_ns < if found { RECENT_CALL_NS } else { self.stand_back_ns } {
            return self.stand_back(memory, BEHIND_POLLS);
        }
        memory.calling = 0;
        self.run(memory)
    }

    fn behind_leader(&self, memory: &mut Memory, changed: bool) -> Turn {
        memory.same_leader = if changed { 0 } else { memory.same_leader + 1 };
        if memory.same_leader < PARK_AFTER {
            return self.stand_back(memory, BEHIND_LEADER);
        }
        self.thread.store(PARKED, Ordering::SeqCst);
        // The leader may have left before it could see that the thread parks.
        if self.leader.load(Ordering::SeqCst) { Turn::Park } else { self.run(memory) }
    }

    fn stand_back(&self, memory: &mut Memory, behind: u8) -> Turn {
        self.thread.store(behind, Ordering::SeqCst);
        let longest_ns = self.stand_back_ns.saturating_mul(MAX_TICKS);
        memory.tick_ns = (memory.tick_ns * 2).clamp(self.stand_back_ns, longest_ns);
        Turn::StandBack(memory.tick_ns)
    }

    fn run(&self, memory: &mut Memory) -> Turn {
        self.thread.store(WAITING, Ordering::SeqCst);
        memory.tick_ns = 0;
        memory.same_leader = 0;
        Turn::Run
    }

    /// Time since the program's last call, and whether that was more than an empty poll.
    fn last_call(&self, now_ns: u64) -> (u64, bool) {
        let last = self.last_call.load(Ordering::Relaxed);
        (now_ns.saturating_sub(last), last & 1 == 1)
    }
}
