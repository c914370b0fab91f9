//! Which protocol the devices of a process speak.

use std::fmt;
use std::str::FromStr;

use irdma_transport::{Result, VerbsError};

/// The protocol of a device, chosen at start as on the hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// RoCEv2 over UDP.
    #[default]
    Roce,
    /// iWARP over TCP: devices are listed and answer queries, queue pairs are refused.
    Iwarp,
}

/// What kind of node a device is, numbered as `enum ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NodeType {
    /// A channel adapter.
    Ca = 1,
    /// An RDMA-capable network interface.
    Rnic = 4,
}

/// The family of protocols that a device belongs to, numbered as `enum ibv_transport_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Transport {
    /// InfiniBand, RoCE included.
    Ib = 0,
    /// iWARP.
    Iwarp = 1,
}

impl Mode {
    /// EOPNOTSUPP for what only RoCE devices do.
    pub(crate) fn check_roce(self, what: &str) -> Result<()> {
        match self {
            Mode::Roce => Ok(()),
            Mode::Iwarp => Err(VerbsError::unsupported(format!(
                "iWARP devices do not offer {what}; use --mode roce"
            ))),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Roce => "roce",
            Mode::Iwarp => "iwarp",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Mode::Roce, Mode::Iwarp]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| "use roce or iwarp".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in [Mode::Roce, Mode::Iwarp] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("ib".parse::<Mode>(), Err("use roce or iwarp".into()));
    }
}
