//! Messages of the IB connection manager (IBTA 12.6), and what `rdma_cm` puts into them.

mod service;

pub use service::{PortSpace, ServiceId};

/// Bytes of private data of a connection request.
pub const REQ_PRIVATE_LEN: usize = 92;
/// Bytes of private data of a "message receipt acknowledged".
pub const MRA_PRIVATE_LEN: usize = 222;
/// Bytes of private data of a reject.
pub const REJ_PRIVATE_LEN: usize = 148;
/// Bytes of private data of a connection reply.
pub const REP_PRIVATE_LEN: usize = 196;
/// Bytes of private data of "ready to use".
pub const RTU_PRIVATE_LEN: usize = 224;
/// Bytes of private data of a disconnection request.
pub const DREQ_PRIVATE_LEN: usize = 220;
/// Bytes of private data of a disconnection reply.
pub const DREP_PRIVATE_LEN: usize = 224;
/// Bytes of private data of a service id resolution request.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216;
/// Bytes of private data of a service id resolution reply.
pub const SIDR_REP_PRIVATE_LEN: usize = 136;
