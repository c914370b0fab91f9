//! The objects of a context: handles that own, inner parts that others stand on.
//!
//! A handle is unique. Destroying it explicitly is refused while other objects stand on the
//! inner part; dropping it lets the inner part end with its last user.

mod ah;
mod cq;
mod dm;
mod dmabuf;
mod fast;
mod mcast;
mod mr;
mod mw;
mod odp;
mod pd;
mod qp;
mod rings;
mod srq;
mod td;
mod xrc;

pub use ah::{Ah, AhAttr};
pub(crate) use ah::{AhTable, is_link_scoped};
pub use cq::{Cq, CqInitAttr};
pub(crate) use cq::{CqInner, Feed};
pub use dm::{Dm, DmAttr};
pub use fast::FastMr;
pub(crate) use mr::MrInner;
pub use mr::{Mr, MrChange, Translation};
pub(crate) use mw::MwInner;
pub use mw::{Mw, MwBindInfo};
pub use odp::{Advice, AdviseFlags};
pub use pd::Pd;
pub(crate) use pd::PdInner;
pub(crate) use qp::QpInner;
pub use qp::{PostSend, Qp, QpInitAttr};
pub(crate) use rings::QueueMrInner;
pub use rings::{Part, QueueMr};
pub use srq::Srq;
pub(crate) use srq::SrqInner;
pub use td::Td;
pub(crate) use xrc::XrcdInner;
pub use xrc::{Xrcd, XrcdFlags};
