//! Faults that users of other devices met (rows of the case list), replayed in virtual time.

use std::collections::BTreeSet;

use irdma_sim::{LinkConfig, Side, World};
use irdma_transport::{Instant, QpType, SendOp, WcStatus};
use irdma_wire::{Operation, Syndrome, parse};

const END: Instant = Instant::from_millis(60_000);

fn connected(tune: impl Fn(&mut irdma_transport::QpAttr)) -> (World, Side, Side) {
    let mut world = World::pair(1, LinkConfig::PERFECT, false);
    let a = Side::new(&mut world, 0, QpType::Rc, 1 << 16);
    let b = Side::new(&mut world, 1, QpType::Rc, 1 << 16);
    world.connect(a.qp, b.qp, tune);
    (world, a, b)
}

/// Case 17: a lost acknowledgement of an atomic is repeated with the value of then.
#[test]
fn every_second_atomic_acknowledgement_is_lost() {
    let (mut world, a, b) = connected(|_| {});
    let mut answered = BTreeSet::new();
    world.filter = Some(Box::new(move |_, datagram| {
        let bth = parse(&datagram.bytes).unwrap().headers.bth;
        let first = bth.opcode.operation == Operation::AtomicAck && answered.insert(bth.psn.get());
        !first || bth.psn.get().is_multiple_of(2)
    }));
    let (remote_addr, rkey) = (b.memory.addr(0), b.memory.mr.rkey);
    let mut values = BTreeSet::new();
    for round in 0..20u64 {
        for n in 0..50 {
            let op = SendOp::FetchAdd { remote_addr, rkey, add: 3 };
            a.post(&mut world, n, op, n as usize * 8, 8).unwrap();
        }
        assert!(world.run(END));
        let sent = a.sent(&mut world);
        assert_eq!(sent.len(), 50, "round {round}");
        assert!(sent.iter().all(|wc| wc.status == WcStatus::Success));
        values.extend((0..50).map(|n| a.memory.word(n * 8)));
    }
    assert_eq!(b.memory.word(0), 3000);
    assert_eq!(values, (0..1000).map(|n| n * 3).collect());
}

/// Case 18: the receiver takes one message each 100 us and asks for the shortest wait.
#[test]
fn a_slow_receiver_with_the_smallest_timer_does_not_collapse() {
    let (mut world, a, b) = connected(|attr| attr.min_rnr_timer = 1);
    let messages = 200u64;
    for n in 0..64 {
        a.post(&mut world, n, SendOp::Send { imm: None }, 0, 1000).unwrap();
    }
    let (mut posted, mut got) = (64, 0);
    while got < messages {
        b.post_recv(&mut world, got, 0, 1000).unwrap();
        world.advance(100_000);
        got += b.received(&mut world).len() as u64;
        for _ in a.sent(&mut world) {
            if posted < messages {
                a.post(&mut world, posted, SendOp::Send { imm: None }, 0, 1000).unwrap();
                posted += 1;
            }
        }
        assert!(world.now() < Instant::from_millis(40), "{got} of {messages}");
    }
    // A round trip is 20 us, the wait 10 us: three tries for each message are normal.
    let packets = world.trace.packet_count();
    assert!(packets < messages * 2 * 6, "{packets} packets for {messages} messages");
}

/// Case 18: no request is sent again sooner than the receiver asked for.
#[test]
fn the_rnr_timer_is_honoured() {
    let (mut world, a, b) = connected(|attr| attr.min_rnr_timer = 20);
    let mut quiet_until = Instant::ZERO;
    let mut rnr_count = 0;
    let (reported, seen) = std::sync::mpsc::channel();
    world.filter = Some(Box::new(move |now, datagram| {
        let headers = parse(&datagram.bytes).unwrap().headers;
        match headers.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Rnr { timer: 20 }) => {
                rnr_count += 1;
                reported.send(rnr_count).unwrap();
                quiet_until = now + 10_240_000;
            }
            _ if headers.bth.opcode.operation == Operation::Send => {
                assert!(now >= quiet_until, "sent at {now:?}, asked to wait until {quiet_until:?}");
            }
            _ => {}
        }
        true
    }));
    a.post(&mut world, 1, SendOp::Send { imm: None }, 0, 10).unwrap();
    world.advance(50_000_000);
    assert_eq!(seen.try_iter().last(), Some(5));
    b.post_recv(&mut world, 1, 0, 10).unwrap();
    assert!(world.run(END));
    assert_eq!(a.sent(&mut world).len(), 1);
}

/// Case 25: nothing gets through for a while. Within the budget all goes on, beyond it all fails.
#[test]
fn a_link_that_is_down_is_survived_or_reported() {
    for (outage_ms, survives) in [(20, true), (1000, false)] {
        let (mut world, a, b) = connected(|_| {});
        let (remote_addr, rkey) = (b.memory.addr(0), b.memory.mr.rkey);
        let back = world.now() + outage_ms * 1_000_000;
        world.filter = Some(Box::new(move |now, _| now >= back));
        for n in 0..10 {
            a.post(&mut world, n, SendOp::Write { remote_addr, rkey, imm: None }, 0, 9000).unwrap();
        }
        assert!(world.run(END));
        let statuses: Vec<_> = a.sent(&mut world).iter().map(|wc| wc.status).collect();
        if survives {
            assert_eq!(statuses, [WcStatus::Success; 10]);
        } else {
            assert_eq!(statuses[0], WcStatus::RetryExcErr);
            assert_eq!(statuses[1..], [WcStatus::WrFlushErr; 9]);
        }
        assert_eq!(world.nodes[0].endpoint.in_flight(), irdma_transport::InFlight::default());
    }
}

/// Case 19: a long READ is as fast as a WRITE of the same length.
#[test]
fn reads_of_every_length_are_as_fast_as_writes() {
    for len in [1 << 16, 1 << 18, 1 << 21, 1 << 24] {
        let time_ns = |reads: bool| {
            let link = LinkConfig { rate: 1_250_000_000, ..LinkConfig::PERFECT };
            let mut world = World::new(1, link, false);
            for host in 1..=2u8 {
                let recv_window = 1 << 21;
                let config = irdma_transport::Config { recv_window, ..Default::default() };
                world.add_node([10, 0, 0, host].into(), config);
            }
            let a = Side::new(&mut world, 0, QpType::Rc, len);
            let b = Side::new(&mut world, 1, QpType::Rc, len);
            world.connect(a.qp, b.qp, |attr| attr.path_mtu = 4096);
            let (remote_addr, rkey) = (b.memory.addr(0), b.memory.mr.rkey);
            let op = if reads {
                SendOp::Read { remote_addr, rkey }
            } else {
                SendOp::Write { remote_addr, rkey, imm: None }
            };
            for wr_id in 0..4 {
                a.post(&mut world, wr_id, op, 0, len).unwrap();
            }
            let start = world.now().as_nanos();
            assert!(world.run(END));
            let sent = a.sent(&mut world);
            assert_eq!(sent.len(), 4);
            sent[3].timestamp_ns - start
        };
        let (read, write) = (time_ns(true), time_ns(false));
        let ratio = read as f64 / write as f64;
        assert!((0.5..1.15).contains(&ratio), "{len}: READ {read} ns, WRITE {write} ns");
    }
}
