//! The two error families of this floor: what a call returns, and why a packet was dropped.

use std::borrow::Cow;

/// Why a verb was refused, one-to-one with an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// EINVAL: an argument, or the object's state, does not allow the call.
    Invalid,
    /// ENOMEM: a queue is full or a table has no room.
    NoMemory,
    /// EBUSY: another object still stands on this one.
    Busy,
    /// EOPNOTSUPP: this device, mode or profile does not offer the call.
    Unsupported,
    /// EOVERFLOW: identifiers are exhausted.
    Overflow,
    /// EIO: the device is gone or broken.
    Io,
    /// EAGAIN: nothing to deliver now.
    Again,
    /// ENODEV: no such device.
    NoDevice,
    /// EADDRINUSE: another program holds the address.
    AddressInUse,
    /// EADDRNOTAVAIL: no interface has the address.
    AddressNotAvailable,
    /// ENETUNREACH: no route leads to the address.
    NetworkUnreachable,
    /// EHOSTUNREACH: the route to the address leads nowhere.
    HostUnreachable,
    /// EPERM: the system does not permit it.
    NotPermitted,
    /// EINTR: a signal handler ran while the call waited.
    Interrupted,
    /// ENODATA: what the call needs was not registered before.
    NoData,
    /// EMFILE: no descriptor is left.
    TooManyFiles,
    /// EFAULT: memory that is not there, or cannot be written.
    Fault,
    /// EBADF: the events that a thread waits for will never come, their object is destroyed.
    Destroyed,
}

impl ErrorKind {
    /// The Linux errno of this kind.
    pub const fn errno(self) -> i32 {
        match self {
            ErrorKind::Invalid => 22,
            ErrorKind::NoMemory => 12,
            ErrorKind::Busy => 16,
            ErrorKind::Unsupported => 95,
            ErrorKind::Overflow => 75,
            ErrorKind::Io => 5,
            ErrorKind::Again => 11,
            ErrorKind::NoDevice => 19,
            ErrorKind::AddressInUse => 98,
            ErrorKind::AddressNotAvailable => 99,
            ErrorKind::NetworkUnreachable => 101,
            ErrorKind::HostUnreachable => 113,
            ErrorKind::NotPermitted => 1,
            ErrorKind::Interrupted => 4,
            ErrorKind::NoData => 61,
            ErrorKind::TooManyFiles => 24,
            ErrorKind::Fault => 14,
            ErrorKind::Destroyed => 9,
        }
    }
}

/// A refused call: the kind decides the errno, the text names object, cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct VerbsError {
    kind: ErrorKind,
    message: Cow<'static, str>,
}

impl VerbsError {
    /// An error of `kind` explained by `message`.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        VerbsError { kind, message: message.into() }
    }

    /// EINVAL with its explanation.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// ENOMEM with its explanation.
    pub fn no_memory(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NoMemory, message)
    }

    /// EBUSY with its explanation.
    pub fn busy(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Busy, message)
    }

    /// EOPNOTSUPP with its explanation.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// What kind of refusal this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The errno that the C interface returns.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, VerbsError>;

/// Why an arriving packet was dropped: the peer's fault, counted and never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// Not a packet: too short, bad version, unknown opcode, impossible pad.
    Malformed,
    /// The ICRC is wrong for every IPv4 identification.
    Icrc,
    /// No queue pair has this number.
    UnknownQp,
    /// The queue pair is not in a state that receives.
    State,
    /// The opcode belongs to another service than the queue pair's.
    Service,
    /// The partition key is not ours.
    PKey,
    /// The queue key does not match.
    QKey,
    /// The packet comes from an address that is not the connected peer's.
    Source,
    /// A datagram or unreliable message found no receive request.
    NoReceive,
    /// Longer than the receive buffer or the path MTU, or shorter than its kind allows.
    Length,
    /// An unreliable message lost one of its packets.
    Sequence,
    /// A request ahead of the expected PSN that was already answered by a NAK.
    Ahead,
    /// A response or acknowledgement that matches nothing outstanding.
    Stale,
    /// A duplicate request whose result is no longer kept.
    Duplicate,
    /// The memory key or range does not permit the unreliable access.
    Access,
    /// A datagram that the creation flags told the queue pair not to hear.
    SelfLoopback,
    /// A request for a connection, or a question about one, while too many others wait.
    Backlog,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 17;

    /// All reasons with the names that tools print.
    pub const NAMES: [&'static str; Self::COUNT] = [
        "malformed",
        "icrc",
        "unknown_qp",
        "state",
        "service",
        "pkey",
        "qkey",
        "source",
        "no_receive",
        "length",
        "sequence",
        "ahead",
        "stale",
        "duplicate",
        "access",
        "self_loopback",
        "backlog",
    ];

    /// The name that tools print.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
