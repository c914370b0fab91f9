//! Devices: one for each interface that is up and has an address, with no set-up.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_net::netdev::{self, Interface, Scope};
use irdma_transport::{ErrorKind, Result, VerbsError, mcast_mac};
use irdma_wire::Gid;

use crate::config::Config;
use crate::context::Context;
use crate::engine::Engine;
use crate::identity;
use crate::lid;
use crate::limits::Limits;
use crate::log::Logged;
use crate::mode::{Mode, NodeType, Transport};
use crate::port::{self, GidTable, PortAttr};
use crate::process::Process;
use crate::profile::{Features, Profile};
use crate::system::system_error;

/// An RDMA device in software, on one network interface.
#[derive(Clone, Debug)]
pub struct Device(Arc<DeviceInner>);

#[derive(Debug)]
struct DeviceInner {
    kind: Kind,
    netdev: String,
    mac: [u8; 6],
    index: u32,
    node_guid: u64,
    sys_image_guid: u64,
    config: Config,
    gids: Arc<GidTable>,
}

/// What sets the devices of a mode apart.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    name: String,
    node_type: NodeType,
    transport: Transport,
}

fn init_roce_device(interface: &Interface) -> Kind {
    let name = format!("roce_{}", interface.name);
    Kind { name, node_type: NodeType::Ca, transport: Transport::Ib }
}

fn init_iw_device(interface: &Interface) -> Kind {
    let name = format!("iw_{}", interface.name);
    Kind { name, node_type: NodeType::Rnic, transport: Transport::Iwarp }
}

/// Attributes of a device (`struct ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Says that this is software, and its version.
    pub fw_ver: String,
    /// Identifies the device.
    pub node_guid: u64,
    /// Identifies the host.
    pub sys_image_guid: u64,
    /// PCI vendor id.
    pub vendor_id: u32,
    /// PCI device id.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// How much it holds.
    pub limits: Limits,
    /// Supported page sizes, a bit each.
    pub page_size_cap: u64,
    /// `IBV_DEVICE_*` capability bits.
    pub device_cap_flags: u32,
    /// The capability bits with those that need 64 (`ibv_query_device_ex(3)`).
    pub device_cap_flags_ex: u64,
    /// `enum ibv_atomic_cap`: 0 for no atomics, 1 for atomics that are atomic among all queue
    /// pairs of the device (`IBV_ATOMIC_HCA`).
    pub atomic_cap: u32,
    /// Whether regions can be on demand, for every service and operation, of all addresses, too.
    pub on_demand: bool,
    /// Bits of a completion's timestamp; 0 for no timestamps.
    pub timestamp_mask: u64,
    /// The clock of timestamps.
    pub core_clock_khz: u32,
    /// Exponent of the longest delay of an acknowledgement, 4.096 us * 2^n.
    pub local_ca_ack_delay: u8,
}

impl Device {
    /// All devices, in the order in which programs prefer them: the default route's interface,
    /// other routable IPv4, IPv6 only, the loopback interface.
    ///
    /// EINVAL for a bad `IRDMA_*` variable, EIO where the kernel does not list interfaces.
    pub fn list() -> Result<Vec<Device>> {
        let process = Process::current();
        let config = process.config()?;
        let mut interfaces = interfaces().logged("get_device_list")?;
        interfaces.retain(|interface| is_usable(interface, config));
        let unregistered = process.unregistered().clone();
        interfaces.sort_by_key(|interface| (place(interface, config), interface.index));
        Ok(interfaces
            .iter()
            .map(|interface| Device::init_rdma_device(process, interface, config))
            .filter(|device| !unregistered.contains(device.name()))
            .collect())
    }

    /// What devices of every mode have, and by the configured mode what sets them apart.
    fn init_rdma_device(process: &Process, interface: &Interface, config: &Config) -> Device {
        let gids = process.gid_table(&interface.name);
        gids.update(&interface.addresses, config.link_local, config.profile.limits().max_gids);
        Device(Arc::new(DeviceInner {
            kind: match config.mode {
                Mode::Roce => init_roce_device(interface),
                Mode::Iwarp => init_iw_device(interface),
            },
            netdev: interface.name.clone(),
            mac: interface.mac,
            index: interface.index,
            node_guid: identity::node_guid(&interface.name, interface.mac),
            sys_image_guid: identity::sys_image_guid(),
            config: config.clone(),
            gids,
        }))
    }

    /// The protocol that the device speaks.
    pub fn mode(&self) -> Mode {
        self.0.config.mode
    }

    /// What kind of node it is.
    pub fn node_type(&self) -> NodeType {
        self.0.kind.node_type
    }

    /// The family of its protocol.
    pub fn transport(&self) -> Transport {
        self.0.kind.transport
    }

    /// Whether queue pairs get push pages without being asked.
    pub(crate) fn pushes(&self) -> bool {
        self.0.config.push
    }

    /// The name, such as `roce_eth0` or `iw_eth0`.
    pub fn name(&self) -> &str {
        &self.0.kind.name
    }

    /// The name of the interface below.
    pub fn get_netdev(&self) -> &str {
        &self.0.netdev
    }

    /// The number of the interface below.
    pub fn netdev_index(&self) -> u32 {
        self.0.index
    }

    /// Identifies the device, on every host.
    pub fn node_guid(&self) -> u64 {
        self.0.node_guid
    }

    /// The node description.
    pub fn node_desc(&self) -> &str {
        &self.0.config.node_desc
    }

    /// Takes the device away from this process, as when a card is pulled: every open context hears
    /// of `PortErr` and `DeviceFatal` and is cut off, every [`crate::cm::Id`] on it hears of
    /// `DeviceRemoval`, and the device is no more in the list.
    ///
    /// Calls on those contexts answer EIO from now on, except those that destroy.
    pub fn ib_unregister_device(&self) {
        let process = Process::current();
        process.unregistered().insert(self.name().into());
        let contexts = process.contexts();
        contexts
            .iter()
            .filter(|context| context.device.name() == self.name())
            .for_each(|context| context.device_removed());
        if let Some(engine) = process.engine() {
            engine.remove_device(self.name());
        }
    }

    /// Gives back a device that was taken away; it must be opened anew.
    ///
    /// EBUSY if it is in the list, ENODEV if its interface is gone, and what keeps its addresses
    /// from being used: EADDRINUSE where others hold them.
    pub fn ib_register_device(&self) -> Result<()> {
        self.try_register().logged("ib_register_device")
    }

    fn try_register(&self) -> Result<()> {
        let process = Process::current();
        if !process.unregistered().contains(self.name()) {
            return Err(VerbsError::busy(format!("{} is registered already", self.name())));
        }
        self.port()?;
        if self.mode() == Mode::Roce {
            let engine = process.open_engine()?;
            let opened = engine.open_device(self);
            process.close_engine(&engine);
            opened?;
        }
        process.unregistered().remove(self.name());
        Ok(())
    }

    /// The port of a device that can be opened; ENODEV if it was taken away.
    pub(crate) fn open_port(&self) -> Result<PortAttr> {
        if Process::current().unregistered().contains(self.name()) {
            return Err(self.no_device("was unregistered"));
        }
        self.port()
    }

    fn port(&self) -> Result<PortAttr> {
        self.find_port()?.ok_or_else(|| self.no_device("lost its interface"))
    }

    fn no_device(&self, why: &str) -> VerbsError {
        let text = format!("{} {why}; list the devices anew", self.name());
        VerbsError::new(ErrorKind::NoDevice, text)
    }

    /// Opens the device. ENODEV if it is gone.
    pub fn open(&self) -> Result<Context> {
        Context::alloc_ucontext(self)
    }

    /// Attributes and limits; constant over time.
    pub fn query_device(&self) -> DeviceAttr {
        DeviceAttr {
            fw_ver: concat!(env!("CARGO_PKG_VERSION"), "-software").into(),
            node_guid: self.0.node_guid,
            sys_image_guid: self.0.sys_image_guid,
            vendor_id: self.0.config.vendor_id,
            vendor_part_id: self.0.config.vendor_part_id,
            hw_ver: 1,
            limits: *self.limits(),
            page_size_cap: 1 << 12 | 1 << 21 | 1 << 30,
            device_cap_flags: self.profile().device_cap_flags(self.mode()) as u32,
            device_cap_flags_ex: self.profile().device_cap_flags(self.mode()),
            atomic_cap: self.profile().atomic_cap(),
            on_demand: self.profile().features().contains(Features::ON_DEMAND),
            timestamp_mask: self.profile().timestamp_mask(),
            core_clock_khz: 1_000_000,
            local_ca_ack_delay: 15,
        }
    }

    /// Attributes of port 1, read from the interface now. EINVAL for another port.
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        port::check_port(port).logged("query_port")?;
        let interface = self.refresh()?;
        Ok(self.describe_port(interface.as_ref()))
    }

    fn describe_port(&self, interface: Option<&Interface>) -> PortAttr {
        let lid = lid::of_port(self.0.config.lids, &self.0.gids.addresses());
        port::query_port(self.mode(), interface, self.0.gids.len(), lid)
    }

    /// As [`Device::query_port`]; `None` if the interface is gone, or another has its name.
    pub(crate) fn find_port(&self) -> Result<Option<PortAttr>> {
        let found = self.refresh()?.filter(|interface| interface.index == self.0.index);
        Ok(found.map(|interface| self.describe_port(Some(&interface))))
    }

    /// The GID at `index` of port 1, zeros where an address was removed. EINVAL past the table.
    ///
    /// An iWARP device has one: the MAC of its interface, and zeros.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid> {
        let found = port::check_port(port).and_then(|()| match self.mode() {
            Mode::Roce => self.0.gids.query_gid(index),
            Mode::Iwarp => port::query_gid(self.0.mac, index),
        });
        found.logged("query_gid")
    }

    /// The GID that a LID stands for in an address without a GRH. EINVAL unless
    /// [`Config::lids`](crate::Config::lids) is set and the port has an IPv4 address.
    pub fn gid_of_lid(&self, lid: u16) -> Result<Gid> {
        lid::to_gid(self.0.config.lids, &self.0.gids.addresses(), lid).logged("addressing by LID")
    }

    /// The P_Key at `index` of port 1. EINVAL past index 0, EOPNOTSUPP of an iWARP device.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        let offered = self.mode().check_roce("partition keys");
        offered.and_then(|()| port::query_pkey(port, index)).logged("query_pkey")
    }

    /// The Ethernet address that packets to `dgid` are sent to, as far as the kernel knows it: of
    /// a group, of this interface, or of a neighbour on its link.
    pub fn link_address(&self, dgid: Gid) -> Result<Option<[u8; 6]>> {
        let ip = dgid.to_ip();
        if ip.is_multicast() {
            return Ok(Some(mcast_mac(ip)));
        }
        let own = self.refresh()?.filter(|interface| {
            interface.loopback || interface.addresses.iter().any(|address| address.ip == ip)
        });
        match own {
            Some(interface) => Ok(Some(interface.mac)),
            None => netdev::neighbour(self.0.index, ip)
                .map_err(|error| system_error("the kernel lists no neighbours", &error)),
        }
    }

    /// The device that is imitated.
    pub fn profile(&self) -> Profile {
        self.0.config.profile
    }

    pub(crate) fn limits(&self) -> &'static Limits {
        self.profile().limits()
    }

    pub(crate) fn gids(&self) -> &GidTable {
        &self.0.gids
    }

    /// Reads the interface anew and has the GID table follow it; `None` if it is gone.
    pub(crate) fn refresh(&self) -> Result<Option<Interface>> {
        let found = interfaces()?.into_iter().find(|interface| interface.name == self.0.netdev);
        let addresses = found.as_ref().map_or(&[][..], |interface| &interface.addresses);
        self.update_gids(addresses);
        Ok(found)
    }

    /// Has the GID table follow `addresses`; tells whether anything changed.
    pub(crate) fn update_gids(&self, addresses: &[netdev::Address]) -> bool {
        self.0.gids.update(addresses, self.0.config.link_local, self.limits().max_gids)
    }
}

/// Ends what devices share, once the last context is closed: the thread, then the sockets.
pub(crate) fn ib_dealloc_device(engine: &Engine) {
    engine.stop();
}

fn interfaces() -> Result<Vec<Interface>> {
    netdev::list().map_err(|error| system_error("the kernel does not list interfaces", &error))
}

fn is_usable(interface: &Interface, config: &Config) -> bool {
    let wanted = config.place_of(&interface.name).is_some();
    let has_gid = interface
        .addresses
        .iter()
        .any(|address| address.usable && (config.link_local || address.scope != Scope::Link));
    wanted && interface.up && has_gid
}

/// Where a device stands in the list: the asked order, or else the order of usefulness.
fn place(interface: &Interface, config: &Config) -> (usize, u8, u32) {
    let asked = config.place_of(&interface.name).unwrap_or(0);
    let has_ipv4 = interface
        .addresses
        .iter()
        .any(|address| matches!(address.ip, IpAddr::V4(_)) && address.usable);
    let (class, metric) = match interface.default_route_ipv4.or(interface.default_route_ipv6) {
        _ if interface.loopback => (3, 0),
        Some(metric) => (0, metric),
        None if has_ipv4 => (1, 0),
        None => (2, 0),
    };
    (asked, class, metric)
}

#[cfg(test)]
mod tests {
    use irdma_net::netdev::Address;

    use super::*;

    fn interface(index: u32, name: &str, ip: &str) -> Interface {
        let scope = if name == "lo" { Scope::Host } else { Scope::Global };
        let address = Address { ip: ip.parse().unwrap(), prefix_len: 8, scope, usable: true };
        Interface {
            index,
            name: name.into(),
            mac: [0; 6],
            mtu: 1500,
            up: true,
            running: true,
            loopback: name == "lo",
            multicast: true,
            hardware: 1,
            kind: String::new(),
            parent: None,
            speed_mbps: None,
            addresses: vec![address],
            default_route_ipv4: None,
            default_route_ipv6: None,
        }
    }

    fn order(config: &Config) -> Vec<String> {
        let mut all = vec![
            interface(1, "lo", "127.0.0.1"),
            interface(2, "six", "2001:db8::1"),
            interface(3, "four", "10.0.0.1"),
            interface(4, "default", "10.1.0.1"),
        ];
        all[3].default_route_ipv4 = Some(100);
        all.retain(|interface| is_usable(interface, config));
        all.sort_by_key(|interface| (place(interface, config), interface.index));
        all.into_iter().map(|interface| interface.name).collect()
    }

    #[test]
    fn the_default_route_comes_first_and_loopback_last() {
        assert_eq!(order(&Config::default()), ["default", "four", "six", "lo"]);
    }

    #[test]
    fn the_filter_chooses_and_orders() {
        let devices = vec!["lo".into(), "four".into(), "none".into()];
        assert_eq!(order(&Config { devices, ..Config::default() }), ["lo", "four"]);
    }

    #[test]
    fn the_mode_decides_what_a_device_is() {
        let interface = interface(1, "absent0", "10.0.0.1");
        let roce = init_roce_device(&interface);
        assert_eq!((roce.node_type as i32, roce.transport as i32), (1, 0));
        assert_eq!(roce.name, "roce_absent0");
        let iw = init_iw_device(&interface);
        assert_eq!((iw.node_type as i32, iw.transport as i32), (4, 1));
        assert_eq!(iw.name, "iw_absent0");
        for (mode, kind) in [(Mode::Roce, roce), (Mode::Iwarp, iw)] {
            let config = Config { mode, ..Config::default() };
            let device = Device::init_rdma_device(Process::current(), &interface, &config);
            assert_eq!(device.0.kind, kind);
        }
    }

    #[test]
    fn an_interface_needs_an_address_that_can_be_bound() {
        let mut lonely = interface(1, "a", "10.0.0.1");
        lonely.addresses[0].usable = false;
        assert!(!is_usable(&lonely, &Config::default()));
        lonely.addresses[0].usable = true;
        lonely.addresses[0].scope = Scope::Link;
        assert!(!is_usable(&lonely, &Config::default()));
        assert!(is_usable(&lonely, &Config { link_local: true, ..Config::default() }));
    }

    #[test]
    fn every_gid_that_the_port_counts_answers_at_the_first_query() {
        for device in Device::list().unwrap() {
            let count = device.query_port(1).unwrap().gid_tbl_len;
            assert!(count > 0);
            for index in 0..count {
                assert_ne!(device.query_gid(1, index).unwrap(), Gid::default());
            }
            assert_eq!(device.query_gid(1, count).unwrap_err().errno(), 22);
            assert_eq!(device.query_port(2).unwrap_err().errno(), 22);
        }
    }

    #[test]
    fn a_device_says_that_it_is_software_and_has_identity() {
        let devices = Device::list().unwrap();
        let attr = devices.last().unwrap().query_device();
        assert!(attr.fw_ver.ends_with("-software"));
        assert_ne!((attr.node_guid, attr.sys_image_guid), (0, 0));
        assert_eq!((attr.vendor_id, attr.vendor_part_id), (0x8086, 0x1592));
    }
}
