//! The report for people.

use std::fmt::Write;

use super::host::{Host, PortUse};
use super::report::{DeviceReport, GidReport, Report};
use crate::table::Table;
use crate::units;

/// Below this, bandwidth suffers from full receive buffers.
const GOOD_RECEIVE_BUFFER: usize = 2 << 20;

/// A table of the devices; with `verbose` also their limits, and what was probed.
pub fn text(report: &Report, verbose: bool) -> String {
    let mut out = String::new();
    if !report.devices.is_empty() {
        out = overview(&report.devices).to_string();
    }
    out += &warnings(&report.devices);
    if verbose {
        for device in &report.devices {
            out += &details(device);
        }
        out += &probed(&report.host);
        for other in &report.others {
            let _ = writeln!(out, "no device: {} {}", other.interface, other.why);
        }
    }
    out
}

fn overview(devices: &[DeviceReport]) -> Table {
    let mut table = Table::new("<<<>>><");
    table.row(["device", "interface", "state", "speed", "MTU", "path MTU", "GIDs"]);
    for device in devices {
        let speed = device.speed_mbps.map_or("-".to_string(), speed);
        let mtus = [device.interface_mtu, device.path_mtu].map(|mtu| mtu.to_string());
        let [mtu, path_mtu] = mtus;
        let mut gids = device.gids.iter().map(gid);
        table.row([
            device.name.clone(),
            device.interface.clone(),
            device.state.to_string(),
            speed,
            mtu,
            path_mtu,
            gids.next().unwrap_or_default(),
        ]);
        for gid in gids {
            table.row(["", "", "", "", "", "", &gid]);
        }
    }
    table
}

fn gid(gid: &GidReport) -> String {
    format!("{}: {}", gid.index, gid.address)
}

fn speed(mbps: u32) -> String {
    match mbps {
        0..1000 => format!("{mbps} Mb/s"),
        _ => format!("{} Gb/s", f64::from(mbps) / 1e3),
    }
}

fn warnings(devices: &[DeviceReport]) -> String {
    let gids = devices.iter().flat_map(|device| &device.gids);
    let warning = |gid: &GidReport| {
        let remedy = gid.port_4791.remedy()?;
        Some(format!("{}: UDP port 4791 cannot be used, {remedy}\n", gid.address))
    };
    gids.filter_map(warning).collect()
}

fn details(device: &DeviceReport) -> String {
    let mut table = Table::new("<<");
    let ids = format!("{:#06x}, {:#06x}", device.vendor_id, device.vendor_part_id);
    for (name, value) in [
        ("  firmware", &device.firmware),
        ("  description", &device.description),
        ("  node GUID", &device.node_guid),
        ("  system GUID", &device.sys_image_guid),
        ("  vendor, part", &ids),
    ] {
        table.row([name, value]);
    }
    for gid in &device.gids {
        let name = format!("  GID {}", gid.index);
        table.row([name, format!("{}  {}, port 4791 {}", gid.gid, gid.kind, used(gid.port_4791))]);
    }
    for (name, value) in &device.limits {
        table.row([format!("  {name}"), value.to_string()]);
    }
    format!("\n{}\n{table}", device.name)
}

fn used(port: PortUse) -> String {
    match port {
        PortUse::Free => "free".into(),
        PortUse::Shared { sockets } => {
            format!("shared by {} of this user", units::plural(sockets as u64, "socket"))
        }
        PortUse::RdmaRxe => "held by rdma_rxe".into(),
        PortUse::Taken { uid } => format!("held by user {uid}"),
    }
}

fn probed(host: &Host) -> String {
    let yes = |offered| if offered { "yes" } else { "no" };
    let mut table = Table::new("<<");
    table.row(["  UDP_SEGMENT (GSO)", yes(host.gso)]);
    table.row(["  UDP_GRO", yes(host.gro)]);
    table.row(["  known IPv4 identifications", yes(host.fixed_ids)]);
    table.row(["  steering of a shared port", yes(host.steering)]);
    table.row(["  filter of foreign groups", yes(host.multicast_filter)]);
    table.row(["  rdma_rxe loaded", yes(host.rdma_rxe_loaded)]);
    let unknown = || "unknown".to_string();
    let buffer = host.receive_buffer.map_or_else(unknown, |len| units::bytes(len as u64));
    table.row(["  receive buffer of a socket", &buffer]);
    let slots = host.slots_taken.map_or_else(unknown, |count| format!("{count} of 1022"));
    table.row(["  slots taken by processes", &slots]);
    let mut out = format!("\nprobed\n{table}");
    for fallback in &host.fallbacks {
        let _ = writeln!(out, "  {fallback}");
    }
    if host.receive_buffer.is_some_and(|len| len < GOOD_RECEIVE_BUFFER) {
        out += "  the receive buffer is small: sysctl -w net.core.rmem_max=8388608 helps\n";
    }
    out
}
