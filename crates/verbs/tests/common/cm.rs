//! Two ends that meet by IP address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use irdma::cm::{ConnParam, Event, EventChannel, EventKind, Id, MAX_RESOURCES, PortSpace};
use irdma::{QpState, QpType};

use super::{Node, loopback};

pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const LEN: usize = 256;
const PATIENCE: Duration = Duration::from_secs(10);

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
    let server = accept(listener, qp_type, b"from the server");
    let event = expect(&client.channel, EventKind::ConnectResponse);
    assert!(event.private().starts_with(b"from the server\0"));
    set_up(&client.id, &client.node);
    client.id.establish().expect("the last message");
    expect(&listener.channel, EventKind::Established);
    (client, server)
}

/// Accepts the next peer.
pub fn accept(listener: &Listener, qp_type: QpType, private: &[u8]) -> End {
    let mut event = expect(&listener.channel, EventKind::ConnectRequest);
    let id = event.take_id().expect("the new peer's id");
    let node = node(qp_type);
    set_up(&id, &node);
    id.accept(&param(&node, private)).expect("an answer");
    End { channel: listener.channel.clone(), id, node }
}
