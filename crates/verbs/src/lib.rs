//! RDMA verbs in user space: devices, queue pairs, completion queues, memory regions.

mod channel;
mod config;
mod context;
mod device;
mod engine;
mod faults;
mod handles;
mod identity;
mod life;
mod limits;
mod log;
mod port;
mod process;
mod stats;

pub use channel::{AsyncEvent, AsyncSource, CompChannel, CqEvent, Refused};
pub use config::{Config, ConfigError, KNOBS, Knob};
pub use context::Context;
pub use device::{Device, DeviceAttr};
pub use faults::{FaultSpec, Side};
pub use handles::{Ah, AhAttr, Cq, Mr, Pd, PostSend, Qp, QpInitAttr, Srq};
pub use limits::{FULL, Limits};
pub use port::{DEFAULT_PKEY, PORT, PortAttr, PortState};
pub use process::configure;
pub use stats::{HwStats, ProcessStats, processes};

pub use irdma_mem::{Access, Buffer, MrInfo, Sge};
pub use irdma_transport::{
    AddressVector, Arm, AttrMask, ErrorKind, EventKind, QpAttr, QpCap, QpState, QpType, RecvWr,
    Result, SendData, SendFlags, SendOp, SendWr, SrqAttr, UdDest, VerbsError, Wc, WcFlags,
    WcOpcode, WcStatus,
};
pub use irdma_wire::{Gid, Psn, Qpn};
