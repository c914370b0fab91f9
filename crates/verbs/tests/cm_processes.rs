//! Connecting by IP address between processes that share it.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::cm::{
    HERE, Listener, accept, channel, connected, echo_once, expect, listen, node, param, ping_once,
    port_of, resolved, set_up, show_port,
};
use common::process::{Pause, Peer, ROLE, line_after, read_line};
use irdma::cm::{ConnParam, EventChannel, EventKind, Id, Param, PortSpace};
use irdma::{ErrorKind, QpType, Qpn};

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("echo") => echo(),
        Ok("accepter") => accepter(),
        Ok("holder") => holder(),
        Ok("crowded") => crowded(),
        Ok("leaver") => leaver(),
        Ok("datagrams") => datagrams(),
        Ok("nothing") => nothing(),
        Ok("forker") => forker(),
        _ => {}
    }
}

fn addr_of(peer: &mut Peer) -> SocketAddr {
    SocketAddr::new(HERE, port_of(peer))
}

/// Accepts one peer and sends back what it says.
fn echo() {
    let listener = listen(QpType::Rc, [0, 0, 0, 0].into());
    show_port(&listener);
    echo_once(&listener);
    read_line();
}

#[test]
fn processes_on_one_address_connect_to_each_other() {
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start_silent("echo")).collect();
    for peer in &mut peers {
        ping_once(addr_of(peer));
    }
    peers.into_iter().for_each(Peer::finish);
}

#[test]
fn a_port_of_another_process_is_taken_until_it_ends() {
    let mut peer = Peer::start_silent("echo");
    let addr = addr_of(&mut peer);
    for ip in [HERE, [0, 0, 0, 0].into()] {
        let id = Id::create(None, PortSpace::Tcp).unwrap();
        let refused = id.bind_addr((ip, addr.port()).into()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddressInUse, "{ip}");
    }
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    Id::create(None, PortSpace::Tcp).unwrap().bind_addr(addr).unwrap();
}

/// Accepts one peer and says no more.
fn accepter() {
    let listener = listen(QpType::Rc, HERE);
    show_port(&listener);
    let _end = accept(&listener, b"");
    read_line();
}

#[test]
fn a_peer_that_was_killed_is_known_to_be_gone() {
    let mut peer = Peer::start_silent("accepter");
    let end = connected(addr_of(&mut peer));
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    end.id.disconnect().unwrap();
    // The status of an end that nobody answers is -ETIMEDOUT.
    assert_eq!(expect(&end.channel, EventKind::Disconnected).status(), 0);
}

const CROWD: u32 = 100;

/// Accepts a crowd; queue pairs do not matter.
fn crowded() {
    let listener = listen(QpType::Rc, [0, 0, 0, 0].into());
    show_port(&listener);
    let mut ids = Vec::new();
    while ids.len() < CROWD as usize {
        let id = expect(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
        id.accept(&ConnParam { qpn: Qpn::new(ids.len() as u32 + 2), ..ConnParam::default() })
            .unwrap();
        ids.push(id);
    }
    read_line();
}

#[test]
fn a_crowd_that_comes_at_once_is_heard() {
    let mut peer = Peer::start_silent("crowded");
    let addr = addr_of(&mut peer);
    let ids: Vec<_> = (0..CROWD).map(|_| resolved(QpType::Rc, addr)).collect();
    for (qpn, (_, id)) in (2..).zip(&ids) {
        id.connect(&ConnParam { qpn: Qpn::new(qpn), ..ConnParam::default() }).unwrap();
    }
    for (channel, _) in &ids {
        expect(channel, EventKind::ConnectResponse);
    }
    peer.finish();
}

/// Accepts a crowd, ends all connections, and exits at once.
fn leaver() {
    let listener = listen(QpType::Rc, HERE);
    show_port(&listener);
    let mut ids = Vec::new();
    let mut established = 0;
    while established < CROWD {
        let mut event = listener.channel.get_cm_event().unwrap();
        match event.take_id() {
            Some(id) => {
                let qpn = Qpn::new(ids.len() as u32 + 2);
                id.accept(&ConnParam { qpn, ..ConnParam::default() }).unwrap();
                ids.push(id);
            }
            None => established += 1,
        }
    }
    drop(ids);
    irdma::cm::part(Duration::from_secs(10));
    std::process::exit(0);
}

/// More is to be said than the peers' buffers are known to hold.
#[test]
fn whoever_leaves_a_crowd_tells_everybody() {
    let mut peer = Peer::start_silent("leaver");
    let addr = addr_of(&mut peer);
    let ids: Vec<_> = (0..CROWD).map(|_| resolved(QpType::Rc, addr)).collect();
    for (qpn, (channel, id)) in (2..).zip(&ids) {
        id.connect(&ConnParam { qpn: Qpn::new(qpn), ..ConnParam::default() }).unwrap();
        expect(channel, EventKind::ConnectResponse);
        id.establish().unwrap();
    }
    for (channel, _) in &ids {
        expect(channel, EventKind::Disconnected);
    }
    peer.finish();
}

/// Tells one peer of a queue pair for datagrams.
fn datagrams() {
    let listener = listen(QpType::Ud, HERE);
    show_port(&listener);
    let id = expect(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
    id.accept(&ConnParam { qpn: Qpn::new(77), qkey: 5, ..ConnParam::default() }).unwrap();
    read_line();
}

#[test]
fn a_process_tells_another_one_where_datagrams_go() {
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start_silent("datagrams")).collect();
    for peer in &mut peers {
        let (channel, id) = resolved(QpType::Ud, addr_of(peer));
        id.connect(&ConnParam::default()).unwrap();
        let event = expect(&channel, EventKind::Established);
        let Param::Ud(ud) = event.param() else { panic!("{event:?}") };
        assert_eq!((ud.qpn, ud.qkey), (Qpn::new(77), 5));
    }
    peers.into_iter().for_each(Peer::finish);
}

#[test]
fn one_of_many_processes_says_that_nobody_listens() {
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start_silent("echo")).collect();
    let addrs: Vec<SocketAddr> = peers.iter_mut().map(addr_of).collect();
    let free = listen(QpType::Rc, HERE).addr;
    for _ in 0..3 {
        let (channel, id) = resolved(QpType::Rc, free);
        id.connect(&ConnParam::default()).unwrap();
        assert_eq!(expect(&channel, EventKind::Rejected).status(), 8);
    }
    addrs.into_iter().for_each(ping_once);
    peers.into_iter().for_each(Peer::finish);
}

/// Closes its listener before the peer it accepts is there.
fn holder() {
    let listener = listen(QpType::Rc, [0, 0, 0, 0].into());
    show_port(&listener);
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    let id = event.take_id().unwrap();
    drop(event);
    listener.id.destroy();
    println!("@deaf");
    read_line();
    let node = node(QpType::Rc);
    set_up(&id, &node);
    id.accept(&param(&node, b"")).unwrap();
    expect(&listener.channel, EventKind::Established);
    println!("@established");
    read_line();
}

#[test]
fn a_port_is_held_until_the_last_new_connection_is_made() {
    let mut peer = Peer::start_silent("holder");
    let addr = addr_of(&mut peer);
    let (channel, id) = resolved(QpType::Rc, addr);
    let a = node(QpType::Rc);
    id.connect(&param(&a, b"")).unwrap();
    line_after(&mut peer.stdout, "deaf");
    let bind = || Id::create(None, PortSpace::Tcp).unwrap().bind_addr(addr);
    assert_eq!(bind().unwrap_err().kind(), ErrorKind::AddressInUse);
    tell(&mut peer, "accept");
    expect(&channel, EventKind::ConnectResponse);
    set_up(&id, &a);
    id.establish().unwrap();
    line_after(&mut peer.stdout, "established");
    bind().unwrap();
    peer.finish();
}

fn tell(peer: &mut Peer, what: &str) {
    use std::io::Write;
    writeln!(peer.stdin, "{what}").unwrap();
}

/// Case 10: a host without devices has channels and identifiers all the same.
fn nothing() {
    assert!(irdma::Device::list().unwrap().is_empty());
    let channel = channel();
    let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    id.resolve_addr(None, (HERE, 9).into(), Duration::ZERO).unwrap();
    assert_eq!(expect(&channel, EventKind::AddrError).status(), -19);
    let refused = Id::create(None, PortSpace::Tcp).unwrap().bind_addr((HERE, 0).into());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoDevice);
    // A wildcard waits for devices to come.
    let listener = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    listener.listen(0).unwrap();
    println!("@done");
    read_line();
}

#[test]
fn a_host_without_devices_has_channels() {
    let mut peer = Peer::start_silent_env("nothing", &[("IRDMA_DEVICES", "nosuch0")]);
    line_after(&mut peer.stdout, "done");
    peer.finish();
}

#[test]
fn a_stopped_process_does_not_keep_requests_from_others() {
    let mut peers: Vec<Peer> = (0..5).map(|_| Peer::start_silent("echo")).collect();
    let addrs: Vec<SocketAddr> = peers.iter_mut().map(addr_of).collect();
    // From here on everyone knows where packets go; any of them may be who gets the requests.
    let _stays = channel();
    ping_once(addrs[4]);
    let stopped: Vec<Pause> = peers[..3].iter().map(Pause::of).collect();
    ping_once(addrs[3]);
    drop(stopped);
    addrs[..3].iter().for_each(|addr| ping_once(*addr));
    peers.into_iter().for_each(Peer::finish);
}

#[test]
fn duplicates_and_disorder_do_not_disturb() {
    let faults = [("IRDMA_FAULTS", "dup=30%,reorder=30%,seed=7")];
    let mut peer = Peer::start_silent_env("echo", &faults);
    ping_once(addr_of(&mut peer));
    peer.finish();
}

/// Forks with a listener; both go on.
fn forker() {
    let listener = listen(QpType::Rc, [0, 0, 0, 0].into());
    // SAFETY: the child runs code that allocates, which glibc permits after fork.
    match unsafe { libc::fork() } {
        0 => forked_child(listener),
        child => {
            assert!(child > 0);
            show_port(&listener);
            let end = accept(&listener, b"");
            expect(&listener.channel, EventKind::Established);
            drop(end);
            let mut status = 0;
            // SAFETY: the kernel writes the status word.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's status");
        }
    }
    read_line();
}

fn forked_child(inherited: Listener) -> ! {
    let own = std::panic::catch_unwind(move || {
        assert_eq!(inherited.channel.get_cm_event().unwrap_err().errno(), 5);
        assert_eq!(inherited.id.listen(0).unwrap_err().errno(), 5);
        assert_eq!(Id::create(Some(&inherited.channel), PortSpace::Tcp).unwrap_err().errno(), 5);
        inherited.id.destroy();
        drop(inherited.channel);
        let listener = listen(QpType::Rc, [0, 0, 0, 0].into());
        assert_ne!(listener.addr, inherited.addr);
        let (client, server) = common::cm::connect(&listener, QpType::Rc);
        client.id.disconnect().unwrap();
        expect(&server.channel, EventKind::Disconnected);
    });
    // SAFETY: ends the process without running the parent's handlers.
    unsafe { libc::_exit(i32::from(own.is_err())) }
}

#[test]
fn a_forked_child_leaves_its_parents_connections_alone() {
    let mut peer = Peer::start_silent("forker");
    let end = connected(addr_of(&mut peer));
    expect(&end.channel, EventKind::Disconnected);
    peer.finish();
}

#[test]
fn whoever_waits_for_an_event_is_woken_by_one() {
    let channel = EventChannel::create_event_channel().unwrap();
    let waiter = std::thread::spawn({
        let channel = channel.clone();
        move || channel.get_cm_event().unwrap().kind()
    });
    std::thread::sleep(Duration::from_millis(20));
    let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    id.resolve_addr(None, (HERE, 9).into(), Duration::ZERO).unwrap();
    assert_eq!(waiter.join().unwrap(), EventKind::AddrResolved);
    let refused = ConnParam::default();
    assert!(id.connect(&refused).is_err());
}
