//! Names of numbers (`ibv_event_type_str(3)`, `ibv_wc_status_str(3)`, `rdma_event_str(3)`), worded
//! as rdma-core words them: scripts and people look for those words in logs.

use std::ffi::CStr;

use crate::boundary::Errno;

/// From 1, a channel adapter.
const NODE_TYPES: &[&CStr] = &[
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: &[&CStr] =
    &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const WC_STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const WR_OPCODES: &[&CStr] = &[
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

const CM_EVENTS: &[&CStr] = &[
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

fn name(names: &[&'static CStr], index: u32) -> &'static CStr {
    names.get(index as usize).copied().unwrap_or(c"unknown")
}

pub fn node_type(node_type: i32) -> Result<&'static CStr, Errno> {
    let index = node_type.checked_sub(1).and_then(|index| u32::try_from(index).ok());
    Ok(index.map_or(c"unknown", |index| name(NODE_TYPES, index)))
}

pub fn port_state(state: u32) -> Result<&'static CStr, Errno> {
    Ok(name(PORT_STATES, state))
}

pub fn event_type(event: u32) -> Result<&'static CStr, Errno> {
    Ok(name(EVENT_TYPES, event))
}

pub fn wc_status(status: u32) -> Result<&'static CStr, Errno> {
    Ok(name(WC_STATUSES, status))
}

pub fn wr_opcode(opcode: u32) -> Result<&'static CStr, Errno> {
    Ok(name(WR_OPCODES, opcode))
}

pub fn cm_event(event: u32) -> Result<&'static CStr, Errno> {
    Ok(CM_EVENTS.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT"))
}
