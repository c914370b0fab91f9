//! Thousands of connections over links that lose, double and overtake: both sides end right.

use std::collections::BTreeMap;

use irdma_sim::{Failure, LinkConfig, World, check_seeds};
use irdma_transport::cm::{
    CmEventKind, CommId, ConnectReply, ConnectRequest, SidrReply, SidrRequest,
};
use irdma_transport::{DropReason, Effect, Instant, QpType};
use irdma_wire::cm::{PortSpace, ServiceId};
use irdma_wire::{Psn, Qpn};

const CONNECTIONS: ServiceId = ServiceId::rdma_ip(PortSpace::Tcp, 7471);
const DATAGRAMS: ServiceId = ServiceId::rdma_ip(PortSpace::Udp, 7471);
const LISTENER: u64 = 7;
const COUNT: usize = 50;
const END: Instant = Instant::from_millis(1_000_000);

/// What a side has been told of a connection, in order.
type Told = Vec<&'static str>;

/// Programs on both nodes that connect, hold and end connections, each by its own rules.
struct Programs {
    world: World,
    told: [BTreeMap<CommId, Told>; 2],
    /// By queue pair number of the side that asks: the ids of both sides.
    pairs: BTreeMap<Qpn, [Option<CommId>; 2]>,
}

/// How connection number `n` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Client,
    Server,
    Both,
    Refused,
}

impl Ending {
    fn of(qpn: Qpn) -> Ending {
        [Ending::Client, Ending::Server, Ending::Both, Ending::Refused][qpn.get() as usize % 4]
    }
}

impl Programs {
    fn new(seed: u64, link: LinkConfig, capturing: bool) -> Self {
        let mut world = World::pair(seed, link, capturing);
        for service in [CONNECTIONS, DATAGRAMS] {
            world.nodes[1].endpoint.cm_listen(LISTENER, service, None).expect("listens");
        }
        Programs { world, told: [BTreeMap::new(), BTreeMap::new()], pairs: BTreeMap::new() }
    }

    fn connect(&mut self, number: usize) {
        let path = self.world.av(0, 1);
        let qpn = Qpn::from_parts(1, number as u16);
        let request = ConnectRequest {
            service: CONNECTIONS,
            qp_type: QpType::Rc,
            qpn,
            starting_psn: Psn::new(1),
            ca_guid: 1,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 17,
            path_mtu: 1024,
            path,
            private_data: &[],
        };
        let now = self.world.now();
        let id = self.world.nodes[0].endpoint.cm_connect(now, &request).expect("asked");
        self.pairs.insert(qpn, [Some(id), None]);
        let request = SidrRequest { service: DATAGRAMS, path, private_data: &[] };
        self.world.nodes[0].endpoint.cm_sidr_request(now, &request).expect("asked");
    }

    /// Lets the programs act on what they are told.
    fn run(&mut self) {
        loop {
            let more = self.world.step(END);
            for (node, effect) in std::mem::take(&mut self.world.effects) {
                if let Effect::Cm(event) = effect {
                    self.act(node, event.id, event.kind);
                }
            }
            if !more {
                return;
            }
        }
    }

    fn act(&mut self, node: usize, id: CommId, kind: CmEventKind) {
        let now = self.world.now();
        let endpoint = &mut self.world.nodes[node].endpoint;
        let told = self.told[node].entry(id).or_default();
        match kind {
            CmEventKind::Request { request, .. } => {
                told.push("request");
                self.pairs.get_mut(&request.remote_qpn).expect("asked")[node] = Some(id);
                if Ending::of(request.remote_qpn) == Ending::Refused {
                    endpoint.cm_reject(now, id, 28, &[]).expect("pending");
                } else {
                    let reply = reply(request.remote_qpn);
                    endpoint.cm_accept(now, id, &reply).expect("pending");
                }
            }
            CmEventKind::Response(reply) => {
                told.push("response");
                endpoint.cm_establish(now, id).expect("accepted");
                let own = Qpn::from_parts(1, reply.remote_qpn.index());
                if matches!(Ending::of(own), Ending::Client | Ending::Both) {
                    endpoint.cm_disconnect(now, id, &[]).expect("connected");
                }
            }
            CmEventKind::Established => {
                told.push("established");
                let (qpn, _) = self.pairs.iter().find(|(_, ids)| ids[node] == Some(id)).unwrap();
                if matches!(Ending::of(*qpn), Ending::Server | Ending::Both) {
                    endpoint.cm_disconnect(now, id, &[]).expect("connected");
                }
            }
            CmEventKind::DisconnectRequested { .. } => {
                told.push("asked to end");
                // This side may have ended it before it heard of the peer's wish.
                let _ = endpoint.cm_disconnect(now, id, &[]);
            }
            CmEventKind::Disconnected { .. } => told.push("ended"),
            CmEventKind::TimewaitExit => {
                told.push("over");
                endpoint.cm_destroy(now, id);
            }
            CmEventKind::Rejected { reason, .. } => {
                told.push(if reason == 28 { "rejected" } else { "rejected for no reason" });
                endpoint.cm_destroy(now, id);
            }
            CmEventKind::SidrRequest { .. } => {
                told.push("where?");
                let reply = SidrReply { status: 0, qpn: Qpn::new(5), qkey: 6, private_data: &[] };
                endpoint.cm_sidr_reply(now, id, &reply).expect("pending");
            }
            CmEventKind::SidrResponse { status, qpn, .. } => {
                assert_eq!((status, qpn), (0, Qpn::new(5)));
                told.push("there");
                endpoint.cm_destroy(now, id);
            }
            CmEventKind::Unreachable => told.push("unreachable"),
        }
    }

    /// What both sides were told is one of the orders that losses allow.
    fn check(&self) -> Result<(), Failure> {
        for (qpn, ids) in &self.pairs {
            let ending = Ending::of(*qpn);
            let told = |node: usize| {
                let told = ids[node].and_then(|id| self.told[node].get(&id));
                told.map_or(String::new(), |told| told.join(", "))
            };
            let (client, server) = (told(0), told(1));
            let end = |told: &str| ["asked to end, over", "ended, over"].contains(&told);
            let right = match ending {
                Ending::Refused => client == "rejected" && server == "request",
                _ => {
                    let server = server.strip_prefix("request, ").unwrap_or_default();
                    // The end may overtake the message that this side is ready.
                    let rest = server.strip_prefix("established, ").unwrap_or(server);
                    let told_all = ending != Ending::Server || rest.len() < server.len();
                    client.strip_prefix("response, ").is_some_and(end) && end(rest) && told_all
                }
            };
            if !right {
                let what = format!("{qpn}, {ending:?}: client: {client}; server: {server}");
                return Err(Failure(what));
            }
        }
        self.check_datagrams()
    }

    fn check_datagrams(&self) -> Result<(), Failure> {
        let count = |node: usize, what: &[&str]| {
            self.told[node].values().filter(|told| *told == what).count()
        };
        let found = count(0, &["there"]);
        if found != self.pairs.len() || count(1, &["where?"]) < found {
            return Err(Failure(format!("{found} of {} found", self.pairs.len())));
        }
        Ok(())
    }

    /// Refused connections and answered questions are the program's to destroy.
    fn check_that_nothing_is_left(&mut self) -> Result<(), Failure> {
        let now = self.world.now();
        for id in self.told[1].keys() {
            self.world.nodes[1].endpoint.cm_destroy(now, *id);
        }
        let left = [0, 1].map(|node| self.world.nodes[node].endpoint.cm_count());
        if left != [0, 0] {
            return Err(Failure(format!("{left:?} connections are left")));
        }
        Ok(())
    }
}

fn reply(remote_qpn: Qpn) -> ConnectReply<'static> {
    ConnectReply {
        qpn: Qpn::from_parts(2, remote_qpn.index()),
        starting_psn: Psn::new(1),
        ca_guid: 2,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        target_ack_delay: 15,
        private_data: &[],
    }
}

fn run(seed: u64, link: LinkConfig, count: usize, capturing: bool) -> (World, Result<(), Failure>) {
    let mut programs = Programs::new(seed, link, capturing);
    for number in 1..=count {
        programs.connect(number);
    }
    programs.run();
    let outcome = programs.check().and_then(|()| programs.check_that_nothing_is_left());
    (programs.world, outcome)
}

#[test]
fn connections_without_loss_take_no_repetition() {
    let (world, outcome) = run(1, LinkConfig::PERFECT, 1000, false);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    for node in &world.nodes {
        let drops = &node.endpoint.stats().drops;
        assert_eq!(drops.iter().sum::<u64>(), 0, "{drops:?}");
    }
}

#[test]
fn connections_survive_loss() {
    let link = LinkConfig {
        loss: 50_000,
        duplicate: 20_000,
        reorder: 20_000,
        corrupt: 5_000,
        ..LinkConfig::PERFECT
    };
    check_seeds("connections_survive_loss", 100, |seed, capturing| {
        run(seed, link, COUNT, capturing)
    });
}

/// A thousand at once, whose answers cross.
#[test]
fn connections_in_a_crowd_survive_loss() {
    let link = LinkConfig { loss: 50_000, latency_ns: 3_000_000, ..LinkConfig::PERFECT };
    check_seeds("connections_in_a_crowd_survive_loss", 10, |seed, capturing| {
        run(seed, link, 1000, capturing)
    });
}

#[test]
fn a_dead_peer_is_unreachable() {
    let link = LinkConfig { loss: 1_000_000, ..LinkConfig::PERFECT };
    let mut programs = Programs::new(1, link, false);
    programs.connect(1);
    programs.run();
    assert!(programs.told[0].values().all(|told| told == &["unreachable"]));
    assert_eq!(programs.told[0].len(), 2);
    let seconds = (programs.world.now() - Instant::ZERO) / 1_000_000_000;
    assert_eq!(seconds, 68, "16 tries of 4.3 s");
    let drops = programs.world.nodes[0].endpoint.stats().drops;
    assert_eq!(drops[DropReason::Stale as usize], 0);
}
