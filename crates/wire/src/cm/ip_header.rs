//! What the private data of `rdma_cm`'s requests starts with (IBTA A11).

use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;
use zerocopy::IntoBytes;

use crate::layout::{self, RawCmIpHeader};

/// Who wants to talk to whom, as IP programs know it. The destination's port is in the service id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpHeader {
    /// Source port.
    pub src_port: u16,
    /// Source address, of the same IP version as the destination.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
}

/// Why private data does not start with the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum IpHeaderError {
    /// Fewer than [`IpHeader::LEN`] bytes.
    #[error("private data of {0} bytes, too few for an IP header")]
    Length(usize),
    /// A version of the header that does not exist.
    #[error("IP header of version {0:#04x}, not 0")]
    Version(u8),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    IpVersion(u8),
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads the start of private data.
    pub fn parse(private_data: &[u8]) -> Result<IpHeader, IpHeaderError> {
        let mut rest = private_data;
        let raw: &RawCmIpHeader =
            layout::take(&mut rest).ok_or(IpHeaderError::Length(private_data.len()))?;
        if raw.version != 0 {
            return Err(IpHeaderError::Version(raw.version));
        }
        let address: fn([u8; 16]) -> IpAddr = match raw.ip_version >> 4 {
            4 => |bytes| IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]]),
            6 => |bytes| Ipv6Addr::from(bytes).into(),
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        Ok(IpHeader { src_port: raw.src_port.get(), src: address(raw.src), dst: address(raw.dst) })
    }

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; IpHeader::LEN] {
        let raw = RawCmIpHeader {
            version: 0,
            ip_version: if self.dst.is_ipv4() { 0x40 } else { 0x60 },
            src_port: self.src_port.into(),
            src: field(self.src),
            dst: field(self.dst),
        };
        let mut out = [0; IpHeader::LEN];
        out.copy_from_slice(raw.as_bytes());
        out
    }
}

/// An IPv4 address is in the last four bytes, behind zeros.
fn field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut out = [0; 16];
            out[12..].copy_from_slice(&address.octets());
            out
        }
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(src: &str, dst: &str) -> IpHeader {
        let ip = |text: &str| text.parse().unwrap();
        IpHeader { src_port: 0x1234, src: ip(src), dst: ip(dst) }
    }

    #[test]
    fn both_versions_round_trip() {
        for header in [header("10.77.0.3", "10.77.0.2"), header("fd77::3", "fd77::2")] {
            assert_eq!(IpHeader::parse(&header.emit()), Ok(header));
        }
        let bytes = header("10.77.0.3", "10.77.0.2").emit();
        assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(bytes[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 0, 3]);
        assert_eq!(header("fd77::3", "fd77::2").emit()[1], 0x60);
    }

    #[test]
    fn each_fault_has_its_reason() {
        let mut bytes = header("10.77.0.3", "10.77.0.2").emit();
        assert_eq!(IpHeader::parse(&bytes[..35]), Err(IpHeaderError::Length(35)));
        bytes[1] = 0x50;
        assert_eq!(IpHeader::parse(&bytes), Err(IpHeaderError::IpVersion(5)));
        bytes[0] = 1;
        assert_eq!(IpHeader::parse(&bytes), Err(IpHeaderError::Version(1)));
    }
}
