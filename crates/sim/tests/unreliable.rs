//! Traffic that nobody acknowledges is clocked all the same: it fits the receiver's buffer.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_sim::{LinkConfig, Side, World};
use irdma_transport::{
    Ah, Config, Instant, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Srq, SrqAttr, UdDest,
};
use irdma_wire::Qpn;

const QKEY: u32 = 0x1111_1111;
const LEN: usize = 1024;
const END: Instant = Instant::from_millis(20_000);

/// A receiver that takes 100 MB a second out of a buffer that holds what it says.
const DRAIN: u64 = 100_000_000;

fn world(recv_window: u32, link: LinkConfig) -> World {
    let mut world = World::new(1, LinkConfig::PERFECT, false);
    for host in 1..=2u8 {
        let config = Config { recv_window, ..Config::default() };
        world.add_node([10, 0, 0, host].into(), config);
    }
    world.link(0, 1).configure(link);
    world
}

fn receiver(world: &mut World, qp_type: QpType, count: u32) -> Side {
    let attr = SrqAttr { max_wr: count, max_sge: 1, srq_limit: 0 };
    let srq = Srq::create_srq(9, world.nodes[1].pd.clone(), attr).unwrap();
    let mut init = world.init(1, qp_type);
    init.recv_cq = Arc::new(irdma_transport::Cq::new(99, count as usize));
    init.srq = Some(Arc::new(srq));
    let srq = init.srq.clone().unwrap();
    let side = Side::with(world, 1, init, 64 * LEN);
    for wr_id in 0..count.into() {
        srq.post_srq_recv(&RecvWr { wr_id, sges: &[side.memory.sge(0, 64 * LEN)] }).unwrap();
    }
    side
}

/// Keeps the send queue full until `count` requests are complete.
fn send_all(world: &mut World, side: &Side, dest: Option<UdDest>, len: usize, count: usize) {
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 64 {
            let sges = [side.memory.sge(0, len)];
            let wr = SendWr {
                wr_id: posted as u64,
                op: SendOp::Send { imm: None },
                flags: SendFlags::SIGNALED,
                data: SendData::Sges(&sges),
                ud: dest.clone(),
            };
            side.post_wr(world, &wr).unwrap();
            posted += 1;
        }
        let sent = side.sent(world);
        done += sent.len();
        assert!(!sent.is_empty() || world.step(END), "stuck at {done} of {count}");
        assert!(world.now() < END, "{done} of {count} in time");
    }
    world.run(END);
}

fn buffered(bytes: u64) -> LinkConfig {
    LinkConfig { rate: DRAIN, queue_bytes: bytes, ..LinkConfig::PERFECT }
}

#[test]
fn datagrams_fit_the_receivers_buffer() {
    for buffer in [64 << 10, 1 << 20] {
        let count = 4000;
        let mut world = world(buffer, buffered(buffer.into()));
        let (a, b) = (
            Side::new(&mut world, 0, QpType::Ud, LEN),
            receiver(&mut world, QpType::Ud, count as u32),
        );
        world.connect(a.qp, b.qp, |attr| attr.qkey = QKEY);
        let dest = b.dest(&world, 0, QKEY);
        let start = world.now();
        send_all(&mut world, &a, Some(dest), LEN, count);
        assert_eq!(world.link(0, 1).lost_count(), 0, "buffer of {buffer}");
        assert_eq!(b.received(&mut world).len(), count);
        let least = (count * LEN) as u64 * 1_000_000_000 / DRAIN;
        let took = world.now() - start;
        assert!(took < least * 3 / 2 + 5_000_000, "{took} ns, the link alone takes {least}");
    }
}

#[test]
fn unreliable_messages_fit_the_receivers_buffer() {
    let (buffer, count) = (256 << 10, 200);
    let mut world = world(buffer, buffered(buffer.into()));
    let (a, b) = (
        Side::new(&mut world, 0, QpType::Uc, 64 * LEN),
        receiver(&mut world, QpType::Uc, count as u32),
    );
    world.connect(a.qp, b.qp, |_| {});
    send_all(&mut world, &a, None, 32 * LEN, count);
    assert_eq!(world.link(0, 1).lost_count(), 0);
    assert_eq!(b.received(&mut world).len(), count);
}

#[test]
fn many_senders_of_one_process_share_the_buffer() {
    let (buffer, each) = (64 << 10, 100);
    let mut world = world(buffer, buffered(buffer.into()));
    let b = receiver(&mut world, QpType::Ud, 1600);
    let attr = irdma_transport::QpAttr { qkey: QKEY, ..world.attr(b.qp, b.qp) };
    world.ready(b.qp, &attr);
    let senders: Vec<Side> = (0..16).map(|_| Side::new(&mut world, 0, QpType::Ud, LEN)).collect();
    for a in &senders {
        world.ready(a.qp, &attr);
    }
    let dest = b.dest(&world, 0, QKEY);
    for round in 0..2 {
        for a in &senders {
            for wr_id in 0..each / 2 {
                a.post_to(&mut world, round * each + wr_id, dest.clone(), 0, LEN).unwrap();
            }
        }
        assert!(world.run(END));
        for a in &senders {
            assert_eq!(a.sent(&mut world).len() as u64, each / 2);
        }
    }
    assert_eq!(world.link(0, 1).lost_count(), 0);
    assert_eq!(b.received(&mut world).len(), 1600);
}

/// Somebody who never echoes, for example another device.
#[test]
fn a_mute_receiver_is_sent_a_window_each_millisecond() {
    // The first number cannot be of our kind, the second could be: it is asked, in vain.
    for number in [Qpn::new(0x11), Qpn::from_parts(300, 1)] {
        send_to_the_mute(number);
    }
}

fn send_to_the_mute(qpn: Qpn) {
    let count = 4000;
    let mut world = world(64 << 10, LinkConfig::PERFECT);
    let a = Side::new(&mut world, 0, QpType::Ud, LEN);
    let attr = irdma_transport::QpAttr { qkey: QKEY, ..world.attr(a.qp, a.qp) };
    world.ready(a.qp, &attr);
    let mut av = world.av(0, 1);
    av.dgid = IpAddr::from([10, 0, 0, 9]).into();
    let ah = Arc::new(Ah::create_ah(world.nodes[0].pd.clone(), av));
    let dest = UdDest { ah, qpn, qkey: QKEY };
    let start = world.now();
    send_all(&mut world, &a, Some(dest), LEN, count);
    let ms = (world.now() - start) / 1_000_000;
    assert!((50..100).contains(&ms), "{count} KiB took {ms} ms at 64 KiB a millisecond");
}

#[test]
fn lost_probes_delay_but_do_not_stop() {
    let count = 2000;
    let lossy = LinkConfig { loss: 300_000, ..LinkConfig::PERFECT };
    let mut world = world(64 << 10, lossy);
    world.link(1, 0).configure(lossy);
    let (a, b) =
        (Side::new(&mut world, 0, QpType::Ud, LEN), receiver(&mut world, QpType::Ud, count as u32));
    world.connect(a.qp, b.qp, |attr| attr.qkey = QKEY);
    let dest = b.dest(&world, 0, QKEY);
    send_all(&mut world, &a, Some(dest), LEN, count);
    let got = b.received(&mut world).len();
    assert!((1200..1600).contains(&got), "{got} of {count} arrived at 30 % loss");
}

/// Its process is stopped for a while: it is waited for, not overrun.
#[test]
fn a_stopped_receiver_is_waited_for() {
    let count = 1000;
    let mut world = world(64 << 10, buffered(64 << 10));
    let (a, b) =
        (Side::new(&mut world, 0, QpType::Ud, LEN), receiver(&mut world, QpType::Ud, count as u32));
    world.connect(a.qp, b.qp, |attr| attr.qkey = QKEY);
    let dest = b.dest(&world, 0, QKEY);
    send_all(&mut world, &a, Some(dest.clone()), LEN, 100);
    // For 100 ms nothing is taken out of the buffer: 64 KiB fill it.
    let stopped = LinkConfig { rate: (64 << 10) * 10, ..buffered(64 << 10) };
    world.link(0, 1).configure(stopped);
    let slow_start = world.now();
    send_all(&mut world, &a, Some(dest), LEN, 200);
    assert!(world.now() - slow_start > 100_000_000);
    assert_eq!(world.link(0, 1).lost_count(), 0);
    assert_eq!(b.received(&mut world).len(), 300);
}

#[test]
fn datagrams_to_a_destroyed_queue_pair_go_nowhere() {
    let mut world = world(64 << 10, LinkConfig::PERFECT);
    let (a, b) =
        (Side::new(&mut world, 0, QpType::Ud, LEN), Side::new(&mut world, 1, QpType::Ud, LEN));
    world.connect(a.qp, b.qp, |attr| attr.qkey = QKEY);
    let dest = b.dest(&world, 0, QKEY);
    world.nodes[1].endpoint.destroy_qp(b.qp.qpn).unwrap();
    send_all(&mut world, &a, Some(dest), LEN, 500);
    let drops = world.nodes[1].endpoint.stats().drops;
    assert_eq!(drops[irdma_transport::DropReason::UnknownQp as usize], 500);
}
