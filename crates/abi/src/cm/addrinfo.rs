//! Names of hosts and services (`rdma_getaddrinfo(3)`), by the C library's `getaddrinfo(3)`.

use std::ffi::{CStr, c_int};
use std::net::SocketAddr;
use std::ptr;

use crate::boundary::{Errno, FromC, In, Out, read_program, refuse};
use crate::cm::address::{Address, store};
use crate::types::{
    IBV_QPT_RC, IBV_QPT_UD, RAI_FAMILY, RAI_NOROUTE, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_TCP,
    RDMA_PS_UDP, rdma_addrinfo,
};

const CALL: &str = "rdma_getaddrinfo";
const KNOWN_FLAGS: c_int = RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY;

/// `rdma_getaddrinfo(3)`: 0, -1 and errno, or a code of `getaddrinfo(3)`.
pub fn get(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<In<rdma_addrinfo>>,
    out: Out<'_, *mut rdma_addrinfo>,
) -> Result<c_int, Errno> {
    if node.is_none() && service.is_none() && hints.is_none() {
        return Err(refuse(CALL, libc::EINVAL, "neither node, service nor hints are given"));
    }
    let hints = hints.map_or(rdma_addrinfo::zeroed(), |In(hints)| hints);
    if hints.ai_flags & !KNOWN_FLAGS != 0 {
        return Ok(libc::EAI_BADFLAGS);
    }
    let wanted = Wanted::by(&hints)?;
    let found = if node.is_some() || service.is_some() {
        match look_up(node, service, &hints) {
            Ok(found) => found,
            Err(code) => return Ok(code),
        }
    } else {
        wanted.destination.or(wanted.source).into_iter().collect()
    };
    let mut first = ptr::null_mut();
    for addr in found.into_iter().rev() {
        first = Box::into_raw(Box::new(wanted.describe(addr, first)));
    }
    out.write(first);
    Ok(0)
}

/// What the hints ask for.
struct Wanted {
    flags: c_int,
    qp_type: u32,
    port_space: u32,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

impl Wanted {
    fn by(hints: &rdma_addrinfo) -> Result<Self, Errno> {
        let (qp_type, space) = (hints.ai_qp_type as u32, hints.ai_port_space as u32);
        let qp_type = match (qp_type, space) {
            (0, RDMA_PS_UDP) => IBV_QPT_UD,
            (0, _) => IBV_QPT_RC,
            (given, _) => given,
        };
        let port_space = match (space, qp_type) {
            (0, IBV_QPT_UD) => RDMA_PS_UDP,
            (0, _) => RDMA_PS_TCP,
            (given, _) => given,
        };
        Ok(Wanted {
            flags: hints.ai_flags,
            qp_type,
            port_space,
            source: hinted(hints.ai_src_addr, hints.ai_src_len, "hints->ai_src_addr")?,
            destination: hinted(hints.ai_dst_addr, hints.ai_dst_len, "hints->ai_dst_addr")?,
        })
    }

    /// One answer, in front of `next`.
    fn describe(&self, addr: SocketAddr, next: *mut rdma_addrinfo) -> rdma_addrinfo {
        let mut info = rdma_addrinfo::zeroed();
        info.ai_flags = self.flags;
        info.ai_qp_type = self.qp_type as c_int;
        info.ai_port_space = self.port_space as c_int;
        info.ai_family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        info.ai_next = next;
        if self.flags & RAI_PASSIVE != 0 {
            (info.ai_src_addr, info.ai_src_len) = give(addr);
            return info;
        }
        (info.ai_dst_addr, info.ai_dst_len) = give(addr);
        if let Some(source) = self.source {
            (info.ai_src_addr, info.ai_src_len) = give(source);
        }
        info
    }
}

fn hinted(
    addr: *mut libc::sockaddr,
    len: libc::socklen_t,
    name: &str,
) -> Result<Option<SocketAddr>, Errno> {
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: the program says that there is an address of that length.
    let addr = unsafe { <Option<Address>>::from_c(addr) }?;
    addr.map(|addr| addr.ip(CALL, name)).transpose()
}

/// An address that the program owns until `rdma_freeaddrinfo`.
fn give(addr: SocketAddr) -> (*mut libc::sockaddr, libc::socklen_t) {
    let (storage, len) = store(addr);
    (Box::into_raw(Box::new(storage)).cast(), len as libc::socklen_t)
}

/// Asks the C library; its code where it refuses.
fn look_up(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: &rdma_addrinfo,
) -> Result<Vec<SocketAddr>, c_int> {
    // SAFETY: all zeros ask for nothing in particular.
    let mut asked: libc::addrinfo = unsafe { std::mem::zeroed() };
    let given = |flag| hints.ai_flags & flag != 0;
    asked.ai_flags = if given(RAI_PASSIVE) { libc::AI_PASSIVE } else { 0 };
    asked.ai_flags |= if given(RAI_NUMERICHOST) { libc::AI_NUMERICHOST } else { 0 };
    asked.ai_family = if given(RAI_FAMILY) { hints.ai_family } else { libc::AF_UNSPEC };
    // One answer an address instead of one for each type of socket.
    asked.ai_socktype = libc::SOCK_STREAM;
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let mut list = ptr::null_mut();
    // SAFETY: texts and structures live during the call.
    match unsafe { libc::getaddrinfo(text(node), text(service), &raw const asked, &raw mut list) } {
        0 => Ok(take(list)),
        code => Err(code),
    }
}

/// The addresses of a list, which is freed.
fn take(list: *mut libc::addrinfo) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an element of the list.
        let info = unsafe { at.read() };
        // SAFETY: the element's address.
        if let Ok(Ok(addr)) = unsafe { Address::from_c(info.ai_addr) }.map(|a| a.ip(CALL, "node")) {
            found.push(addr);
        }
        at = info.ai_next;
    }
    // SAFETY: the list is the C library's, and nothing points into it any more.
    unsafe { libc::freeaddrinfo(list) };
    found
}

/// What the program has connected by this answer say first.
pub fn connect_data(info: &rdma_addrinfo) -> Vec<u8> {
    let len = if info.ai_connect.is_null() { 0 } else { info.ai_connect_len };
    let mut data = vec![0; len];
    // SAFETY: the program says that it has so many bytes there.
    unsafe { read_program(info.ai_connect.cast::<u8>(), &mut data) };
    data
}

/// A list of answers, given back.
pub struct Answers(*mut rdma_addrinfo);

impl FromC for Answers {
    type Raw = *mut rdma_addrinfo;

    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno> {
        Ok(Answers(raw))
    }
}

/// `rdma_freeaddrinfo(3)`.
pub fn free(Answers(mut at): Answers) -> Result<(), Errno> {
    while !at.is_null() {
        // SAFETY: `get` made the element from a box, and the program gives it back.
        let info = unsafe { Box::from_raw(at) };
        for addr in [info.ai_src_addr, info.ai_dst_addr] {
            if !addr.is_null() {
                // SAFETY: as above, `give` made it.
                drop(unsafe { Box::from_raw(addr.cast::<libc::sockaddr_storage>()) });
            }
        }
        at = info.ai_next;
    }
    Ok(())
}
