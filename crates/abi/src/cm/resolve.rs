//! Addresses, routes and listening.

use std::ffi::c_int;

use crate::boundary::{Errno, Object};
use crate::cm::address::Address;
use crate::cm::id::{CmId, milliseconds};

/// `rdma_bind_addr(3)`.
pub fn bind_addr(id: &Object<CmId>, addr: Address) -> Result<(), Errno> {
    id.handle.bind_addr(addr.ip("rdma_bind_addr", "addr")?)?;
    id.show()
}

/// `rdma_resolve_addr(3)`.
pub fn resolve_addr(
    id: &Object<CmId>,
    source: Option<Address>,
    destination: Address,
    timeout_ms: c_int,
) -> Result<(), Errno> {
    const CALL: &str = "rdma_resolve_addr";
    let source = source.map(|addr| addr.ip(CALL, "src_addr")).transpose()?;
    let destination = destination.ip(CALL, "dst_addr")?;
    id.handle.resolve_addr(source, destination, milliseconds(timeout_ms))?;
    id.complete()
}

/// `rdma_resolve_route(3)`.
pub fn resolve_route(id: &Object<CmId>, timeout_ms: c_int) -> Result<(), Errno> {
    id.handle.resolve_route(milliseconds(timeout_ms))?;
    id.complete()
}

/// `rdma_listen(3)`.
pub fn listen(id: &Object<CmId>, backlog: c_int) -> Result<(), Errno> {
    id.handle.listen(backlog.max(0).unsigned_abs())?;
    id.show()
}
