//! The objects of a context: handles that own, inner parts that others stand on.
//!
//! A handle is unique. Destroying it explicitly is refused while other objects stand on the
//! inner part; dropping it lets the inner part end with its last user.

mod ah;
mod cq;
mod mr;
mod pd;
mod qp;
mod srq;
mod td;

pub use ah::{Ah, AhAttr};
pub(crate) use cq::CqInner;
pub use cq::{Cq, CqInitAttr};
pub use mr::Mr;
pub(crate) use mr::MrInner;
pub use pd::Pd;
pub(crate) use pd::PdInner;
pub(crate) use qp::QpInner;
pub use qp::{PostSend, Qp, QpInitAttr};
pub use srq::Srq;
pub(crate) use srq::SrqInner;
pub use td::Td;
