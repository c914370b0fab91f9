//! Connection management, `<rdma/rdma_cma.h>`: what librdmacm adds to [`irdma::cm`].
//!
//! An identifier opens its device by itself, makes queues where the program names none, and moves
//! its queue pair through the states. One without a channel waits in each call for its event.

mod accept;
mod address;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod exported;
mod id;
mod live;
mod option;
mod qp;
mod resolve;
mod srq;
mod states;

pub use exported::*;
