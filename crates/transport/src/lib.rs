//! The RDMA transport as a deterministic, I/O-free state machine.
#![forbid(unsafe_code)]
