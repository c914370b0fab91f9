//! The hand-off under every schedule: the same source over model atomics.
//!
//! A world is a lane with packets and a timer, a background thread that does what the real one
//! does, and programs that wait, post and leave. A program may wait for two of them. A wake-up that
//! is lost leaves all of them blocked, which the explorer reports as a deadlock.

/// The model's atomics.
mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
}

#[path = "handoff.rs"]
mod handoff;

use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

use handoff::{HandOff, Memory, Sleeper, Turn};

const NEVER: u64 = u64::MAX;
const STAND_BACK_NS: u64 = 50_000;
const GRACE_NS: u64 = 4_000_000;
const SCHEDULES: usize = 1_000;

#[derive(Default)]
struct State {
    /// Packets that wait in the sockets.
    packets: u32,
    /// A timer that is due, as soon as someone looks.
    timer: bool,
    /// A timer that is due only then; nothing but a sleep of the thread lets time pass.
    later_ns: Option<u64>,
    /// A completion event waits on the channel.
    event: bool,
    /// The thread's wake-up descriptor, and the leader's.
    wake: bool,
    kick: bool,
    stop: bool,
    now_ns: u64,
}

/// The states of the worlds that one program waits for.
#[derive(Default)]
struct States {
    each: Mutex<[State; 2]>,
    changed: Condvar,
}

impl States {
    fn lock(&self) -> MutexGuard<'_, [State; 2]> {
        self.each.lock().unwrap()
    }

    fn wait_until(&self, ready: impl Fn(&[State; 2]) -> bool) -> MutexGuard<'_, [State; 2]> {
        let mut states = self.lock();
        while !ready(&states) {
            states = self.changed.wait(states).unwrap();
        }
        states
    }
}

struct World {
    /// Held by a program's call that runs the lane.
    lane: Mutex<()>,
    states: Arc<States>,
    /// Which of them is this world's.
    index: usize,
    hand_off: HandOff,
    deadline_ns: sync::AtomicU64,
}

impl World {
    fn new(states: &Arc<States>, index: usize) -> Arc<World> {
        // Far from zero, so that nothing counts as recent.
        states.lock()[index].now_ns = 1_000_000_000;
        Arc::new(World {
            lane: Mutex::new(()),
            states: Arc::clone(states),
            index,
            hand_off: HandOff::new(STAND_BACK_NS),
            deadline_ns: sync::AtomicU64::new(NEVER),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.states.lock()[self.index]);
        self.states.changed.notify_all();
    }

    fn now_ns(&self) -> u64 {
        self.states.lock()[self.index].now_ns
    }

    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, [State; 2]> {
        self.states.wait_until(|states| ready(&states[self.index]))
    }

    /// What running the lane does; tells whether there was work. As in the real one, the deadline
    /// is published under the lane's lock.
    fn run_lane(&self) -> bool {
        let mut found = false;
        self.change(|state| {
            found = state.packets > 0 || state.timer;
            state.event |= state.packets > 0;
            (state.packets, state.timer, state.kick) = (0, false, false);
            let now_ns = state.now_ns;
            found |= state.later_ns.take_if(|later| *later <= now_ns).is_some();
            self.deadline_ns.store(state.later_ns.unwrap_or(NEVER), sync::Ordering::SeqCst);
        });
        found
    }

    /// A post of the program arms a timer.
    fn post(&self, deadline_ns: u64) {
        self.arm(deadline_ns, |state| state.timer = true);
    }

    /// As [`World::post`], but the timer is not due before its time.
    fn post_later(&self, deadline_ns: u64) {
        self.arm(deadline_ns, |state| state.later_ns = Some(deadline_ns));
    }

    fn arm(&self, deadline_ns: u64, change: impl FnOnce(&mut State)) {
        let lane = self.lane.lock().unwrap();
        self.change(|state| {
            change(state);
            self.deadline_ns.store(deadline_ns, sync::Ordering::SeqCst);
        });
        drop(lane);
        self.wake_for(deadline_ns);
    }

    fn wake_for(&self, deadline_ns: u64) {
        match self.hand_off.note_deadline(deadline_ns) {
            Some(Sleeper::Leader) => self.change(|state| state.kick = true),
            Some(Sleeper::Thread) => self.change(|state| state.wake = true),
            None => {}
        }
    }

    /// One wait for an event of this lane.
    fn lead(&self) {
        lead(&[self]);
    }

    /// The background thread, until it is stopped.
    fn background(&self) {
        let mut memory = Memory::default();
        let mut turn = Turn::Run;
        loop {
            turn = match turn {
                Turn::Run => self.work(&mut memory),
                Turn::StandBack(tick_ns) => {
                    thread::yield_now();
                    self.aside(&mut memory, Some(tick_ns))
                }
                Turn::Park => self.aside(&mut memory, None),
            };
            if self.states.lock()[self.index].stop {
                return;
            }
        }
    }

    fn work(&self, memory: &mut Memory) -> Turn {
        let lane = match self.hand_off.waits_its_turn(memory) {
            true => Some(self.lane.lock().unwrap()),
            false => self.lane.try_lock().ok(),
        };
        let Some(lane) = lane else { return self.hand_off.on_busy(memory) };
        let found = self.run_lane();
        drop(lane);
        let now_ns = self.now_ns();
        self.hand_off.on_run(memory, now_ns, found);
        let deadline_ns = self.deadline_ns.load(sync::Ordering::SeqCst);
        let until_ns = self.hand_off.thread_sleeps(memory, now_ns, deadline_ns, GRACE_NS);
        let mut woken = true;
        if self.deadline_ns.load(sync::Ordering::SeqCst) >= deadline_ns {
            let timed = until_ns != NEVER;
            let called = |s: &State| s.packets > 0 || s.kick || s.wake || s.stop;
            let mut states = self.wait_until(|s| timed || called(s));
            let state = &mut states[self.index];
            if !called(state) {
                state.now_ns = state.now_ns.max(until_ns);
            }
            woken = std::mem::take(&mut state.wake) || timed;
        }
        self.hand_off.thread_wakes();
        if woken { Turn::Run } else { self.hand_off.on_work(memory, now_ns) }
    }

    fn aside(&self, memory: &mut Memory, tick_ns: Option<u64>) -> Turn {
        let timed = tick_ns.is_some();
        let mut states = self.wait_until(|state| timed || state.wake || state.stop);
        let state = &mut states[self.index];
        state.now_ns += tick_ns.unwrap_or(0);
        let now_ns = state.now_ns;
        if std::mem::take(&mut state.wake) {
            return Turn::Run;
        }
        drop(states);
        self.hand_off.on_tick(memory, now_ns)
    }
}

/// One wait for an event, as `ibv_get_cq_event` does it, for as long as it leads any of the lanes;
/// a packet of either is the event.
fn lead(worlds: &[&World]) {
    let worlds: Vec<&World> =
        worlds.iter().filter(|world| world.hand_off.enter_leader()).copied().collect();
    let Some(first) = worlds.first() else { return };
    let states = &first.states;
    let is_done = || states.lock().iter_mut().any(|state| std::mem::take(&mut state.event));
    loop {
        for world in &worlds {
            world.run_lane();
        }
        if is_done() {
            break;
        }
        let (mut timed, mut changed) = (false, false);
        for world in &worlds {
            let deadline_ns = world.deadline_ns.load(sync::Ordering::SeqCst);
            world.hand_off.leader_sleeps(deadline_ns);
            changed |= world.deadline_ns.load(sync::Ordering::SeqCst) < deadline_ns;
            timed |= deadline_ns != NEVER;
        }
        if !changed {
            let called = |s: &State| s.packets > 0 || s.kick;
            drop(states.wait_until(|all| {
                timed
                    || all.iter().any(|state| state.event)
                    || worlds.iter().any(|world| called(&all[world.index]))
            }));
        }
        worlds.iter().for_each(|world| world.hand_off.leader_sleeps(0));
        if is_done() {
            break;
        }
    }
    for world in worlds {
        if world.hand_off.leave_leader() {
            world.change(|state| state.wake = true);
        } else {
            world.wake_for(world.deadline_ns.load(sync::Ordering::SeqCst));
        }
    }
}

/// Runs `program` beside a background thread; everything sent must have been received then.
fn explore(program: impl Fn(&Arc<World>) + Send + Sync + 'static) {
    explore_all(1, move |worlds| program(&worlds[0]));
}

/// The same with several lanes, each with a thread of its own.
fn explore_all(lanes: usize, program: impl Fn(&[Arc<World>]) + Send + Sync + 'static) {
    shuttle::check_random(
        move || {
            let states = Arc::new(States::default());
            let worlds: Vec<_> = (0..lanes).map(|index| World::new(&states, index)).collect();
            let start = |world: &Arc<World>| {
                let world = Arc::clone(world);
                thread::spawn(move || world.background())
            };
            let threads: Vec<_> = worlds.iter().map(start).collect();
            program(&worlds);
            for (world, background) in worlds.iter().zip(threads) {
                let is_done = |s: &State| s.packets == 0 && !s.timer && s.later_ns.is_none();
                drop(world.wait_until(is_done));
                world.change(|state| state.stop = true);
                background.join().unwrap();
            }
        },
        SCHEDULES,
    );
}

fn arrive(world: &World) {
    world.change(|state| state.packets += 1);
}

#[test]
fn packets_of_a_passive_program_are_taken() {
    explore(|world| (0..3).for_each(|_| arrive(world)));
}

#[test]
fn packets_after_the_last_leader_left_are_taken() {
    explore(|world| {
        let leader = thread::spawn({
            let world = Arc::clone(world);
            move || world.lead()
        });
        arrive(world);
        leader.join().unwrap();
        arrive(world);
    });
}

#[test]
fn a_parked_thread_comes_back_and_a_leader_minds_timers() {
    explore(|world| {
        let leader = thread::spawn({
            let world = Arc::clone(world);
            move || (0..2).for_each(|_| world.lead())
        });
        // The first packet has the thread stand back behind the leader, who comes again.
        arrive(world);
        drop(world.wait_until(|state| state.packets == 0));
        // Enough turns for the thread to lose patience, in many schedules.
        (0..60).for_each(|_| thread::yield_now());
        world.post(2_000_000_000);
        drop(world.wait_until(|state| !state.timer));
        arrive(world);
        leader.join().unwrap();
        arrive(world);
    });
}

#[test]
fn a_timer_that_a_post_arms_is_not_slept_past() {
    explore(|world| {
        let leader = thread::spawn({
            let world = Arc::clone(world);
            move || world.lead()
        });
        world.post(2_000_000_000);
        arrive(world);
        leader.join().unwrap();
        world.post(3_000_000_000);
    });
}

#[test]
fn a_timer_armed_while_the_leader_leaves_is_not_slept_past() {
    explore(|world| {
        let leader = thread::spawn({
            let world = Arc::clone(world);
            move || world.lead()
        });
        // The program's own call makes the event, and its next one arms a timer.
        world.states.lock()[0].packets += 1;
        world.run_lane();
        world.post(2_000_000_000);
        leader.join().unwrap();
    });
}

#[test]
fn a_timer_that_only_the_leader_was_told_of_is_not_slept_past() {
    explore(|world| {
        let leader = thread::spawn({
            let world = Arc::clone(world);
            move || world.lead()
        });
        world.post_later(2_000_000_000);
        arrive(world);
        leader.join().unwrap();
    });
}

#[test]
fn an_armed_queue_calls_the_thread_back() {
    explore(|world| {
        for _ in 0..3 {
            world.hand_off.note_call(world.now_ns(), false);
            arrive(world);
        }
        if world.hand_off.note_armed() {
            world.change(|state| state.wake = true);
        }
        arrive(world);
    });
}

#[test]
fn whoever_waits_for_two_lanes_keeps_neither_waiting() {
    explore_all(2, |worlds| {
        let leader = thread::spawn({
            let worlds = worlds.to_vec();
            move || lead(&[&worlds[0], &worlds[1]])
        });
        // Who comes later leads what is left.
        let other = thread::spawn({
            let world = Arc::clone(&worlds[1]);
            move || world.lead()
        });
        worlds[0].post(2_000_000_000);
        worlds[1].post_later(3_000_000_000);
        worlds.iter().for_each(|world| arrive(world));
        // One of them may have taken the event of both.
        arrive(&worlds[1]);
        drop(worlds[1].wait_until(|state| state.packets == 0));
        arrive(&worlds[1]);
        leader.join().unwrap();
        other.join().unwrap();
        worlds.iter().for_each(|world| arrive(world));
    });
}
