use std::time::Duration;

use super::*;
use crate::testing::{address, eventually, in_namespace, ip, skip, try_ip};

fn find<'a>(interfaces: &'a [Interface], name: &str) -> &'a Interface {
    interfaces.iter().find(|interface| interface.name == name).unwrap()
}

#[test]
fn the_loopback_interface_is_listed_without_privileges() {
    let interfaces = list().unwrap();
    let lo = interfaces.iter().find(|interface| interface.loopback).unwrap();
    assert_eq!((lo.index, lo.name.as_str(), lo.mac, lo.speed_mbps), (1, "lo", [0; 6], None));
    assert!(lo.up && lo.running && lo.mtu >= 1280);
    let expected =
        Address { ip: address("127.0.0.1"), prefix_len: 8, scope: Scope::Host, usable: true };
    assert!(lo.addresses.contains(&expected), "{:?}", lo.addresses);
}

#[test]
fn an_interface_shows_its_addresses_mtu_and_default_routes() {
    in_namespace(|| {
        ip("link add v0 address 02:00:00:00:00:07 mtu 4200 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        ip("addr add 10.9.1.1 peer 10.9.1.2/32 dev v0");
        ip("addr add 2001:db8::1/64 dev v0 nodad");
        let down = list().unwrap();
        assert!(!find(&down, "v0").up && !find(&down, "v0").running);
        ip("link set v0 up");
        assert!(find(&list().unwrap(), "v0").up && !find(&list().unwrap(), "v0").running);
        ip("link set v1 up");
        ip("route add default via 10.9.0.2 metric 50");
        ip("route add default via 10.9.0.3 metric 20");
        ip("-6 route add default via 2001:db8::2 dev v0 metric 7");

        let interfaces = list().unwrap();
        let v0 = find(&interfaces, "v0");
        assert_eq!((v0.mac, v0.mtu, v0.kind.as_str()), ([2, 0, 0, 0, 0, 7], 4200, "veth"));
        assert!(v0.up && v0.running && v0.multicast && !v0.loopback);
        assert_eq!((v0.parent, v0.speed_mbps), (None, Some(10_000)));
        assert_eq!((v0.default_route_ipv4, v0.default_route_ipv6), (Some(20), Some(7)));
        let ips: Vec<_> = v0.addresses.iter().map(|a| (a.ip, a.prefix_len, a.scope)).collect();
        assert!(ips.contains(&(address("10.9.0.1"), 24, Scope::Global)), "{ips:?}");
        assert!(ips.contains(&(address("10.9.1.1"), 32, Scope::Global)), "{ips:?}");
        assert!(ips.contains(&(address("2001:db8::1"), 64, Scope::Global)), "{ips:?}");
        assert!(ips.iter().any(|(ip, _, scope)| ip.is_ipv6() && *scope == Scope::Link), "{ips:?}");
        assert_eq!(find(&interfaces, "v1").default_route_ipv4, None);
    });
}

#[test]
fn neighbours_that_the_kernel_knows_are_found() {
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        ip("link set v0 up");
        ip("link set v1 up");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent");
        ip("neigh add fe80::2 lladdr 02:00:00:00:00:03 dev v0 nud permanent");
        let index = find(&list().unwrap(), "v0").index;
        let mac = |of| neighbour(index, address(of)).unwrap();
        assert_eq!(mac("10.9.0.2"), Some([2, 0, 0, 0, 0, 2]));
        assert_eq!(mac("fe80::2"), Some([2, 0, 0, 0, 0, 3]));
        assert_eq!(mac("10.9.0.3"), None);
        assert_eq!(neighbour(index + 1, address("10.9.0.2")).unwrap(), None);
    });
}

#[test]
fn a_default_route_over_several_links_is_found_on_each() {
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        ip("addr add 10.9.1.1/24 dev v1");
        ip("link set v0 up");
        ip("link set v1 up");
        ip("route add default metric 9 nexthop via 10.9.0.2 dev v0 nexthop via 10.9.1.2 dev v1");
        let interfaces = list().unwrap();
        assert_eq!(find(&interfaces, "v0").default_route_ipv4, Some(9));
        assert_eq!(find(&interfaces, "v1").default_route_ipv4, Some(9));
    });
}

/// An attribute as rtnetlink lays it out.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [4 + value.len() as u16, kind].map(u16::to_ne_bytes).concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link(kind: &str, more: &[u8]) -> Interface {
    let info = attribute(libc::IFLA_INFO_KIND, kind.as_bytes());
    let mut body = vec![0; LINK_LEN];
    body.extend(attribute(libc::IFLA_LINK, &3u32.to_ne_bytes()));
    body.extend(attribute(libc::IFLA_LINKINFO, &info));
    body.extend(more);
    parse_link(&body).unwrap()
}

#[test]
fn only_stacked_interfaces_of_this_namespace_have_a_parent() {
    assert_eq!((link("vlan", &[]).kind.as_str(), link("vlan", &[]).parent), ("vlan", Some(3)));
    assert_eq!(link("macvlan", &[]).parent, Some(3));
    assert_eq!(link("veth", &[]).parent, None);
    assert_eq!(link("vlan", &attribute(libc::IFLA_LINK_NETNSID, &[0; 4])).parent, None);
}

#[test]
fn a_stacked_interface_names_the_one_below() {
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        if let Err(error) = try_ip("link add link v0 name v0m type macvlan") {
            return skip(error);
        }
        let interfaces = list().unwrap();
        let stacked = find(&interfaces, "v0m");
        assert_eq!(stacked.parent, Some(find(&interfaces, "v0").index));
    });
}

#[test]
fn everything_works_with_ipv6_disabled() {
    in_namespace(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        ip("link add v0 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        let mut watch = Watch::open().unwrap();
        ip("link set v0 up");
        let interfaces = list().unwrap();
        assert_eq!(find(&interfaces, "v0").addresses.len(), 1);
        assert!(watch.next_change().unwrap().is_some());
    });
}

#[test]
fn a_tentative_address_is_not_usable_until_its_check_is_over() {
    in_namespace(|| {
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        let mut watch = Watch::open().unwrap();
        ip("addr add 2001:db8::1/64 dev v0");
        let wanted = address("2001:db8::1");
        let usable = || {
            let interfaces = list().unwrap();
            let addresses = &find(&interfaces, "v0").addresses;
            addresses.iter().find(|a| a.ip == wanted).unwrap().usable
        };
        assert!(!usable());
        let announced = || {
            std::iter::from_fn(|| watch.next_change().unwrap())
                .any(|c| matches!(c, Change::Address { ip, usable: true, .. } if ip == wanted))
        };
        assert!(eventually(Duration::from_secs(5), announced));
        assert!(usable());
    });
}

#[test]
fn changes_are_reported_in_order() {
    in_namespace(|| {
        let mut watch = Watch::open().unwrap();
        assert_eq!(watch.next_change().unwrap(), None);
        ip("link add v0 type veth peer name v1");
        let index = find(&list().unwrap(), "v0").index;
        ip("addr add 10.9.0.1/24 dev v0");
        ip("addr del 10.9.0.1/24 dev v0");
        ip("link del v0");
        let changes: Vec<_> = std::iter::from_fn(|| watch.next_change().unwrap()).collect();
        let ip = address("10.9.0.1");
        let expected = [
            Change::Link { index },
            Change::Address { index, ip, usable: true },
            Change::AddressGone { index, ip },
            Change::LinkGone { index },
        ];
        let positions: Vec<_> =
            expected.iter().map(|e| changes.iter().rposition(|c| c == e)).collect();
        assert!(positions.iter().all(Option::is_some), "{changes:?}");
        assert!(positions[1..].is_sorted(), "{changes:?}");
    });
}

#[test]
fn missed_changes_are_reported_as_lost() {
    in_namespace(|| {
        let mut watch = Watch::open().unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&watch, 1).unwrap();
        for _ in 0..8 {
            ip("link add v0 type veth peer name v1");
            ip("link del v0");
        }
        let mut changes = std::iter::from_fn(|| watch.next_change().unwrap());
        assert!(changes.any(|change| change == Change::Lost));
    });
}
