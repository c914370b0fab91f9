//! The networks that tests run on.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::host::Host;
use crate::netns::Namespace;
use crate::peer::Peer;

/// Hosts that reach each other. The network goes away with it.
#[derive(Debug)]
pub struct Lan {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The namespaces that make them up, in the same order; empty with the peer.
    pub namespaces: Vec<Namespace>,
}

/// The interface of every host.
const NETDEV: &str = "eth0";

fn v4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 91, 0, host)
}

fn v6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, host.into())
}

fn address(namespace: &Namespace, host: u8) -> Host {
    namespace.ip(&format!("addr add {}/24 dev {NETDEV}", v4(host)));
    namespace.ip(&format!("addr add {}/64 dev {NETDEV} nodad", v6(host)));
    Host::irdma(namespace.name(), NETDEV, v4(host), v6(host))
}

impl Lan {
    /// One host; its cable ends in itself.
    pub fn one_host() -> Self {
        let namespace = Namespace::new();
        namespace.cable(NETDEV, &namespace, "stub0");
        let host = address(&namespace, 1);
        Self { hosts: vec![host], namespaces: vec![namespace] }
    }

    /// Two hosts and a cable.
    pub fn two_hosts() -> Self {
        let (a, b) = (Namespace::new(), Namespace::new());
        a.cable(NETDEV, &b, NETDEV);
        let hosts = vec![address(&a, 1), address(&b, 2)];
        Self { hosts, namespaces: vec![a, b] }
    }

    /// A host of ours and the peer, in this order. Nobody else has the peer until this is dropped.
    ///
    /// # Panics
    /// When the peer does not boot.
    pub fn with_peer() -> Self {
        let peer = Peer::take();
        let ours = Host::irdma(peer.namespace(), "tap0", Peer::OUR_V4, Peer::OUR_V6);
        Self { hosts: vec![ours, Host::peer(peer)], namespaces: Vec::new() }
    }

    /// Two hosts inside the peer, on a VLAN of the cable between them. They run the library under
    /// test; the peer's kernel only lends its VLAN interfaces.
    ///
    /// # Panics
    /// When the peer does not boot, or its kernel refuses the interfaces.
    pub fn two_hosts_on_a_vlan() -> Self {
        let peer = Peer::take();
        let cable = "ip netns del va; ip netns del vb; set -e; ip netns add va; ip netns add vb; \
                     ip -n va link add eth0 type veth peer name eth0 netns vb";
        let end = |namespace: &str, host: u8| {
            let ip = format!("ip -n {namespace}");
            format!(
                "{ip} link set lo up; {ip} link set eth0 up; \
                 {ip} link add link eth0 name eth0.5 type vlan id 5; {ip} link set eth0.5 up; \
                 {ip} addr add {}/24 dev eth0.5; {ip} addr add {}/64 dev eth0.5 nodad",
                v4(host),
                v6(host)
            )
        };
        let script = format!("{cable}; {}; {}", end("va", 1), end("vb", 2));
        peer.program("sh").args(["-c", &script]).run().expect_success();
        let host = |namespace: &str, number: u8| {
            Host::irdma_in_peer(peer.clone(), namespace, "eth0.5", v4(number), v6(number))
        };
        Self { hosts: vec![host("va", 1), host("vb", 2)], namespaces: Vec::new() }
    }

    /// The first host.
    pub fn a(&self) -> &Host {
        &self.hosts[0]
    }

    /// The last host: the second of two, or the only one.
    pub fn b(&self) -> &Host {
        &self.hosts[self.hosts.len() - 1]
    }

    /// Has the kernel cut batches into packets before they are on the cable, where captures and
    /// faults see them.
    ///
    /// # Panics
    /// When `ethtool` fails.
    pub fn cut_batches(&self) {
        for host in self.hosts.iter().filter(|host| !host.is_peer()) {
            let off = format!("-K {} tx-udp-segmentation off gro off", host.netdev);
            host.plain("ethtool").words(&off).run().expect_success();
        }
    }
}
