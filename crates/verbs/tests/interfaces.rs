//! Interfaces that change under a running program, and peers in another network namespace.

mod common;

use std::io::Write;
use std::net::UdpSocket;
use std::time::Duration;

use common::link::{Link, device, ip};
use common::process::{Peer, ROLE, line_after, meet, read_line};
use common::{Ends, Node};
use irdma::{Device, EventKind, PortState, QpType, SendOp, Wc, WcStatus};

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("watch") => watch(),
        Ok("echo 0") => echo(0),
        Ok("echo 1") => echo(1),
        Ok("ping 0") => ping(0),
        Ok("ping 1") => ping(1),
        Ok("held") => held(),
        Ok("doomed") => doomed(),
        Ok("steady 0") => steady(0),
        Ok("steady 1") => steady(1),
        _ => {}
    }
}

fn watch() {
    let node = Node::new(&device(), QpType::Ud, 64);
    println!("@ends {}", common::process::text(&node.ends()));
    loop {
        let event = node.context.get_async_event().unwrap();
        println!("@event {:?}", event.kind());
        if event.kind() == EventKind::PortActive {
            break;
        }
    }
    assert_eq!(node.context.query_port(1).unwrap().state, PortState::Active);
    read_line();
}

fn echo(gid_index: u8) {
    let mut node = Node::new(&device(), QpType::Rc, 1 << 16);
    node.gid_index = gid_index;
    node.post_recv(1, 0, 1 << 16);
    meet(&node);
    let received = node.complete();
    node.post(2, SendOp::Send { imm: None }, 0, received.byte_len as usize);
    node.complete();
    read_line();
}

fn ping(gid_index: u8) {
    let mut node = Node::new(&device(), QpType::Rc, 1 << 17);
    node.gid_index = gid_index;
    node.post_recv(1, 1 << 16, 1 << 16);
    meet(&node);
    node.fill(0, 50_000, 7);
    node.post(2, SendOp::Send { imm: None }, 0, 50_000);
    node.complete();
    node.complete();
    node.expect_bytes(1 << 16, 50_000, 7);
    read_line();
}

/// Sends to and fro until 300 messages arrived, one every few milliseconds.
fn steady(gid_index: u8) {
    let mut node = Node::new(&device(), QpType::Rc, 1 << 12);
    // The kernel takes a second and more to find the neighbour again.
    (node.gid_index, node.timeout) = (gid_index, 18);
    (0..64).for_each(|i| node.post_recv(i, 0, 64));
    meet(&node);
    for _ in 0..300 {
        node.post(100, SendOp::Send { imm: None }, 64, 64);
        let ids = [node.complete().wr_id, node.complete().wr_id];
        ids.iter().filter(|id| **id < 64).for_each(|id| node.post_recv(*id, 0, 64));
        std::thread::sleep(Duration::from_millis(2));
    }
    read_line();
}

/// Registers a device whose addresses another program has.
fn held() {
    let device = device();
    println!("@ends {}", common::process::text(&Node::new(&device, QpType::Ud, 64).ends()));
    device.ib_unregister_device();
    let held = ["10.9.0.1", "2001:db8:9::1"].map(|ip| UdpSocket::bind((ip, 4791)).unwrap());
    assert_eq!(device.ib_register_device().unwrap_err().errno(), 98);
    assert!(Device::list().unwrap().iter().all(|found| found.name() != device.name()));
    drop(held);
    device.ib_register_device().unwrap();
    assert_eq!(Device::list().unwrap()[0].name(), device.name());
    device.open().unwrap();
}

/// Uses a device whose interface is deleted.
fn doomed() {
    let device = device();
    let node = Node::new(&device, QpType::Rc, 64);
    let ends = node.ends();
    node.post_recv(1, 0, 64);
    node.connect(&ends);
    println!("@ends {}", common::process::text(&ends));
    let mut heard = Vec::new();
    let gone = loop {
        match node.context.get_async_event() {
            Ok(event) => heard.push(event.kind()),
            Err(error) => break error,
        }
    };
    assert_eq!(gone.errno(), 5);
    heard.retain(|kind| *kind != EventKind::GidChange);
    assert_eq!(heard, [EventKind::PortErr, EventKind::DeviceFatal]);
    assert_eq!(node.completion().status, WcStatus::WrFlushErr);
    assert_eq!(node.cq.poll_cq(&mut [Wc::default()]).unwrap_err().errno(), 5);
    assert_eq!(device.open().unwrap_err().errno(), 19);
    read_line();
}

fn introduce(a: &mut Peer, b: &mut Peer) {
    let (ends_a, ends_b): (Ends, Ends) = (a.ends, b.ends);
    a.tell(&ends_b);
    b.tell(&ends_a);
}

#[test]
fn hosts_talk_over_ipv4_and_ipv6() {
    let Some(link) = Link::new("talk") else { return };
    for gid_index in 0..2 {
        let mut a = Peer::start_in(&link.0[0], &format!("echo {gid_index}"));
        let mut b = Peer::start_in(&link.0[1], &format!("ping {gid_index}"));
        introduce(&mut a, &mut b);
        b.finish();
        a.finish();
    }
}

#[test]
fn a_program_hears_of_addresses_and_of_the_port() {
    let Some(link) = Link::new("watch") else { return };
    let [a, b] = &link.0;
    let mut peer = Peer::start_in(a, "watch");
    let mut next = || line_after(&mut peer.stdout, "event ");
    ip(&format!("-n {a} addr add 10.9.0.7/24 dev v0"));
    assert_eq!(next(), "GidChange");
    ip(&format!("-n {a} addr del 10.9.0.7/24 dev v0"));
    assert_eq!(next(), "GidChange");
    ip(&format!("-n {b} link set v0 down"));
    assert_eq!(next(), "PortErr");
    ip(&format!("-n {b} link set v0 up"));
    assert_eq!(next(), "PortActive");
    peer.stdin.flush().unwrap();
    peer.finish();
}

#[test]
fn a_device_whose_interface_is_deleted_is_gone() {
    let Some(link) = Link::new("gone") else { return };
    let peer = Peer::start_in(&link.0[0], "doomed");
    ip(&format!("-n {} link del v0", link.0[0]));
    peer.finish();
}

#[test]
fn registering_tells_who_holds_the_addresses() {
    let Some(link) = Link::new("held") else { return };
    Peer::start_in(&link.0[0], "held").finish();
}

#[test]
fn traffic_goes_on_when_an_interface_or_an_address_comes_back() {
    for (gid_index, address) in [(0, "10.9.0.1/24"), (1, "2001:db8:9::1/64")] {
        let Some(link) = Link::new("flap") else { return };
        let [a, b] = &link.0;
        let mut first = Peer::start_in(a, &format!("steady {gid_index}"));
        let mut second = Peer::start_in(b, &format!("steady {gid_index}"));
        introduce(&mut first, &mut second);
        std::thread::sleep(Duration::from_millis(100));
        ip(&format!("-n {a} link set v0 down"));
        std::thread::sleep(Duration::from_millis(50));
        ip(&format!("-n {a} link set v0 up"));
        if gid_index == 1 {
            // The kernel takes IPv6 addresses from an interface that goes down.
            ip(&format!("-n {a} addr add {address} dev v0 nodad"));
        }
        std::thread::sleep(Duration::from_millis(100));
        ip(&format!("-n {a} addr del {address} dev v0"));
        std::thread::sleep(Duration::from_millis(50));
        ip(&format!(
            "-n {a} addr add {address} dev v0{}",
            if gid_index == 1 { " nodad" } else { "" }
        ));
        first.finish();
        second.finish();
    }
}
