//! READ responses towards a requester that is not of our kind: it asks for whole messages, and
//! echoes no probe.

use irdma_sim::{LinkConfig, Side, World};
use irdma_transport::{Config, Instant, QpType, SendOp};
use irdma_wire::parse;

const LEN: usize = 4 << 20;
const END: Instant = Instant::from_millis(20_000);

/// Reads 4 MiB over a way back that carries `rate` bytes a second out of a buffer of `buffer`;
/// returns how long that took, and the lost packets.
fn read_over(rate: u64, buffer: u64) -> (u64, u64) {
    let mut world = World::new(1, LinkConfig::PERFECT, false);
    for host in 1..=2u8 {
        let config = Config { recv_window: 64 << 20, ..Config::default() };
        world.add_node([10, 0, 0, host].into(), config);
    }
    let narrow = LinkConfig { rate, queue_bytes: buffer, ..LinkConfig::PERFECT };
    world.link(1, 0).configure(narrow);
    // Index 0 of a slot is where probes and echoes go.
    world.filter = Some(Box::new(|_, datagram| {
        parse(&datagram.bytes).is_ok_and(|packet| packet.headers.bth.dest_qpn.index() != 0)
    }));
    let [a, b] = [0, 1].map(|node| Side::new(&mut world, node, QpType::Rc, LEN));
    world.connect(a.qp, b.qp, |_| {});
    let pattern: Vec<u8> = (0..LEN).map(|i| (i ^ i >> 8) as u8).collect();
    b.memory.write(0, &pattern);
    let start = world.now();
    let op = SendOp::Read { remote_addr: b.memory.addr(0), rkey: b.memory.mr.rkey };
    a.post(&mut world, 1, op, 0, LEN).unwrap();
    loop {
        let done = a.sent(&mut world);
        if !done.is_empty() {
            assert_eq!(done[0].status, irdma_transport::WcStatus::Success);
            break;
        }
        assert!(world.step(END), "the READ is complete in time");
    }
    assert!(a.memory.read(0, LEN) == pattern);
    (world.now() - start, world.link(1, 0).lost_count())
}

#[test]
fn read_responses_fit_a_foreign_receiver() {
    for (rate, buffer) in [(100_000_000, 64 << 10), (400_000_000, 128 << 10), (1 << 30, 1 << 20)] {
        let (took, lost) = read_over(rate, buffer);
        let least = LEN as u64 * 1_000_000_000 / rate;
        println!("{rate} {buffer}: {took} ns of {least}, {lost} lost");
        assert!(lost < 2000, "{lost} of 4096 packets");
        assert!(took < 2 * least, "{took} ns, the way alone takes {least}");
    }
}
