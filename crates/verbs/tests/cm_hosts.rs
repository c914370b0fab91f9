//! Connecting by IP address between hosts, and interfaces that change meanwhile.

mod common;

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use common::cm::{channel, connected, echo_once, expect, listen, ping_once, port_of, show_port};
use common::link::{Link, device, ip};
use common::process::{Peer, ROLE, read_line};
use irdma::QpType;
use irdma::cm::{ConnParam, EventKind, Id, PortSpace};

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("echo") => echo(),
        Ok("ping") => ping(),
        Ok("doomed") => doomed(),
        _ => {}
    }
}

/// Serves peers of both IP versions, one after the other.
fn echo() {
    device();
    let listener = listen(QpType::Rc, Ipv6Addr::UNSPECIFIED.into());
    show_port(&listener);
    for _ in 0..read_line().parse().unwrap() {
        echo_once(&listener);
    }
    read_line();
}

/// Talks to the servers whose addresses it reads.
fn ping() {
    device();
    loop {
        match read_line().parse::<SocketAddr>() {
            Ok(addr) => ping_once(addr),
            Err(_) => return,
        }
    }
}

/// Listens on, and connects over, an interface that is deleted.
fn doomed() {
    let channel = channel();
    let gid = device().query_gid(1, 0).unwrap();
    let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    id.bind_addr((gid.to_ip(), 0).into()).unwrap();
    id.listen(0).unwrap();
    id.set_cookie(3);
    let everywhere = listen(QpType::Rc, [0, 0, 0, 0].into());
    println!("@port {}", id.local_addr().unwrap().port());
    let event = expect(&channel, EventKind::DeviceRemoval);
    assert_eq!(event.id(), 3);
    assert_eq!(id.listen(0).unwrap_err().errno(), 22);
    drop((event, id));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| common::cm::accept(&everywhere, b""));
        let client = connected(everywhere.addr);
        assert_eq!(client.id.connect(&ConnParam::default()).unwrap_err().errno(), 22);
        drop(server.join().unwrap());
    });
    read_line();
}

fn tell(peer: &mut Peer, what: &str) {
    writeln!(peer.stdin, "{what}").unwrap();
}

#[test]
fn hosts_connect_over_ipv4_and_ipv6() {
    let Some(link) = Link::new("cm") else { return };
    let mut server = Peer::start_silent_in(&link.0[0], "echo");
    let mut client = Peer::start_silent_in(&link.0[1], "ping");
    let port = port_of(&mut server);
    tell(&mut server, "2");
    for ip in ["10.9.0.1", "2001:db8:9::1"] {
        let addr = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
        tell(&mut client, &addr.to_string());
    }
    client.finish();
    server.finish();
}

#[test]
fn a_wildcard_listens_on_addresses_that_come_later() {
    let Some(link) = Link::new("cmlate") else { return };
    let mut server = Peer::start_silent_in(&link.0[0], "echo");
    let mut client = Peer::start_silent_in(&link.0[1], "ping");
    let port = port_of(&mut server);
    tell(&mut server, "1");
    ip(&format!("-n {} addr add 10.9.0.7/24 dev v0", link.0[0]));
    tell(&mut client, &format!("10.9.0.7:{port}"));
    client.finish();
    server.finish();
}

#[test]
fn who_connects_over_an_interface_hears_of_its_end() {
    let Some(link) = Link::new("cmgone") else { return };
    let mut peer = Peer::start_silent_in(&link.0[0], "doomed");
    port_of(&mut peer);
    ip(&format!("-n {} link del v0", link.0[0]));
    peer.finish();
}
