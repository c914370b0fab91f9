//! What is known about the devices, with names that stay the same in JSON.

use std::net::IpAddr;

use irdma::{Config, Device, Gid, Limits, PORT, PortState};
use irdma_net::netdev::{self, Interface, Scope};
use serde::Serialize;

use super::host::{self, Host, PortUse};

/// Everything that `irdma devices` tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The devices, in the order in which programs find them.
    pub devices: Vec<DeviceReport>,
    /// Interfaces that are no devices.
    pub others: Vec<Other>,
    /// What the system offers.
    pub host: Host,
}

/// A device with its only port.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    pub name: String,
    pub interface: String,
    pub interface_index: u32,
    pub state: &'static str,
    pub speed_mbps: Option<u32>,
    pub interface_mtu: u32,
    pub path_mtu: u32,
    pub node_guid: String,
    pub sys_image_guid: String,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub firmware: String,
    pub description: String,
    pub gids: Vec<GidReport>,
    pub limits: serde_json::Map<String, serde_json::Value>,
}

/// An entry of the GID table.
#[derive(Debug, Serialize)]
pub struct GidReport {
    pub index: u32,
    pub gid: String,
    pub address: IpAddr,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub port_4791: PortUse,
}

/// An interface that is no device.
#[derive(Debug, Serialize)]
pub struct Other {
    pub interface: String,
    pub why: &'static str,
}

impl Report {
    /// Asks devices, interfaces and system.
    pub fn collect() -> Result<Report, String> {
        let devices = Device::list().map_err(|error| error.to_string())?;
        let interfaces = interfaces()?;
        let users = host::port_users();
        let mut reports = Vec::new();
        for device in &devices {
            let interface = interfaces.iter().find(|one| one.name == device.get_netdev());
            let report = device_report(device, interface, &users);
            reports.push(report.map_err(|error| error.to_string())?);
        }
        let address = reports.iter().flat_map(|report| &report.gids).map(|gid| gid.address).next();
        Ok(Report {
            others: others(&interfaces, &reports),
            devices: reports,
            host: Host::probe(address),
        })
    }

    /// Why there is no device, and what to do.
    pub fn why_none(&self) -> String {
        let others: Vec<String> =
            self.others.iter().map(|other| format!("{} {}", other.interface, other.why)).collect();
        let found = match others.is_empty() {
            true => "there is no interface at all".to_string(),
            false => others.join(", "),
        };
        format!(
            "no device: {found}. A device is an interface that is up and has an address: \
             `ip link set lo up` makes one of the loopback interface"
        )
    }
}

/// Why there is no device, and what to do.
pub fn why_none() -> String {
    Report::collect().map_or_else(|error| error, |report| report.why_none())
}

/// Which of the interfaces that are to become devices there are not. They may come later.
pub fn doubt(config: &Config) -> Option<String> {
    let interfaces = netdev::list().ok()?;
    let known = |asked: &String| {
        let alone = Config { devices: vec![asked.clone()], ..Config::default() };
        interfaces.iter().any(|one| alone.place_of(&one.name).is_some())
    };
    let unknown: Vec<&str> =
        config.devices.iter().filter(|asked| !known(asked)).map(String::as_str).collect();
    let names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
    let (unknown, names) = (unknown.join(", "), names.join(", "));
    (!unknown.is_empty())
        .then(|| format!("--devices {unknown}: no such interface; there are {names}"))
}

fn interfaces() -> Result<Vec<Interface>, String> {
    netdev::list().map_err(|error| format!("the kernel does not list interfaces: {error}"))
}

fn device_report(
    device: &Device,
    interface: Option<&Interface>,
    users: &[host::PortUser],
) -> irdma::Result<DeviceReport> {
    let (attr, port) = (device.query_device(), device.query_port(PORT)?);
    let gid_report = |index| -> Option<GidReport> {
        let gid = device.query_gid(PORT, index).ok().filter(|gid| *gid != Gid::default())?;
        Some(GidReport {
            index,
            gid: full(gid),
            address: gid.to_ip(),
            kind: "RoCE v2",
            port_4791: host::port_use(gid.to_ip(), users),
        })
    };
    Ok(DeviceReport {
        name: device.name().to_string(),
        interface: device.get_netdev().to_string(),
        interface_index: device.netdev_index(),
        state: match port.state {
            PortState::Active => "active",
            PortState::Down => "down",
        },
        speed_mbps: interface.and_then(|interface| interface.speed_mbps),
        interface_mtu: interface.map_or(0, |interface| interface.mtu),
        path_mtu: port.active_mtu,
        node_guid: guid(attr.node_guid),
        sys_image_guid: guid(attr.sys_image_guid),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        firmware: attr.fw_ver,
        description: device.node_desc().to_string(),
        gids: (0..port.gid_tbl_len).filter_map(gid_report).collect(),
        limits: limits(&attr.limits).map(|(name, value)| (name.into(), value.into())).collect(),
    })
}

/// The names of `struct ibv_device_attr`, and of the other limits that verbs programs meet.
fn limits(limits: &Limits) -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("max_qp", limits.max_qp.into()),
        ("max_qp_wr", limits.max_qp_wr.into()),
        ("max_send_sge", limits.max_send_sge.into()),
        ("max_recv_sge", limits.max_recv_sge.into()),
        ("max_sge_rd", limits.max_sge_rd.into()),
        ("max_inline_data", limits.max_inline_data.into()),
        ("max_cq", limits.max_cq.into()),
        ("max_cqe", limits.max_cqe.into()),
        ("max_mr", limits.max_mr.into()),
        ("max_mr_size", limits.max_mr_size),
        ("max_pd", limits.max_pd.into()),
        ("max_srq", limits.max_srq.into()),
        ("max_srq_wr", limits.max_srq_wr.into()),
        ("max_srq_sge", limits.max_srq_sge.into()),
        ("max_ah", limits.max_ah.into()),
        ("max_mcast_grp", limits.max_mcast_grp.into()),
        ("max_mcast_qp_attach", limits.max_mcast_qp_attach.into()),
        ("max_qp_rd_atom", limits.max_qp_rd_atom.into()),
        ("max_qp_init_rd_atom", limits.max_qp_init_rd_atom.into()),
    ]
    .into_iter()
}

fn others(interfaces: &[Interface], devices: &[DeviceReport]) -> Vec<Other> {
    let is_device = |name: &str| devices.iter().any(|device| device.interface == name);
    let others = interfaces.iter().filter(|interface| !is_device(&interface.name));
    others.map(|one| Other { interface: one.name.clone(), why: why_not(one) }).collect()
}

fn why_not(interface: &Interface) -> &'static str {
    let addresses = &interface.addresses;
    match () {
        () if !interface.up => "is down",
        () if addresses.is_empty() => "has no address",
        () if addresses.iter().all(|address| !address.usable) => "has no usable address yet",
        () if addresses.iter().all(|address| address.scope == Scope::Link) => {
            "has only a link-local address (IRDMA_LINK_LOCAL=yes uses it)"
        }
        () => "is left out by IRDMA_DEVICES",
    }
}

/// As InfiniBand tools write it: four groups of four digits.
fn guid(guid: u64) -> String {
    let groups = [guid >> 48, guid >> 32, guid >> 16, guid].map(|group| group & 0xffff);
    groups.map(|group| format!("{group:04x}")).join(":")
}

/// As sysfs writes it: eight groups of four digits.
fn full(gid: Gid) -> String {
    let groups = gid.0.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_groups() {
        assert_eq!(guid(0x0200_00ab_0000_0001), "0200:00ab:0000:0001");
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(full(gid), "0000:0000:0000:0000:0000:ffff:0a00:0001");
    }
}
