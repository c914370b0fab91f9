//! Registered memory: regions, keys and the grants that let the protocol touch them.
//!
//! A [`MemTable`] maps keys to regions. [`MemTable::grant`] checks key, protection domain, rights
//! and range once; the [`Grant`] it returns is the only way to read or write the bytes, and
//! [`MemTable::dereg_mr`] returns only when no grant on the region is left.
//!
//! Registered memory may change at any time under our feet, so it is never seen through a
//! reference or a slice: only through raw copies and atomics, all of them in `region.rs`.
//!
//! ```
//! use std::sync::Arc;
//! use irdma_mem::{Access, Buffer, MemTable, PdId};
//!
//! let table = MemTable::new(1, 1024);
//! let buffer = Arc::new(Buffer::zeroed(4096));
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let mr = table.reg_phys_mr(PdId(3), &buffer, 0..4096, buffer.addr(), access)?;
//!
//! let grant = table.grant(mr.rkey, mr.iova + 100, 5, Access::REMOTE_WRITE, PdId(3))?;
//! grant.write_at(0, b"hello");
//! drop(grant);
//! assert_eq!(buffer.byte(104), b'o');
//!
//! table.dereg_mr(mr.lkey)?;
//! assert!(table.grant(mr.rkey, mr.iova, 1, Access::empty(), PdId(3)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod access;
mod buffer;
mod error;
mod fast;
mod mr;
mod mw;
mod pbl;
#[allow(unsafe_code)]
mod region;
mod sgl;
mod slot;
mod stag;
mod table;

pub use access::{Access, Rights};
pub use buffer::Buffer;
pub use error::{BindError, GrantError, InvalidateError, MemError};
pub use fast::{MAX_FAST_REG_PAGES, Piece};
pub use mr::{MrInfo, Rereg, get_mr_access};
pub use mw::{MwBind, MwType};
pub use pbl::check_mem_contiguous;
pub use region::Grant;
pub use sgl::{Sge, SglError, gather, scatter, total_len};
pub use slot::{Persist, Probe};
pub use table::{MemTable, PdId};
