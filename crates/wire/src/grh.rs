//! The 40 bytes before the payload that a UD receive finds (IBTA annex A17.4.5).
//!
//! Over IPv6 they are the packet's IPv6 header, over IPv4 twenty zero bytes and its IPv4 header.

use crate::ip::{IPV4_LEN, IPV6_LEN, IpHeader};

/// Bytes of a GRH.
pub const LEN: usize = IPV6_LEN;

/// The GRH of a datagram with this IP header.
pub fn emit(header: &IpHeader) -> [u8; LEN] {
    let mut grh = [0; LEN];
    if header.emit(&mut grh) == IPV4_LEN {
        grh.copy_within(..IPV4_LEN, LEN - IPV4_LEN);
        grh[..LEN - IPV4_LEN].fill(0);
    }
    grh
}
