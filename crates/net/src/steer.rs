//! Steering: which of the processes that share an address receives a datagram.
//!
//! Invariant: the kernel's table is only a hint. What it sends astray is relayed by its receiver,
//! who also has the table repaired; so a table may be old, partial or missing, and is never wrong
//! for long.
//!
//! The sockets of a group have indices that cannot be read, and the last moves into the place of
//! one that is closed. One member at a time, who holds a lock, probes for them and attaches a new
//! table: after joining, after a leaver's notice, and when a member meets datagrams for a live slot
//! that is not its own.

mod probe;
mod program;
mod round;

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::fd::Fd;
use crate::slot::{self, Message, Slot, SteerMessage};
use crate::sys;
use crate::udp::{RecvMeta, RecvSocket, SendSocket};
use probe::Probe;
use program::Entry;
use round::Round;

/// How long a round waits for all answers.
const ROUND_NS: u64 = 25_000_000;
/// After this long a probe is sent again.
const RESEND_NS: u64 = 3_000_000;
/// After so many repetitions without any answer the group is taken to have no program.
const MUTE_RESENDS: u32 = 2;
/// Between two looks at a lock that another member holds.
const LOCK_RETRY_NS: u64 = 2_000_000;
/// A lock that is taken for longer than this no longer counts: its owner may be stopped.
const PATIENCE_NS: u64 = 20_000_000;
/// The shortest and the longest time between two attempts of one member.
const MIN_INTERVAL_NS: u64 = 3_000_000;
const MAX_INTERVAL_NS: u64 = 100_000_000;
/// After this long without an attempt the next ones may follow closely again.
const CALM_NS: u64 = 1_000_000_000;
/// The longest time between two attempts for want of answers: a peer that is gone never answers.
const MAX_SUSPICION_NS: u64 = 3_200_000_000;
/// Rounds begun in quick succession because the one before was incomplete.
const MAX_RETRIES: u32 = 4;
/// How often a table that does not know every member is repaired after that: datagrams that it
/// sends to one that is stopped tell nobody.
const INCOMPLETE_NS: u64 = 500_000_000;

/// The sockets of a lane that the steering of one address uses.
#[derive(Clone, Copy, Debug)]
pub struct Sockets<'a> {
    /// The group's member.
    pub receiver: &'a RecvSocket,
    /// Sends probes; bound to the same address.
    pub sender: &'a SendSocket,
    /// Sends answers and notices.
    pub slot: &'a Slot,
}

/// A lane's part in the steering of one address.
#[derive(Debug)]
pub struct Steering {
    group: SocketAddr,
    slots: Vec<u16>,
    running: Option<Running>,
    wanted_ns: Option<u64>,
    round_number: u32,
    repaired_ns: u64,
    interval_ns: u64,
    retries: u32,
    /// Since when others have had the lock.
    blocked_ns: Option<u64>,
    /// A table that leads here was attached since the join.
    found: bool,
    /// The table that this member attached last.
    table: Vec<Entry>,
    /// How long a suspicion waits after an attempt, and whether the next attempt is due to one.
    suspicion_ns: u64,
    suspected: bool,
}

/// A round in progress.
#[derive(Debug)]
struct Running {
    round: Round,
    deadline_ns: u64,
    resend_ns: u64,
    resends: u32,
    /// A program with the probe form was attached in this round.
    attached: bool,
    /// Held until the round is over, unless another member has had it for too long. Rounds that
    /// overlap do no harm: a member whom the last table does not know repairs it.
    lock: Option<Fd>,
}

impl Steering {
    /// Begins to steer to `slots` (not empty) what `receiver`'s address receives. The table is
    /// repaired by the next [`Self::poll`].
    ///
    /// `slots` of one lane all lead to the same receiver; the first names it.
    pub fn join(receiver: &RecvSocket, slots: &[u16], now_ns: u64) -> Self {
        Self {
            group: receiver.local(),
            slots: slots.to_vec(),
            running: None,
            wanted_ns: Some(now_ns),
            round_number: (now_ns >> 10) as u32,
            repaired_ns: 0,
            interval_ns: MIN_INTERVAL_NS,
            retries: 0,
            blocked_ns: None,
            found: false,
            table: Vec::new(),
            suspicion_ns: MAX_INTERVAL_NS,
            suspected: false,
        }
    }

    /// The address whose steering this is, as in [`Message::Steer`].
    pub fn group(&self) -> SocketAddr {
        self.group
    }

    /// Whether it is still being worked out how datagrams reach this member.
    pub fn is_settling(&self) -> bool {
        !self.found && self.next_deadline().is_some()
    }

    /// The receiver got a datagram for a live slot of another process: the table is old.
    pub fn misdirected(&mut self, now_ns: u64) {
        if self.running.is_none() {
            self.want(now_ns);
        }
    }

    /// Something was not answered: where it went to a member of this group, the table may be to
    /// blame. Attempts that find nothing new grow apart.
    pub fn suspect(&mut self, now_ns: u64) {
        if self.running.is_none() && now_ns >= self.repaired_ns + self.suspicion_ns {
            self.wanted_ns = Some(now_ns);
            self.suspected = true;
        }
    }

    /// Answers a batch that is a probe. `false`: it is none, and traffic.
    pub fn take_probe(&self, data: &[u8], meta: &RecvMeta, slot: &Slot) -> io::Result<bool> {
        // From outside the kernel takes nothing that claims to come from the receiver's address.
        let Some(probe) = Probe::parse(data).filter(|_| meta.src.ip() == self.group.ip()) else {
            return Ok(false);
        };
        let slots: Vec<u8> = self.slots.iter().flat_map(|slot| slot.to_be_bytes()).collect();
        let (round, index) = (probe.round, probe.index);
        let answer = SteerMessage::Answer { round, index, slots: &slots };
        slot.send(probe.prober, &Message::Steer { group: self.group, message: answer })?;
        Ok(true)
    }

    /// Takes what another member says about this address.
    pub fn handle(&mut self, message: SteerMessage<'_>, now_ns: u64) {
        match message {
            SteerMessage::Answer { round, index, slots } if round == self.round_number => {
                let slots =
                    slots.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                if let Some(running) = &mut self.running {
                    running.round.note(index, slots.collect());
                }
            }
            SteerMessage::Answer { .. } => {}
            SteerMessage::Stale => self.want(now_ns),
            // It comes only to members that answered, so that the table knows this one.
            SteerMessage::Repaired => {
                self.wanted_ns = None;
                self.suspected = false;
                self.repaired_ns = now_ns;
                self.found = true;
            }
        }
    }

    /// When [`Self::poll`] has something to do next, in the clock of its `now_ns`.
    pub fn next_deadline(&self) -> Option<u64> {
        self.running.as_ref().map(|r| r.deadline_ns.min(r.resend_ns)).or(self.wanted_ns)
    }

    /// Goes on with a repair. To be called after [`Self::handle`] and at [`Self::next_deadline`].
    ///
    /// Fails if probes cannot be sent or the kernel refuses the program; datagrams are then relayed
    /// as before.
    pub fn poll(&mut self, sockets: Sockets<'_>, now_ns: u64) -> io::Result<()> {
        if self.running.is_none() && self.wanted_ns.is_some_and(|wanted| wanted <= now_ns) {
            let begun = self.begin(now_ns);
            if begun.is_err() {
                self.note_attempt(now_ns);
                self.wanted_ns = Some(now_ns + self.interval_ns);
            }
            begun?;
        }
        let Some(running) = self.running.take() else { return Ok(()) };
        let result = self.advance(running, sockets, now_ns);
        if result.is_err() {
            self.note_attempt(now_ns);
        }
        result
    }

    fn advance(&mut self, mut run: Running, sockets: Sockets<'_>, now_ns: u64) -> io::Result<()> {
        if now_ns >= run.deadline_ns + ROUND_NS {
            // This process was stopped meanwhile, and what it had learnt is out of date.
            run = Running { attached: run.attached, ..self.new_round(run.lock, now_ns) };
        }
        while let Some(index) = run.round.next_probe() {
            self.send_probe(sockets, index)?;
        }
        if run.round.is_complete() {
            return self.complete(run, sockets, now_ns);
        }
        if now_ns >= run.deadline_ns {
            return self.give_up(run, sockets, now_ns);
        }
        if now_ns >= run.resend_ns {
            run.resend_ns = now_ns + RESEND_NS;
            run.resends += 1;
            if run.resends >= MUTE_RESENDS && run.round.is_silent() && !run.attached {
                return self.probe_again_with_a_program(run, sockets, now_ns);
            }
            run.round.give_room();
            for index in run.round.unanswered() {
                self.send_probe(sockets, index)?;
            }
        }
        self.running = Some(run);
        Ok(())
    }

    /// Leaves the group: closes the socket and has the other members repair the table.
    pub fn leave(self, receiver: RecvSocket, slot: &Slot) -> io::Result<()> {
        drop(self.running);
        drop(receiver);
        let others = slot::list()?;
        let others = others.into_iter().filter(|other| !self.slots.contains(other));
        tell(slot, others, self.group, SteerMessage::Stale)
    }

    /// Asks for a repair, not too soon after the last.
    fn want(&mut self, now_ns: u64) {
        let earliest = self.repaired_ns + self.interval_ns;
        self.wanted_ns.get_or_insert(now_ns.max(earliest));
    }

    /// Attempts in quick succession grow apart.
    fn note_attempt(&mut self, now_ns: u64) {
        let calm = now_ns.saturating_sub(self.repaired_ns) > CALM_NS;
        let doubled = (self.interval_ns * 2).min(MAX_INTERVAL_NS);
        self.interval_ns = if calm { MIN_INTERVAL_NS } else { doubled };
        self.repaired_ns = now_ns;
    }

    /// Suspicions that come to nothing grow apart, too.
    fn note_table(&mut self, table: Vec<Entry>) {
        let suspected = std::mem::take(&mut self.suspected);
        if table != self.table {
            self.suspicion_ns = MAX_INTERVAL_NS;
        } else if suspected {
            self.suspicion_ns = (self.suspicion_ns * 2).min(MAX_SUSPICION_NS);
        }
        self.table = table;
    }

    fn begin(&mut self, now_ns: u64) -> io::Result<()> {
        let lock = lock(self.group)?;
        self.blocked_ns = match lock {
            Some(_) => None,
            None => self.blocked_ns.or(Some(now_ns)),
        };
        if self.blocked_ns.is_some_and(|since| now_ns - since < PATIENCE_NS) {
            self.wanted_ns = Some(now_ns + LOCK_RETRY_NS);
            return Ok(());
        }
        self.wanted_ns = None;
        self.running = Some(self.new_round(lock, now_ns));
        Ok(())
    }

    fn new_round(&mut self, lock: Option<Fd>, now_ns: u64) -> Running {
        self.round_number = self.round_number.wrapping_add(1);
        Running {
            round: Round::default(),
            deadline_ns: now_ns + ROUND_NS,
            resend_ns: now_ns + RESEND_NS,
            resends: 0,
            attached: false,
            lock,
        }
    }

    fn send_probe(&self, sockets: Sockets<'_>, index: u16) -> io::Result<()> {
        let probe = Probe { index, prober: sockets.slot.number(), round: self.round_number };
        match sockets.sender.send(self.group, &probe.to_bytes(), None, 0, None) {
            // It is sent again with those that were lost.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result.map(drop),
        }
    }

    fn complete(&mut self, run: Running, sockets: Sockets<'_>, now_ns: u64) -> io::Result<()> {
        let finds_us = run.round.members().contains(&self.slots[0]);
        if !finds_us && !run.attached {
            return self.probe_again_with_a_program(run, sockets, now_ns);
        }
        self.retries = 0;
        self.attach(&run.round, sockets, now_ns)
    }

    /// A group without a program lets the kernel choose by flow: all probes of a prober reach one
    /// socket, perhaps another one's.
    fn probe_again_with_a_program(
        &mut self,
        run: Running,
        sockets: Sockets<'_>,
        now_ns: u64,
    ) -> io::Result<()> {
        sys::attach_reuseport_filter(sockets.receiver, &run.round.program())?;
        let again = Running { attached: true, ..self.new_round(run.lock, now_ns) };
        self.advance(again, sockets, now_ns)
    }

    fn give_up(&mut self, run: Running, sockets: Sockets<'_>, now_ns: u64) -> io::Result<()> {
        self.attach(&run.round, sockets, now_ns)?;
        if self.retries < MAX_RETRIES {
            self.retries += 1;
            self.want(now_ns);
        } else {
            self.wanted_ns.get_or_insert(now_ns + INCOMPLETE_NS);
        }
        Ok(())
    }

    fn attach(&mut self, round: &Round, sockets: Sockets<'_>, now_ns: u64) -> io::Result<()> {
        self.note_attempt(now_ns);
        self.note_table(round.table());
        sys::attach_reuseport_filter(sockets.receiver, &round.program())?;
        let members = round.members();
        self.found |= members.contains(&self.slots[0]);
        let others = members.into_iter().filter(|member| *member != self.slots[0]);
        tell(sockets.slot, others, self.group, SteerMessage::Repaired)
    }
}

/// Says the same to all of `others`; the first error that some of them met.
fn tell(
    slot: &Slot,
    others: impl Iterator<Item = u16>,
    group: SocketAddr,
    message: SteerMessage<'_>,
) -> io::Result<()> {
    let message = Message::Steer { group, message };
    others.map(|other| slot.send(other, &message).map(drop)).fold(Ok(()), io::Result::and)
}

/// The lock of an address: a name that one member has bound; `None` while another has it.
fn lock(group: SocketAddr) -> io::Result<Option<Fd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let name = SocketAddrUnix::new_abstract_name(format!("irdma/steer/{group}").as_bytes())?;
    match bind(&fd, &name) {
        Ok(()) => Ok(Some(Fd::engine(fd)?)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
