//! Simulated links and worlds for the irdma transport.
#![forbid(unsafe_code)]
