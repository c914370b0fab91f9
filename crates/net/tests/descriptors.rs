//! What holds for every descriptor and every system call of the package.

use std::os::fd::AsFd;

use irdma_net::mcast::Membership;
use irdma_net::netdev::Watch;
use irdma_net::slot::Slot;
use irdma_net::udp::{RecvSocket, Reuse, SendSocket};
use irdma_net::wake::{EventFd, Poll};
use rustix::io::{FdFlags, fcntl_getfd};

#[test]
fn every_descriptor_is_close_on_exec() {
    let lo = "127.0.0.1".parse().unwrap();
    let all: [(&str, Box<dyn AsFd>); 8] = [
        ("sending socket", Box::new(SendSocket::open(lo, 0).unwrap())),
        ("receiving socket", Box::new(RecvSocket::open(lo, 0, 0, Reuse::Group).unwrap())),
        ("membership", Box::new(Membership::join("239.77.9.8".parse().unwrap(), 1).unwrap())),
        ("slot", Box::new(Slot::claim(1).unwrap())),
        ("watch", Box::new(Watch::open().unwrap())),
        ("poll", Box::new(Poll::new().unwrap())),
        ("engine counter", Box::new(EventFd::engine().unwrap())),
        ("channel", Box::new(EventFd::channel().unwrap())),
    ];
    for (name, fd) in all {
        assert!(fcntl_getfd(fd.as_fd()).unwrap().contains(FdFlags::CLOEXEC), "{name}");
    }
}

/// A preload library may interpose libc's functions; only its constants and types are used, and
/// the one registration that has no system call behind it.
#[test]
fn no_function_of_libc_is_called() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut folders = vec![std::path::PathBuf::from(root)];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let source = std::fs::read_to_string(&path).unwrap();
            for (_, rest) in
                source.match_indices("libc::").map(|(at, m)| source.split_at(at + m.len()))
            {
                let name_len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap();
                let (name, after) = rest.split_at(name_len);
                let called = after.starts_with('(') && name != "pthread_atfork";
                assert!(!called, "{path:?}: libc::{name}");
            }
        }
    }
    assert!(files > 10);
}
