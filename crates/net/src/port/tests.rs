use super::*;
use crate::slot::{MESSAGE_LEN, Slot};
use crate::testing::{address, as_nobody, in_namespace};

const SPACE: u16 = 0x0106;

fn name(port: u16, scope: Scope) -> PortName {
    PortName { space: SPACE, port, scope }
}

fn specific(ip: &str) -> Scope {
    Scope::Address(address(ip))
}

fn refused(name: PortName) -> bool {
    Port::claim(name).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn relayed(data: &[u8]) -> RecvMeta {
    let (src, dst) = ("10.0.0.1:5".parse().unwrap(), address("10.0.0.2"));
    RecvMeta { len: data.len(), stride: data.len(), src, dst, tos: 1, ttl: 2, drops: 0 }
}

#[test]
fn a_name_survives_its_text() {
    let scopes = [Scope::Any, Scope::V4, Scope::V6, specific("10.0.0.1"), specific("fd00::1")];
    for scope in scopes {
        let name = name(7471, scope);
        assert_eq!(PortName::parse(&name.to_string()), Some(name));
    }
    assert_eq!(name(7471, Scope::Any).to_string(), "irdma/cm/0106/7471/any");
    assert_eq!(PortName::parse("irdma/slot/7"), None);
    assert_eq!(PortName::parse("irdma/cm/0106/70000/any"), None);
}

#[test]
fn one_address_and_all_exclude_each_other() {
    in_namespace(|| {
        let one = Port::claim(name(5, specific("10.0.0.1"))).unwrap();
        assert!(refused(name(5, specific("10.0.0.1"))));
        assert!(refused(name(5, Scope::Any)) && refused(name(5, Scope::V4)));
        assert!(is_taken(&name(5, Scope::Any)).unwrap());
        let others = [
            name(5, specific("10.0.0.2")),
            name(5, Scope::V6),
            name(6, Scope::Any),
            PortName { space: 0x0111, ..name(5, Scope::Any) },
        ];
        let others = others.map(|name| Port::claim(name).unwrap());
        drop(one);
        assert!(refused(name(5, specific("fd00::1"))), "any6 has it");
        drop(others);
        let all = Port::claim(name(5, Scope::Any)).unwrap();
        assert!(refused(name(5, specific("10.0.0.1"))) && refused(name(5, Scope::V6)));
        assert_eq!(all.name(), name(5, Scope::Any));
    });
}

#[test]
fn a_free_port_comes_from_the_range_and_is_not_given_out_twice() {
    in_namespace(|| {
        crate::testing::ip("addr add 10.0.0.1/8 dev lo");
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "4000 4002").unwrap();
        let ports: Vec<_> =
            (0..3).map(|_| Port::claim_any(SPACE, Scope::Any, 1).unwrap()).collect();
        assert_eq!(ports.iter().map(|p| p.name().port).collect::<Vec<_>>(), [4001, 4002, 4000]);
        let full = Port::claim_any(SPACE, specific("10.0.0.1"), 1).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(ephemeral_port(2), 4002);
    });
}

#[test]
fn a_request_reaches_whoever_has_the_name() {
    in_namespace(|| {
        let port = Port::claim(name(9, Scope::Any)).unwrap();
        let to = PortName::towards(SPACE, 9, address("10.0.0.2"));
        let deliveries = to.map(|name| name.relay(relayed(b"request"), b"request").unwrap());
        assert_eq!(deliveries, [Delivery::Gone, Delivery::Gone, Delivery::Sent]);
        let mut buf = vec![0; MESSAGE_LEN];
        assert_eq!(port.recv(&mut buf).unwrap(), Some((relayed(b"request"), &b"request"[..])));
        assert_eq!(port.recv(&mut buf).unwrap(), None);
    });
}

#[test]
fn other_users_and_other_messages_are_refused() {
    in_namespace(|| {
        let port = Port::claim(name(9, Scope::Any)).unwrap();
        // A thread inherits the namespace of the one that starts it.
        let sent = as_nobody(|| name(9, Scope::Any).relay(relayed(b"forged"), b"forged").unwrap());
        assert!(sent.is_none_or(|sent| sent == Delivery::Sent));
        let slot = Slot::claim(1).unwrap();
        Message::User(b"x").send(&slot, &port.name().raw()).unwrap();
        assert_eq!(port.recv(&mut vec![0; MESSAGE_LEN]).unwrap(), None);
    });
}
