//! A lane: one endpoint of the protocol with its sockets, behind one lock.
//!
//! Invariant: whoever has held the lock has sent what there was to send, and has published the
//! next deadline before letting go; effects run after that, without the lock.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use irdma_net::clock;
use irdma_net::port::Port;
use irdma_net::slot::{self, Message, Slot};
use irdma_net::wake::{EventFd, Interest, Poll, Ready};
use irdma_transport::{Effect, Endpoint, Instant, Result};
use irdma_wire::{Gid, Qpn};

use super::capture::{Capture, Tap};
use super::counts::Counts;
use super::handoff::{HandOff, Sleeper};
use super::progress::Background;
use super::sockets::{Sockets, Token};
use super::targets::Targets;
use super::traffic::{Budget, Traffic};
use super::{Role, Shared};
use crate::page::Page;
use crate::profile::Features;
use crate::stats::{self, HwStats};
use crate::system::system_error;

/// Of so many empty polls in a row one asks the kernel for packets.
const POLLS_A_CHECK: u32 = 4;
/// Looks at a lock that is taken before sleeping for it; some 10 us.
const SPINS: u32 = 300;
/// A lane that closes takes no more than so many turns at what arrives meanwhile.
const MAX_LAST_RUNS: usize = 64;
/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;
/// The part of a receive buffer that packets can be counted on to fill; the rest is the kernel's
/// overhead, which is largest for small packets.
const WINDOW_SHARE: usize = 4;

/// One endpoint with its sockets.
pub(crate) struct Lane {
    inner: Mutex<LaneInner>,
    pub(super) role: Role,
    /// Readiness of the lane's sockets.
    poll: Arc<Poll>,
    kick: Arc<EventFd>,
    /// When the lane has to run next; 0 for at once.
    deadline_ns: AtomicU64,
    empty_polls: AtomicU32,
    pub(super) hand_off: HandOff,
    pub(super) background: Background,
    /// Wakes the background thread.
    pub(super) wake: Arc<EventFd>,
    /// The shortest timer that a post can set.
    pub(super) grace_ns: u64,
    pub(super) targets: Arc<Targets>,
    /// Devices on whose addresses it listens, those to come among them.
    pub(super) listens: Mutex<Vec<String>>,
}

/// What the lane's lock guards.
pub(crate) struct LaneInner {
    pub(crate) endpoint: Endpoint,
    traffic: Traffic,
    slot: Slot,
    poll: Arc<Poll>,
    kick: Arc<EventFd>,
    message: Box<[u8]>,
    ready: Vec<Ready>,
    /// Counts the runs, so that another of the ready sockets is the first each time.
    turn: usize,
    effects: Vec<Effect>,
    now: Instant,
    role: Role,
    targets: Arc<Targets>,
    counts: Counts,
    /// Something happened to a connection since the lane last sent.
    told: bool,
}

impl Lane {
    /// Claims a slot and starts with no address.
    pub(super) fn open(shared: &Shared, seed: u64, role: Role) -> io::Result<Self> {
        let Shared { config, mem, targets, tap } = shared;
        let tap = tap.get_or_init(|| config.capture.as_deref().and_then(Tap::open_or_log));
        let stream = match role {
            Role::Home => 0,
            Role::Domain { number, .. } => number,
        };
        let slot = Slot::claim(seed)?;
        let poll = Arc::new(Poll::new()?);
        let kick = Arc::new(EventFd::engine()?);
        poll.add(&*kick, Token::Kick.to_u64(), Interest::Read)?;
        poll.add(&slot, Token::Slot.to_u64(), Interest::Read)?;
        let endpoint_config = irdma_transport::Config {
            slot: slot.number(),
            seed,
            max_qp: config.profile.limits().max_qp,
            max_mcast_grp: config.profile.limits().max_mcast_grp,
            initial_window: config.initial_window,
            max_window: config.max_window,
            min_timeout_ns: config.min_timeout_ns,
            atomic_write: config.profile.features().contains(Features::PERSISTENCE),
            ..irdma_transport::Config::default()
        };
        let inner = LaneInner {
            endpoint: Endpoint::new(endpoint_config, Arc::clone(mem)),
            traffic: Traffic::new(
                Sockets::new(Arc::clone(&poll)),
                config,
                tap.clone().map(Capture::new),
                stream,
            ),
            slot,
            poll: Arc::clone(&poll),
            kick: Arc::clone(&kick),
            message: vec![0; slot::MESSAGE_LEN].into(),
            ready: Vec::new(),
            turn: 0,
            effects: Vec::new(),
            now: Instant::ZERO,
            role,
            targets: Arc::clone(targets),
            counts: Counts::new(config.profile),
            told: false,
        };
        Ok(Lane {
            inner: Mutex::new(inner),
            role,
            poll,
            kick,
            deadline_ns: AtomicU64::new(NEVER),
            empty_polls: AtomicU32::new(0),
            hand_off: HandOff::new(config.stand_back_ns),
            background: Background::default(),
            wake: Arc::new(EventFd::engine()?),
            grace_ns: config.min_timeout_ns,
            targets: Arc::clone(targets),
            listens: Mutex::default(),
        })
    }

    /// Takes the lane, for a verb of the program.
    ///
    /// Spins for about as long as a short run takes: who sleeps for the lock has to be woken, and
    /// that costs both sides more.
    pub(crate) fn lock(&self) -> LaneGuard<'_> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            std::hint::spin_loop();
        }
        self.guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it is a thread domain's.
    pub(crate) fn is_domains(&self) -> bool {
        self.role != Role::Home
    }

    fn try_lock(&self) -> Option<LaneGuard<'_>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(self.guard(inner)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks at the lane without giving it a turn: nothing is sent, and no effect runs.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&mut LaneInner) -> T) -> T {
        look(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn guard<'a>(&'a self, mut inner: MutexGuard<'a, LaneInner>) -> LaneGuard<'a> {
        inner.now = Instant::from_nanos(clock::monotonic_ns());
        LaneGuard { lane: self, inner: Some(inner) }
    }

    /// Receives, runs timers, sends; waits for its turn. Tells whether anything was due.
    pub(crate) fn run(&self) -> bool {
        self.lock().run()
    }

    /// As [`Lane::run`], but `None` if another thread is running the lane.
    pub(crate) fn try_run(&self) -> Option<bool> {
        Some(self.try_lock()?.run())
    }

    /// A poll of the program came back empty: gives the lane a turn, now and then.
    #[inline]
    pub(crate) fn progress(&self) {
        let count = self.empty_polls.load(Ordering::Relaxed).wrapping_add(1);
        self.empty_polls.store(count, Ordering::Relaxed);
        if count.is_multiple_of(POLLS_A_CHECK) || self.deadline_ns.load(Ordering::Relaxed) == 0 {
            self.try_run();
        }
    }

    /// The program posted or polled; `found` unless a poll came back empty.
    #[inline]
    pub(crate) fn note_call(&self, found: bool) {
        self.hand_off.note_call(clock::monotonic_ns(), found);
    }

    /// The program asked for a completion event.
    pub(crate) fn note_armed(&self) {
        if self.hand_off.note_armed() {
            self.wake.signal();
        }
    }

    /// When the lane has to run next, in nanoseconds of the monotonic clock; 0 for at once.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::SeqCst)
    }

    /// Readiness of the lane's sockets.
    pub(crate) fn poll(&self) -> &Poll {
        &self.poll
    }

    /// Has the leader look around.
    pub(super) fn kick(&self) {
        self.kick.signal();
    }

    /// Wakes whoever sleeps past a deadline that was published.
    pub(crate) fn wake_for(&self, deadline_ns: u64) {
        match self.hand_off.note_deadline(deadline_ns) {
            Some(Sleeper::Leader) => self.kick.signal(),
            Some(Sleeper::Thread) => self.wake.signal(),
            None => {}
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("deadline_ns", &self.deadline_ns).finish_non_exhaustive()
    }
}

impl LaneInner {
    /// The time at which the lock was taken.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    fn run(&mut self) -> bool {
        let received = self.receive();
        let due = self.deadline().is_some_and(|deadline| deadline <= self.now);
        if due {
            let unanswered = self.endpoint.stats().rto;
            self.endpoint.handle_timeout(self.now);
            if self.endpoint.stats().rto != unanswered {
                self.traffic.sockets().suspect_steering(self.now.as_nanos());
            }
            self.traffic.handle_timeout(self.now, &mut self.endpoint, &self.slot);
        }
        received || due
    }

    fn receive(&mut self) -> bool {
        // Fails for a signal at most, and the next run asks again.
        if self.poll.wait(&mut self.ready, Some(0)).is_err() || self.ready.is_empty() {
            return false;
        }
        let mut budget = Budget::new();
        let count = self.ready.len();
        self.turn = self.turn.wrapping_add(1) % count;
        for i in 0..count {
            match Token::from_u64(self.ready[(self.turn + i) % count].token) {
                Token::Slot => self.receive_messages(),
                Token::Port(index) => self.receive_requests(index),
                // Fails if another run was faster.
                Token::Kick => drop(self.kick.read()),
                // Sending goes on when the lock is given back.
                Token::Room(_) => {}
                token => self.receive_from(token, &mut budget),
            }
        }
        true
    }

    fn receive_from(&mut self, token: Token, budget: &mut Budget) {
        let LaneInner { traffic, endpoint, slot, now, .. } = self;
        while !budget.is_spent() && traffic.receive(*now, token, budget, endpoint, slot) {}
    }

    fn receive_messages(&mut self) {
        let LaneInner { traffic, endpoint, slot, message, now, role, counts, .. } = self;
        let part_of = match *role {
            Role::Home => None,
            Role::Domain { home, .. } => Some(home),
        };
        let mut budget = Budget::new();
        while !budget.is_spent()
            && let Ok(Some(received)) = slot.recv(message)
        {
            budget.spend(1, 0);
            match received.message {
                Message::Relay { meta, data } => {
                    budget.spend(data.len().div_ceil(meta.stride), data.len());
                    traffic.receive_relayed(*now, meta, data, endpoint, slot);
                }
                Message::User(request) => {
                    if let Some(from) = received.from
                        && let Some(answer) =
                            stats::answer(request, part_of, &|| counts.snapshot(endpoint, traffic))
                    {
                        // Whoever asked has gone, or asks again.
                        let _ = slot.send(from, &Message::User(&answer));
                    }
                }
                Message::Steer { group, message } => {
                    traffic.sockets().handle_steer(group, message, slot, now.as_nanos());
                }
            }
        }
    }

    /// Requests for a port of this process that reached other ones.
    fn receive_requests(&mut self, index: usize) {
        let LaneInner { traffic, endpoint, slot, message, now, .. } = self;
        let Some(port) = traffic.sockets().port(index) else { return };
        let mut budget = Budget::new();
        while !budget.is_spent()
            && let Ok(Some((meta, data))) = port.recv(message)
        {
            budget.spend(data.len().div_ceil(meta.stride), data.len());
            traffic.receive_requests(*now, meta, data, endpoint, slot);
        }
    }

    /// Takes requests for a port that reach other processes, as long as the port is held.
    pub(crate) fn watch_port(&mut self, port: &Arc<Port>) -> io::Result<()> {
        self.traffic.sockets().watch_port(port)
    }

    pub(crate) fn has_local(&self, addr: IpAddr) -> bool {
        self.endpoint.has_local(addr)
    }

    /// Makes an address usable as a source and listens on it.
    pub(crate) fn open_local(&mut self, addr: IpAddr, ifindex: u32, mtu: u32) -> Result<()> {
        if self.has_local(addr) {
            return Ok(());
        }
        let now_ns = self.now.as_nanos();
        let opened = self.traffic.sockets().open_local(addr, ifindex, &self.slot, now_ns);
        let local = opened.map_err(|error| system_error(&format!("address {addr}"), &error))?;
        let window = (local.receiver.rcvbuf() / WINDOW_SHARE) as u32;
        self.endpoint.add_local(addr, local.ports(), mtu);
        self.endpoint.set_recv_window(window);
        Ok(())
    }

    /// Closes every socket, once it is empty: among what waits may be datagrams of other
    /// processes, which would be lost.
    pub(crate) fn close(&mut self) {
        for _ in 0..MAX_LAST_RUNS {
            if !self.receive() {
                break;
            }
        }
        self.traffic.sockets().close_all(&self.slot);
    }

    /// Attaches a queue pair to a group, joining it on the interface if it is the first.
    pub(crate) fn attach_mcast(
        &mut self,
        qpn: Qpn,
        gid: &Gid,
        lid: u16,
        ifindex: u32,
    ) -> Result<()> {
        self.endpoint.attach_mcast(qpn, gid, lid, ifindex)?;
        self.apply_effects().map_err(|error| {
            // The attachment exists, so that undoing it cannot fail; leaving the group that was
            // not joined does nothing.
            let _ = self.endpoint.detach_mcast(qpn, gid, lid, ifindex);
            system_error(&format!("joining group {}", gid.to_ip()), &error)
        })
    }

    /// Joins and leaves groups as the endpoint asks, and keeps the order of what happens to
    /// connections; other effects wait for the lock's end.
    fn apply_effects(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(effect) = self.endpoint.poll_effect() {
            match effect {
                Effect::Cm(event) => {
                    let targets = Arc::clone(&self.targets);
                    targets.cm.handle(self, *event);
                    self.told = true;
                }
                Effect::JoinGroup { group, ifindex } => {
                    result = result.and(self.traffic.sockets().join(group, ifindex));
                }
                Effect::LeaveGroup { group, ifindex } => {
                    self.traffic.sockets().leave(group, ifindex);
                }
                effect => self.effects.push(effect),
            }
        }
        result
    }

    /// Sends what there is; returns when the lane has to run next.
    fn finish(&mut self) -> u64 {
        let more = loop {
            let more = self.traffic.transmit(self.now, &mut self.endpoint);
            // A join is applied where it can be undone; what is left here cannot fail.
            let _ = self.apply_effects();
            // A peer may have been refused: that goes at once.
            if !std::mem::take(&mut self.told) || more {
                break more;
            }
        };
        self.traffic.flush_capture();
        match self.deadline() {
            _ if more => 0,
            Some(deadline) => deadline.as_nanos(),
            None => NEVER,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.endpoint.poll_timeout().into_iter().chain(self.traffic.deadline()).min()
    }

    /// The counters as they are now.
    pub(crate) fn stats(&self) -> HwStats {
        self.counts.snapshot(&self.endpoint, &self.traffic)
    }

    /// Takes over the counters of a lane that has ended.
    pub(crate) fn inherit(&mut self, stats: HwStats) {
        self.counts.inherit(stats);
    }

    /// Brings the page of counters up to date.
    pub(crate) fn publish(&mut self, page: &Page) {
        self.counts.publish(page, self.endpoint.stats());
    }

    /// The slot.
    pub(crate) fn slot(&self) -> u16 {
        self.slot.number()
    }

    /// Whether the steering of some address is still being worked out.
    pub(super) fn is_steering(&mut self) -> bool {
        self.traffic.sockets().is_steering()
    }
}

/// The lane, taken; giving it back sends, publishes the deadline and runs effects.
pub(crate) struct LaneGuard<'a> {
    lane: &'a Lane,
    /// Empty only while the guard is being dropped.
    inner: Option<MutexGuard<'a, LaneInner>>,
}

impl Deref for LaneGuard<'_> {
    type Target = LaneInner;

    fn deref(&self) -> &LaneInner {
        self.inner.as_ref().expect("the guard is not being dropped")
    }
}

impl DerefMut for LaneGuard<'_> {
    fn deref_mut(&mut self) -> &mut LaneInner {
        self.inner.as_mut().expect("the guard is not being dropped")
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        // After a panic the endpoint may be half-changed, and a second panic would abort.
        if std::thread::panicking() {
            return;
        }
        let deadline_ns = inner.finish();
        self.lane.deadline_ns.store(deadline_ns, Ordering::SeqCst);
        let effects = std::mem::take(&mut inner.effects);
        if self.lane.targets.page.is_watched() {
            inner.publish(&self.lane.targets.page);
        }
        drop(inner);
        for effect in effects {
            self.lane.targets.dispatch(effect);
        }
        self.lane.wake_for(deadline_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::OnceLock;
    use std::thread::sleep;
    use std::time::Duration;

    use irdma_mem::MemTable;
    use irdma_net::udp::RecvMeta;

    use super::*;
    use crate::config::Config;

    /// The addresses at which something waits; other processes may talk to the slot.
    fn waiting(lane: &Lane) -> Vec<IpAddr> {
        let mut ready = Vec::new();
        lane.poll.wait(&mut ready, Some(0)).unwrap();
        let mut lane = lane.lock();
        let addrs: Vec<_> = lane.traffic.sockets().locals().map(|local| local.addr).collect();
        let tokens = ready.iter().map(|ready| Token::from_u64(ready.token));
        let locals = tokens.filter_map(|token| match token {
            Token::Local(index) => Some(addrs[index]),
            _ => None,
        });
        locals.collect()
    }

    fn lane(config: Config, seed: u64) -> Lane {
        let (mem, targets) = (Arc::new(MemTable::new(1, 16)), Arc::new(Targets::new(1)));
        Lane::open(&Shared { config, mem, targets, tap: OnceLock::new() }, seed, Role::Home)
            .unwrap()
    }

    /// What a lane makes of a datagram that another slot relays: relayed in, and malformed.
    fn relayed(faults: Option<&str>) -> [Option<u64>; 2] {
        let faults = faults.map(|spec| spec.parse().unwrap());
        let lane = lane(Config { faults, ..Config::default() }, 9);
        let (src, dst) = ("10.0.0.1:5".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let meta = RecvMeta { len: 3, stride: 2, src, dst, tos: 0, ttl: 0, drops: 0 };
        let other = Slot::claim(8).unwrap();
        let to = lane.lock().slot.number();
        other.send(to, &Message::Relay { meta, data: b"xyz" }).unwrap();
        lane.run();
        let stats = lane.lock().stats();
        ["relayed_in", "drop_malformed"].map(|name| stats.get(name))
    }

    #[test]
    fn what_is_relayed_passes_the_fault_injector() {
        assert_eq!(relayed(None), [Some(1), Some(2)]);
        assert_eq!(relayed(Some("drop=100%,side=receive")), [Some(1), Some(0)]);
        assert_eq!(relayed(Some("dup=100%,side=both")), [Some(1), Some(4)]);
        assert_eq!(relayed(Some("drop=100%,side=send")), [Some(1), Some(2)]);
    }

    #[test]
    fn a_flooded_address_leaves_the_other_its_turn() {
        let lane = lane(Config::default(), 7);
        // Addresses of this process alone.
        let [.., high, low] = clock::pid().to_be_bytes();
        let [one, two, three] = [1, 2, 3].map(|last| IpAddr::from([127, high | 128, low, last]));
        for addr in [one, two] {
            lane.lock().open_local(addr, 1, 1024).unwrap();
        }
        lane.settle();
        assert!(!lane.lock().is_steering(), "what is given out is steered");
        while lane.deadline_ns() != NEVER {
            sleep(Duration::from_millis(1));
            lane.run();
        }
        let sender = UdpSocket::bind((three, 0)).unwrap();
        // Either way round: which socket the kernel names first is its own business.
        for (flooded, other) in [(one, two), (two, one)] {
            for _ in 0..512 {
                sender.send_to(b"x", (flooded, 4791)).unwrap();
            }
            sender.send_to(b"x", (other, 4791)).unwrap();
            assert_eq!(waiting(&lane).len(), 2);
            for _ in 0..4 {
                lane.run();
            }
            assert_eq!(waiting(&lane), [flooded], "the other one has been served");
            while lane.run() {}
        }
    }
}
