//! Linux behind safe calls: UDP batches, steering, slots, interfaces.
//!
//! All system calls are raw: a preload library of the program may interpose libc's socket
//! functions. Every descriptor is close-on-exec.

mod addr;
pub mod clock;
mod cmsg;
pub mod fd;
pub mod fork;
pub mod maps;
pub mod mcast;
mod named;
pub mod netdev;
pub mod port;
pub mod route;
pub mod slot;
pub mod steer;
mod sys;
#[cfg(test)]
mod testing;
pub mod udp;
pub mod wake;
