//! Ports of the connection manager: names that say which process a connection request is for.
//!
//! Invariant: a port is an abstract Unix datagram name. Who has the name bound has the port in
//! this network namespace; a request that reached another process is relayed to the name.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::SocketAddrUnix;

use crate::fd::Fd;
use crate::named::{self, Delivery, Envelope, NAME_SPACE, Named};
use crate::slot::Message;
use crate::udp::RecvMeta;

const PREFIX: &str = "irdma/cm/";
/// Refused messages that one call of [`Port::recv`] takes at most.
const MAX_REFUSALS: usize = 16;
/// What Linux uses where it does not say.
const DEFAULT_RANGE: (u16, u16) = (32_768, 60_999);

/// The local addresses that a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One address.
    Address(IpAddr),
    /// All IPv4 addresses.
    V4,
    /// All IPv6 addresses.
    V6,
    /// All addresses.
    Any,
}

impl Scope {
    /// Whether a request to some address could be for both.
    pub fn overlaps(self, other: Scope) -> bool {
        use Scope::{Address, Any, V4, V6};
        match (self, other) {
            (Any, _) | (_, Any) => true,
            (Address(a), Address(b)) => a == b,
            (Address(ip), V4) | (V4, Address(ip)) => ip.is_ipv4(),
            (Address(ip), V6) | (V6, Address(ip)) => ip.is_ipv6(),
            (V4, V4) | (V6, V6) => true,
            (V4, V6) | (V6, V4) => false,
        }
    }
}

/// The name of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortName {
    /// The port space (`enum rdma_port_space`).
    pub space: u16,
    /// The number, not 0.
    pub port: u16,
    /// The addresses.
    pub scope: Scope,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:04x}/{}/", self.space, self.port)?;
        match self.scope {
            Scope::Address(ip) => write!(f, "{ip}"),
            Scope::V4 => f.write_str("any4"),
            Scope::V6 => f.write_str("any6"),
            Scope::Any => f.write_str("any"),
        }
    }
}

impl PortName {
    /// The names that a request to this address and port may be for, the most specific first.
    pub fn towards(space: u16, port: u16, addr: IpAddr) -> [PortName; 3] {
        let family = if addr.is_ipv4() { Scope::V4 } else { Scope::V6 };
        [Scope::Address(addr), family, Scope::Any].map(|scope| PortName { space, port, scope })
    }

    /// Hands a datagram to the process that has the name, at best effort.
    pub fn relay(&self, meta: RecvMeta, data: &[u8]) -> io::Result<Delivery> {
        // What waits at a receiver takes up its sender's buffer: a socket of its own.
        let socket = Fd::engine(named::socket()?)?;
        Message::Relay { meta, data }.send(socket, &self.raw())
    }

    /// As a `struct sockaddr_un`.
    fn raw(&self) -> Vec<u8> {
        let family = (libc::AF_UNIX as u16).to_ne_bytes();
        [&family[..], &[0], self.to_string().as_bytes()].concat()
    }

    fn unix(&self) -> SocketAddrUnix {
        SocketAddrUnix::new_abstract_name(self.to_string().as_bytes())
            .expect("a port's name is shorter than a Unix address")
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '/');
        let space = u16::from_str_radix(parts.next()?, 16).ok()?;
        let port = parts.next()?.parse().ok()?;
        let scope = match parts.next()? {
            "any" => Scope::Any,
            "any4" => Scope::V4,
            "any6" => Scope::V6,
            ip => Scope::Address(ip.parse().ok()?),
        };
        Some(PortName { space, port, scope })
    }
}

/// A port that this process has.
#[derive(Debug)]
pub struct Port {
    name: PortName,
    socket: Named,
}

impl Port {
    /// Takes a port. [`io::ErrorKind::AddrInUse`] if it, or one that overlaps it, is taken.
    pub fn claim(name: PortName) -> io::Result<Self> {
        let socket = Named::bind(&name.unix())?.ok_or_else(|| in_use(&name, &name))?;
        // Of two that overlap and are taken at once, one sees the other at least.
        match overlapping(&name) {
            Some(other) => Err(in_use(&name, &other)),
            None => Ok(Port { name, socket }),
        }
    }

    /// Takes a free port of the system's range for them, searching from a place that `random`
    /// gives.
    pub fn claim_any(space: u16, scope: Scope, random: u64) -> io::Result<Self> {
        for port in ephemeral_ports(random) {
            match Port::claim(PortName { space, port, scope }) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
        let text = "every port of net.ipv4.ip_local_port_range is taken";
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    /// The name.
    pub fn name(&self) -> PortName {
        self.name
    }

    /// Takes one relayed batch into `buf` ([`crate::slot::MESSAGE_LEN`] bytes hold any); `None`
    /// when there is none, or after many in a row that are refused: of another user, or not
    /// understood.
    pub fn recv<'a>(&self, buf: &'a mut [u8]) -> io::Result<Option<(RecvMeta, &'a [u8])>> {
        for _ in 0..MAX_REFUSALS {
            match self.socket.recv(buf, &mut [0; NAME_SPACE])? {
                None => return Ok(None),
                Some(Envelope { len, .. }) if relayed(&buf[..len]).is_some() => {
                    return Ok(relayed(&buf[..len]));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn relayed(bytes: &[u8]) -> Option<(RecvMeta, &[u8])> {
    match Message::decode(bytes)? {
        Message::Relay { meta, data } => Some((meta, data)),
        _ => None,
    }
}

/// A port number of the system's range for clients, by chance.
pub fn ephemeral_port(random: u64) -> u16 {
    ephemeral_ports(random).next().unwrap_or(DEFAULT_RANGE.0)
}

/// Whether the port, or one that overlaps it, is taken.
pub fn is_taken(name: &PortName) -> io::Result<bool> {
    let socket = named::socket()?;
    Ok(named::answers(&socket, &name.unix()) || overlapping(name).is_some())
}

/// Another port that is taken and overlaps `name`.
fn overlapping(name: &PortName) -> Option<PortName> {
    // Abstract names cannot be searched but here; without it only equal names exclude each other.
    let table = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let names = table.lines().filter_map(|line| PortName::parse(line.split('@').nth(1)?));
    let mut others = names.filter(|other| {
        (other.space, other.port) == (name.space, name.port)
            && other != name
            && other.scope.overlaps(name.scope)
    });
    others.next()
}

fn ephemeral_ports(random: u64) -> impl Iterator<Item = u16> {
    let (low, high) = ephemeral_range();
    let count = u32::from(high - low) + 1;
    let start = (random % u64::from(count)) as u32;
    (0..count).map(move |i| low + ((start + i) % count) as u16)
}

fn ephemeral_range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(low)), Some(Ok(high))) if 0 < low && low <= high => (low, high),
        _ => DEFAULT_RANGE,
    }
}

fn in_use(name: &PortName, other: &PortName) -> io::Error {
    let text =
        format!("port {} is taken: `ss -xap` shows who has @{other}; choose another", name.port);
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

#[cfg(test)]
mod tests;
