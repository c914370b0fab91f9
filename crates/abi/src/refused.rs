//! Answers of symbols that are not built.

use std::ffi::c_int;

use crate::boundary::{Errno, set_errno};

/// The error number is the result. 64 bits serve the callers of every integer type.
pub fn errno(symbol: &'static str, code: c_int) -> i64 {
    nothing(symbol, code);
    i64::from(code)
}

/// NULL or 0.
pub fn zero(symbol: &'static str, code: c_int) -> i64 {
    nothing(symbol, code);
    0
}

/// -1.
pub fn minus_one(symbol: &'static str, code: c_int) -> i64 {
    nothing(symbol, code);
    -1
}

/// No result.
pub fn nothing(symbol: &'static str, code: c_int) {
    tracing::info!("{symbol} refused: not built into irdma's library (docs/abi.md)");
    set_errno(Errno(code));
}
