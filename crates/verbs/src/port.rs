//! The port of a device: its state, its GIDs, its partition key.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma_net::netdev::{Address, Interface, Scope};
use irdma_transport::{EventKind, Result, VerbsError};
use irdma_wire::Gid;

use crate::mode::Mode;

/// The only port.
pub const PORT: u8 = 1;
/// The only entry of the partition key table.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The longest headers around a payload: IPv6, UDP, BTH, RETH, immediate data and ICRC.
const HEADERS_LEN: u32 = 40 + 8 + 12 + 16 + 4 + 4;
const MAX_MTU: u32 = 4096;

/// `IBV_PORT_CM_SUP` and `IBV_PORT_REINIT_SUP`.
const PORT_CAP_FLAGS: u32 = 1 << 16 | 1 << 18;
/// `IBV_PORT_IP_BASED_GIDS`.
const IP_BASED_GIDS: u32 = 1 << 26;

/// Whether a port carries traffic, numbered as `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PortState {
    /// The interface is down or has no carrier.
    Down = 1,
    /// The interface is up.
    Active = 4,
}

/// Attributes of a port (`struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Logical state; the physical one follows it.
    pub state: PortState,
    /// The largest path MTU of the device, in bytes.
    pub max_mtu: u32,
    /// The largest path MTU that fits the interface's MTU, in bytes.
    pub active_mtu: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// `IBV_PORT_*` capability bits.
    pub port_cap_flags: u32,
    /// The longest message, in bytes.
    pub max_msg_sz: u32,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// Local identifier; meaningless on Ethernet, 1 as the driver says.
    pub lid: u16,
    /// Lanes, as `enum ib_port_width`.
    pub active_width: u8,
    /// Speed of a lane, as `enum ib_port_speed`.
    pub active_speed: u8,
}

impl PortState {
    /// `enum ib_port_phys_state`: LINK_UP or DISABLED.
    pub fn physical(self) -> u8 {
        match self {
            PortState::Active => 5,
            PortState::Down => 3,
        }
    }
}

/// EINVAL for any port but the only one.
pub(crate) fn check_port(port: u8) -> Result<()> {
    if port != PORT {
        return Err(VerbsError::invalid(format!("port {port}: the device has port 1 only")));
    }
    Ok(())
}

/// The attributes of the port of `interface`; of a port that is down if it is gone.
///
/// An iWARP port has one GID and no partition keys.
pub(crate) fn query_port(
    mode: Mode,
    interface: Option<&Interface>,
    gid_tbl_len: u32,
    lid: u16,
) -> PortAttr {
    let (gid_tbl_len, pkey_tbl_len, ip_based) = match mode {
        Mode::Roce => (gid_tbl_len, 1, IP_BASED_GIDS),
        Mode::Iwarp => (1, 0, 0),
    };
    let up = interface.is_some_and(|interface| interface.up && interface.running);
    let (active_width, active_speed) = rate(interface.and_then(|i| i.speed_mbps).unwrap_or(0));
    PortAttr {
        state: if up { PortState::Active } else { PortState::Down },
        max_mtu: MAX_MTU,
        active_mtu: active_mtu(interface.map_or(0, |interface| interface.mtu)),
        gid_tbl_len,
        port_cap_flags: PORT_CAP_FLAGS | ip_based,
        max_msg_sz: (1 << 31) - 1,
        pkey_tbl_len,
        lid,
        active_width,
        active_speed,
    }
}

/// The event that tells a program of a port's new state.
pub(crate) fn port_ibevent(state: PortState) -> EventKind {
    match state {
        PortState::Active => EventKind::PortActive,
        PortState::Down => EventKind::PortErr,
    }
}

/// The GID of an iWARP device: its MAC and zeros. EINVAL past the table.
pub(crate) fn query_gid(mac: [u8; 6], index: u32) -> Result<Gid> {
    if index != 0 {
        return Err(VerbsError::invalid(format!("GID index {index}: the table has index 0 only")));
    }
    let mut gid = Gid::default();
    gid.0[..6].copy_from_slice(&mac);
    Ok(gid)
}

/// The P_Key at `index`. EINVAL past the table.
pub(crate) fn query_pkey(port: u8, index: u16) -> Result<u16> {
    check_port(port)?;
    match index {
        0 => Ok(DEFAULT_PKEY),
        _ => Err(VerbsError::invalid(format!("P_Key index {index}: the table has index 0 only"))),
    }
}

/// The largest IB MTU whose packets fit an interface of this MTU; 256 below the smallest.
fn active_mtu(interface_mtu: u32) -> u32 {
    let room = interface_mtu.saturating_sub(HEADERS_LEN);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room).unwrap_or(256)
}

/// Width and speed that multiply to an Ethernet speed, as the kernel's core chooses them.
fn rate(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    const X2: u8 = 16;
    const RATES: [(u32, (u8, u8)); 8] = [
        (1_000, (X1, 1)),
        (10_000, (X1, 8)),
        (20_000, (X4, 2)),
        (25_000, (X1, 32)),
        (40_000, (X4, 8)),
        (50_000, (X2, 32)),
        (100_000, (X4, 32)),
        (200_000, (X4, 64)),
    ];
    RATES.iter().find(|(most, _)| mbps <= *most).map_or((X4, 128), |(_, rate)| *rate)
}

/// The GIDs of a port. An index keeps its meaning: addresses that go leave a hole.
#[derive(Debug, Default)]
pub(crate) struct GidTable(Mutex<Vec<Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    gid: Gid,
    present: bool,
}

impl GidTable {
    /// Follows the interface's addresses; tells whether anything changed.
    pub(crate) fn update(&self, addresses: &[Address], link_local: bool, max: u32) -> bool {
        let mut wanted: Vec<&Address> = addresses
            .iter()
            .filter(|address| address.usable && (link_local || address.scope != Scope::Link))
            .collect();
        wanted.sort_by_key(|address| rank(address));
        let gids: Vec<Gid> = wanted.iter().map(|address| Gid::from(address.ip)).collect();
        let mut entries = self.lock();
        let mut changed = false;
        for entry in entries.iter_mut() {
            let present = gids.contains(&entry.gid);
            changed |= entry.present != present;
            entry.present = present;
        }
        for gid in gids {
            if entries.iter().all(|entry| entry.gid != gid) && entries.len() < max as usize {
                entries.push(Entry { gid, present: true });
                changed = true;
            }
        }
        changed
    }

    /// How many indices are in use, holes among them.
    pub(crate) fn len(&self) -> u32 {
        self.lock().len() as u32
    }

    /// The GID at `index`, zeros for a hole. EINVAL past the table.
    pub(crate) fn query_gid(&self, index: u32) -> Result<Gid> {
        let entries = self.lock();
        match entries.get(index as usize) {
            Some(entry) => Ok(if entry.present { entry.gid } else { Gid::default() }),
            None => Err(VerbsError::invalid(format!(
                "GID index {index}: the table has indices 0 to {}",
                entries.len().saturating_sub(1)
            ))),
        }
    }

    /// The source GID at `index` of an address vector. EINVAL if there is none now.
    pub(crate) fn source(&self, index: u32) -> Result<Gid> {
        let gid = self.query_gid(index)?;
        if gid == Gid::default() {
            return Err(VerbsError::invalid(format!(
                "GID index {index}: its address has left the interface; query the table anew"
            )));
        }
        Ok(gid)
    }

    /// The index of an address that the interface has now.
    pub(crate) fn index_of(&self, addr: IpAddr) -> Option<u8> {
        let found = self.lock().iter().position(|entry| entry.present && entry.gid.to_ip() == addr);
        found.and_then(|index| u8::try_from(index).ok())
    }

    /// All addresses that the interface has now.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.lock().iter().filter(|entry| entry.present).map(|entry| entry.gid.to_ip()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// IPv4 first, then IPv6, link-local last.
fn rank(address: &Address) -> u8 {
    match (address.ip, address.scope) {
        (_, Scope::Link) => 2,
        (IpAddr::V4(_), _) => 0,
        (IpAddr::V6(_), _) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, scope: Scope) -> Address {
        Address { ip: ip.parse().unwrap(), prefix_len: 24, scope, usable: true }
    }

    fn table() -> GidTable {
        let table = GidTable::default();
        let addresses = [
            address("fe80::1", Scope::Link),
            address("2001:db8::1", Scope::Global),
            address("10.0.0.1", Scope::Global),
        ];
        assert!(table.update(&addresses, false, 255));
        assert!(!table.update(&addresses, false, 255));
        table
    }

    #[test]
    fn gids_are_ipv4_first_and_link_local_only_on_demand() {
        let table = table();
        let text = |index| table.query_gid(index).unwrap().to_ip().to_string();
        assert_eq!((text(0), text(1), table.len()), ("10.0.0.1".into(), "2001:db8::1".into(), 2));
        assert!(table.query_gid(2).is_err());
        table.update(&[address("fe80::1", Scope::Link)], true, 255);
        assert_eq!(table.query_gid(2).unwrap().to_ip().to_string(), "fe80::1");
    }

    #[test]
    fn an_index_never_changes_its_meaning() {
        let table = table();
        assert!(table.update(&[address("10.0.0.2", Scope::Global)], false, 255));
        assert_eq!(table.query_gid(0).unwrap(), Gid::default());
        assert!(table.source(0).is_err());
        assert_eq!(table.source(2).unwrap().to_ip().to_string(), "10.0.0.2");
        assert!(table.update(&[address("10.0.0.1", Scope::Global)], false, 255));
        assert_eq!(table.source(0).unwrap().to_ip().to_string(), "10.0.0.1");
        assert_eq!(table.addresses(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn the_mtu_leaves_room_for_headers() {
        let cases = [(65536, 4096), (9000, 4096), (4180, 4096), (4179, 2048), (1500, 1024)];
        for (interface, ib) in cases.into_iter().chain([(1107, 512), (576, 256), (68, 256)]) {
            assert_eq!(active_mtu(interface), ib, "{interface}");
        }
    }

    #[test]
    fn a_missing_interface_is_a_port_that_is_down() {
        let attr = query_port(Mode::Roce, None, 3, 0);
        assert_eq!((attr.state, attr.state.physical(), attr.gid_tbl_len), (PortState::Down, 3, 3));
    }

    #[test]
    fn an_iwarp_port_has_the_mac_for_its_gid_and_no_keys() {
        let attr = query_port(Mode::Iwarp, None, 3, 0);
        assert_eq!((attr.gid_tbl_len, attr.pkey_tbl_len, attr.port_cap_flags >> 26), (1, 0, 0));
        let gid = query_gid([2, 3, 4, 5, 6, 7], 0).unwrap();
        assert_eq!(gid.0, [2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(query_gid([0; 6], 1).unwrap_err().errno(), 22);
    }

    #[test]
    fn the_state_decides_the_event() {
        assert_eq!(port_ibevent(PortState::Active), EventKind::PortActive);
        assert_eq!(port_ibevent(PortState::Down), EventKind::PortErr);
    }

    #[test]
    fn there_is_one_partition_key() {
        assert_eq!(query_pkey(1, 0), Ok(0xffff));
        assert_eq!(query_pkey(1, 1).unwrap_err().errno(), 22);
        assert_eq!(query_pkey(2, 0).unwrap_err().errno(), 22);
    }
}
