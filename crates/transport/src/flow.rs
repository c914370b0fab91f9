//! How much may be in flight towards each peer.
//!
//! A peer is a destination address and slot: the packets of one such pair wait in one socket
//! buffer. Reliable traffic is clocked by acknowledgements; datagrams and unreliable messages by
//! probes that a peer of our kind echoes (see [`irdma_wire::ctl`]), or by time where no echo comes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use irdma_wire::Qpn;

use crate::batch::Route;
use crate::endpoint::Config;
use crate::ready::ReadyList;
use crate::time::Instant;
use crate::timer::{TimerKey, Timers};

/// Wait for an echo before the probe is repeated.
const PROBE_TIMEOUT_NS: u64 = 2_000_000;
/// Unanswered probes after which a peer is taken not to be of our kind.
const PROBE_LIMIT: u32 = 3;
/// A peer that does not echo is given a fresh window this often.
const MUTE_PERIOD_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId(u32);

/// Whether the peer echoes probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Echoes,
    Mute,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) addr: IpAddr,
    /// The local address that probes are sent from.
    pub(crate) local: IpAddr,
    pub(crate) slot: u16,
    kind: Kind,
    /// Reliable bytes allowed in flight, and in flight.
    window: u32,
    threshold: u32,
    cap: u32,
    /// Unreliable bytes allowed while the peer's buffer is unknown.
    initial: u32,
    in_flight: u32,
    waiters: VecDeque<u16>,
    /// Unreliable bytes sent ever, covered by the last probe, and known to have arrived.
    sent: u64,
    probed: u64,
    echoed: u64,
    unanswered: u32,
    probe_due: bool,
}

impl Peer {
    /// Unreliable bytes that may wait at the receiver.
    fn datagram_window(&self) -> u64 {
        u64::from(if self.kind == Kind::Echoes { self.cap } else { self.initial })
    }

    /// The probe to send now, by its token.
    fn take_probe(&mut self) -> Option<u64> {
        if !self.probe_due {
            return None;
        }
        self.probe_due = false;
        self.probed = self.sent;
        Some(self.sent)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Peers {
    ids: BTreeMap<(IpAddr, u16), PeerId>,
    peers: Vec<Peer>,
    probes: VecDeque<PeerId>,
}

impl Peers {
    /// The peer that `dest` at `addr` belongs to.
    pub(crate) fn find(&mut self, route: &Route, dest: Qpn, config: &Config) -> PeerId {
        let key = (route.dst, dest.slot());
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let id = PeerId(self.peers.len() as u32);
        self.ids.insert(key, id);
        self.peers.push(Peer {
            addr: route.dst,
            local: route.src,
            slot: dest.slot(),
            kind: Kind::Unknown,
            window: config.initial_window,
            threshold: config.max_window,
            cap: config.max_window,
            initial: config.initial_window,
            in_flight: 0,
            waiters: VecDeque::new(),
            sent: 0,
            probed: 0,
            echoed: 0,
            unanswered: 0,
            probe_due: false,
        });
        id
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
    pub(crate) fn reserve(&mut self, id: PeerId, bytes: u32, index: u16) -> bool {
        let peer = self.get(id);
        if peer.in_flight + bytes > peer.window {
            peer.waiters.push_back(index);
            return false;
        }
        peer.in_flight += bytes;
        true
    }

    /// Takes `bytes` whatever the window says: a queue pair with nothing in flight may always
    /// send one packet.
    pub(crate) fn force(&mut self, id: PeerId, bytes: u32) {
        self.get(id).in_flight += bytes;
    }

    /// Gives `bytes` back. Acknowledged bytes open the window: doubling each round below the
    /// threshold, then a packet each round.
    pub(crate) fn release(&mut self, id: PeerId, bytes: u32, acked: bool, ready: &mut ReadyList) {
        let peer = self.get(id);
        peer.in_flight = peer.in_flight.saturating_sub(bytes);
        if acked {
            let growth = if peer.window < peer.threshold {
                bytes
            } else {
                (u64::from(bytes) * 4096 / u64::from(peer.window.max(1))) as u32
            };
            peer.window = (peer.window + growth).min(peer.cap);
        }
        for index in peer.waiters.drain(..) {
            ready.push(index);
        }
    }

    /// A packet was lost: halve the window, down to 16 KiB.
    pub(crate) fn on_loss(&mut self, id: PeerId) {
        let peer = self.get(id);
        peer.window = (peer.window / 2).max(16 << 10);
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
        let peer = self.get(id);
        let window = peer.datagram_window();
        let waiting = peer.sent - peer.echoed;
        if waiting > 0 && waiting + u64::from(bytes) > window {
            peer.waiters.push_back(index);
            if peer.kind == Kind::Mute {
                timers.arm(TimerKey::Peer(id.0), now + MUTE_PERIOD_NS);
            }
            return false;
        }
        peer.sent += u64::from(bytes);
        if peer.kind != Kind::Mute && peer.sent - peer.probed >= window / 4 && !peer.probe_due {
            peer.probe_due = true;
            self.probes.push_back(id);
            timers.arm(TimerKey::Peer(id.0), now + PROBE_TIMEOUT_NS);
        }
        true
    }

    /// The next peer to probe: where it is, its slot, and the token it will echo.
    pub(crate) fn next_probe(&mut self) -> Option<(PeerId, u64)> {
        let id = self.probes.pop_front()?;
        let token = self.get(id).take_probe()?;
        Some((id, token))
    }

    /// An echo arrived from `addr` and `slot`.
    pub(crate) fn on_echo(
        &mut self,
        addr: IpAddr,
        slot: u16,
        token: u64,
        window: u32,
        ready: &mut ReadyList,
    ) {
        let Some(&id) = self.ids.get(&(addr, slot)) else {
            return;
        };
        let peer = self.get(id);
        if token > peer.sent || token < peer.echoed {
            return;
        }
        peer.kind = Kind::Echoes;
        peer.echoed = token;
        peer.unanswered = 0;
        peer.cap = window.clamp(16 << 10, 16 << 20);
        peer.window = peer.window.min(peer.cap);
        for index in peer.waiters.drain(..) {
            ready.push(index);
        }
    }

    /// The wait for an echo, or a mute peer's period, is over.
    pub(crate) fn handle_timeout(
        &mut self,
        key: u32,
        now: Instant,
        timers: &mut Timers,
        ready: &mut ReadyList,
    ) {
        let id = PeerId(key);
        let peer = self.get(id);
        if peer.kind == Kind::Mute || peer.echoed >= peer.probed && peer.waiters.is_empty() {
            peer.echoed = peer.sent;
        } else {
            peer.unanswered += 1;
            if peer.unanswered >= PROBE_LIMIT && peer.kind == Kind::Unknown {
                peer.kind = Kind::Mute;
                peer.echoed = peer.sent;
            } else {
                // The probe or its echo was lost, or what it covers: count that as arrived.
                if peer.unanswered >= PROBE_LIMIT {
                    peer.echoed = peer.sent;
                    peer.unanswered = 0;
                }
                peer.probe_due = true;
                self.probes.push_back(id);
                timers.arm(TimerKey::Peer(key), now + PROBE_TIMEOUT_NS);
            }
        }
        let peer = self.get(id);
        for index in peer.waiters.drain(..) {
            ready.push(index);
        }
    }
}
