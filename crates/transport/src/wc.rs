//! Work completions and their status.

use std::net::IpAddr;

use bitflags::bitflags;
use irdma_wire::Qpn;

/// Completion status, numbered as `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// A message does not fit the buffer, or a datagram the MTU.
    LocLenErr = 1,
    /// The queue pair cannot do what was asked.
    LocQpOpErr = 2,
    /// A local key, range or permission does not cover the scatter/gather list.
    LocProtErr = 4,
    /// Flushed: the queue pair left the working states before this request was done.
    WrFlushErr = 5,
    /// A window could not be bound.
    MwBindErr = 6,
    /// The response was not what the request calls for.
    BadRespErr = 7,
    /// The remote side's buffer is unusable for this request.
    RemInvReqErr = 9,
    /// The remote key, range or permission does not cover the access.
    RemAccessErr = 10,
    /// The remote side failed.
    RemOpErr = 11,
    /// No answer within the retry budget.
    RetryExcErr = 12,
    /// The receiver had no buffer within the RNR budget.
    RnrRetryExcErr = 13,
    /// The device is gone.
    FatalErr = 19,
    /// Anything else.
    GeneralErr = 21,
}

/// Internal flush reasons, numbered as the kernel driver's flush codes (seed row 60).
pub const FLUSH_CODES: [WcStatus; 12] = [
    WcStatus::FatalErr,
    WcStatus::WrFlushErr,
    WcStatus::LocProtErr,
    WcStatus::RemAccessErr,
    WcStatus::LocQpOpErr,
    WcStatus::RemOpErr,
    WcStatus::LocLenErr,
    WcStatus::FatalErr,
    WcStatus::RetryExcErr,
    WcStatus::MwBindErr,
    WcStatus::RemInvReqErr,
    WcStatus::RnrRetryExcErr,
];

/// Translates a flush code into the status a program sees; unknown codes are fatal.
pub fn flush_err_to_ib_wc_status(flush_code: u32) -> WcStatus {
    FLUSH_CODES.get(flush_code as usize).copied().unwrap_or(WcStatus::FatalErr)
}

/// Completed operation, numbered as `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// A SEND of any kind.
    #[default]
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A compare-and-swap.
    CompSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A window bind.
    BindMw = 5,
    /// A local invalidate.
    LocalInv = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A fast registration; the number is ours, as C programs cannot post one.
    RegMr = 10,
    /// A received SEND.
    Recv = 128,
    /// A received RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// Flags of a completion, with the values of `ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer are a GRH.
        const GRH = 1;
        /// Immediate data is present.
        const WITH_IMM = 2;
        /// `invalidated_rkey` is present.
        const WITH_INV = 8;
    }
}

/// The kind of IP header that a datagram came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// IPv4, in the last 20 of the 40 bytes.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Network {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Network::Ipv4,
            IpAddr::V6(_) => Network::Ipv6,
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// The number given at post time.
    pub wr_id: u64,
    /// How it ended; on failure only `wr_id`, `qpn` and `vendor_err` are meaningful.
    pub status: WcStatus,
    /// What was done.
    pub opcode: WcOpcode,
    /// A number that names the cause of a failure.
    pub vendor_err: u32,
    /// Bytes received (with the 40 of a GRH), or bytes sent.
    pub byte_len: u32,
    /// Immediate data, network order.
    pub imm: [u8; 4],
    /// The key that a SEND with invalidate made unusable, host order.
    pub invalidated_rkey: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The remote queue pair of a datagram.
    pub src_qpn: Qpn,
    /// Which optional fields are present.
    pub flags: WcFlags,
    /// The kind of header in the first 40 bytes, with [`WcFlags::GRH`] (IBTA A17.4.5.1).
    pub network: Option<Network>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// The caller's time when the completion was made, in nanoseconds.
    pub timestamp_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_codes_become_statuses() {
        use WcStatus as S;
        let statuses = [
            S::FatalErr,
            S::WrFlushErr,
            S::LocProtErr,
            S::RemAccessErr,
            S::LocQpOpErr,
            S::RemOpErr,
            S::LocLenErr,
            S::FatalErr,
            S::RetryExcErr,
            S::MwBindErr,
            S::RemInvReqErr,
            S::RnrRetryExcErr,
        ];
        for (code, status) in (0..).zip(statuses) {
            assert_eq!(flush_err_to_ib_wc_status(code), status, "code {code}");
        }
        assert_eq!(flush_err_to_ib_wc_status(12), S::FatalErr);
    }
}
