//! What the director and its processes say to each other: a line of JSON an order, a line a reply.

use serde::{Deserialize, Serialize};

use super::image::{Layout, Mismatch};
use super::plan::{Operation, Service};

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Open a device, by its name or its interface's; the first one if not named.
    Open {
        /// The name.
        device: Option<String>,
    },
    /// Make a queue pair for a service, with two areas of memory, in place of the one before.
    Create {
        /// The service.
        service: Service,
        /// Bytes of each area.
        area_len: usize,
    },
    /// Get the queue pair ready to send to a peer's, or to a group.
    Connect(Remote),
    /// Join a group.
    Attach([u8; 16]),
    /// Leave a group.
    Detach([u8; 16]),
    /// Fill the areas and post receive requests.
    Prepare(Round),
    /// Take part in the exchange.
    Run(Round),
    /// Compare the areas with what must be there.
    Check(Round),
    /// Count the completions that arrive in a short time.
    CountArrivals,
}

/// A queue pair and its memory, as a peer must know them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Remote {
    /// Where it is.
    pub gid: [u8; 16],
    /// Its number.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
    /// Where its memory starts.
    pub addr: u64,
    /// The key of its memory.
    pub rkey: u32,
}

/// What a process is in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Posts the operations.
    Initiator,
    /// Its memory is what they act on; answers in kind when latency is measured.
    Target,
    /// Hears what a group is sent, and does not answer.
    Listener,
}

/// How the messages of a round follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// Each after the answer to, or completion of, the one before.
    OneByOne,
    /// As fast as they go.
    Streaming,
}

/// One exchange of messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Round {
    /// What the ordered process is in it.
    pub role: Role,
    /// What each message does.
    pub operation: Operation,
    /// The messages go to a group, in which there is a listener besides the target.
    pub listened: bool,
    /// Where the messages lie, in sending and receiving areas.
    pub layout: Layout,
    /// How they follow each other.
    pub pace: Pace,
    /// Decides the bytes.
    pub seed: u64,
}

/// What a process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The order was carried out.
    Done,
    /// The device that was opened.
    Opened(Opened),
    /// The queue pair that was made.
    Created(Remote),
    /// The round went well.
    Ran(Times),
    /// Messages of an unreliable service did not arrive.
    Lost {
        /// Those that did.
        arrived: usize,
    },
    /// Completions counted.
    Arrivals(usize),
    /// A byte is wrong.
    Mismatch(Mismatch),
    /// Something else went wrong.
    Failed(String),
    /// There is no device to open.
    NoDevice(String),
}

/// A device, as the report names it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Its name.
    pub device: String,
    /// Its interface.
    pub netdev: String,
    /// The address that is used.
    pub address: std::net::IpAddr,
    /// The path MTU that is used.
    pub mtu: usize,
    /// Why groups cannot be reached through it, if so.
    pub no_multicast: Option<String>,
}

/// When a process was at work, on the clock that all processes share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Before its first request, in nanoseconds.
    pub start_ns: u64,
    /// After its last completion.
    pub end_ns: u64,
    /// How long each message took that was sent one by one.
    pub each_ns: Vec<u64>,
}
