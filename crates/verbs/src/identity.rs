//! Numbers that identify a device: the same in every process of a host, different on any other.

use std::os::unix::fs::MetadataExt;

/// The GUID of the host's whole system, never 0.
pub(crate) fn sys_image_guid() -> u64 {
    guid(&[&host()])
}

/// The GUID of the device of an interface in this network namespace, never 0.
pub(crate) fn node_guid(netdev: &str, mac: [u8; 6]) -> u64 {
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |net| net.ino());
    guid(&[&host(), &namespace.to_ne_bytes(), netdev.as_bytes(), &mac])
}

/// What tells this host from others: the boot, or where that is hidden the installation.
///
/// MAC addresses do not: containers of many hosts use the same ones.
fn host() -> Vec<u8> {
    ["/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read(path).ok().filter(|text| !text.is_empty()))
        .unwrap_or_default()
}

/// A locally administered EUI-64 (bit 1 of the first byte) drawn from `parts` by FNV-1a and the
/// finalizer of SplitMix64.
fn guid(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let mixed = irdma_transport::Rng::new(hash).next_u64();
    mixed & !(1 << 56) | 1 << 57
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_stable_local_and_differ_by_interface() {
        let lo = node_guid("lo", [0; 6]);
        assert_eq!(lo, node_guid("lo", [0; 6]));
        assert_ne!(lo, node_guid("eth0", [0; 6]));
        assert_ne!(node_guid("eth0", [2; 6]), node_guid("eth0", [4; 6]));
        assert_ne!(sys_image_guid(), lo);
        for guid in [lo, sys_image_guid()] {
            assert_eq!(guid >> 56 & 3, 2);
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(guid(&[b"ab", b"c"]), guid(&[b"a", b"bc"]));
    }
}
