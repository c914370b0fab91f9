//! The signatures of the symbols that work.

use std::ffi::{CStr, c_int, c_void};

use crate::boundary::{Buffer, Count, Plain, Status, Text, export};
use crate::{fork, rate, sysfs, text};

export! {
    ibv_node_type_str(node_type: i32) -> Text = text::node_type;
    ibv_port_state_str(port_state: u32) -> Text = text::port_state;
    ibv_event_type_str(event: u32) -> Text = text::event_type;
    ibv_wc_status_str(status: u32) -> Text = text::wc_status;
    ibv_wr_opcode_str(opcode: u32) -> Text = text::wr_opcode;
    rdma_event_str(event: u32) -> Text = text::cm_event;

    ibv_rate_to_mult(rate: u32) -> Plain<c_int> = rate::to_mult;
    mult_to_ibv_rate(mult: i32) -> Plain<u32> = rate::from_mult;
    ibv_rate_to_mbps(rate: u32) -> Plain<c_int> = rate::to_mbps;
    mbps_to_ibv_rate(mbps: i32) -> Plain<u32> = rate::from_mbps;

    ibv_fork_init() -> Status = fork::init;
    ibv_is_fork_initialized() -> Plain<u32> = fork::status;
    ibv_dontfork_range(base: *mut c_void, size: usize) -> Status = fork::protect_range;
    ibv_dofork_range(base: *mut c_void, size: usize) -> Status = fork::protect_range;

    ibv_get_sysfs_path() -> Text = sysfs::path;
    ibv_read_sysfs_file(dir: &CStr, file: &CStr, buf: Buffer, size: usize) -> Count
        = sysfs::read_file;
}
