//! The IB connection manager (IBTA 12): who connects queue pairs, over QP1.

mod types;
mod verbs;

pub use types::{
    CmEvent, CmEventKind, CommId, ConnectReply, ConnectRequest, ReplyInfo, RequestInfo, SidrReply,
    SidrRequest,
};
