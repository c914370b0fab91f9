//! Body of the fuzz target of the connection manager: verbs, messages and time as the input says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use irdma_transport::cm::{CmEventKind, CommId, SidrReply};
use irdma_transport::{Config, Effect, Instant, Meta};
use irdma_wire::FlowKey;
use irdma_wire::cm::{CmMessage, PortSpace, ServiceId};
use irdma_wire::icrc::{Verdict, verify};
use irdma_wire::{Gid, Qpn, mad, parse};

use crate::cm_script::{
    PEER_GUID, PEER_QPN, QPN, SERVICE, connect_reply, connect_request, packet, req, sidr_request,
};
use crate::fuzz::{Input, MAX_ACTIONS};
use crate::node::{Node, PORTS};
use crate::script::{HERE, THERE};

const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));
/// Messages that get a connection on come more often than others.
const ATTRIBUTES: [u8; 14] =
    [0x10, 0x10, 0x10, 0x11, 0x12, 0x13, 0x13, 0x14, 0x14, 0x15, 0x15, 0x16, 0x17, 0x18];
/// Longer than anything is waited for: all tries of an MRA's time each.
const FOR_EVER_NS: u64 = 2_000_000_000_000;

/// An endpoint that connects as the input says; each connection's events keep their order.
pub fn connections(bytes: &[u8]) {
    let mut machine = Machine::new();
    let mut input = Input(bytes);
    for _ in 0..MAX_ACTIONS {
        if input.0.is_empty() {
            break;
        }
        machine.act(&mut input);
        machine.drain();
    }
    machine.end();
}

/// What the program knows of a connection.
#[derive(Debug, Default)]
struct Told {
    established: bool,
    ended: bool,
    over: bool,
}

struct Machine {
    node: Node,
    now: Instant,
    /// Connections that the program has not destroyed.
    known: BTreeMap<CommId, Told>,
    destroyed: BTreeSet<CommId>,
}

impl Machine {
    fn new() -> Self {
        let node = Node::new(HERE, Config::default());
        let (known, destroyed) = (BTreeMap::new(), BTreeSet::new());
        let mut machine = Machine { node, now: Instant::from_millis(1), known, destroyed };
        machine.node.endpoint.cm_listen(1, SERVICE, None).expect("the first one");
        machine
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..=4 => self.datagram(input),
            5 | 6 => self.verb(input),
            _ => {
                self.now = self.now + (1 << input.below(38));
                self.node.endpoint.handle_timeout(self.now);
            }
        }
    }

    /// One of the youngest connections.
    fn pick(&self, input: &mut Input<'_>) -> Option<CommId> {
        let at = input.below(self.known.len().clamp(1, 4) as u8);
        self.known.keys().nth_back(at).copied()
    }

    /// Any bytes as the data of a message, most fields of which then fit what is going on.
    fn datagram(&mut self, input: &mut Input<'_>) {
        let (attribute, how) = (ATTRIBUTES[input.below(14)], input.byte());
        let id = self.pick(input).map_or(0x0040_0000, CommId::get);
        let mut packet = packet(&req());
        packet.payload[17] = attribute;
        let data = &mut packet.payload[mad::HEADER_LEN..];
        let len = if how & 1 == 0 { input.below(4) } else { input.below(128) };
        let raw = input.bytes(len);
        data[..raw.len()].copy_from_slice(raw);
        if how & 1 == 0 {
            // Ids: the peer's few, the receiver's where the message has them.
            let peer_id = u32::from(how >> 1 & 1) + 1;
            data[..4].copy_from_slice(&peer_id.to_be_bytes());
            match attribute {
                0x10 => dress_req(data),
                0x17 => data[8..16].copy_from_slice(&SERVICE.0.to_be_bytes()),
                0x18 => data[..4].copy_from_slice(&id.to_be_bytes()),
                _ => data[4..8].copy_from_slice(&id.to_be_bytes()),
            }
            if attribute == 0x15 {
                data[8..12].copy_from_slice(&(QPN.get() << 8).to_be_bytes());
            }
        }
        let src = if how & 0x1C != 0 { THERE } else { STRANGER };
        let meta = Meta { src, src_port: 5, dst: HERE, tos: 0, ttl: 64, index: 0, ifindex: 0 };
        let bytes = packet.emit(&FlowKey { src, dst: HERE, src_port: 5 }, 0);
        match how & 64 {
            0 => self.node.endpoint.handle_datagram(self.now, &meta, &bytes),
            _ => self.node.endpoint.handle_unclaimed(self.now, &meta, &bytes),
        };
    }

    /// A refusal is as welcome as a success.
    fn verb(&mut self, input: &mut Input<'_>) {
        let (choice, now) = (input.below(12), self.now);
        let id = self.pick(input);
        let endpoint = &mut self.node.endpoint;
        let begun = match choice {
            0 => endpoint.cm_connect(now, &connect_request()),
            1 => endpoint.cm_sidr_request(now, &sidr_request()),
            2 => {
                let service = ServiceId::rdma_ip(PortSpace::Udp, input.below(3) as u16);
                return drop(endpoint.cm_listen(2, service, Some(HERE)));
            }
            3 => return endpoint.cm_unlisten(2),
            _ => {
                return id.map_or((), |id| self.verb_on(id, choice));
            }
        };
        self.known.insert(begun.expect("good values"), Told::default());
    }

    fn verb_on(&mut self, id: CommId, choice: usize) {
        let (now, endpoint) = (self.now, &mut self.node.endpoint);
        let reply = SidrReply { status: 0, qpn: QPN, qkey: 1, private_data: &[] };
        let _ = match choice {
            4 | 5 => endpoint.cm_accept(now, id, &connect_reply()),
            6 => endpoint.cm_establish(now, id),
            7 => endpoint.cm_notify(now, id),
            8 => endpoint.cm_reject(now, id, 28, &[1]),
            9 => endpoint.cm_disconnect(now, id, &[2]),
            10 => endpoint.cm_sidr_reply(now, id, &reply),
            _ => {
                endpoint.cm_destroy(now, id);
                self.known.remove(&id);
                self.destroyed.insert(id);
                Ok(())
            }
        };
    }

    /// What is sent is well-formed, what the program is told is possible.
    fn drain(&mut self) {
        let mut buffer = vec![0; 65_536];
        while let Some(transmit) = self.node.endpoint.poll_transmit(self.now, &mut buffer) {
            let flow =
                FlowKey { src: transmit.src, dst: transmit.dst, src_port: PORTS[transmit.port] };
            let bytes = &buffer[..transmit.len];
            assert_eq!(verify(&flow, 0, bytes), Verdict::Good);
            let packet = parse(bytes).expect("well-formed");
            assert_eq!(packet.headers.bth.dest_qpn, Qpn::GSI);
            CmMessage::parse(packet.payload).expect("well-formed");
        }
        while let Some(effect) = self.node.endpoint.poll_effect() {
            if let Effect::Cm(event) = effect {
                self.check(event.id, &event.kind);
            }
        }
    }

    fn check(&mut self, id: CommId, kind: &CmEventKind) {
        if matches!(kind, CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. }) {
            assert!(!self.known.contains_key(&id) && !self.destroyed.contains(&id), "{id} again");
            self.known.insert(id, Told::default());
            return;
        }
        let told = self.known.get_mut(&id);
        let told = told.unwrap_or_else(|| panic!("{kind:?} for {id}, which nobody knows"));
        assert!(!told.over, "{kind:?} after the end of {id}");
        match kind {
            CmEventKind::Established | CmEventKind::Response(_) => {
                assert!(!told.established && !told.ended, "{kind:?} for {id}, {told:?}");
                told.established = true;
            }
            CmEventKind::DisconnectRequested { .. } => {
                assert!(!told.ended, "{id} ends twice");
                told.ended = true;
            }
            CmEventKind::Disconnected { .. } => {
                assert!(told.established && !told.ended, "{id} ends out of turn");
                told.ended = true;
            }
            CmEventKind::TimewaitExit => told.over = true,
            CmEventKind::Rejected { .. } | CmEventKind::Unreachable => {
                assert!(!told.ended, "{kind:?} for {id}, which has ended");
                told.ended = true;
            }
            _ => told.ended = true,
        }
    }

    /// Nothing is left of connections that were destroyed, once their packets are gone.
    fn end(&mut self) {
        for id in std::mem::take(&mut self.known).into_keys() {
            self.node.endpoint.cm_destroy(self.now, id);
            self.destroyed.insert(id);
        }
        self.now = self.now + FOR_EVER_NS;
        self.node.endpoint.handle_timeout(self.now);
        self.drain();
        assert_eq!(self.node.endpoint.cm_count(), 0);
    }
}

fn dress_req(data: &mut [u8]) {
    data[8..16].copy_from_slice(&SERVICE.0.to_be_bytes());
    data[16..24].copy_from_slice(&PEER_GUID.to_be_bytes());
    data[32..35].copy_from_slice(&PEER_QPN.get().to_be_bytes()[1..]);
    // One of a few queue pairs.
    data[34] ^= data[3];
    data[50] = 0x37;
    data[56..72].copy_from_slice(&Gid::from(THERE).0);
    data[72..88].copy_from_slice(&Gid::from(HERE).0);
}
