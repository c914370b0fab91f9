//! The RoCEv2 services.
