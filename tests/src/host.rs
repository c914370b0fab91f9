//! A host of a test: a place with an RDMA device and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::peer::Peer;
use crate::{Program, paths};

/// The address family that a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// An IPv4-mapped GID.
    V4,
    /// A global IPv6 GID.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// What the C programs of the tests are told.
    pub fn option(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &[],
            Self::V6 => &["--ipv6"],
        }
    }
}

/// Where a host's programs run and what their device is.
#[derive(Clone, Debug)]
enum Place {
    /// On `irdma run` in a network namespace.
    Irdma { namespace: String, options: Vec<String>, user: User },
    /// On `rdma_rxe` in the peer.
    Peer(Peer),
    /// On `irdma run` in a network namespace of the peer.
    IrdmaInPeer { peer: Peer, namespace: String },
}

/// Who runs the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    Nobody,
}

/// The prefix that takes every right away.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
                         --bounding-set=-all --no-new-privs";

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    place: Place,
    /// The interface of its device.
    pub netdev: String,
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its global IPv6 address.
    pub v6: Ipv6Addr,
}

impl Host {
    /// Programs run on `irdma run` in this namespace.
    pub fn irdma(namespace: &str, netdev: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Self {
        let place =
            Place::Irdma { namespace: namespace.into(), options: Vec::new(), user: User::Root };
        Self { place, netdev: netdev.into(), v4, v6 }
    }

    /// Programs run on the kernel's device in the peer.
    pub fn peer(peer: Peer) -> Self {
        let (v4, v6) = (Peer::V4, Peer::V6);
        Self { place: Place::Peer(peer), netdev: "eth0".into(), v4, v6 }
    }

    /// Programs run on `irdma run` in this namespace of the peer, where the kernel has more kinds
    /// of interfaces.
    pub fn irdma_in_peer(
        peer: Peer,
        namespace: &str,
        netdev: &str,
        v4: Ipv4Addr,
        v6: Ipv6Addr,
    ) -> Self {
        let place = Place::IrdmaInPeer { peer, namespace: namespace.into() };
        Self { place, netdev: netdev.into(), v4, v6 }
    }

    /// The same host, with more options for `irdma run`.
    ///
    /// # Panics
    /// In the peer.
    pub fn with_options(&self, more: &[&str]) -> Self {
        let mut host = self.clone();
        match &mut host.place {
            Place::Irdma { options, .. } => options.extend(more.iter().map(|&o| o.to_owned())),
            _ => panic!("only hosts on this machine take options"),
        }
        host
    }

    /// The same host, its programs run by a user without any right.
    ///
    /// # Panics
    /// In the peer.
    pub fn unprivileged(&self) -> Self {
        let mut host = self.clone();
        match &mut host.place {
            Place::Irdma { user, .. } => *user = User::Nobody,
            _ => panic!("the peer's programs run as root"),
        }
        host
    }

    /// True for the kernel's device in the peer.
    pub fn is_peer(&self) -> bool {
        matches!(self.place, Place::Peer(_))
    }

    /// Its address in a family.
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// The name of its device.
    pub fn device(&self) -> String {
        match self.place {
            Place::Peer(_) => "rxe0".into(),
            _ => format!("roce_{}", self.netdev),
        }
    }

    /// The GID of a family. The kernel's table starts with the link-local address.
    pub fn gid_index(&self, family: Family) -> u32 {
        u32::from(self.is_peer()) + u32::from(family == Family::V6)
    }

    /// A program that finds the host's RDMA device.
    pub fn program(&self, name: &str) -> Program {
        match &self.place {
            Place::Irdma { options, user, .. } => {
                let command = match user {
                    User::Root => paths::irdma().to_owned(),
                    User::Nobody => paths::irdma_for_everyone(),
                };
                let run = Program::new(command).arg("run").args(options).arg("--").arg(name);
                self.inside(run)
            }
            Place::Peer(_) => self.plain(name),
            Place::IrdmaInPeer { .. } => {
                let command = paths::irdma_for_peer();
                self.plain(&command.to_string_lossy()).args(["run", "--", name])
            }
        }
    }

    /// A C program of the tests, on the host's RDMA device.
    pub fn c_program(&self, name: &str) -> Program {
        let path = match &self.place {
            Place::Irdma { user: User::Nobody, .. } => paths::c_program_for_everyone(name),
            _ => paths::c_program(name),
        };
        self.program(&path.to_string_lossy())
    }

    /// The `irdma` command itself.
    ///
    /// # Panics
    /// In the peer.
    pub fn command(&self) -> Program {
        match &self.place {
            Place::Irdma { user: User::Root, .. } => self.inside(Program::new(paths::irdma())),
            Place::Irdma { .. } => self.inside(Program::new(paths::irdma_for_everyone())),
            _ => panic!("the peer does not run the command"),
        }
    }

    /// A program that has nothing to do with the device.
    pub fn plain(&self, name: &str) -> Program {
        match &self.place {
            Place::Irdma { .. } => self.inside(Program::new(name)),
            Place::Peer(peer) => peer.program(name),
            Place::IrdmaInPeer { peer, namespace } => {
                peer.program("ip").args(["netns", "exec", namespace, name])
            }
        }
    }

    fn inside(&self, program: Program) -> Program {
        let Place::Irdma { namespace, user, .. } = &self.place else { return program };
        let program = match user {
            User::Root => program,
            User::Nobody => program.after(AS_NOBODY.split_whitespace()),
        };
        program.after(["ip", "netns", "exec", namespace])
    }
}
