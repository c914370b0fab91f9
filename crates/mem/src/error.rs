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
    /// The key is of another kind of object (EINVAL).
    #[error("key {key:#010x}: the call needs {needs}")]
    WrongKind {
        /// The key.
        key: u32,
        /// What the call works on.
        needs: &'static str,
    },
    /// Pages of the device are of 4 KiB, 2 MiB or 1 GiB (EINVAL).
    #[error("pages of {0} bytes: the device has 4 KiB, 2 MiB and 1 GiB")]
    PageSize(u64),
    /// A list of no pages, or of more than the device's longest (EINVAL).
    #[error("a list of {0} pages: ask for 1 to {max}", max = crate::MAX_FAST_REG_PAGES)]
    PageCount(u32),
    /// The page list is full (ENOMEM).
    #[error("all {0} pages of the list are in use; allocate a longer one")]
    ListFull(u32),
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
    /// The key is reserved: the window is not bound, the region not registered.
    #[error("the key is not in use: bind the window, or register the region, first")]
    Invalid,
    /// A window serves the peer's requests only.
    #[error("the key is a memory window's: only the peer may use it; take the region's lkey")]
    Window,
    /// The window is bound to another queue pair.
    #[error("the window is bound to another queue pair")]
    ForeignQp,
    /// Pages of a region registered on demand are not mapped, or not writable.
    #[error("{len} bytes at {addr:#x} are not mapped, or not with that access; map them first")]
    Unmapped {
        /// Process address of the first byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
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
    /// The window is bound to another queue pair.
    #[error("the window is bound to another queue pair")]
    ForeignQp,
    /// Windows are bound to the region.
    #[error("windows are bound to the region; invalidate them first")]
    Busy,
    /// A region made by registration is ended by deregistration only, a window of type 1 by
    /// binding it to nothing.
    #[error(
        "only windows of type 2 and fast registrations can be invalidated: a registered region \
         is ended by dereg_mr, a window of type 1 by binding it with length 0"
    )]
    Registered,
}

/// A window is not bound, or a region not registered, by a work request (IBTA 10.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// No window has the key.
    #[error("key {0:#010x} names no window, or a stale one")]
    NoWindow(u32),
    /// No region for fast registration has the key.
    #[error("key {0:#010x} names no region for fast registration, or a stale one")]
    NoFastRegion(u32),
    /// Window, region and queue pair belong to different protection domains.
    #[error("the object belongs to another protection domain than the queue pair")]
    ForeignPd,
    /// Bound or registered already.
    #[error("key {0:#010x} is in use already; invalidate it first")]
    InUse(u32),
    /// More than the low byte of the key would change.
    #[error("key {new:#010x} for {old:#010x}: only the low byte may change")]
    Key {
        /// The key so far.
        old: u32,
        /// The key asked for.
        new: u32,
    },
    /// The region's key is wrong, or it is no region to which windows can be bound.
    #[error("region key {0:#010x}: unknown, zero-based, or no registered region")]
    Region(u32),
    /// The region was registered without some access flag.
    #[error("the region lacks {missing:?}; register it with that access")]
    Access {
        /// Flags that were needed and are not there.
        missing: Access,
    },
    /// The range is not inside the region, or empty.
    #[error("{va:#x}+{len} is empty or not inside the region")]
    Bounds {
        /// First address asked for.
        va: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// Nothing was mapped for the registration.
    #[error("nothing was mapped: call map_mr_sg first")]
    NothingMapped,
}

fn explain_bounds(key: u32, start: u64, region_len: u64, va: u64, len: u64) -> String {
    let region = format!("the region of key {key:#010x} ({start:#x}+{region_len})");
    if va < start {
        return format!("{va:#x}+{len} starts {} bytes before {region}", start - va);
    }
    let past = (va as u128 + len as u128) - (start as u128 + region_len as u128);
    format!("{va:#x}+{len} ends {past} bytes past {region}")
}
