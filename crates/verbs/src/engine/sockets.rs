//! The sockets of a lane: for each local address one that receives and a few that send, and one
//! for each multicast group.
//!
//! The sockets of an address that leaves its interface stay: queue pairs sign packets with the
//! port of their socket, and go on when the address comes back.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Weak};

use irdma_net::mcast::Membership;
use irdma_net::port::Port;
use irdma_net::slot::{Slot, SteerMessage};
use irdma_net::steer::{self, Steering};
use irdma_net::udp::{ROCE_PORT, RecvMeta, RecvSocket, Reuse, SendSocket};
use irdma_net::wake::{Interest, Poll};
use irdma_transport::Transmit;

/// Sending sockets of an address; the destination's slot chooses, so that receivers can merge.
const SENDERS: usize = 8;
/// What the kernel sets on unicast unless more is asked for.
const DEFAULT_HOPS: u8 = 64;

/// What a token of the lane's readiness set stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Someone wants the sleeper to look at the deadline.
    Kick,
    /// The slot's message socket.
    Slot,
    /// The receiver of an address, by index.
    Local(usize),
    /// The membership of a group, by index.
    Group(usize),
    /// A sender that was full has room, by address index.
    Room(usize),
    /// A port of the connection manager, by index.
    Port(usize),
}

const KINDS_SHIFT: u32 = 32;

impl Token {
    pub(crate) fn to_u64(self) -> u64 {
        let (kind, index) = match self {
            Token::Kick => (0, 0),
            Token::Slot => (1, 0),
            Token::Local(index) => (2, index),
            Token::Group(index) => (3, index),
            Token::Room(index) => (4, index),
            Token::Port(index) => (5, index),
        };
        kind << KINDS_SHIFT | index as u64
    }

    pub(crate) fn from_u64(raw: u64) -> Token {
        let index = raw as u32 as usize;
        match raw >> KINDS_SHIFT {
            0 => Token::Kick,
            1 => Token::Slot,
            2 => Token::Local(index),
            3 => Token::Group(index),
            4 => Token::Room(index),
            _ => Token::Port(index),
        }
    }
}

/// The sockets of one address.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) addr: IpAddr,
    pub(crate) receiver: RecvSocket,
    senders: Vec<SendSocket>,
    /// This lane's part in sharing the address with other processes.
    steering: Steering,
    /// Datagrams lost for want of buffer space, as last told.
    drops: u32,
}

impl Local {
    fn open(addr: IpAddr, ifindex: u32, slot: &Slot, now_ns: u64) -> io::Result<Self> {
        let receiver = RecvSocket::open(addr, ROCE_PORT, ifindex, Reuse::Group)?;
        let senders =
            (0..SENDERS).map(|_| SendSocket::open(addr, ifindex)).collect::<io::Result<_>>()?;
        let steering = Steering::join(&receiver, &[slot.number()], now_ns);
        Ok(Local { addr, receiver, senders, steering, drops: 0 })
    }

    /// Goes on with repairing the table. What cannot be steered is relayed.
    fn steer(&mut self, slot: &Slot, now_ns: u64) {
        let sockets = steer::Sockets { receiver: &self.receiver, sender: &self.senders[0], slot };
        if let Err(error) = self.steering.poll(sockets, now_ns) {
            tracing::debug!("{}: steering: {error}", self.addr);
        }
    }

    fn leave(self, slot: &Slot) {
        if let Err(error) = self.steering.leave(self.receiver, slot) {
            tracing::debug!("{}: leaving: {error}", self.addr);
        }
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.senders.iter().map(SendSocket::port).collect()
    }
}

#[derive(Debug)]
struct Group {
    ifindex: u32,
    membership: Membership,
}

/// All sockets of a lane; an index stays with its socket until that is closed.
#[derive(Debug)]
pub(crate) struct Sockets {
    poll: Arc<Poll>,
    locals: Vec<Option<Local>>,
    groups: Vec<Option<Group>>,
    /// Closed when whoever holds them lets go.
    ports: Vec<Option<Weak<Port>>>,
    /// Datagrams that receive buffers had no room for.
    pub(crate) overflows: u64,
}

impl Sockets {
    pub(crate) fn new(poll: Arc<Poll>) -> Self {
        Sockets { poll, locals: Vec::new(), groups: Vec::new(), ports: Vec::new(), overflows: 0 }
    }

    pub(crate) fn locals(&self) -> impl Iterator<Item = &Local> {
        self.locals.iter().flatten()
    }

    /// Whether the steering of some address is still being worked out.
    pub(crate) fn is_steering(&self) -> bool {
        self.locals().any(|local| local.steering.is_settling())
    }

    /// Opens the sockets of an address and watches its receiver.
    pub(crate) fn open_local(
        &mut self,
        addr: IpAddr,
        ifindex: u32,
        slot: &Slot,
        now_ns: u64,
    ) -> io::Result<&Local> {
        let local = Local::open(addr, ifindex, slot, now_ns)?;
        let index = place_for(&mut self.locals);
        self.poll.add(&local.receiver, Token::Local(index).to_u64(), Interest::Read)?;
        Ok(self.locals[index].insert(local))
    }

    /// Closes everything; the processes that share the addresses are told.
    pub(crate) fn close_all(&mut self, slot: &Slot) {
        self.groups.clear();
        self.ports.clear();
        self.locals.drain(..).flatten().for_each(|local| local.leave(slot));
    }

    /// Takes what another process says about a shared address.
    pub(crate) fn handle_steer(
        &mut self,
        group: SocketAddr,
        message: SteerMessage<'_>,
        slot: &Slot,
        now_ns: u64,
    ) {
        for local in self.locals.iter_mut().flatten() {
            if local.steering.group() == group {
                local.steering.handle(message, now_ns);
                local.steer(slot, now_ns);
            }
        }
    }

    /// A datagram for another live slot arrived at the socket of `token`.
    pub(crate) fn note_misdirected(&mut self, token: Token, now_ns: u64) {
        if let Token::Local(index) = token
            && let Some(Some(local)) = self.locals.get_mut(index)
        {
            local.steering.misdirected(now_ns);
        }
    }

    /// A packet was not answered; its way may have led through an address that is shared here.
    pub(crate) fn suspect_steering(&mut self, now_ns: u64) {
        self.locals.iter_mut().flatten().for_each(|local| local.steering.suspect(now_ns));
    }

    /// Answers a batch that asks who receives it; `false` for traffic.
    pub(crate) fn take_probe(
        &self,
        token: Token,
        data: &[u8],
        meta: &RecvMeta,
        slot: &Slot,
    ) -> bool {
        let Token::Local(index) = token else { return false };
        let Some(Some(local)) = self.locals.get(index) else { return false };
        // An answer that is lost is asked for again.
        local.steering.take_probe(data, meta, slot).unwrap_or(true)
    }

    /// Goes on with the repairs that are due.
    pub(crate) fn steer_due(&mut self, slot: &Slot, now_ns: u64) {
        for local in self.locals.iter_mut().flatten() {
            if local.steering.next_deadline().is_some_and(|deadline| deadline <= now_ns) {
                local.steer(slot, now_ns);
            }
        }
    }

    /// When [`Sockets::steer_due`] has something to do.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.locals().filter_map(|local| local.steering.next_deadline()).min()
    }

    /// Watches a port until it is closed. One that is watched already stays so.
    pub(crate) fn watch_port(&mut self, port: &Arc<Port>) -> io::Result<()> {
        self.ports.iter_mut().for_each(|place| {
            place.take_if(|port| port.strong_count() == 0);
        });
        if self.ports.iter().flatten().any(|known| known.as_ptr() == Arc::as_ptr(port)) {
            return Ok(());
        }
        let index = place_for(&mut self.ports);
        self.poll.add(&**port, Token::Port(index).to_u64(), Interest::Read)?;
        self.ports[index] = Some(Arc::downgrade(port));
        Ok(())
    }

    /// A port that is watched; `None` if it was closed since.
    pub(crate) fn port(&self, index: usize) -> Option<Arc<Port>> {
        self.ports.get(index)?.as_ref()?.upgrade()
    }

    pub(crate) fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let membership = Membership::join(group, ifindex)?;
        let index = place_for(&mut self.groups);
        self.poll.add(&membership, Token::Group(index).to_u64(), Interest::Read)?;
        self.groups[index] = Some(Group { ifindex, membership });
        Ok(())
    }

    pub(crate) fn leave(&mut self, group: IpAddr, ifindex: u32) {
        for place in &mut self.groups {
            place.take_if(|member| member.membership.group() == group && member.ifindex == ifindex);
        }
    }

    /// Takes one batch from the receiver or membership that `token` names, with the interface
    /// of a multicast one.
    pub(crate) fn recv(&mut self, token: Token, buf: &mut [u8]) -> Option<(RecvMeta, u32)> {
        let received = match token {
            Token::Local(index) => {
                let local = self.locals.get_mut(index)?.as_mut()?;
                local.receiver.recv(buf).map(|meta| {
                    meta.map(|meta| {
                        note_drops(local, &meta, &mut self.overflows);
                        (meta, 0)
                    })
                })
            }
            Token::Group(index) => {
                let group = self.groups.get(index)?.as_ref()?;
                group.membership.recv(buf).map(|meta| meta.map(|meta| (meta, group.ifindex)))
            }
            Token::Kick | Token::Slot | Token::Room(_) | Token::Port(_) => return None,
        };
        // An error of the socket is one of an earlier datagram (ICMP), which the protocol repeats.
        received.unwrap_or_default()
    }

    /// The sender of a batch; `None` if its address is gone.
    pub(crate) fn sender(&self, transmit: &Transmit) -> Option<(usize, &SendSocket)> {
        let index = self
            .locals
            .iter()
            .position(|local| local.as_ref().is_some_and(|local| local.addr == transmit.src))?;
        Some((index, self.locals[index].as_ref()?.senders.get(transmit.port)?))
    }

    /// The UDP port that a batch leaves from.
    pub(crate) fn source_port(&self, transmit: &Transmit) -> Option<u16> {
        self.sender(transmit).map(|(_, sender)| sender.port())
    }

    /// Watches a full sender, or stops watching it.
    pub(crate) fn watch_room(&self, transmit: &Transmit, watch: bool) {
        let Some((index, sender)) = self.sender(transmit) else { return };
        // Both fail only if the descriptor is in the wanted state already.
        let _ = match watch {
            true => self.poll.add(sender, Token::Room(index).to_u64(), Interest::Write),
            false => self.poll.delete(sender),
        };
    }
}

fn place_for<T>(places: &mut Vec<Option<T>>) -> usize {
    places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    })
}

fn note_drops(local: &mut Local, meta: &RecvMeta, overflows: &mut u64) {
    let lost = meta.drops.wrapping_sub(local.drops);
    if lost == 0 {
        return;
    }
    if local.drops == 0 {
        tracing::warn!(
            "{}: the receive buffer of {} bytes overflowed; raise net.core.rmem_max or lower \
             IRDMA_MAX_WINDOW",
            local.addr,
            local.receiver.rcvbuf()
        );
    }
    local.drops = meta.drops;
    *overflows += u64::from(lost);
}

/// Where a batch goes.
pub(crate) fn destination(transmit: &Transmit) -> SocketAddr {
    match transmit.dst {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), ROCE_PORT),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, ROCE_PORT, 0, transmit.scope).into(),
    }
}

/// Multicast goes as far as asked, and over one link if nothing was; unicast never less far than
/// the system's default, because programs ask for 1 and mean "the peer".
pub(crate) fn hop_limit(transmit: &Transmit) -> Option<u8> {
    match transmit.dst.is_multicast() {
        true => Some(transmit.hop_limit.max(1)),
        false => Some(transmit.hop_limit).filter(|hops| *hops > DEFAULT_HOPS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transmit(dst: &str, hop_limit: u8) -> Transmit {
        let (src, dst) = (IpAddr::from([10, 0, 0, 1]), dst.parse().unwrap());
        Transmit { src, port: 0, dst, scope: 3, len: 0, segment: 0, tos: 0, hop_limit }
    }

    #[test]
    fn hop_limits_follow_the_destination() {
        let hops = |dst, asked| hop_limit(&transmit(dst, asked));
        let unicast = [0, 1, 64, 255].map(|asked| hops("10.0.0.2", asked));
        assert_eq!(unicast, [None, None, None, Some(255)]);
        assert_eq!([0, 7].map(|asked| hops("239.0.0.1", asked)), [Some(1), Some(7)]);
        assert_eq!(hops("ff0e::1", 0), Some(1));
    }

    #[test]
    fn a_token_survives_its_number() {
        let tokens =
            [Token::Kick, Token::Slot, Token::Local(0), Token::Group(7), Token::Room(70_000)];
        for token in tokens.into_iter().chain([Token::Port(3)]) {
            assert_eq!(Token::from_u64(token.to_u64()), token);
        }
    }

    #[test]
    fn an_ipv6_destination_keeps_its_scope() {
        assert_eq!(destination(&transmit("fe80::1", 0)).to_string(), "[fe80::1%3]:4791");
    }
}
