//! Two ends that meet by IP address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use irdma::cm::{ConnParam, Event, EventChannel, EventKind, Id, MAX_RESOURCES, PortSpace};
use irdma::{QpState, QpType, SendOp};

use super::process::{Peer, line_after};
use super::{Node, loopback};

pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const LEN: usize = 256;
const PATIENCE: Duration = Duration::from_secs(20);

pub fn channel() -> EventChannel {
    EventChannel::create_event_channel().expect("an event channel")
}

/// The next event, which must be of this kind.
pub fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.get_cm_event_within(PATIENCE).expect("no error");
    let event = event.unwrap_or_else(|| panic!("no {kind:?} within {PATIENCE:?}"));
    assert_eq!(event.kind(), kind, "{event:?}");
    event
}

/// Nothing waits, and nothing comes for a moment.
pub fn expect_nothing(channel: &EventChannel) {
    let event = channel.get_cm_event_within(Duration::from_millis(50)).expect("no error");
    assert!(event.is_none(), "{event:?}");
}

pub fn space_of(qp_type: QpType) -> PortSpace {
    if qp_type == QpType::Ud { PortSpace::Udp } else { PortSpace::Tcp }
}

/// A listener and where it listens.
pub struct Listener {
    pub channel: EventChannel,
    pub id: Id,
    pub addr: SocketAddr,
}

pub fn show_port(listener: &Listener) {
    println!("@port {}", listener.addr.port());
}

/// The port that another process shows.
pub fn port_of(peer: &mut Peer) -> u16 {
    line_after(&mut peer.stdout, "port ").parse().expect("a port")
}

pub fn listen(qp_type: QpType, addr: IpAddr) -> Listener {
    let channel = channel();
    let id = Id::create_for(Some(&channel), space_of(qp_type), qp_type).expect("an id");
    id.bind_addr((addr, 0).into()).expect("a free port");
    id.listen(0).expect("a listener");
    let addr = SocketAddr::new(HERE, id.local_addr().expect("an address").port());
    Listener { channel, id, addr }
}

/// An identifier that can connect to `addr`.
pub fn resolved(qp_type: QpType, addr: SocketAddr) -> (EventChannel, Id) {
    let channel = channel();
    let id = Id::create_for(Some(&channel), space_of(qp_type), qp_type).expect("an id");
    id.resolve_addr(None, addr, PATIENCE).expect("a way");
    expect(&channel, EventKind::AddrResolved);
    id.resolve_route(PATIENCE).expect("a route");
    expect(&channel, EventKind::RouteResolved);
    (channel, id)
}

pub fn node(qp_type: QpType) -> Node {
    Node::new(&loopback(), qp_type, 4 * LEN)
}

/// On the device that leads to the peer.
pub fn node_of(id: &Id) -> Node {
    Node::new(&id.device().expect("a device"), id.qp_type(), 4 * LEN)
}

/// Connects to a listener of another process.
pub fn connected(addr: SocketAddr) -> End {
    let (channel, id) = resolved(QpType::Rc, addr);
    let node = node_of(&id);
    id.connect(&param(&node, b"")).expect("a request");
    expect(&channel, EventKind::ConnectResponse);
    set_up(&id, &node);
    id.establish().expect("the last message");
    End { channel, id, node }
}

/// Accepts one peer, sends back what it says, and sees it leave.
pub fn echo_once(listener: &Listener) {
    let end = accept(listener, b"");
    end.node.post_recv(1, 0, LEN);
    expect(&listener.channel, EventKind::Established);
    end.node.complete();
    end.node.post(2, SendOp::Send { imm: None }, 0, LEN);
    end.node.complete();
    expect(&listener.channel, EventKind::Disconnected);
    end.id.disconnect().expect("an end");
}

/// Talks to a process that echoes, and leaves.
pub fn ping_once(addr: SocketAddr) {
    let end = connected(addr);
    end.node.post_recv(1, LEN, LEN);
    end.node.fill(0, LEN, 9);
    end.node.post(2, SendOp::Send { imm: None }, 0, LEN);
    end.node.complete();
    end.node.complete();
    end.node.expect_bytes(LEN, LEN, 9);
    end.id.disconnect().expect("an end");
    expect(&end.channel, EventKind::Disconnected);
}

pub fn param<'a>(node: &Node, private: &'a [u8]) -> ConnParam<'a> {
    ConnParam {
        private,
        responder_resources: MAX_RESOURCES,
        initiator_depth: MAX_RESOURCES,
        retry_count: 7,
        rnr_retry_count: 7,
        qpn: node.qp.qpn(),
        ..ConnParam::default()
    }
}

/// Sets a queue pair up as the identifier says.
pub fn set_up(id: &Id, node: &Node) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attr, mask) = id.init_qp_attr(state).expect("attributes");
        node.qp.modify_qp(&attr, mask).unwrap_or_else(|error| panic!("{state:?}: {error}"));
    }
}

/// One end of a connection.
pub struct End {
    pub channel: EventChannel,
    pub id: Id,
    pub node: Node,
}

/// Connects to a listener of this process.
pub fn connect(listener: &Listener, qp_type: QpType) -> (End, End) {
    let (channel, id) = resolved(qp_type, listener.addr);
    let client = End { channel, id, node: node(qp_type) };
    client.id.connect(&param(&client.node, b"from the client")).expect("a request");
    let server = accept(listener, b"from the server");
    let event = expect(&client.channel, EventKind::ConnectResponse);
    assert!(event.private().starts_with(b"from the server\0"));
    set_up(&client.id, &client.node);
    client.id.establish().expect("the last message");
    expect(&listener.channel, EventKind::Established);
    (client, server)
}

/// Accepts the next peer.
pub fn accept(listener: &Listener, private: &[u8]) -> End {
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    let id = event.take_id().expect("the new peer's id");
    let node = node_of(&id);
    set_up(&id, &node);
    id.accept(&param(&node, private)).expect("an answer");
    End { channel: listener.channel.clone(), id, node }
}
