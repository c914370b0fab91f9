use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::clock;
use crate::slot::Delivery;
use crate::testing::{as_nobody, eventually, skip};
use crate::udp::{BATCH_LEN, Features, ROCE_PORT, Reuse};
use crate::wake::{Interest, Poll};

/// An address of `lo` that no other test uses.
fn own_address(number: u8) -> SocketAddr {
    let pid = clock::pid();
    SocketAddr::new(Ipv4Addr::new(127, number, (pid >> 8) as u8, pid as u8).into(), ROCE_PORT)
}

/// What a member got for its own slot: `Some(true)` if the kernel steered it, `Some(false)` if
/// another member relayed it.
type Got = Vec<(Vec<u8>, SocketAddr, bool)>;

/// One lane's part: what the engine does with the steering, and nothing else.
struct Member {
    receiver: RecvSocket,
    sender: SendSocket,
    slot: Slot,
    steering: Steering,
    buf: Vec<u8>,
}

impl Member {
    fn join(group: SocketAddr) -> Self {
        let receiver = RecvSocket::open(group.ip(), group.port(), 0, Reuse::Group).unwrap();
        let slot = Slot::claim(clock::seed().unwrap()).unwrap();
        let steering = Steering::join(&receiver, &[slot.number()], clock::monotonic_ns());
        let sender = SendSocket::open(group.ip(), 0).unwrap();
        Self { receiver, sender, slot, steering, buf: vec![0; slot::MESSAGE_LEN] }
    }

    fn run(&mut self) -> Got {
        let mut got = Vec::new();
        let now = clock::monotonic_ns();
        while let Some(meta) = self.receiver.recv(&mut self.buf).unwrap() {
            let data = &self.buf[..meta.len];
            if self.steering.take_probe(data, &meta, &self.slot).unwrap() {
                continue;
            }
            let to = destination(data);
            if to == self.slot.number() {
                got.extend(data.chunks(meta.stride).map(|d| (d.to_vec(), meta.src, true)));
            } else if self.slot.send(to, &Message::Relay { meta, data }).unwrap() != Delivery::Gone
            {
                self.steering.misdirected(now);
            }
        }
        while let Some(received) = self.slot.recv(&mut self.buf).unwrap() {
            match received.message {
                Message::Relay { meta, data } => {
                    got.extend(data.chunks(meta.stride).map(|d| (d.to_vec(), meta.src, false)));
                }
                Message::Steer { group, message } if group == self.steering.group() => {
                    self.steering.handle(message, now);
                }
                _ => {}
            }
        }
        let sockets = Sockets { receiver: &self.receiver, sender: &self.sender, slot: &self.slot };
        self.steering.poll(sockets, now).unwrap();
        got
    }
}

/// The slot that a datagram is for, as the floors above find it.
fn destination(datagram: &[u8]) -> u16 {
    let word = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
    match word(4) & 0xff_ffff {
        1 => (word(if datagram[37] == 0x18 { 44 } else { 48 }) >> 22) as u16,
        qpn => (qpn >> 14) as u16,
    }
}

fn datagram(slot: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[4..8].copy_from_slice(&(u32::from(slot) << 14 | 5).to_be_bytes());
    bytes
}

/// A message of the connection manager on QP1 with the receiver's id at `at`.
fn management(attribute: u8, slot: u16, at: usize) -> [u8; 64] {
    let mut bytes = [0; 64];
    (bytes[7], bytes[21], bytes[37]) = (1, 7, attribute);
    bytes[at..at + 4].copy_from_slice(&(u32::from(slot) << 22 | 77).to_be_bytes());
    bytes
}

/// Runs all members until none has anything to do, or only to look again for silent ones.
fn settle(members: &mut [Member]) {
    let settled = || {
        members.iter_mut().for_each(|member| drop(member.run()));
        members.iter().all(|Member { steering, .. }| {
            steering.next_deadline().is_none() || steering.retries == MAX_RETRIES
        })
    };
    assert!(eventually(Duration::from_secs(5), settled));
}

/// Sends to every member's slot; whether each got all, and all steered by the kernel.
fn all_direct(members: &mut [Member], group: SocketAddr) -> bool {
    let sender = SendSocket::open(group.ip(), 0).unwrap();
    for slot in members.iter().map(|member| member.slot.number()) {
        sender.send(group, &datagram(slot).repeat(3), Some(64), 0, None).unwrap();
        sender.send(group, &management(0x13, slot, 48), None, 0, None).unwrap();
        sender.send(group, &management(0x18, slot, 44), None, 0, None).unwrap();
    }
    let mut got = vec![Got::new(); members.len()];
    eventually(Duration::from_secs(1), || {
        members.iter_mut().zip(&mut got).for_each(|(member, got)| got.extend(member.run()));
        got.iter().all(|got| got.len() == 5)
    });
    assert!(got.iter().all(|got| got.len() == 5), "{:?}", got.iter().map(Vec::len));
    got.iter().flatten().all(|(_, _, direct)| *direct)
}

fn no_steering() -> bool {
    let missing = !Features::probe().unwrap().steering;
    if missing {
        skip("this kernel has no reuseport filter");
    }
    missing
}

#[test]
fn each_datagram_reaches_the_owner_of_its_slot_without_a_relay() {
    if no_steering() {
        return;
    }
    let group = own_address(101);
    let mut members: Vec<_> = (0..5).map(|_| Member::join(group)).collect();
    settle(&mut members);
    assert!(all_direct(&mut members, group));
}

#[test]
fn an_unprivileged_user_can_steer() {
    if no_steering() {
        return;
    }
    as_nobody(|| {
        let group = own_address(102);
        let mut members = [Member::join(group), Member::join(group)];
        settle(&mut members);
        assert!(all_direct(&mut members, group));
    });
}

#[test]
fn what_belongs_to_no_slot_reaches_the_first_socket() {
    if no_steering() {
        return;
    }
    let group = own_address(103);
    let mut members = [Member::join(group), Member::join(group)];
    settle(&mut members);
    let sender = SendSocket::open(group.ip(), 0).unwrap();
    let other_class = {
        let mut mad = management(0x13, members[1].slot.number(), 48);
        mad[21] = 3;
        mad
    };
    let strays: [&[u8]; 7] = [
        &[],
        &[0xff; 7],
        &datagram(0),
        &datagram(1023),
        &management(0x10, members[1].slot.number(), 48),
        &management(0x17, members[1].slot.number(), 48),
        &other_class,
    ];
    for stray in strays {
        sender.send(group, stray, None, 0, None).unwrap();
    }
    let mut buf = vec![0; BATCH_LEN];
    for stray in strays {
        let meta = members[0].receiver.recv(&mut buf).unwrap().unwrap();
        assert_eq!(&buf[..meta.len], stray);
    }
    assert_eq!(members[1].receiver.recv(&mut buf).unwrap(), None);
}

#[test]
fn a_member_that_vanishes_makes_traffic_go_astray_until_the_repair() {
    if no_steering() {
        return;
    }
    let group = own_address(104);
    let mut members: Vec<_> = (0..4).map(|_| Member::join(group)).collect();
    settle(&mut members);
    drop(members.remove(0));
    // The last member moved to another index. Until the repair, which the first relay starts, the
    // kernel chooses by flow for it: sooner or later wrong.
    assert!(eventually(Duration::from_secs(5), || !all_direct(&mut members, group)));
    settle(&mut members);
    assert!(all_direct(&mut members, group));
}

#[test]
fn a_member_that_leaves_has_the_others_repair_without_traffic() {
    if no_steering() {
        return;
    }
    let group = own_address(105);
    let mut members: Vec<_> = (0..4).map(|_| Member::join(group)).collect();
    settle(&mut members);
    let Member { receiver, slot, steering, .. } = members.remove(1);
    steering.leave(receiver, &slot).unwrap();
    settle(&mut members);
    assert!(all_direct(&mut members, group));
}

#[test]
fn a_silent_member_does_not_keep_the_others_from_a_table() {
    if no_steering() {
        return;
    }
    let group = own_address(106);
    let mut members: Vec<_> = (0..3).map(|_| Member::join(group)).collect();
    settle(&mut members);
    let silent = members.remove(1);
    members.push(Member::join(group));
    settle(&mut members);
    assert!(members.iter().any(|member| member.steering.retries == MAX_RETRIES));
    assert!(all_direct(&mut members, group));
    members.push(silent);
    all_direct(&mut members, group);
    settle(&mut members);
    assert!(all_direct(&mut members, group));
}

/// Runs the members that are not stopped until what waits for `member` has been steered to it.
fn all_direct_within(limit: Duration, members: &mut [Member], group: SocketAddr) {
    let start = Instant::now();
    while members.iter().any(|member| member.steering.is_settling()) {
        members.iter_mut().for_each(|member| drop(member.run()));
        std::thread::sleep(Duration::from_micros(50));
    }
    let took = start.elapsed();
    assert!(took < limit, "{took:?}");
    assert!(all_direct(members, group));
}

/// What a newcomer waits for: others' locks, two rounds at most, and the machine's other work.
const SETTLE_LIMIT: Duration = Duration::from_millis(150);

#[test]
fn a_lock_that_is_never_given_back_does_not_keep_newcomers_out() {
    if no_steering() {
        return;
    }
    let group = own_address(111);
    let stopped = [Member::join(group)];
    let held = lock(group).unwrap().unwrap();
    assert!(lock(group).unwrap().is_none());
    let mut members = [Member::join(group), Member::join(group)];
    all_direct_within(SETTLE_LIMIT, &mut members, group);
    drop((held, stopped));
}

#[test]
fn what_belongs_to_no_slot_reaches_a_member_that_answers() {
    if no_steering() {
        return;
    }
    let group = own_address(112);
    let mut members: Vec<_> = (0..3).map(|_| Member::join(group)).collect();
    settle(&mut members);
    // From here on the first, where such datagrams go, is stopped.
    let _stopped = members.remove(0);
    members.push(Member::join(group));
    all_direct_within(SETTLE_LIMIT, &mut members, group);
    let sender = SendSocket::open(group.ip(), 0).unwrap();
    sender.send(group, &management(0x10, 0, 48), None, 0, None).unwrap();
    // The members go on looking for the one that is silent.
    let received = || members[0].receiver.recv(&mut vec![0; BATCH_LEN]).unwrap();
    assert!(std::iter::from_fn(received).any(|meta| meta.len == 64));
}

#[test]
fn a_table_that_lacks_a_member_is_repaired_without_traffic() {
    if no_steering() {
        return;
    }
    let group = own_address(115);
    let mut members: Vec<_> = (0..3).map(|_| Member::join(group)).collect();
    settle(&mut members);
    let silent = members.remove(0);
    members.push(Member::join(group));
    settle(&mut members);
    members.push(silent);
    let complete = || {
        members.iter_mut().for_each(|member| drop(member.run()));
        members.iter().all(|member| member.steering.next_deadline().is_none())
    };
    assert!(eventually(Duration::from_secs(5), complete));
    assert!(all_direct(&mut members, group));
}

#[test]
fn a_suspicion_repairs_a_table_that_nobody_complains_about() {
    if no_steering() {
        return;
    }
    let group = own_address(116);
    let mut members: Vec<_> = (0..4).map(|_| Member::join(group)).collect();
    settle(&mut members);
    drop(members.remove(0));
    std::thread::sleep(Duration::from_nanos(MAX_INTERVAL_NS));
    members[0].steering.suspect(clock::monotonic_ns());
    settle(&mut members);
    assert!(all_direct(&mut members, group));
}

#[test]
fn suspicions_that_find_nothing_grow_apart() {
    if no_steering() {
        return;
    }
    let group = own_address(117);
    let mut members = vec![Member::join(group)];
    settle(&mut members);
    let suspect = |members: &mut [Member], after_ns: u64| {
        let Steering { repaired_ns, .. } = members[0].steering;
        members[0].steering.suspect(repaired_ns + after_ns - 1);
        assert_eq!(members[0].steering.next_deadline(), None, "too soon");
        members[0].steering.repaired_ns = clock::monotonic_ns() - after_ns;
        members[0].steering.suspect(clock::monotonic_ns());
        assert!(members[0].steering.next_deadline().is_some(), "{after_ns}");
        settle(members);
    };
    for turn in 0..7 {
        suspect(&mut members, (MAX_INTERVAL_NS << turn).min(MAX_SUSPICION_NS));
    }
    members.push(Member::join(group));
    settle(&mut members);
    // The first member hears of the newcomer's table.
    members[0].run();
    suspect(&mut members, MAX_SUSPICION_NS);
    suspect(&mut members, MAX_INTERVAL_NS);
}

#[test]
fn many_silent_members_do_not_hide_a_newcomer() {
    if no_steering() {
        return;
    }
    let group = own_address(113);
    let mut silent: Vec<_> = (0..12).map(|_| Member::join(group)).collect();
    settle(&mut silent);
    let mut members = [Member::join(group), Member::join(group)];
    all_direct_within(SETTLE_LIMIT, &mut members, group);
}

#[test]
fn a_member_that_was_stopped_in_a_round_begins_anew() {
    if no_steering() {
        return;
    }
    let group = own_address(114);
    let mut members = vec![Member::join(group), Member::join(group)];
    settle(&mut members);
    let mut stopped = Member::join(group);
    let now = clock::monotonic_ns();
    let Member { receiver, sender, slot, steering, .. } = &mut stopped;
    steering.poll(Sockets { receiver, sender, slot }, now).unwrap();
    assert!(lock(group).unwrap().is_none(), "it holds the lock");
    members.push(Member::join(group));
    all_direct_within(SETTLE_LIMIT, &mut members, group);
    std::thread::sleep(Duration::from_nanos(2 * ROUND_NS));
    let old_round = stopped.steering.round_number;
    members.push(stopped);
    settle(&mut members);
    assert_ne!(members[3].steering.round_number, old_round);
    assert!(all_direct(&mut members, group));
    assert!(lock(group).unwrap().is_some());
}

#[test]
fn probes_of_other_hosts_are_traffic() {
    let group = own_address(108);
    let mut member = Member::join(group);
    let probe = Probe { index: 0, prober: member.slot.number(), round: 1 }.to_bytes();
    let meta = |src: &str| RecvMeta {
        len: probe.len(),
        stride: probe.len(),
        src: SocketAddr::new(src.parse().unwrap(), 9),
        dst: group.ip(),
        tos: 0,
        ttl: 1,
        drops: 0,
    };
    assert!(!member.steering.take_probe(&probe, &meta("192.0.2.1"), &member.slot).unwrap());
    let own = group.ip().to_string();
    assert!(member.steering.take_probe(&probe, &meta(&own), &member.slot).unwrap());
    settle(std::slice::from_mut(&mut member));
}

const MEMBER_ENV: &str = "IRDMA_STEER_TEST_MEMBER";

/// Not a test of its own: the process that the tests below start, kill and stop. It echoes what it
/// gets for its slot, with a first byte that tells how it came.
#[test]
fn member_process() {
    let Ok(group) = std::env::var(MEMBER_ENV) else { return };
    let mut member = Member::join(group.parse().unwrap());
    println!("\nslot {}", member.slot.number());
    let stdin = std::io::stdin();
    let (poll, mut ready) = (Poll::new().unwrap(), Vec::new());
    poll.add(&member.receiver, 0, Interest::Read).unwrap();
    poll.add(&member.slot, 0, Interest::Read).unwrap();
    poll.add(&stdin, 1, Interest::Read).unwrap();
    while !ready.iter().any(|ready: &crate::wake::Ready| ready.token == 1) {
        for (mut data, src, direct) in member.run() {
            data[0] = u8::from(direct);
            member.sender.send(src, &data, None, 0, None).unwrap();
        }
        let now = clock::monotonic_ns();
        let timeout = member.steering.next_deadline().map(|at| at.saturating_sub(now));
        poll.wait(&mut ready, timeout).unwrap();
    }
    let Member { receiver, slot, steering, .. } = member;
    steering.leave(receiver, &slot).unwrap();
}

struct Process {
    child: Child,
    /// Kept open for what the test harness says at the end.
    _stdout: BufReader<ChildStdout>,
    slot: u16,
}

impl Process {
    fn start(group: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "steer::tests::member_process", "--nocapture"])
            .env(MEMBER_ENV, group.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let slot = stdout
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("slot ")?.parse().ok())
            .expect("the process says its slot");
        Self { child, _stdout: stdout, slot }
    }

    /// Ends as a killed program does.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Leaves the group in good order.
    fn leave(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends numbered datagrams to slots and collects their echoes.
struct Peer {
    socket: UdpSocket,
    group: SocketAddr,
    sent: u32,
}

impl Peer {
    fn new(group: SocketAddr) -> Self {
        let socket = UdpSocket::bind((group.ip(), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        Self { socket, group, sent: 0 }
    }

    fn send(&mut self, slot: u16) -> u32 {
        let mut data = datagram(slot);
        data[60..].copy_from_slice(&self.sent.to_be_bytes());
        self.socket.send_to(&data, self.group).unwrap();
        self.sent += 1;
        self.sent - 1
    }

    /// The number of the next echo and whether its datagram was steered, within a millisecond.
    fn echo(&self) -> Option<(u32, bool)> {
        let mut data = [0; 64];
        let len = self.socket.recv(&mut data).ok()?;
        assert_eq!(len, 64);
        Some((u32::from_be_bytes(data[60..].try_into().unwrap()), data[0] == 1))
    }

    /// Sends to each slot until all echo at once and none was relayed.
    fn converges(&mut self, processes: &[Process]) -> bool {
        eventually(Duration::from_secs(5), || {
            std::thread::sleep(Duration::from_millis(10));
            let mut wanted: Vec<_> = processes.iter().map(|p| self.send(p.slot)).collect();
            let mut all_direct = true;
            eventually(Duration::from_millis(100), || {
                if let Some((number, direct)) = self.echo() {
                    wanted.retain(|wanted| *wanted != number);
                    all_direct &= direct;
                }
                wanted.is_empty()
            });
            wanted.is_empty() && all_direct
        })
    }

    /// Sends to the slots in turn for a while; how late in it the last lost datagram was sent.
    fn last_loss(&mut self, processes: &[Process], length: Duration) -> Duration {
        let (start, mut sent) = (Instant::now(), std::collections::BTreeMap::new());
        while start.elapsed() < length {
            for process in processes {
                sent.insert(self.send(process.slot), start.elapsed());
                if let Some((number, _)) = self.echo() {
                    sent.remove(&number);
                }
            }
        }
        eventually(Duration::from_millis(300), || {
            if let Some((number, _)) = self.echo() {
                sent.remove(&number);
            }
            sent.is_empty()
        });
        sent.into_values().max().unwrap_or_default()
    }
}

#[test]
fn the_others_go_on_when_a_process_is_killed() {
    if no_steering() {
        return;
    }
    let group = own_address(109);
    let mut processes: Vec<_> = (0..4).map(|_| Process::start(group)).collect();
    let mut peer = Peer::new(group);
    assert!(peer.converges(&processes));
    let killed = processes.remove(0);
    let slot = killed.slot;
    killed.kill();
    assert!(!slot::is_alive(slot));
    let loss = peer.last_loss(&processes, Duration::from_millis(300));
    assert!(loss < Duration::from_millis(150), "{loss:?}");
    assert!(peer.converges(&processes));
}

#[test]
fn processes_that_come_and_go_at_random_converge() {
    if no_steering() {
        return;
    }
    let group = own_address(110);
    let (mut processes, mut peer) = (Vec::new(), Peer::new(group));
    let mut seed = clock::seed().unwrap();
    println!("seed {seed:#x}");
    for _ in 0..20 {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let (action, which) = (seed >> 62, (seed >> 40) as usize);
        if processes.len() < 2 || action >= 2 && processes.len() < 4 {
            processes.push(Process::start(group));
        } else {
            let gone = processes.remove(which % processes.len());
            if action & 1 == 0 { gone.kill() } else { gone.leave() }
        }
        let loss = peer.last_loss(&processes, Duration::from_millis(150));
        assert!(loss < Duration::from_millis(100), "{loss:?}");
    }
    assert!(peer.converges(&processes));
}
