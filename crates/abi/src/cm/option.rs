//! Options of identifiers.

use std::ffi::{c_int, c_void};

use crate::boundary::{Errno, Object, read_program, refuse};
use crate::cm::id::CmId;
use crate::types::{
    RDMA_OPTION_IB, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

const CALL: &str = "rdma_set_option";

/// `rdma_set_option(3)`.
pub fn set(
    id: &Object<CmId>,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> Result<(), Errno> {
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            id.handle.set_tos(byte(value, len)?);
            Ok(())
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            Ok(id.handle.set_reuseaddr(number(value, len)? != 0)?)
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            Ok(id.handle.set_afonly(number(value, len)? != 0)?)
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            Ok(id.handle.set_ack_timeout(byte(value, len)?)?)
        }
        (RDMA_OPTION_IB, _) => {
            Err(refuse(CALL, libc::EOPNOTSUPP, "paths of RoCE follow from its addresses"))
        }
        _ => {
            let cause = format!("level {level} has no option {name}");
            Err(refuse(CALL, libc::ENOSYS, &cause))
        }
    }
}

fn byte(value: *mut c_void, len: usize) -> Result<u8, Errno> {
    Ok(read::<1>(value, len)?[0])
}

fn number(value: *mut c_void, len: usize) -> Result<c_int, Errno> {
    Ok(c_int::from_ne_bytes(read(value, len)?))
}

fn read<const N: usize>(value: *mut c_void, len: usize) -> Result<[u8; N], Errno> {
    if value.is_null() || len != N {
        let cause = format!("optval is NULL, or optlen {len} is not {N}");
        return Err(refuse(CALL, libc::EINVAL, &cause));
    }
    let mut bytes = [0; N];
    // SAFETY: the program says that it has so many bytes there.
    unsafe { read_program(value.cast(), &mut bytes) };
    Ok(bytes)
}
