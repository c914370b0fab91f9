//! Why a registration or a grant is refused.

use thiserror::Error;

use crate::Access;

/// A registration or deregistration is refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemError {
    /// Length 0, or a range that wraps around the address space or leaves its buffer (EINVAL).
    #[error("region {addr:#x}+{len}: length 0, a wrap, or past its buffer; pass the real size")]
    InvalidLength {
        /// Start, process address or `iova`, whichever wraps.
        addr: u64,
        /// Length asked for, in bytes.
        len: u64,
    },
    /// Remote write or atomic access without local write, IBTA 10.6.3.1 (EINVAL).
    #[error("access {0:?}: remote write and atomics need LOCAL_WRITE too; add it")]
    InvalidAccess(Access),
    /// The address is null, so nothing can be mapped there (EFAULT).
    #[error("region at address 0: no memory is mapped there; pass the buffer's address")]
    Fault,
    /// Every key is in use (ENOMEM).
    #[error("all {max_mr} keys are in use; deregister regions or raise the limit")]
    NoKeys {
        /// The table's limit.
        max_mr: u32,
    },
    /// The key names no region (EINVAL).
    #[error("key {0:#010x} names no region: never registered, or deregistered already")]
    UnknownKey(u32),
    /// Memory windows are bound to the region (EBUSY).
    #[error("region of key {0:#010x} has bound windows; deallocate or invalidate them first")]
    Busy(u32),
}

impl MemError {
    /// The errno a verb returns for this refusal (`ibv_reg_mr(3)`).
    pub fn errno(&self) -> i32 {
        match self {
            Self::InvalidLength { .. } | Self::InvalidAccess(_) | Self::UnknownKey(_) => 22,
            Self::Fault => 14,
            Self::NoKeys { .. } => 12,
            Self::Busy(_) => 16,
        }
    }
}

/// A key does not allow what was asked of it, IBTA 10.6.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GrantError {
    /// No region has the key: never registered, deregistered, or a wrong number.
    #[error("the key names no region: never registered, deregistered, or a wrong number")]
    UnknownKey,
    /// The region belongs to another protection domain than the queue pair.
    #[error("the region belongs to another protection domain; register it in the queue pair's")]
    ForeignPd,
    /// The region was registered without some access flag.
    #[error("the region lacks {missing:?}; register it with that access")]
    Access {
        /// Flags that were needed and are not there.
        missing: Access,
    },
    /// The range is not inside the region.
    #[error("{}", explain_bounds(*key, *start, *region_len, *va, *len))]
    Bounds {
        /// The region's key.
        key: u32,
        /// The region's first address (`iova`).
        start: u64,
        /// The region's length in bytes.
        region_len: u64,
        /// First address asked for.
        va: u64,
        /// Bytes asked for.
        len: u64,
    },
}

/// A key cannot be invalidated, IBTA 10.6.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidateError {
    /// No region has the key.
    #[error("the key names no region: never registered, deregistered, or a wrong number")]
    UnknownKey,
    /// The region belongs to another protection domain than the queue pair.
    #[error("the region belongs to another protection domain")]
    ForeignPd,
    /// A region made by registration is ended by deregistration only.
    #[error("a registered region is ended by dereg_mr; only windows can be invalidated")]
    Registered,
}

fn explain_bounds(key: u32, start: u64, region_len: u64, va: u64, len: u64) -> String {
    let region = format!("the region of key {key:#010x} ({start:#x}+{region_len})");
    if va < start {
        return format!("{va:#x}+{len} starts {} bytes before {region}", start - va);
    }
    let past = (va as u128 + len as u128) - (start as u128 + region_len as u128);
    format!("{va:#x}+{len} ends {past} bytes past {region}")
}
