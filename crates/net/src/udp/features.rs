//! What this kernel offers beyond plain UDP, found by trying.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};

use super::open;
use crate::sys::{self, Insn};

/// Offloads and steering of this kernel. Each that is missing has a fallback, named by
/// [`Features::fallbacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// One call sends many datagrams (`UDP_SEGMENT`, Linux 4.18).
    pub gso: bool,
    /// One call receives many datagrams (`UDP_GRO`, Linux 5.0).
    pub gro: bool,
    /// Datagrams leave with DF and a known identification (`IP_MTU_DISCOVER`).
    pub fixed_ids: bool,
    /// A classic-BPF program chooses among sockets that share a port (Linux 4.5).
    pub steering: bool,
    /// A group socket hears only what it joined (`IP_MULTICAST_ALL`, Linux 2.6.31).
    pub multicast_filter: bool,
}

impl Features {
    /// Tries each on a socket of its own; no address is bound and nothing is sent.
    pub fn probe() -> io::Result<Self> {
        let fd = open(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        let offers = |level, name, value| sys::set_option(&fd, level, name, value).is_ok();
        sockopt::set_socket_reuseport(&fd, true)?;
        let ret_zero = [Insn { code: 0x06, jt: 0, jf: 0, k: 0 }];
        Ok(Self {
            gso: offers(libc::SOL_UDP, libc::UDP_SEGMENT, 0),
            gro: offers(libc::SOL_UDP, libc::UDP_GRO, 1),
            fixed_ids: sockopt::set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::PROBE).is_ok(),
            steering: sys::attach_reuseport_filter(&fd, &ret_zero).is_ok(),
            multicast_filter: offers(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0),
        })
    }

    /// One line for each missing feature: what is done instead.
    pub fn fallbacks(&self) -> Vec<&'static str> {
        let lines = [
            (self.gso, "no UDP_SEGMENT: one system call for each packet sent"),
            (self.gro, "no UDP_GRO: one system call for each packet received"),
            (self.fixed_ids, "no IP_MTU_DISCOVER: only peers that allow for it take IPv4 packets"),
            (self.steering, "no reuseport filter: packets of shared addresses are relayed"),
            (self.multicast_filter, "no IP_MULTICAST_ALL: foreign group traffic is filtered late"),
        ];
        lines.into_iter().filter(|(offered, _)| !offered).map(|(_, line)| line).collect()
    }
}
