//! What the system offers, and who else uses the port of RoCEv2.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use irdma_net::slot;
use irdma_net::udp::{Features, RecvSocket, Reuse};
use serde::Serialize;

/// The UDP port of RoCEv2.
const PORT: u16 = 4791;

/// What was probed.
#[derive(Debug, Serialize)]
pub struct Host {
    /// One call sends many datagrams.
    pub gso: bool,
    /// One call receives many datagrams.
    pub gro: bool,
    /// IPv4 identifications are known when the ICRC is made.
    pub fixed_ids: bool,
    /// The kernel steers packets to the process that they are for.
    pub steering: bool,
    /// A socket of a group hears only that group.
    pub multicast_filter: bool,
    /// What is done where something is missing.
    pub fallbacks: Vec<String>,
    /// Bytes of receive buffer that a socket is granted, as the kernel counts them.
    pub receive_buffer: Option<usize>,
    /// The kernel's own software device is loaded.
    pub rdma_rxe_loaded: bool,
    /// Slots that processes of this network namespace have taken.
    pub slots_taken: Option<usize>,
}

/// Who uses the port of RoCEv2 on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PortUse {
    /// Nobody.
    Free,
    /// Sockets of this user, who shares it.
    Shared {
        /// How many.
        sockets: usize,
    },
    /// The kernel's own software device.
    RdmaRxe,
    /// A program that does not share it.
    Taken {
        /// Its user.
        uid: u32,
    },
}

impl PortUse {
    /// What to do to get the port.
    pub fn remedy(self) -> Option<String> {
        match self {
            PortUse::Free | PortUse::Shared { .. } => None,
            PortUse::RdmaRxe => Some(
                "the kernel's rdma_rxe holds it: `rdma link delete NAME` or `rmmod rdma_rxe`, or \
                 use a network namespace of your own (`unshare -rn`)"
                    .into(),
            ),
            PortUse::Taken { uid } if uid == own_uid() => Some(
                "a program that is not irdma holds it (`ss -ulnp 'sport = :4791'` shows which): stop \
                 that, or use a network namespace of your own (`unshare -rn`)"
                    .into(),
            ),
            PortUse::Taken { uid } => Some(format!(
                "a program of user {uid} holds it: stop that, run as the same user, or use a \
                 network namespace of your own (`unshare -rn`)"
            )),
        }
    }
}

impl Host {
    /// Tries what the engine will need; `address` is one of a device.
    pub fn probe(address: Option<IpAddr>) -> Host {
        let features = Features::probe().ok();
        let has = |feature: fn(&Features) -> bool| features.as_ref().is_some_and(feature);
        let fallbacks = match &features {
            Some(features) => features.fallbacks().into_iter().map(str::to_string).collect(),
            None => vec!["no UDP socket can be opened".to_string()],
        };
        let socket = address.and_then(|ip| RecvSocket::open(ip, 0, 0, Reuse::Group).ok());
        Host {
            gso: has(|features| features.gso),
            gro: has(|features| features.gro),
            fixed_ids: has(|features| features.fixed_ids),
            steering: has(|features| features.steering),
            multicast_filter: has(|features| features.multicast_filter),
            fallbacks,
            receive_buffer: socket.map(|socket| socket.rcvbuf()),
            rdma_rxe_loaded: rdma_rxe_loaded(),
            slots_taken: slot::list().ok().map(|slots| slots.len()),
        }
    }
}

fn rdma_rxe_loaded() -> bool {
    Path::new("/sys/module/rdma_rxe").exists()
}

/// A socket on the port of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortUser {
    address: IpAddr,
    uid: u32,
}

/// All sockets on the port of RoCEv2 in this network namespace, as far as /proc tells.
pub fn port_users() -> Vec<PortUser> {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"].map(fs::read_to_string);
    tables.into_iter().flatten().flat_map(|table| parse_users(&table)).collect()
}

/// Reads `/proc/net/udp` or `udp6`: the second column is the local address, the eighth the user.
fn parse_users(table: &str) -> Vec<PortUser> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = columns.get(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let uid = columns.get(7)?.parse().ok()?;
        (port == PORT).then_some(PortUser { address: parse_address(address)?, uid })
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Words of 32 bits in network order, printed as numbers of this machine.
fn parse_address(digits: &str) -> Option<IpAddr> {
    let words = digits.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    if let Ok(bytes) = <[u8; 4]>::try_from(&bytes[..]) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    <[u8; 16]>::try_from(&bytes[..]).ok().map(|bytes| Ipv6Addr::from(bytes).into())
}

/// Who uses the port on `address`. A socket on all addresses is never one of ours.
pub fn port_use(address: IpAddr, users: &[PortUser]) -> PortUse {
    use_by(address, users, own_uid(), rdma_rxe_loaded())
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(0, |process| process.uid())
}

fn use_by(address: IpAddr, users: &[PortUser], mine: u32, rxe: bool) -> PortUse {
    let covers = |user: &&PortUser| {
        let everywhere = user.address.is_unspecified();
        // A socket on all IPv6 addresses may have IPv4 as well.
        user.address == address || everywhere && (user.address.is_ipv6() || address.is_ipv4())
    };
    let covering: Vec<&PortUser> = users.iter().filter(covers).collect();
    let is_foreign = |user: &&&PortUser| user.address.is_unspecified() || user.uid != mine;
    match covering.iter().find(is_foreign) {
        Some(user) if user.address.is_unspecified() && rxe => PortUse::RdmaRxe,
        Some(user) => PortUse::Taken { uid: user.uid },
        None if covering.is_empty() => PortUse::Free,
        None => PortUse::Shared { sockets: covering.len() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 5 2 x 0
  101: 0200000A:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     7        0 6 2 x 0
  102: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 x 0
";

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let users = parse_users(V4);
        let user = |address: &str, uid| PortUser { address: ip(address), uid };
        assert_eq!(users, [user("127.0.0.1", 1000), user("10.0.0.2", 7)]);
        let v6 = "000080FE00000000FF3F6502E4B9AAFE";
        assert_eq!(parse_address(v6), Some(ip("fe80::265:3fff:feaa:b9e4")));
        assert_eq!(parse_users("garbage\n1: zz:12B7 x\n"), []);
    }

    #[test]
    fn who_holds_the_port_is_told_apart() {
        let user = |address: &str, uid| PortUser { address: ip(address), uid };
        let own = [user("10.0.0.1", 5), user("10.0.0.1", 5)];
        let cases = [
            (&own[..0], false, PortUse::Free),
            (&own[..], false, PortUse::Shared { sockets: 2 }),
            (&[user("10.0.0.2", 6)], false, PortUse::Free),
            (&[own[0], user("10.0.0.1", 6)], false, PortUse::Taken { uid: 6 }),
            (&[user("0.0.0.0", 5)], false, PortUse::Taken { uid: 5 }),
            (&[user("::", 0)], false, PortUse::Taken { uid: 0 }),
            (&[user("0.0.0.0", 0)], true, PortUse::RdmaRxe),
        ];
        for (users, rxe, expected) in cases {
            assert_eq!(use_by(ip("10.0.0.1"), users, 5, rxe), expected, "{users:?}");
        }
        assert_eq!(use_by(ip("fd00::1"), &[user("0.0.0.0", 0)], 5, true), PortUse::Free);
    }
}
