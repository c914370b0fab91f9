//! `ibv_fork_init` and its kin (`ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`).
//!
//! The engine never pins or maps pages for a device, so no memory needs protection from
//! copy-on-write: nothing is to be done for a program that forks.

use std::ffi::c_void;

use crate::boundary::Errno;
use crate::types::IBV_FORK_UNNEEDED;

pub fn init() -> Result<(), Errno> {
    Ok(())
}

pub fn status() -> Result<u32, Errno> {
    Ok(IBV_FORK_UNNEEDED)
}

pub fn protect_range(_base: *mut c_void, _size: usize) -> Result<(), Errno> {
    Ok(())
}
