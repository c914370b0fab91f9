//! Which device a command uses.

use irdma::{Device, Gid, PORT};

use crate::devices;

/// There is no such device, or none at all.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoDevice(String);

/// The device of this name, or on the interface of this name; the first one without a name.
pub fn pick(name: Option<&str>) -> Result<Device, NoDevice> {
    let devices = Device::list().map_err(|error| NoDevice(error.to_string()))?;
    let Some(name) = name else {
        return devices.into_iter().next().ok_or_else(|| NoDevice(devices::why_none()));
    };
    let names: Vec<String> = devices.iter().map(|device| device.name().to_string()).collect();
    let matches = |device: &Device| device.name() == name || device.get_netdev() == name;
    devices.into_iter().find(matches).ok_or_else(|| match names.is_empty() {
        true => NoDevice(devices::why_none()),
        false => NoDevice(format!("{name}: no such device; there are {}", names.join(", "))),
    })
}

/// The first GID of a device that is in use, with its index.
pub fn gid(device: &Device) -> Result<(u8, Gid), NoDevice> {
    let count = device.query_port(PORT).map_or(0, |port| port.gid_tbl_len);
    let gids = (0..count).filter_map(|index| Some((index, device.query_gid(PORT, index).ok()?)));
    let used = gids.filter(|(_, gid)| *gid != Gid::default());
    used.map(|(index, gid)| (index as u8, gid))
        .next()
        .ok_or_else(|| NoDevice(format!("{}: its interface has lost its addresses", device.name())))
}
