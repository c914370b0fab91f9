//! Scripts of the connection manager: one endpoint against a peer that the test writes message by
//! message.
//!
//! The endpoint is at 10.0.0.1, the peer at 10.0.0.2. Messages are shown as text: the name, the
//! sender's and the receiver's id (`us`, `them`, `-` for none), then what matters.

use irdma_transport::cm::{
    CmEvent, CmEventKind, CommId, ConnectReply, ConnectRequest, SidrRequest,
};
use irdma_transport::{
    AddressVector, Config, Disposition, DropReason, Effect, Instant, Meta, QpType, Result,
};
use irdma_wire::cm::{
    About, CmMessage, CmPath, Drep, Dreq, Mra, PortSpace, Rej, Rep, Req, Rtu, ServiceId, SidrRep,
    SidrReq, Transport,
};
use irdma_wire::icrc::{Verdict, verify};
use irdma_wire::{Deth, FlowKey, Opcode, Operation, Position, Psn, Qpn, Service, mad, parse};

use crate::node::{Node, PORTS};
use crate::packet::Pkt;
use crate::script::{HERE, THERE};

/// The peer's id of the connection.
pub const PEER_ID: u32 = 0x2244_6688;
/// The peer's transaction.
pub const PEER_TID: u64 = 0x0000_0002_8866_4422;
/// The peer's GUID.
pub const PEER_GUID: u64 = 0x5054_00FF_FE77_0003;
/// The peer's queue pair.
pub const PEER_QPN: Qpn = Qpn::from_parts(77, 5);
/// The endpoint's GUID.
pub const GUID: u64 = 0x5054_00FF_FE77_0002;
/// The endpoint's queue pair, which nobody looks for.
pub const QPN: Qpn = Qpn::from_parts(1, 9);
/// The service that is asked for.
pub const SERVICE: ServiceId = ServiceId::rdma_ip(PortSpace::Tcp, 7480);
/// The token of its listener.
pub const LISTENER: u64 = 99;
/// When a message is repeated: 4.096 us * 2^20.
pub const RESPONSE_NS: u64 = 4096 << 20;
/// How long a connection is in TIMEWAIT: 4.096 us * 2^17.
pub const TIMEWAIT_NS: u64 = 4096 << 17;
const ACK_TIMEOUT: u8 = 17;

/// An endpoint, and the peer's hand.
pub struct CmScript {
    /// The machine under test.
    pub node: Node,
    /// The time, which only [`CmScript::wait`] moves.
    pub now: Instant,
    /// The connection that the last event, or request of this side, was about.
    pub id: CommId,
    /// Events that nobody took.
    events: Vec<CmEvent>,
    last_psn: Option<Psn>,
}

impl CmScript {
    /// An endpoint that has begun to connect.
    ///
    /// # Panics
    /// When it does not.
    pub fn connecting() -> Self {
        let mut node = Node::new(HERE, Config::default());
        let now = Instant::from_millis(1000);
        let id = node.endpoint.cm_connect(now, &connect_request()).expect("asked");
        let mut script = CmScript { node, now, id, events: Vec::new(), last_psn: None };
        assert_eq!(script.sent_text(), ["REQ us -"]);
        script
    }

    /// An endpoint that listens.
    ///
    /// # Panics
    /// When it does not.
    pub fn listening() -> Self {
        let mut script = CmScript::connecting();
        script.node = Node::new(HERE, Config::default());
        script.last_psn = None;
        script.node.endpoint.cm_listen(LISTENER, SERVICE, None).expect("listens");
        script
    }

    /// One that was asked for a connection.
    ///
    /// # Panics
    /// When it does not take the request.
    pub fn asked() -> Self {
        let mut script = CmScript::listening();
        assert_eq!(script.exchange(&req()), [""; 0]);
        assert_eq!(script.events_text(), ["Request"]);
        script
    }

    /// One that accepted a connection.
    ///
    /// # Panics
    /// When it does not.
    pub fn accepting() -> Self {
        let mut script = CmScript::asked();
        script.accept().expect("accepts");
        assert_eq!(script.sent_text(), ["REP us them"]);
        script
    }

    /// One that is connected, having been asked.
    ///
    /// # Panics
    /// When it is not.
    pub fn passive() -> Self {
        let mut script = CmScript::accepting();
        assert_eq!(script.exchange(&script.rtu()), [""; 0]);
        assert_eq!(script.events_text(), ["Established"]);
        script
    }

    /// One that is connected, having asked.
    ///
    /// # Panics
    /// When it is not.
    pub fn active() -> Self {
        let mut script = CmScript::connecting();
        assert_eq!(script.exchange(&script.rep()), [""; 0]);
        assert_eq!(script.events_text(), ["Response"]);
        script.node.endpoint.cm_establish(script.now, script.id).expect("ready");
        assert_eq!(script.sent_text(), ["RTU us them"]);
        script
    }

    /// Accepts the request with [`connect_reply`].
    pub fn accept(&mut self) -> Result<()> {
        self.node.endpoint.cm_accept(self.now, self.id, &connect_reply())
    }

    /// How the peer's messages arrive.
    pub fn meta(&self) -> Meta {
        Meta { src: THERE, src_port: 55410, dst: HERE, tos: 0, ttl: 64, index: 0, ifindex: 0 }
    }

    /// Lets a message of the peer arrive.
    pub fn deliver(&mut self, message: &CmMessage) -> Disposition {
        self.deliver_from(&self.meta(), message)
    }

    /// Lets a message arrive from anywhere.
    pub fn deliver_from(&mut self, meta: &Meta, message: &CmMessage) -> Disposition {
        self.deliver_packet(meta, &packet(message))
    }

    /// Lets any packet arrive.
    pub fn deliver_packet(&mut self, meta: &Meta, packet: &Pkt) -> Disposition {
        let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
        self.node.endpoint.handle_datagram(self.now, meta, &packet.emit(&flow, meta.index))
    }

    /// Lets a message of the peer arrive that nobody else takes.
    pub fn deliver_unclaimed(&mut self, message: &CmMessage) -> Vec<String> {
        let meta = self.meta();
        let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
        let bytes = packet(message).emit(&flow, meta.index);
        let disposition = self.node.endpoint.handle_unclaimed(self.now, &meta, &bytes);
        assert_eq!(disposition, Disposition::Done);
        self.sent_text()
    }

    /// Lets a message of the peer arrive; what is sent then, as text.
    ///
    /// # Panics
    /// When it is not for this endpoint.
    pub fn exchange(&mut self, message: &CmMessage) -> Vec<String> {
        assert_eq!(self.deliver(message), Disposition::Done);
        self.sent_text()
    }

    /// Lets time pass and its timers run; what is sent then, as text.
    pub fn wait(&mut self, ns: u64) -> Vec<String> {
        self.now = self.now + ns;
        self.node.endpoint.handle_timeout(self.now);
        self.sent_text()
    }

    /// What the endpoint sends now, with its transactions.
    ///
    /// # Panics
    /// When a packet is not as the kernel's are.
    pub fn sent(&mut self) -> Vec<(u64, CmMessage)> {
        let mut buffer = vec![0; 65_536];
        let mut messages = Vec::new();
        while let Some(transmit) = self.node.endpoint.poll_transmit(self.now, &mut buffer) {
            assert_eq!(transmit.len, transmit.segment, "one message a batch");
            let flow =
                FlowKey { src: transmit.src, dst: transmit.dst, src_port: PORTS[transmit.port] };
            let bytes = &buffer[..transmit.len];
            assert_eq!(verify(&flow, 0, bytes), Verdict::Good);
            let packet = parse(bytes).expect("well-formed");
            self.check_headers(&packet.headers);
            let (header, message) = CmMessage::parse(packet.payload).expect("well-formed");
            messages.push((header.transaction_id, message));
        }
        while let Some(effect) = self.node.endpoint.poll_effect() {
            if let Effect::Cm(event) = effect {
                self.id = event.id;
                self.events.push(*event);
            }
        }
        messages
    }

    fn check_headers(&mut self, headers: &irdma_wire::Headers) {
        let bth = headers.bth;
        assert_eq!((bth.dest_qpn, bth.pkey, bth.ack_request), (Qpn::GSI, 0xFFFF, true));
        assert_eq!(headers.deth, Some(Deth { qkey: mad::QKEY, src_qpn: Qpn::GSI }));
        if let Some(last) = self.last_psn {
            assert_eq!(bth.psn, last.add(1), "QP1 counts");
        }
        self.last_psn = Some(bth.psn);
    }

    /// As [`CmScript::sent`], as text.
    pub fn sent_text(&mut self) -> Vec<String> {
        self.sent().iter().map(|(_, message)| self.text(message)).collect()
    }

    /// Takes the events.
    pub fn events(&mut self) -> Vec<CmEventKind> {
        assert_eq!(self.sent_text(), [""; 0], "nothing is sent besides");
        self.events.drain(..).map(|event| event.kind).collect()
    }

    /// Takes the events, as text.
    pub fn events_text(&mut self) -> Vec<String> {
        self.events().iter().map(event_text).collect()
    }

    /// How many packets were dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.node.endpoint.stats().drops[reason as usize]
    }

    fn text(&self, message: &CmMessage) -> String {
        let who = |id: u32| match id {
            0 => "-".into(),
            PEER_ID => "them".into(),
            id if id == self.id.get() => "us".into(),
            id => format!("{id:#x}"),
        };
        let both = |local: u32, remote: u32| format!("{} {}", who(local), who(remote));
        match message {
            CmMessage::Req(m) => format!("REQ {} -", who(m.local_id)),
            CmMessage::Mra(m) => {
                let ids = both(m.local_id, m.remote_id);
                format!("MRA {ids} {:?} {}", m.about, m.service_timeout)
            }
            CmMessage::Rej(m) => {
                format!("REJ {} {:?} {}", both(m.local_id, m.remote_id), m.about, m.reason)
            }
            CmMessage::Rep(m) => format!("REP {}", both(m.local_id, m.remote_id)),
            CmMessage::Rtu(m) => format!("RTU {}", both(m.local_id, m.remote_id)),
            CmMessage::Dreq(m) => format!("DREQ {}", both(m.local_id, m.remote_id)),
            CmMessage::Drep(m) => format!("DREP {}", both(m.local_id, m.remote_id)),
            CmMessage::SidrReq(m) => format!("SIDR_REQ {}", who(m.request_id)),
            CmMessage::SidrRep(m) => format!("SIDR_REP {} {}", who(m.request_id), m.status),
        }
    }

    /// The peer accepts the connection.
    pub fn rep(&self) -> CmMessage {
        CmMessage::Rep(Rep {
            local_id: PEER_ID,
            remote_id: self.id.get(),
            qkey: 0,
            qpn: PEER_QPN,
            eecn: 0,
            starting_psn: Psn::new(200),
            responder_resources: 5,
            initiator_depth: 6,
            target_ack_delay: 15,
            failover: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: PEER_GUID,
            private_data: [8; 196],
        })
    }

    /// The peer is ready.
    pub fn rtu(&self) -> CmMessage {
        let (local_id, remote_id) = (PEER_ID, self.id.get());
        CmMessage::Rtu(Rtu { local_id, remote_id, private_data: [0; 224] })
    }

    /// The peer asks for patience.
    pub fn mra(&self, about: About, service_timeout: u8) -> CmMessage {
        CmMessage::Mra(Mra {
            local_id: PEER_ID,
            remote_id: self.id.get(),
            about,
            service_timeout,
            private_data: [0; 222],
        })
    }

    /// The peer refuses, under its id `local_id`.
    pub fn rej(&self, local_id: u32, about: About, reason: u16) -> CmMessage {
        CmMessage::Rej(Rej {
            local_id,
            remote_id: self.id.get(),
            about,
            info_len: 0,
            reason,
            info: [0; 72],
            private_data: [3; 148],
        })
    }

    /// The peer wants the end.
    pub fn dreq(&self) -> CmMessage {
        CmMessage::Dreq(Dreq {
            local_id: PEER_ID,
            remote_id: self.id.get(),
            remote_qpn: QPN,
            private_data: [4; 220],
        })
    }

    /// The peer agrees to the end.
    pub fn drep(&self) -> CmMessage {
        let (local_id, remote_id) = (PEER_ID, self.id.get());
        CmMessage::Drep(Drep { local_id, remote_id, private_data: [0; 224] })
    }

    /// The peer names its queue pair, or says why not.
    pub fn sidr_rep(&self, status: u8) -> CmMessage {
        CmMessage::SidrRep(SidrRep {
            request_id: self.id.get(),
            status,
            info_len: 0,
            qpn: PEER_QPN,
            service: SERVICE,
            qkey: 0x0123_4567,
            info: [0; 72],
            private_data: [5; 136],
        })
    }
}

/// A message of the peer as a packet.
pub fn packet(message: &CmMessage) -> Pkt {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let mut packet = Pkt::new(opcode, Qpn::GSI, Psn::new(7)).ask();
    packet.headers.deth = Some(Deth { qkey: mad::QKEY, src_qpn: Qpn::GSI });
    packet.headers.bth.migreq = false;
    packet.payload(&message.emit(PEER_TID))
}

/// The peer asks for a connection.
pub fn req() -> CmMessage {
    CmMessage::Req(req_fields())
}

/// The fields of [`req`].
pub fn req_fields() -> Req {
    Req {
        local_id: PEER_ID,
        service: SERVICE,
        ca_guid: PEER_GUID,
        qkey: 0,
        qpn: PEER_QPN,
        responder_resources: 3,
        initiator_depth: 4,
        remote_response_timeout: 20,
        transport: Transport::Rc,
        flow_control: true,
        starting_psn: Psn::new(200),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xFFFF,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: false,
        path: CmPath {
            local_lid: 0xFFFF,
            remote_lid: 0xFFFF,
            local_gid: THERE.into(),
            remote_gid: HERE.into(),
            flow_label: 0xABCDE,
            traffic_class: 0x48,
            hop_limit: 64,
            ack_timeout: ACK_TIMEOUT,
            ..CmPath::default()
        },
        private_data: [9; 92],
    }
}

/// The peer asks for a queue pair.
pub fn sidr_req() -> CmMessage {
    CmMessage::SidrReq(SidrReq {
        request_id: PEER_ID,
        pkey: 0xFFFF,
        service: SERVICE,
        private_data: [6; 216],
    })
}

/// The way to the peer.
pub fn path() -> AddressVector {
    AddressVector {
        sgid: HERE.into(),
        dgid: THERE.into(),
        flow_label: 0x12345,
        traffic_class: 0xB8,
        ..AddressVector::default()
    }
}

/// What the endpoint asks the peer for.
pub fn connect_request() -> ConnectRequest<'static> {
    ConnectRequest {
        service: SERVICE,
        qp_type: QpType::Rc,
        qpn: QPN,
        starting_psn: Psn::new(100),
        ca_guid: GUID,
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        ack_timeout: ACK_TIMEOUT,
        path_mtu: 1024,
        path: path(),
        private_data: &[1, 2, 3],
    }
}

/// How the endpoint accepts.
pub fn connect_reply() -> ConnectReply<'static> {
    ConnectReply {
        qpn: QPN,
        starting_psn: Psn::new(100),
        ca_guid: GUID,
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: true,
        rnr_retry_count: 5,
        srq: false,
        target_ack_delay: 14,
        private_data: &[7, 7],
    }
}

/// What the endpoint asks for a queue pair with.
pub fn sidr_request() -> SidrRequest<'static> {
    SidrRequest { service: SERVICE, path: path(), private_data: &[1, 2, 3] }
}

/// The event's name, and why.
pub fn event_text(kind: &CmEventKind) -> String {
    match kind {
        CmEventKind::Request { .. } => "Request".into(),
        CmEventKind::Response(_) => "Response".into(),
        CmEventKind::Established => "Established".into(),
        CmEventKind::Rejected { reason, .. } => format!("Rejected {reason}"),
        CmEventKind::Unreachable => "Unreachable".into(),
        CmEventKind::DisconnectRequested { .. } => "DisconnectRequested".into(),
        CmEventKind::Disconnected { answered: true } => "Disconnected".into(),
        CmEventKind::Disconnected { answered: false } => "Disconnected unanswered".into(),
        CmEventKind::TimewaitExit => "TimewaitExit".into(),
        CmEventKind::SidrRequest { .. } => "SidrRequest".into(),
        CmEventKind::SidrResponse { status, .. } => format!("SidrResponse {status}"),
    }
}
