//! Connections by id and by what a peer calls them, and who listens.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use irdma_wire::Qpn;
use irdma_wire::cm::ServiceId;

use super::CommId;
use super::conn::{Conn, Pair, RequestKey, State, Taker};
use crate::error::{ErrorKind, Result, VerbsError};

/// Bits of an id that count within a slot.
const COUNT_BITS: u32 = 22;
/// Connections at once.
const MAX_CONNS: usize = 1 << 20;
/// Requests that may wait for the program's decision, a listener.
const BACKLOG: u32 = 1024;

impl CommId {
    /// The slot whose owner the id belongs to.
    pub(super) const fn slot(self) -> u16 {
        (self.0 >> COUNT_BITS) as u16
    }
}

#[derive(Debug)]
struct Listener {
    token: u64,
    waiting: u32,
}

#[derive(Debug)]
pub(super) struct Table {
    slot: u16,
    next: u32,
    conns: BTreeMap<CommId, Box<Conn>>,
    requests: BTreeMap<RequestKey, CommId>,
    /// Queue pairs of peers that are connected.
    living: BTreeMap<(IpAddr, u64, Qpn), CommId>,
    listeners: BTreeMap<Pair, Listener>,
}

impl Table {
    /// Ids of `slot`, rising from a `random` start.
    pub(super) fn new(slot: u16, random: u64) -> Self {
        Table {
            slot,
            next: random as u32,
            conns: BTreeMap::new(),
            requests: BTreeMap::new(),
            living: BTreeMap::new(),
            listeners: BTreeMap::new(),
        }
    }

    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    pub(super) fn listen(&mut self, token: u64, pair: Pair) -> Result<()> {
        if self.listeners.contains_key(&pair) {
            let (service, addr) = pair;
            let addr = addr.map_or("any address".into(), |addr| addr.to_string());
            return Err(VerbsError::new(
                ErrorKind::AddressInUse,
                format!("cm_listen: service {service} at {addr} is taken; destroy its listener"),
            ));
        }
        self.listeners.insert(pair, Listener { token, waiting: 0 });
        Ok(())
    }

    pub(super) fn unlisten(&mut self, token: u64) {
        self.listeners.retain(|_, listener| listener.token != token);
    }

    /// Who listens for `service` at `addr`: for that address if anybody does, or else for all of
    /// its IP version.
    pub(super) fn listener(&self, service: ServiceId, addr: IpAddr) -> Option<Taker> {
        let version = match addr {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut addrs = [Some(addr), Some(version), None].into_iter();
        addrs.find_map(|addr| {
            let pair = (service, addr);
            Some((pair, self.listeners.get(&pair)?.token))
        })
    }

    pub(super) fn has_room(&self, pair: &Pair) -> bool {
        self.listeners.get(pair).is_some_and(|listener| listener.waiting < BACKLOG)
    }

    /// Adds the connection that `make` makes of a fresh id; `None` when there are too many.
    pub(super) fn insert(&mut self, make: impl FnOnce(CommId) -> Conn) -> Option<CommId> {
        if self.conns.len() >= MAX_CONNS {
            return None;
        }
        let id = self.next_id();
        let conn = make(id);
        if let Some((pair, _)) = &conn.taker
            && let Some(listener) = self.listeners.get_mut(pair)
        {
            listener.waiting += 1;
        }
        if let Some(key) = conn.request_key {
            self.requests.insert(key, id);
        }
        if conn.state.is_living() {
            self.living.insert(conn.remote_qp(), id);
        }
        self.conns.insert(id, Box::new(conn));
        Some(id)
    }

    fn next_id(&mut self) -> CommId {
        loop {
            self.next = self.next.wrapping_add(1);
            let count = self.next & ((1 << COUNT_BITS) - 1);
            let id = CommId(u32::from(self.slot) << COUNT_BITS | count);
            if id.0 != 0 && !self.conns.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn get_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        self.conns.get_mut(&id).map(|conn| &mut **conn)
    }

    /// As `get_mut`, for verbs: EINVAL where there is none, or none that the program knows.
    pub(super) fn find(&mut self, verb: &str, id: CommId) -> Result<&mut Conn> {
        self.get_mut(id).filter(|conn| !conn.is_orphan).ok_or_else(|| {
            VerbsError::invalid(format!("{verb}: connection {id} does not exist, or was destroyed"))
        })
    }

    /// The connection of a request that arrived before.
    pub(super) fn of_request(&self, key: &RequestKey) -> Option<CommId> {
        self.requests.get(key).copied()
    }

    /// The living connection of a peer's queue pair.
    pub(super) fn of_qp(&self, key: &(IpAddr, u64, Qpn)) -> Option<CommId> {
        self.living.get(key).copied()
    }

    /// Changes the state, and what depends on it.
    pub(super) fn enter(&mut self, id: CommId, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let before = std::mem::replace(&mut conn.state, state);
        if state.is_living() && !before.is_living() {
            self.living.insert(conn.remote_qp(), id);
        }
        if before.is_living() && !state.is_living() {
            remove_own(&mut self.living, &conn.remote_qp(), id);
        }
        if before.is_pending()
            && let Some((pair, token)) = conn.taker
            && let Some(listener) = self.listeners.get_mut(&pair)
            && listener.token == token
        {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    pub(super) fn remove(&mut self, id: CommId) {
        self.enter(id, State::Closed);
        if let Some(key) = self.conns.remove(&id).and_then(|conn| conn.request_key) {
            remove_own(&mut self.requests, &key, id);
        }
    }
}

/// Removes an entry unless it is about another connection by now.
fn remove_own<K: Ord>(map: &mut BTreeMap<K, CommId>, key: &K, id: CommId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
