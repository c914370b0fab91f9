//! Two network namespaces, as two hosts.

use std::process::Command;

use irdma::Device;

use super::eventually;

/// Runs `ip` of iproute2.
pub fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(done.success(), "ip {arguments}");
}

/// Two network namespaces with a link between them, gone when dropped.
pub struct Link(pub [String; 2]);

impl Link {
    /// `None`, said on stderr, where namespaces cannot be made.
    pub fn new(name: &str) -> Option<Link> {
        let names = ["a", "b"].map(|end| format!("verbs-{name}-{end}"));
        let made = Command::new("ip").args(["netns", "add", &names[0]]).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("SKIP: network namespaces need root and iproute2");
            return None;
        }
        ip(&format!("netns add {}", names[1]));
        let [a, b] = &names;
        ip(&format!("-n {a} link add v0 type veth peer name v0 netns {b}"));
        for (host, end) in [(1, a), (2, b)] {
            ip(&format!("-n {end} addr add 10.9.0.{host}/24 dev v0"));
            ip(&format!("-n {end} addr add 2001:db8:9::{host}/64 dev v0 nodad"));
            ip(&format!("-n {end} link set v0 up"));
            ip(&format!("-n {end} link set lo up"));
        }
        Some(Link(names))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// The device of the link.
pub fn device() -> Device {
    let mut devices = Vec::new();
    eventually("a device", || {
        devices = Device::list().unwrap();
        devices[0].get_netdev() == "v0" && devices[0].query_port(1).unwrap().gid_tbl_len == 2
    });
    devices.remove(0)
}
