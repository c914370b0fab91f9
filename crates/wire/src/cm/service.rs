//! Service ids, and the ports that `rdma_cm` maps to them.

use std::fmt;

/// What a request asks for (IBTA 12.6, A3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ServiceId(pub u64);

/// A space of ports, numbered as `enum rdma_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any service of InfiniBand.
    Ib = 0x013f,
}

/// The part of a service id that is the same for all ports (IBTA A11).
const RDMA_IP: u64 = 0x0100_0000;

impl ServiceId {
    /// The service behind a port of the RDMA IP connection manager (IBTA A11).
    pub const fn rdma_ip(space: PortSpace, port: u16) -> ServiceId {
        ServiceId(RDMA_IP | ((space as u64 & 0xFF) << 16) | port as u64)
    }

    /// The port space and port; `None` for a service of another kind.
    pub const fn to_rdma_ip(self) -> Option<(PortSpace, u16)> {
        let space = match self.0 >> 16 {
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            0x013f => PortSpace::Ib,
            _ => return None,
        };
        Some((space, self.0 as u16))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_map_to_services_and_back() {
        for (space, port, id) in [
            (PortSpace::Tcp, 7480, 0x0106_1d38),
            (PortSpace::Udp, 7174, 0x0111_1c06),
            (PortSpace::Ib, 1, 0x013f_0001),
        ] {
            assert_eq!(ServiceId::rdma_ip(space, port), ServiceId(id));
            assert_eq!(ServiceId(id).to_rdma_ip(), Some((space, port)));
        }
        assert_eq!(ServiceId(0x0102_0001).to_rdma_ip(), None);
        assert_eq!(ServiceId(1 << 32 | 0x0106_0001).to_rdma_ip(), None);
    }
}
