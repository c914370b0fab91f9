//! How much may be in flight towards each peer.
//!
//! A peer is a destination address and slot: the packets of one such pair wait in one socket
//! buffer. Reliable traffic is clocked by acknowledgements; datagrams and unreliable messages by
//! probes that a peer of our kind echoes (see [`irdma_wire::ctl`]), or by time where no echo comes.
//!
//! No wake-up is lost: a queue pair waits only while the window is full and an acknowledgement was
//! asked for, or while a probe or a period is timed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use irdma_wire::Qpn;

use crate::batch::Route;
use crate::endpoint::Config;
use crate::pace::Pace;
use crate::probe::{Datagrams, Verdict};
use crate::ready::ReadyList;
use crate::time::Instant;
use crate::timer::{TimerKey, Timers};

/// No window shrinks below this, so that the largest packets still come in numbers.
const MIN_WINDOW: u32 = 16 << 10;
/// Losses this close together count as one.
const LOSS_PERIOD_NS: u64 = 2_000_000;
/// The largest path MTU.
const MAX_PACKET: u32 = 4096;
/// Peers that are remembered before those that nobody uses are forgotten.
const CROWD: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId(u32);

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) addr: IpAddr,
    /// The local address that probes are sent from.
    pub(crate) local: IpAddr,
    pub(crate) slot: u16,
    /// Reliable bytes allowed in flight, and in flight.
    window: u32,
    in_flight: u32,
    /// Where growth turns from doubling to a packet each round.
    threshold: u32,
    /// The window never exceeds this: half of the peer's receive buffer, others send there, too.
    cap: u32,
    /// What the program's configuration allows.
    limit: u32,
    losses_count_from: Instant,
    /// Queue pairs that wait for the reliable window, longest first.
    waiters: ReadyList,
    /// Listed among those that have room and waiters.
    roomy: bool,
    datagrams: Datagrams,
    /// Of READ responses.
    responses: Pace,
}

impl Peer {
    /// Nothing is on its way, waited for or timed: what is known of the peer is all there is.
    fn is_idle(&self, now: Instant) -> bool {
        let reliable = self.in_flight == 0 && self.waiters.len() == 0;
        reliable && self.datagrams.is_idle(now) && self.responses.is_idle()
    }

    /// Wakes as many as there may be room for.
    fn wake(&mut self, ready: &mut ReadyList) {
        let room = self.window.saturating_sub(self.in_flight);
        let count = (room as usize).div_ceil(1024).min(self.waiters.len());
        self.waiters.move_to(ready, count);
        self.roomy = count > 0 && self.waiters.len() > 0;
    }

    /// Acknowledged bytes open a window that was used: doubling each round below the threshold,
    /// then a packet each round.
    fn grow(&mut self, bytes: u32) {
        let growth = if self.window < self.threshold {
            bytes
        } else {
            (u64::from(bytes) * u64::from(MAX_PACKET) / u64::from(self.window.max(1))) as u32
        };
        self.window = self.window.saturating_add(growth).min(self.cap);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Peers {
    ids: BTreeMap<(IpAddr, u16), PeerId>,
    peers: Vec<Peer>,
    /// Places in `peers` that are to be used again.
    free: Vec<PeerId>,
    /// Peers that were left when some were last forgotten.
    left: usize,
    /// Peers that a probe is to be sent to.
    probes: VecDeque<PeerId>,
    /// Peers whose woken queue pairs may not have used all the room.
    roomy: VecDeque<PeerId>,
}

impl Peers {
    /// The peer that `dest` at `route.dst` belongs to.
    pub(crate) fn find(&mut self, route: &Route, dest: Qpn, config: &Config) -> PeerId {
        let key = (route.dst, dest.slot());
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let may_echo = (1..Qpn::MULTICAST.slot()).contains(&dest.slot());
        let id = self.place(Peer {
            addr: route.dst,
            local: route.src,
            slot: dest.slot(),
            window: config.initial_window,
            in_flight: 0,
            threshold: config.max_window,
            cap: config.max_window,
            limit: config.max_window,
            losses_count_from: Instant::ZERO,
            waiters: ReadyList::default(),
            roomy: false,
            datagrams: Datagrams::new(config.initial_window, may_echo),
            responses: Pace::new(config.initial_window),
        });
        self.ids.insert(key, id);
        id
    }

    fn place(&mut self, peer: Peer) -> PeerId {
        if let Some(id) = self.free.pop() {
            *self.get(id) = peer;
            return id;
        }
        self.peers.push(peer);
        PeerId(self.peers.len() as u32 - 1)
    }

    /// Whether there are so many peers that it is worth looking for those that nobody uses. Their
    /// number doubles from one look to the next, so that looking costs each new peer little.
    pub(crate) fn are_crowded(&self) -> bool {
        self.ids.len() >= CROWD.max(2 * self.left)
    }

    /// Forgets the peers that are idle and not `used`.
    pub(crate) fn forget_idle(&mut self, used: &BTreeSet<PeerId>, now: Instant) {
        let Peers { ids, peers, free, .. } = self;
        ids.retain(|_, id| {
            let stays = used.contains(id) || !peers[id.0 as usize].is_idle(now);
            if !stays {
                free.push(*id);
            }
            stays
        });
        self.left = self.ids.len();
    }

    /// Reliable bytes in flight towards all peers.
    pub(crate) fn in_flight(&self) -> u64 {
        self.peers.iter().map(|peer| u64::from(peer.in_flight)).sum()
    }

    fn get(&mut self, id: PeerId) -> &mut Peer {
        &mut self.peers[id.0 as usize]
    }

    pub(crate) fn peer(&self, id: PeerId) -> &Peer {
        &self.peers[id.0 as usize]
    }

    /// Takes `bytes` of the reliable window, or lists `index` as waiting.
    ///
    /// A queue pair that is `stuck`, because no answer to it is on its way, may go over the window
    /// up to twice its size: otherwise it would depend on others, who may never be answered.
    pub(crate) fn reserve(&mut self, id: PeerId, bytes: u32, index: u16, stuck: bool) -> bool {
        let peer = self.get(id);
        let total = peer.in_flight.saturating_add(bytes);
        let limit = if stuck { peer.window.saturating_mul(2) } else { peer.window };
        if peer.in_flight > 0 && total > limit {
            peer.roomy = false;
            peer.waiters.push(index);
            return false;
        }
        peer.in_flight = total;
        if peer.datagrams.introduce() {
            self.probes.push_back(id);
        }
        true
    }

    /// Reliable bytes allowed in flight.
    pub(crate) fn window(&self, id: PeerId) -> u32 {
        self.peer(id).window
    }

    /// Whether the next packet may not fit: what is sent now must ask for an acknowledgement.
    pub(crate) fn is_nearly_full(&self, id: PeerId) -> bool {
        let peer = self.peer(id);
        peer.in_flight.saturating_add(MAX_PACKET) > peer.window
    }

    /// Gives `bytes` back; acknowledged ones may open the window.
    pub(crate) fn release(&mut self, id: PeerId, bytes: u32, acked: bool, ready: &mut ReadyList) {
        let peer = self.get(id);
        if acked && peer.in_flight >= peer.window / 2 {
            peer.grow(bytes);
        }
        peer.in_flight = peer.in_flight.saturating_sub(bytes);
        self.wake(id, ready);
    }

    fn wake(&mut self, id: PeerId, ready: &mut ReadyList) {
        let peer = self.get(id);
        let listed = peer.roomy;
        peer.wake(ready);
        if peer.roomy && !listed {
            self.roomy.push_back(id);
        }
    }

    /// Nobody else has anything to send: wakes those that were not woken because others, who then
    /// had nothing to send, came first. Whether there are any.
    pub(crate) fn wake_more(&mut self, ready: &mut ReadyList) -> bool {
        while let Some(id) = self.roomy.pop_front() {
            if std::mem::take(&mut self.get(id).roomy) {
                self.wake(id, ready);
                return true;
            }
        }
        false
    }

    /// A packet was lost: halve the window, once for all that was lost together.
    pub(crate) fn on_loss(&mut self, id: PeerId, now: Instant) {
        let peer = self.get(id);
        if now < peer.losses_count_from {
            return;
        }
        peer.losses_count_from = now + LOSS_PERIOD_NS;
        peer.window = (peer.window / 2).max(MIN_WINDOW);
        peer.threshold = peer.window;
    }

    /// Whether a datagram of `bytes` may be sent now; if not, `index` is listed as waiting.
    pub(crate) fn reserve_datagram(
        &mut self,
        id: PeerId,
        bytes: u32,
        index: u16,
        now: Instant,
        timers: &mut Timers,
    ) -> bool {
        let verdict = self.get(id).datagrams.reserve(bytes, index, now);
        match verdict {
            Verdict::Sent { probe: false } | Verdict::Wait { probe: false, until: None } => {}
            Verdict::Wait { until: Some(at), .. } => timers.arm(TimerKey::Peer(id.0), at),
            Verdict::Sent { probe: true } | Verdict::Wait { probe: true, .. } => {
                self.probes.push_back(id);
            }
        }
        matches!(verdict, Verdict::Sent { .. })
    }

    /// Whether `bytes` of a READ response may be sent now; if not, `index` is listed as waiting.
    /// A requester of our kind asks for no more than it can take.
    pub(crate) fn reserve_response(
        &mut self,
        id: PeerId,
        bytes: u32,
        index: u16,
        now: Instant,
        timers: &mut Timers,
    ) -> bool {
        let peer = self.get(id);
        let introduced = peer.datagrams.introduce();
        let reserved = match peer.datagrams.is_of_our_kind() {
            true => Ok(()),
            false => peer.responses.reserve(bytes, index, now, peer.limit),
        };
        if introduced {
            self.probes.push_back(id);
        }
        if let Err(until) = reserved {
            timers.arm(TimerKey::Peer(id.0), until);
        }
        reserved.is_ok()
    }

    /// The peer asks for a READ response again.
    pub(crate) fn on_response_loss(&mut self, id: PeerId, now: Instant) {
        self.get(id).responses.on_loss(now);
    }

    /// The next peer to probe, and the token that it will echo.
    pub(crate) fn next_probe(
        &mut self,
        now: Instant,
        timers: &mut Timers,
    ) -> Option<(PeerId, u64)> {
        let id = self.probes.pop_front()?;
        let (token, deadline) = self.get(id).datagrams.take_probe(now);
        timers.arm(TimerKey::Peer(id.0), deadline);
        Some((id, token))
    }

    /// An echo arrived from `addr` and `slot`, whose receive buffer holds `buffer` bytes.
    pub(crate) fn on_echo(
        &mut self,
        (addr, slot): (IpAddr, u16),
        token: u64,
        buffer: u32,
        ready: &mut ReadyList,
    ) {
        let Some(&id) = self.ids.get(&(addr, slot)) else {
            return;
        };
        let peer = self.get(id);
        let share = (buffer / 2).min(peer.limit).max(MIN_WINDOW);
        let Some(probe) = peer.datagrams.on_echo(token, share, ready) else {
            return;
        };
        peer.responses.wake(ready);
        peer.cap = share;
        peer.window = peer.window.min(share);
        peer.threshold = peer.threshold.max(peer.window);
        self.wake(id, ready);
        if probe {
            self.probes.push_back(id);
        }
    }

    /// The wait for an echo, or a period without echoes, may be over.
    pub(crate) fn handle_timeout(
        &mut self,
        key: u32,
        now: Instant,
        timers: &mut Timers,
        ready: &mut ReadyList,
    ) {
        let id = PeerId(key);
        let peer = self.get(id);
        let (probe, next) = peer.datagrams.handle_timeout(now, ready);
        let responses = peer.responses.handle_timeout(now, ready);
        for at in next.into_iter().chain(responses) {
            timers.arm(TimerKey::Peer(key), at);
        }
        if probe {
            self.probes.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1024;
    const NOW: Instant = Instant::from_millis(1000);

    fn route() -> Route {
        Route {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            scope: 0,
            port: 0,
            src_port: 49152,
            tos: 0,
            hop_limit: 0,
        }
    }

    fn peers() -> (Peers, PeerId, ReadyList) {
        let mut peers = Peers::default();
        let id = peers.find(&route(), Qpn::from_parts(7, 1), &Config::default());
        (peers, id, ReadyList::default())
    }

    fn crowd(peers: &mut Peers, count: u32) -> Vec<PeerId> {
        let peer = |n: u32| {
            let dst = IpAddr::from(0x0b00_0000u32.wrapping_add(n).to_be_bytes());
            peers.find(&Route { dst, ..route() }, Qpn::from_parts(7, 1), &Config::default())
        };
        (0..count).map(peer).collect()
    }

    #[test]
    fn peers_that_nobody_uses_are_forgotten() {
        let (mut peers, id, mut ready) = peers();
        let mut timers = Timers::default();
        assert!(peers.reserve(id, KIB, 1, false));
        let (_, token) = peers.next_probe(NOW, &mut timers).unwrap();
        let mut crowd = crowd(&mut peers, 2 * CROWD as u32);
        let (connected, datagrams) = (crowd[5], crowd[6]);
        assert!(peers.reserve_datagram(datagrams, KIB, 1, NOW, &mut timers));
        assert!(peers.are_crowded());
        peers.forget_idle(&BTreeSet::from([connected]), NOW);
        assert_eq!((peers.ids.len(), peers.are_crowded()), (3, false));
        // Their places are taken by the next ones, and memory does not grow.
        let before = peers.peers.len();
        crowd = super::tests::crowd(&mut peers, 2 * CROWD as u32);
        assert_eq!((crowd[5], crowd[6], peers.peers.len()), (connected, datagrams, before));
        assert_eq!(peers.in_flight(), u64::from(KIB));
        peers.release(id, KIB, true, &mut ready);
        let later = NOW + 2_000_000_000;
        peers.forget_idle(&BTreeSet::new(), later);
        assert_eq!(peers.ids.len(), 1, "an echo is waited for");
        let addr = peers.peer(id).addr;
        peers.on_echo((addr, 7), token, 40 * KIB, &mut ready);
        peers.forget_idle(&BTreeSet::new(), later);
        assert_eq!(peers.ids.len(), 0, "all is long over");
    }

    #[test]
    fn a_crowd_in_use_is_not_looked_at_for_each_newcomer() {
        let (mut peers, _, _) = peers();
        let used: BTreeSet<PeerId> = crowd(&mut peers, CROWD as u32).into_iter().collect();
        peers.forget_idle(&used, NOW);
        assert!(!peers.are_crowded());
        crowd(&mut peers, 2 * CROWD as u32 - 1);
        assert!(!peers.are_crowded());
        crowd(&mut peers, 2 * CROWD as u32);
        assert!(peers.are_crowded());
    }

    #[test]
    fn losses_together_halve_the_window_once() {
        let (mut peers, id, _) = peers();
        peers.on_loss(id, NOW);
        peers.on_loss(id, NOW + (LOSS_PERIOD_NS - 1));
        assert_eq!(peers.window(id), 32 * KIB);
        for n in 1..10 {
            peers.on_loss(id, NOW + n * LOSS_PERIOD_NS);
        }
        assert_eq!(peers.window(id), MIN_WINDOW);
    }

    #[test]
    fn only_a_window_that_was_used_grows() {
        let (mut peers, id, mut ready) = peers();
        assert!(peers.reserve(id, KIB, 1, false));
        peers.release(id, KIB, true, &mut ready);
        assert_eq!(peers.window(id), 64 * KIB);
        assert!(peers.reserve(id, 64 * KIB, 1, false));
        peers.release(id, 64 * KIB, true, &mut ready);
        assert_eq!(peers.window(id), 128 * KIB, "it doubles each round");
        peers.on_loss(id, NOW);
        assert!(peers.reserve(id, 64 * KIB, 1, false));
        peers.release(id, 64 * KIB, true, &mut ready);
        assert_eq!(peers.window(id), 68 * KIB, "then by a packet");
    }

    #[test]
    fn an_echo_tells_how_much_fits() {
        let (mut peers, id, mut ready) = peers();
        let mut timers = Timers::default();
        assert!(peers.reserve(id, KIB, 1, false));
        let (asked, token) = peers.next_probe(NOW, &mut timers).unwrap();
        assert_eq!(asked, id);
        let addr = peers.peer(id).addr;
        peers.on_echo((addr, 8), token, 40 * KIB, &mut ready);
        assert_eq!(peers.window(id), 64 * KIB, "another slot answered");
        peers.on_echo((addr, 7), token, 40 * KIB, &mut ready);
        assert_eq!(peers.window(id), 20 * KIB);
    }

    #[test]
    fn who_waits_is_woken_in_turn_and_as_there_is_room() {
        let (mut peers, id, mut ready) = peers();
        assert!(peers.reserve(id, 64 * KIB, 1, false));
        for index in [2, 3, 4, 3] {
            assert!(!peers.reserve(id, KIB, index, false));
        }
        peers.release(id, KIB, false, &mut ready);
        assert_eq!((ready.front(), ready.len()), (Some(2), 1));
        ready.remove_front();
        assert!(peers.wake_more(&mut ready), "the first had nothing to send");
        assert_eq!((ready.front(), ready.len()), (Some(3), 1));
        ready.remove_front();
        assert!(peers.reserve(id, KIB, 3, false));
        assert!(!peers.reserve(id, KIB, 3, false));
        assert!(!peers.wake_more(&mut ready) || ready.len() == 0, "there is no room");
    }

    #[test]
    fn a_stuck_queue_pair_may_go_over_up_to_twice_the_window() {
        let (mut peers, id, _) = peers();
        assert!(peers.reserve(id, 64 * KIB, 1, false));
        assert!(!peers.reserve(id, KIB, 2, false));
        assert!(peers.reserve(id, 64 * KIB, 2, true));
        assert!(!peers.reserve(id, KIB, 3, true));
        assert_eq!(peers.in_flight(), 128 << 10);
    }
}
