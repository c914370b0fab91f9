//! Connecting by IP address, both ends in this process.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use common::cm::{
    End, HERE, LEN, accept, channel, connect, expect, expect_nothing, listen, node, param,
    resolved, set_up,
};
use irdma::cm::{ConnParam, EventKind, Id, Param, PortSpace, UD_QKEY};
use irdma::{ErrorKind, QpState, QpType, SendData, SendFlags, SendOp, SendWr, UdDest, WcOpcode};

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn id(space: PortSpace) -> Id {
    Id::create(None, space).unwrap()
}

fn kind<T: std::fmt::Debug>(result: irdma::Result<T>) -> ErrorKind {
    result.expect_err("a refusal").kind()
}

/// Sends a message each way.
fn talk(a: &End, b: &End) {
    for (seed, from, to) in [(3, &a.node, &b.node), (4, &b.node, &a.node)] {
        to.post_recv(1, LEN, LEN);
        from.fill(0, LEN, seed);
        from.post(2, SendOp::Send { imm: None }, 0, LEN);
        assert_eq!(from.complete().opcode, WcOpcode::Send);
        assert_eq!(to.complete().opcode, WcOpcode::Recv);
        to.expect_bytes(LEN, LEN, seed);
    }
}

fn part(from: &End, to: &End) {
    from.id.disconnect().unwrap();
    expect(&to.channel, EventKind::Disconnected);
    expect_nothing(&from.channel);
    to.id.disconnect().unwrap();
    expect(&from.channel, EventKind::Disconnected);
}

#[test]
fn a_reliable_connection_is_made_used_and_ended() {
    let listener = listen(QpType::Rc, ANY);
    let (client, server) = connect(&listener, QpType::Rc);
    assert_eq!(server.id.local_addr(), Some(listener.addr));
    assert_eq!(server.id.peer_addr(), client.id.local_addr());
    assert_eq!(client.id.peer_addr(), Some(listener.addr));
    assert_eq!(server.id.device().unwrap().get_netdev(), "lo");
    assert_eq!((client.id.port(), listener.id.port()), (1, 0));
    talk(&client, &server);
    part(&client, &server);
}

#[test]
fn the_server_may_end_the_connection_too() {
    let listener = listen(QpType::Rc, HERE);
    let (client, server) = connect(&listener, QpType::Rc);
    part(&server, &client);
}

#[test]
fn who_ends_a_connection_again_is_not_refused() {
    let listener = listen(QpType::Rc, HERE);
    let (client, server) = connect(&listener, QpType::Rc);
    client.id.disconnect().unwrap();
    client.id.disconnect().unwrap();
    expect(&server.channel, EventKind::Disconnected);
    server.id.disconnect().unwrap();
    server.id.disconnect().unwrap();
    expect(&client.channel, EventKind::Disconnected);
    client.id.disconnect().unwrap();
}

/// As by the kernel: programs clean up so whatever has become of their attempt.
#[test]
fn who_ends_an_attempt_is_not_refused() {
    let (channel, id) = resolved(QpType::Rc, (HERE, 9).into());
    id.connect(&ConnParam::default()).unwrap();
    id.disconnect().unwrap();
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 8);
    id.disconnect().unwrap();
    expect_nothing(&channel);
}

#[test]
fn an_unreliable_connection_carries_messages() {
    let listener = listen(QpType::Uc, ANY);
    let (client, server) = connect(&listener, QpType::Uc);
    talk(&client, &server);
}

#[test]
fn both_sides_agree_on_resources_and_see_the_whole_private_data() {
    let listener = listen(QpType::Rc, ANY);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    let (a, b) = (node(QpType::Rc), node(QpType::Rc));
    let ask = ConnParam { responder_resources: 3, initiator_depth: 5, ..param(&a, b"ask") };
    id.connect(&ConnParam { retry_count: 4, rnr_retry_count: 5, srq: true, ..ask }).unwrap();
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    let Param::Conn(info) = event.param().clone() else { panic!("{event:?}") };
    assert_eq!((info.responder_resources, info.initiator_depth), (5, 3));
    assert_eq!((info.retry_count, info.rnr_retry_count, info.srq), (4, 5, true));
    assert_eq!((info.qpn, info.private.len()), (a.qp.qpn(), 56));
    assert!(info.private.starts_with(b"ask\0\0"));
    let peer = event.take_id().unwrap();
    assert!(event.take_id().is_none());
    set_up(&peer, &b);
    // As many as the device can, but no more than the peer asked for.
    peer.accept(&param(&b, b"answer")).unwrap();
    let event = expect(&channel, EventKind::ConnectResponse);
    let Param::Conn(info) = event.param().clone() else { panic!("{event:?}") };
    assert_eq!((info.responder_resources, info.initiator_depth), (3, 5));
    assert_eq!((info.qpn, info.private.len()), (b.qp.qpn(), 196));
    set_up(&id, &a);
    let attr = a.qp.query_qp().unwrap().0;
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (3, 5));
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.timeout), (4, 7, 17));
}

#[test]
fn a_datagram_peer_tells_its_queue_pair() {
    let listener = listen(QpType::Ud, ANY);
    let (channel, id) = resolved(QpType::Ud, listener.addr);
    let a = node(QpType::Ud);
    set_up(&id, &a);
    id.connect(&param(&a, b"who is there")).unwrap();
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    assert!(event.private().starts_with(b"who is there\0"));
    assert_eq!(event.private().len(), 180);
    let peer = event.take_id().unwrap();
    let b = node(QpType::Ud);
    set_up(&peer, &b);
    peer.accept(&param(&b, b"me")).unwrap();
    let event = expect(&channel, EventKind::Established);
    let Param::Ud(ud) = event.param() else { panic!("{event:?}") };
    assert_eq!((ud.qpn, ud.qkey, ud.private.len()), (b.qp.qpn(), UD_QKEY, 136));
    assert!(ud.private.starts_with(b"me\0"));
    expect_nothing(&listener.channel);

    let ah = a.pd.create_ah(&ud.ah_attr).unwrap();
    b.post_recv(1, 0, LEN + 40);
    a.fill(0, LEN, 7);
    let sges = [a.sge(0, LEN)];
    a.qp.post_send(&SendWr {
        wr_id: 2,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        ud: Some(UdDest { ah: std::sync::Arc::clone(ah.transport()), qpn: ud.qpn, qkey: ud.qkey }),
    })
    .unwrap();
    a.complete();
    b.complete();
    b.expect_bytes(40, LEN, 7);
}

#[test]
fn a_refused_peer_learns_why() {
    let listener = listen(QpType::Rc, ANY);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    id.connect(&param(&node(QpType::Rc), b"please")).unwrap();
    let peer = expect(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
    peer.reject(b"no").unwrap();
    let event = expect(&channel, EventKind::Rejected);
    assert_eq!((event.status(), event.private().len()), (28, 148));
    assert!(event.private().starts_with(b"no\0"));
    assert_eq!(kind(peer.accept(&ConnParam::default())), ErrorKind::Invalid);

    let listener = listen(QpType::Ud, ANY);
    let (channel, id) = resolved(QpType::Ud, listener.addr);
    id.connect(&ConnParam::default()).unwrap();
    expect(&listener.channel, EventKind::ConnectRequest).take_id().unwrap().reject(b"").unwrap();
    assert_eq!(expect(&channel, EventKind::Unreachable).status(), 2);
}

#[test]
fn a_peer_whose_event_is_dropped_is_refused() {
    let listener = listen(QpType::Rc, ANY);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    id.connect(&ConnParam::default()).unwrap();
    drop(expect(&listener.channel, EventKind::ConnectRequest));
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 28);
}

#[test]
fn nobody_listens() {
    let free = listen(QpType::Rc, ANY).addr;
    let (channel, id) = resolved(QpType::Rc, free);
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 8);
    let (channel, id) = resolved(QpType::Ud, free);
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventKind::Unreachable).status(), 1);
}

#[test]
fn a_port_that_is_bound_does_not_listen() {
    let bound = id(PortSpace::Tcp);
    bound.bind_addr((ANY, 0).into()).unwrap();
    let port = bound.local_addr().unwrap().port();
    let (channel, id) = resolved(QpType::Rc, (HERE, port).into());
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 8);
}

#[test]
fn a_listener_that_ends_refuses_who_waits() {
    let listener = listen(QpType::Rc, ANY);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    id.connect(&ConnParam::default()).unwrap();
    common::eventually("a peer waits", || is_readable(&listener.channel));
    listener.id.destroy();
    expect_nothing(&listener.channel);
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 28);
}

fn is_readable(channel: &irdma::cm::EventChannel) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn no_more_peers_wait_than_the_backlog() {
    let listener = {
        let channel = channel();
        let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
        id.listen(1).unwrap();
        (channel, id)
    };
    let addr = SocketAddr::new(HERE, listener.1.local_addr().unwrap().port());
    let (first, a) = resolved(QpType::Rc, addr);
    let (second, b) = resolved(QpType::Rc, addr);
    let from = |qpn| ConnParam { qpn: irdma::Qpn::new(qpn), ..ConnParam::default() };
    a.connect(&from(7)).unwrap();
    common::eventually("a peer waits", || is_readable(&listener.0));
    b.connect(&from(8)).unwrap();
    assert_eq!(expect(&second, EventKind::Rejected).status(), 28);
    expect_nothing(&first);
    let mut event = expect(&listener.0, EventKind::ConnectRequest);
    assert_eq!(event.take_id().unwrap().peer_addr(), a.local_addr());
}

#[test]
fn destroying_waits_for_the_acknowledgement() {
    let (channel, id) = resolved(QpType::Rc, (HERE, 9).into());
    let again = channel.clone();
    id.set_cookie(77);
    id.connect(&ConnParam::default()).unwrap();
    let event = expect(&channel, EventKind::Rejected);
    assert_eq!((event.id(), event.listener()), (77, None));
    let (tell, told) = mpsc::channel();
    let destroyer = std::thread::spawn(move || {
        id.destroy();
        tell.send(()).unwrap();
    });
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "an event is out");
    drop(event);
    told.recv_timeout(Duration::from_secs(10)).unwrap();
    destroyer.join().unwrap();
    expect_nothing(&again);
}

#[test]
fn events_name_who_they_are_about() {
    let listener = listen(QpType::Rc, ANY);
    listener.id.set_cookie(5);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    id.set_cookie(6);
    let (a, b) = (node(QpType::Rc), node(QpType::Rc));
    id.connect(&param(&a, b"")).unwrap();
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    assert_eq!((event.id(), event.listener()), (0, Some(5)));
    let peer = event.take_id().unwrap();
    peer.set_cookie(8);
    set_up(&peer, &b);
    peer.accept(&param(&b, b"")).unwrap();
    assert_eq!(expect(&channel, EventKind::ConnectResponse).id(), 6);
    set_up(&id, &a);
    id.establish().unwrap();
    let event = expect(&listener.channel, EventKind::Established);
    assert_eq!((event.id(), event.listener(), event.private().len()), (8, None, 0));
}

#[test]
fn events_follow_to_another_channel() {
    let (old, new) = (channel(), channel());
    let id = Id::create(Some(&old), PortSpace::Tcp).unwrap();
    id.resolve_addr(None, (HERE, 9).into(), Duration::ZERO).unwrap();
    id.migrate(&new).unwrap();
    expect_nothing(&old);
    expect(&new, EventKind::AddrResolved);
    id.resolve_route(Duration::ZERO).unwrap();
    expect(&new, EventKind::RouteResolved);
}

#[test]
fn traffic_before_the_last_message_counts_as_it() {
    let listener = listen(QpType::Rc, ANY);
    let (channel, id) = resolved(QpType::Rc, listener.addr);
    let a = node(QpType::Rc);
    id.connect(&param(&a, b"")).unwrap();
    let b = accept(&listener, b"");
    b.node.post_recv(1, 0, LEN);
    expect(&channel, EventKind::ConnectResponse);
    set_up(&id, &a);
    a.post(1, SendOp::Send { imm: None }, 0, LEN);
    a.complete();
    assert_eq!(kind(b.id.notify(irdma::EventKind::QpFatal)), ErrorKind::Invalid);
    b.id.notify(irdma::EventKind::CommEst).unwrap();
    expect(&listener.channel, EventKind::Established);
    id.establish().unwrap();
    expect_nothing(&listener.channel);
}

#[test]
fn a_taken_port_is_refused() {
    let first = id(PortSpace::Tcp);
    first.bind_addr((HERE, 0).into()).unwrap();
    let port = first.local_addr().unwrap().port();
    assert_eq!(kind(id(PortSpace::Tcp).bind_addr((HERE, port).into())), ErrorKind::AddressInUse);
    assert_eq!(kind(id(PortSpace::Tcp).bind_addr((ANY, port).into())), ErrorKind::AddressInUse);
    id(PortSpace::Udp).bind_addr((HERE, port).into()).unwrap();
    drop(first);
    let all = id(PortSpace::Tcp);
    all.bind_addr((ANY, port).into()).unwrap();
    assert_eq!(kind(id(PortSpace::Tcp).bind_addr((HERE, port).into())), ErrorKind::AddressInUse);
}

#[test]
fn a_shared_port_has_one_listener() {
    let shared = || {
        let id = id(PortSpace::Tcp);
        id.set_reuseaddr(true).unwrap();
        id
    };
    let (a, b) = (shared(), shared());
    a.bind_addr((ANY, 0).into()).unwrap();
    let port = a.local_addr().unwrap().port();
    drop(a);
    let a = shared();
    a.bind_addr((ANY, port).into()).unwrap();
    b.bind_addr((ANY, port).into()).unwrap();
    assert_eq!(kind(b.set_reuseaddr(false)), ErrorKind::Invalid);
    a.listen(0).unwrap();
    assert_eq!(kind(b.listen(0)), ErrorKind::AddressInUse);
    assert_eq!(kind(shared().bind_addr((ANY, port).into())), ErrorKind::AddressInUse);
    drop(a);
    b.listen(0).unwrap();
}

#[test]
fn families_that_are_kept_apart_share_a_port() {
    let only = |addr: IpAddr, port| {
        let id = id(PortSpace::Tcp);
        id.set_afonly(true).unwrap();
        id.bind_addr((addr, port).into()).map(|()| id)
    };
    let four = only(ANY, 0).unwrap();
    let port = four.local_addr().unwrap().port();
    let six = only(Ipv6Addr::UNSPECIFIED.into(), port).unwrap();
    assert_eq!(kind(only(ANY, port)), ErrorKind::AddressInUse);
    assert_eq!(kind(id(PortSpace::Tcp).bind_addr((ANY, port).into())), ErrorKind::AddressInUse);
    six.listen(0).unwrap();
    let (channel, id) = resolved(QpType::Rc, (HERE, port).into());
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventKind::Rejected).status(), 8, "IPv4 is not listened for");
}

#[test]
fn a_client_can_name_its_source() {
    let listener = listen(QpType::Rc, ANY);
    let channel = channel();
    let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    let source = SocketAddr::new(HERE, 0);
    id.resolve_addr(Some(source), listener.addr, Duration::ZERO).unwrap();
    expect(&channel, EventKind::AddrResolved);
    assert_eq!(id.local_addr().unwrap().ip(), HERE);
    assert_ne!(id.local_addr().unwrap().port(), 0);
}

#[test]
fn this_host_is_where_no_address_is_given() {
    let listener = listen(QpType::Rc, ANY);
    let (_channel, id) = resolved(QpType::Rc, (ANY, listener.addr.port()).into());
    assert_eq!(id.peer_addr(), Some(listener.addr));
    assert_eq!(id.local_addr().unwrap().ip(), HERE);
}

#[test]
fn addresses_that_lead_nowhere_are_refused() {
    let foreign: SocketAddr = "198.51.100.7:9".parse().unwrap();
    assert_eq!(kind(id(PortSpace::Tcp).bind_addr(foreign)), ErrorKind::AddressNotAvailable);
    let six: SocketAddr = "[::1]:9".parse().unwrap();
    let four = id(PortSpace::Tcp);
    four.bind_addr((HERE, 0).into()).unwrap();
    let refused = four.resolve_addr(None, six, Duration::ZERO);
    assert_eq!(kind(refused), ErrorKind::Invalid);
    let refused = id(PortSpace::Tcp).resolve_addr(Some((HERE, 0).into()), six, Duration::ZERO);
    assert_eq!(kind(refused), ErrorKind::Invalid);
}

#[test]
fn calls_out_of_order_are_refused() {
    let idle = id(PortSpace::Tcp);
    let none = ConnParam::default();
    assert_eq!(kind(idle.resolve_route(Duration::ZERO)), ErrorKind::Invalid);
    assert_eq!(kind(idle.connect(&none)), ErrorKind::Invalid);
    assert_eq!(kind(idle.accept(&none)), ErrorKind::Invalid);
    assert_eq!(kind(idle.reject(b"")), ErrorKind::Invalid);
    assert_eq!(kind(idle.establish()), ErrorKind::Invalid);
    assert_eq!(kind(idle.disconnect()), ErrorKind::Invalid);
    assert_eq!(kind(idle.notify(irdma::EventKind::CommEst)), ErrorKind::Invalid);
    assert_eq!(kind(idle.init_qp_attr(QpState::Init)), ErrorKind::Invalid);
    let (_, ready) = resolved(QpType::Rc, (HERE, 9).into());
    assert_eq!(kind(ready.bind_addr((HERE, 0).into())), ErrorKind::Invalid);
    assert_eq!(kind(ready.listen(0)), ErrorKind::Invalid);
    assert_eq!(kind(ready.init_qp_attr(QpState::Rtr)), ErrorKind::Invalid);
    assert_eq!(kind(ready.init_qp_attr(QpState::Err)), ErrorKind::Invalid);
    assert_eq!(kind(ready.connect(&ConnParam { private: &[0; 57], ..none })), ErrorKind::Invalid);
    let many = ConnParam { responder_resources: 254, ..none };
    assert_eq!(kind(ready.connect(&many)), ErrorKind::Invalid);
    ready.connect(&ConnParam { private: &[0; 56], ..none }).unwrap();
    assert_eq!(kind(ready.connect(&none)), ErrorKind::Invalid);
    assert_eq!(kind(ready.accept(&none)), ErrorKind::Invalid);
    assert_eq!(kind(ready.set_ack_timeout(32)), ErrorKind::Invalid);
    assert_eq!(kind(id(PortSpace::Udp).set_ack_timeout(3)), ErrorKind::Invalid);
    let odd = Id::create_for(None, PortSpace::Ib, QpType::XrcRecv);
    assert_eq!(kind(odd), ErrorKind::Invalid);
}

#[test]
fn options_reach_the_connection() {
    let listener = listen(QpType::Rc, ANY);
    let channel = channel();
    let id = Id::create(Some(&channel), PortSpace::Tcp).unwrap();
    id.set_tos(0x48);
    id.set_ack_timeout(10).unwrap();
    id.resolve_addr(None, listener.addr, Duration::ZERO).unwrap();
    id.resolve_route(Duration::ZERO).unwrap();
    expect(&channel, EventKind::AddrResolved);
    expect(&channel, EventKind::RouteResolved);
    assert_eq!(id.path().map(|path| path.traffic_class), Some(0x48));
    let a = node(QpType::Rc);
    id.connect(&param(&a, b"")).unwrap();
    let b = accept(&listener, b"");
    expect(&channel, EventKind::ConnectResponse);
    set_up(&id, &a);
    let attr = a.qp.query_qp().unwrap().0;
    assert_eq!((attr.timeout, attr.av.traffic_class), (10, 0x48));
    assert_eq!(b.node.qp.query_qp().unwrap().0.av.traffic_class, 0x48);
}

#[test]
fn many_connections_come_and_go() {
    let listener = listen(QpType::Rc, ANY);
    for _ in 0..50 {
        let (client, server) = connect(&listener, QpType::Rc);
        talk(&client, &server);
        part(&client, &server);
    }
}
