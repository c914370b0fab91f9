//! Network interfaces: what there is, and what changes.

mod netlink;
mod watch;

pub use watch::{Change, Watch};

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::sys;
use netlink::{Netlink, attributes, u16_at, u32_at};

/// One network interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's number, never 0.
    pub index: u32,
    /// The name, such as `eth0`.
    pub name: String,
    /// The link-layer address; zeros where it has not 6 bytes.
    pub mac: [u8; 6],
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Set up by the administrator (`IFF_UP`).
    pub up: bool,
    /// Able to carry traffic (`IFF_RUNNING`: up, with a carrier, not dormant).
    pub running: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Able to carry multicast (`IFF_MULTICAST`; Linux does not set it for `lo`, which can).
    pub multicast: bool,
    /// The hardware type (`ARPHRD_*`).
    pub hardware: u16,
    /// The kernel's name of a virtual interface's kind (`veth`, `vlan`, ...); empty for others.
    pub kind: String,
    /// The interface below, for those stacked on another of this namespace (`vlan`, `macvlan`).
    pub parent: Option<u32>,
    /// The link's speed in Mb/s, where the driver tells.
    pub speed_mbps: Option<u32>,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<Address>,
    /// The metric of the IPv4 default route through this interface, if there is one.
    pub default_route_ipv4: Option<u32>,
    /// The metric of the IPv6 default route through this interface, if there is one.
    pub default_route_ipv6: Option<u32>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's own address.
    pub ip: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_len: u8,
    /// How far the address is valid.
    pub scope: Scope,
    /// Sockets can be bound to it: not tentative, no duplicate was detected.
    pub usable: bool,
}

/// How far an address is valid (`rtnetlink(7)`, `ifa_scope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere, or within a site.
    Global,
    /// On the link.
    Link,
    /// Within this host.
    Host,
}

/// Lists the interfaces in the order of their numbers.
///
/// Fails where rtnetlink is missing or forbidden; missing route tables only leave the default
/// routes empty.
pub fn list() -> io::Result<Vec<Interface>> {
    let netlink = Netlink::open()?;
    let mut interfaces: Vec<Interface> = netlink
        .dump(libc::RTM_GETLINK, LINK_LEN)?
        .iter()
        .filter(|message| message.kind == libc::RTM_NEWLINK)
        .filter_map(|message| parse_link(&message.body))
        .collect();
    interfaces.sort_by_key(|interface| interface.index);
    for message in netlink.dump(libc::RTM_GETADDR, ADDRESS_LEN)? {
        let Some((index, address)) = parse_address(&message.body) else { continue };
        if let Some(interface) = interfaces.iter_mut().find(|i| i.index == index) {
            interface.addresses.push(address);
        }
    }
    for message in netlink.dump(libc::RTM_GETROUTE, ROUTE_LEN).unwrap_or_default() {
        note_default_route(&message.body, &mut interfaces);
    }
    note_speeds(&mut interfaces);
    Ok(interfaces)
}

/// The Ethernet address of a neighbour on the link of interface `index`, if the kernel knows it.
pub fn neighbour(index: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let messages = Netlink::open()?.dump(libc::RTM_GETNEIGH, NEIGHBOUR_LEN)?;
    let found = messages.iter().filter_map(|message| parse_neighbour(&message.body));
    Ok(found.filter(|(at, of, _)| (*at, *of) == (index, ip)).map(|(_, _, mac)| mac).next())
}

/// Sizes of `struct ifinfomsg`, `ifaddrmsg`, `rtmsg` and `ndmsg`, which precede the attributes.
const LINK_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;
const ROUTE_LEN: usize = 12;
const NEIGHBOUR_LEN: usize = 12;

fn parse_link(body: &[u8]) -> Option<Interface> {
    let (header, rest) = body.split_at_checked(LINK_LEN)?;
    let flags = u32_at(header, 8);
    let has = |flag: i32| flags & flag as u32 != 0;
    let mut interface = Interface {
        index: u32_at(header, 4),
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        up: has(libc::IFF_UP),
        running: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        multicast: has(libc::IFF_MULTICAST),
        hardware: u16_at(header, 2),
        kind: String::new(),
        parent: None,
        speed_mbps: None,
        addresses: Vec::new(),
        default_route_ipv4: None,
        default_route_ipv6: None,
    };
    let mut parent_is_foreign = false;
    for (kind, value) in attributes(rest) {
        match kind {
            libc::IFLA_IFNAME => interface.name = text(value),
            libc::IFLA_ADDRESS => interface.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => interface.mtu = u32_at(value, 0),
            libc::IFLA_LINK => interface.parent = Some(u32_at(value, 0)),
            libc::IFLA_LINK_NETNSID => parent_is_foreign = true,
            libc::IFLA_LINKINFO => interface.kind = info_kind(value),
            _ => {}
        }
    }
    // A veth names its peer there, a tunnel its underlay or itself.
    let stacked = matches!(interface.kind.as_str(), "vlan" | "macvlan" | "ipvlan" | "macvtap");
    interface.parent = interface.parent.filter(|_| stacked && !parent_is_foreign);
    Some(interface)
}

fn info_kind(link_info: &[u8]) -> String {
    attributes(link_info)
        .find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)
        .map_or_else(String::new, |(_, value)| text(value))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Interface number and address of an `RTM_NEWADDR` or `RTM_DELADDR` message.
fn parse_address(body: &[u8]) -> Option<(u32, Address)> {
    let (header, rest) = body.split_at_checked(ADDRESS_LEN)?;
    let (mut ip, mut local, mut flags) = (None, None, u32::from(header[2]));
    for (kind, value) in attributes(rest) {
        match kind {
            // On point-to-point links `IFA_ADDRESS` is the peer's and `IFA_LOCAL` our own.
            libc::IFA_ADDRESS => ip = parse_ip(value),
            libc::IFA_LOCAL => local = parse_ip(value),
            libc::IFA_FLAGS => flags = u32_at(value, 0),
            _ => {}
        }
    }
    let scope = match header[3] {
        libc::RT_SCOPE_LINK => Scope::Link,
        libc::RT_SCOPE_HOST => Scope::Host,
        _ => Scope::Global,
    };
    let usable = flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) == 0
        || flags & libc::IFA_F_OPTIMISTIC != 0;
    let address = Address { ip: local.or(ip)?, prefix_len: header[1], scope, usable };
    Some((u32_at(header, 4), address))
}

/// Interface, address and link-layer address of an `RTM_NEWNEIGH` message; `None` while the
/// latter is not known.
fn parse_neighbour(body: &[u8]) -> Option<(u32, IpAddr, [u8; 6])> {
    let (header, rest) = body.split_at_checked(NEIGHBOUR_LEN)?;
    if u16_at(header, 8) & (libc::NUD_INCOMPLETE | libc::NUD_FAILED) != 0 {
        return None;
    }
    let (mut ip, mut mac) = (None, None);
    for (kind, value) in attributes(rest) {
        match kind {
            libc::NDA_DST => ip = parse_ip(value),
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some((u32_at(header, 4), ip?, mac?))
}

fn parse_ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

/// Notes which interface a route of the main table uses, if it is a default route.
fn note_default_route(body: &[u8], interfaces: &mut [Interface]) {
    let Some((header, rest)) = body.split_at_checked(ROUTE_LEN) else { return };
    let (family, dst_len, table, kind) = (header[0], header[1], header[4], header[7]);
    if dst_len != 0 || table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST {
        return;
    }
    let (mut metric, mut through) = (0, Vec::new());
    for (kind, value) in attributes(rest) {
        match kind {
            libc::RTA_OIF => through.push(u32_at(value, 0)),
            libc::RTA_PRIORITY => metric = u32_at(value, 0),
            libc::RTA_MULTIPATH => through.extend(next_hops(value)),
            _ => {}
        }
    }
    for interface in interfaces.iter_mut().filter(|i| through.contains(&i.index)) {
        let slot = if i32::from(family) == libc::AF_INET {
            &mut interface.default_route_ipv4
        } else {
            &mut interface.default_route_ipv6
        };
        *slot = Some(slot.map_or(metric, |old| old.min(metric)));
    }
}

/// The interfaces in a list of `struct rtnexthop`.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut through = Vec::new();
    while bytes.len() >= 8 {
        through.push(u32_at(bytes, 4));
        let len = usize::from(u16_at(bytes, 0)).max(8);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    through
}

fn note_speeds(interfaces: &mut [Interface]) {
    const SPEED_UNKNOWN: u32 = u32::MAX;
    let Ok(socket) = crate::udp::open(Ipv4Addr::LOCALHOST.into()) else { return };
    for interface in interfaces.iter_mut().filter(|interface| !interface.loopback) {
        interface.speed_mbps = sys::ethtool_speed(&socket, &interface.name)
            .ok()
            .filter(|speed| !matches!(*speed, 0 | SPEED_UNKNOWN | 0xffff));
    }
}

#[cfg(test)]
mod tests;
