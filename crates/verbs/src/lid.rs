//! LIDs, for programs that address by nothing else (`Config::lids`).
//!
//! A LID is the last two octets of the port's first IPv4 address, and names the host whose address
//! has the same first two. RoCE has no LIDs: hardware answers EINVAL to an address without GID.

use std::net::{IpAddr, Ipv4Addr};

use irdma_transport::{Result, VerbsError};
use irdma_wire::Gid;

/// What the driver's devices report.
const MEANINGLESS: u16 = 1;

fn first_ipv4(addresses: &[IpAddr]) -> Option<Ipv4Addr> {
    addresses.iter().find_map(|addr| match addr {
        IpAddr::V4(addr) => Some(*addr),
        IpAddr::V6(_) => None,
    })
}

/// The LID of a port with these addresses.
pub(crate) fn of_port(enabled: bool, addresses: &[IpAddr]) -> u16 {
    match first_ipv4(addresses) {
        Some(addr) if enabled => addr.to_bits() as u16,
        _ => MEANINGLESS,
    }
}

/// The GID that a LID stands for at a port with these addresses. EINVAL unless LIDs are enabled,
/// the port has an IPv4 address, and the LID is not 0.
pub(crate) fn to_gid(enabled: bool, addresses: &[IpAddr], lid: u16) -> Result<Gid> {
    if !enabled {
        return Err(VerbsError::invalid(format!(
            "an address with LID {lid:#x} and without GRH (is_global = 0): RoCE routes by GID, set \
             is_global and grh.dgid (pingpongs: -g INDEX), or run with --lids yes (IRDMA_LIDS)"
        )));
    }
    let own = first_ipv4(addresses).filter(|_| lid != 0).ok_or_else(|| {
        VerbsError::invalid(format!("LID {lid:#x} names no host: LIDs are parts of IPv4 addresses"))
    })?;
    let addr = Ipv4Addr::from_bits(own.to_bits() & 0xffff_0000 | u32::from(lid));
    Ok(IpAddr::V4(addr).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> Vec<IpAddr> {
        ["fd00::1", "10.91.2.3", "10.92.0.1"].map(|addr| addr.parse().unwrap()).to_vec()
    }

    #[test]
    fn a_lid_leads_back_to_its_port_and_to_its_neighbours() {
        let lid = of_port(true, &port());
        assert_eq!(lid, 0x0203);
        assert_eq!(to_gid(true, &port(), lid).unwrap().to_ip().to_string(), "10.91.2.3");
        assert_eq!(to_gid(true, &port(), 0xff07).unwrap().to_ip().to_string(), "10.91.255.7");
    }

    #[test]
    fn without_a_meaning_it_is_what_the_driver_says_and_leads_nowhere() {
        assert_eq!(of_port(false, &port()), 1);
        assert_eq!(of_port(true, &port()[..1]), 1);
        let refusal = to_gid(false, &port(), 1).unwrap_err().to_string();
        assert!(refusal.contains("is_global") && refusal.contains("--lids"), "{refusal}");
        assert!(to_gid(true, &port(), 0).is_err());
        assert!(to_gid(true, &port()[..1], 1).is_err());
    }
}
