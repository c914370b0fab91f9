//! The kernel's connection managers, captured: an endpoint in the place of either one says the
//! same, word for word, when its program does the same.
//!
//! The captures lie outside the repository, in `shared/golden` beside the checkout.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use irdma_sim::Node;
use irdma_sim::cm_script::{RESPONSE_NS, packet};
use irdma_transport::cm::{
    CmEventKind, CommId, ConnectReply, ConnectRequest, SidrReply, SidrRequest,
};
use irdma_transport::{AddressVector, Config, Disposition, Effect, Instant, Meta, QpType};
use irdma_wire::cm::{CmMessage, CmPath, Rep, Req, SidrReq, reason};
use irdma_wire::ip::Datagram;
use irdma_wire::{FlowKey, Qpn, parse, pcapng};

const SERVERS: [&str; 2] = ["10.77.0.2", "fd77::2"];

/// A message between the two kernels.
#[derive(Clone, Debug)]
struct Line {
    src: IpAddr,
    dst: IpAddr,
    transaction: u64,
    message: CmMessage,
}

fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("IRDMA_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let folder = shared.join("golden");
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none(), "captures are missing: {}", folder.display());
    let _ = writeln!(std::io::stderr(), "SKIPPED: no captures in {}", folder.display());
    None
}

fn line(datagram: &Datagram<'_>) -> Option<Line> {
    let packet = parse(datagram.payload).ok()?;
    if packet.headers.bth.dest_qpn != Qpn::GSI {
        return None;
    }
    let (header, message) = CmMessage::parse(packet.payload).expect("a message");
    let (src, dst) = (datagram.ip.src, datagram.ip.dst);
    Some(Line { src, dst, transaction: header.transaction_id, message })
}

/// The conversation in a capture, if it holds one.
fn conversation(path: &std::path::Path) -> Vec<Line> {
    let file = std::fs::read(path).expect("readable");
    let frames = pcapng::read(&file).expect("a capture");
    let datagrams = frames.iter().filter_map(|frame| Datagram::parse(frame.ip_packet()?));
    datagrams.filter(|d| d.dst_port == irdma_wire::UDP_PORT).filter_map(|d| line(&d)).collect()
}

fn local_id(message: &CmMessage) -> u32 {
    match message {
        CmMessage::Req(m) => m.local_id,
        CmMessage::Mra(m) => m.local_id,
        CmMessage::Rej(m) => m.local_id,
        CmMessage::Rep(m) => m.local_id,
        CmMessage::Rtu(m) => m.local_id,
        CmMessage::Dreq(m) => m.local_id,
        CmMessage::Drep(m) => m.local_id,
        CmMessage::SidrReq(m) => m.request_id,
        CmMessage::SidrRep(_) => 0,
    }
}

/// One side of the conversation, played by an endpoint.
struct Player {
    node: Node,
    now: Instant,
    /// The endpoint's ids by the kernel's.
    ids: BTreeMap<u32, CommId>,
    /// The kernel's id that answers each id of its peer.
    answers: BTreeMap<u32, u32>,
    sent: VecDeque<(u64, CmMessage)>,
    /// What the kernel said before.
    said: Vec<CmMessage>,
    /// The request that came last.
    asked: Option<CommId>,
}

impl Player {
    fn new(me: IpAddr, lines: &[Line]) -> Self {
        let mut node = Node::new(me, Config::default());
        let (mut answers, mut refuses) = (BTreeMap::new(), false);
        for Line { message, .. } in lines.iter().filter(|line| line.src == me) {
            if let Some(peer_id) = message.remote_id().filter(|_| local_id(message) != 0) {
                answers.insert(peer_id, local_id(message));
            }
            refuses |= match message {
                CmMessage::Rej(rej) => rej.reason == reason::INVALID_SERVICE_ID,
                CmMessage::SidrRep(rep) => rep.status == 1,
                _ => false,
            };
        }
        for Line { message, .. } in lines.iter().filter(|line| line.dst == me && !refuses) {
            let service = match message {
                CmMessage::Req(req) => req.service,
                CmMessage::SidrReq(req) => req.service,
                _ => continue,
            };
            // Repeated requests ask for the same.
            let _ = node.endpoint.cm_listen(1, service, None);
        }
        let (ids, sent, now) = (BTreeMap::new(), VecDeque::new(), Instant::from_millis(1));
        Player { node, now, ids, answers, sent, said: Vec::new(), asked: None }
    }

    fn hear(&mut self, line: &Line) {
        let mut message = line.message.clone();
        self.translate(&mut message);
        let meta = Meta {
            src: line.src,
            src_port: 55410,
            dst: line.dst,
            tos: 0,
            ttl: 64,
            index: 0,
            ifindex: 0,
        };
        let mut pkt = packet(&message);
        pkt.payload = message.emit(line.transaction).to_vec();
        let flow = FlowKey { src: line.src, dst: line.dst, src_port: meta.src_port };
        let bytes = pkt.emit(&flow, 0);
        let disposition = self.node.endpoint.handle_unclaimed(self.now, &meta, &bytes);
        assert_eq!(disposition, Disposition::Done);
        self.drain();
        if let (Some(id), CmMessage::Req(Req { local_id, .. })) = (self.asked, &message)
            && let Some(kernels) = self.answers.get(local_id)
        {
            self.ids.insert(*kernels, id);
        }
    }

    /// The peer talks to the endpoint, not to the kernel that was in its place.
    fn translate(&self, message: &mut CmMessage) {
        let field = match message {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => return,
            CmMessage::Mra(m) => &mut m.remote_id,
            CmMessage::Rej(m) => &mut m.remote_id,
            CmMessage::Rep(m) => &mut m.remote_id,
            CmMessage::Rtu(m) => &mut m.remote_id,
            CmMessage::Dreq(m) => &mut m.remote_id,
            CmMessage::Drep(m) => &mut m.remote_id,
            CmMessage::SidrRep(m) => &mut m.request_id,
        };
        *field = self.ids[field].get();
    }

    /// What the endpoint says where the kernel said `line`.
    fn say(&mut self, line: &Line) {
        if self.sent.is_empty() {
            self.act(line);
            self.drain();
        }
        let (transaction, message) = self.sent.pop_front().expect("it says something");
        self.said.push(line.message.clone());
        let mut expected = line.message.clone();
        let own = self.own_id(&mut expected);
        assert_eq!(message, expected);
        match message {
            CmMessage::Req(_) | CmMessage::Rtu(_) | CmMessage::Dreq(_) | CmMessage::SidrReq(_) => {
                let swapped = |id: u32, transaction: u64| id.swap_bytes() == transaction as u32;
                assert!(swapped(local_id(&line.message), line.transaction));
                assert!(swapped(own.expect("it asks"), transaction));
            }
            _ => assert_eq!(transaction, line.transaction, "an answer"),
        }
    }

    /// Puts the endpoint's id in place of the kernel's.
    fn own_id(&self, message: &mut CmMessage) -> Option<u32> {
        let field = match message {
            CmMessage::Req(m) => &mut m.local_id,
            CmMessage::Mra(m) => &mut m.local_id,
            CmMessage::Rej(m) => &mut m.local_id,
            CmMessage::Rep(m) => &mut m.local_id,
            CmMessage::Rtu(m) => &mut m.local_id,
            CmMessage::Dreq(m) => &mut m.local_id,
            CmMessage::Drep(m) => &mut m.local_id,
            CmMessage::SidrReq(m) => &mut m.request_id,
            CmMessage::SidrRep(_) => return None,
        };
        *field = self.ids.get(field).map_or(0, |id| id.get());
        Some(*field)
    }

    /// Does what the program must have done.
    fn act(&mut self, line: &Line) {
        let kernels = local_id(&line.message);
        if self.said.contains(&line.message) {
            self.now = self.now + RESPONSE_NS;
            return self.node.endpoint.handle_timeout(self.now);
        }
        let (now, endpoint) = (self.now, &mut self.node.endpoint);
        let id = self.ids.get(&kernels).copied();
        let done = match &line.message {
            CmMessage::Req(req) => {
                let id = endpoint.cm_connect(now, &connect_request(req)).expect("asks");
                self.ids.insert(kernels, id);
                Ok(())
            }
            CmMessage::SidrReq(req) => {
                let id = endpoint.cm_sidr_request(now, &sidr_request(line, req)).expect("asks");
                self.ids.insert(kernels, id);
                Ok(())
            }
            CmMessage::Rep(rep) => endpoint.cm_accept(now, id.unwrap(), &connect_reply(rep)),
            CmMessage::Rtu(_) => endpoint.cm_establish(now, id.unwrap()),
            CmMessage::Rej(rej) => {
                endpoint.cm_reject(now, id.unwrap(), rej.reason, &rej.private_data)
            }
            CmMessage::Dreq(dreq) => endpoint.cm_disconnect(now, id.unwrap(), &dreq.private_data),
            CmMessage::Drep(_) => endpoint.cm_disconnect(now, id.unwrap(), &[]),
            CmMessage::SidrRep(rep) => {
                let (status, qpn, qkey) = (rep.status, rep.qpn, rep.qkey);
                let reply = SidrReply { status, qpn, qkey, private_data: &rep.private_data };
                endpoint.cm_sidr_reply(now, self.asked.expect("asked"), &reply)
            }
            CmMessage::Mra(_) => panic!("the endpoint asks for patience by itself"),
        };
        done.unwrap_or_else(|error| panic!("{error} at {:?}", line.message));
    }

    fn drain(&mut self) {
        let mut buffer = vec![0; 65_536];
        while let Some(transmit) = self.node.endpoint.poll_transmit(self.now, &mut buffer) {
            let packet = parse(&buffer[..transmit.len]).expect("well-formed");
            let (header, message) = CmMessage::parse(packet.payload).expect("a message");
            self.sent.push_back((header.transaction_id, message));
        }
        while let Some(effect) = self.node.endpoint.poll_effect() {
            if let Effect::Cm(event) = effect
                && let CmEventKind::Request { .. } | CmEventKind::SidrRequest { .. } = event.kind
            {
                self.asked = Some(event.id);
            }
        }
    }
}

fn path(path: &CmPath) -> AddressVector {
    AddressVector {
        sgid: path.local_gid,
        dgid: path.remote_gid,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        ..AddressVector::default()
    }
}

fn connect_request(req: &Req) -> ConnectRequest<'_> {
    ConnectRequest {
        service: req.service,
        qp_type: QpType::Rc,
        qpn: req.qpn,
        starting_psn: req.starting_psn,
        ca_guid: req.ca_guid,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ack_timeout: req.path.ack_timeout,
        path_mtu: 128 << req.path_mtu,
        path: path(&req.path),
        private_data: &req.private_data,
    }
}

fn connect_reply(rep: &Rep) -> ConnectReply<'_> {
    ConnectReply {
        qpn: rep.qpn,
        starting_psn: rep.starting_psn,
        ca_guid: rep.ca_guid,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        target_ack_delay: rep.target_ack_delay,
        private_data: &rep.private_data,
    }
}

fn sidr_request<'a>(line: &Line, req: &'a SidrReq) -> SidrRequest<'a> {
    let (sgid, dgid) = (line.src.into(), line.dst.into());
    let path = AddressVector { sgid, dgid, ..AddressVector::default() };
    SidrRequest { service: req.service, path, private_data: &req.private_data }
}

fn play(me: IpAddr, mut lines: Vec<Line>) {
    // Who asks for the end just after it was asked to had not heard that yet.
    for at in 1..lines.len() {
        let both_ask = |line: &Line| matches!(line.message, CmMessage::Dreq(_));
        let [before, after] = [&lines[at - 1], &lines[at]];
        if both_ask(before) && both_ask(after) && before.dst == me && after.src == me {
            lines.swap(at - 1, at);
        }
    }
    let mut player = Player::new(me, &lines);
    for line in &lines {
        if line.src == me { player.say(line) } else { player.hear(line) }
    }
    assert!(player.sent.is_empty(), "it says more: {:?}", player.sent);
}

#[test]
fn an_endpoint_says_what_the_kernel_said() {
    let Some(folder) = folder() else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|extension| extension != "pcapng") {
            continue;
        }
        let lines = conversation(&path);
        let Some(first) = lines.first() else { continue };
        assert!(SERVERS.contains(&first.dst.to_string().as_str()), "the client asks");
        println!("{}", path.display());
        play(first.dst, lines.clone());
        // The message that was lost is in the capture, behind which it was lost.
        if !path.ends_with("roce4-cm-lost-rep.pcapng") {
            play(first.src, lines);
        }
        count += 1;
    }
    assert_eq!(count, 17, "conversations");
}
