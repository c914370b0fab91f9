//! RoCEv2 wire formats: bytes to typed headers and back.
#![forbid(unsafe_code)]
