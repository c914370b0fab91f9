//! The transition table: which move each service allows, and with which attributes.
//!
//! IBTA 11.2.5.2 (table 91); the rows are those that the kernel's verbs core applies.

use super::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::{Result, VerbsError};

use AttrMask as M;
use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// Attributes that a move must have and may have, besides [`AttrMask::STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Refused without these.
    pub required: AttrMask,
    /// Refused with anything beyond required and these.
    pub optional: AttrMask,
}

const fn union(masks: &[AttrMask]) -> AttrMask {
    let mut bits = 0;
    let mut i = 0;
    while i < masks.len() {
        bits |= masks[i].bits();
        i += 1;
    }
    AttrMask::from_bits_retain(bits)
}

const NONE: AttrMask = AttrMask::empty();
const CONNECTED_INIT: AttrMask = union(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);
const UD_INIT: AttrMask = union(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
const UD_ANY: AttrMask = union(&[M::CUR_STATE, M::QKEY, M::RATE_LIMIT]);
const UC_RTR: AttrMask = union(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
const RC_RTR: AttrMask = union(&[UC_RTR, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
const RTR_OPTIONAL: AttrMask = union(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);
const RC_RTS: AttrMask =
    union(&[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::SQ_PSN, M::MAX_QP_RD_ATOMIC]);
const XRC_RECV_RTS: AttrMask = union(&[M::TIMEOUT, M::SQ_PSN]);
const UC_LIVE: AttrMask =
    union(&[M::CUR_STATE, M::ACCESS_FLAGS, M::ALT_PATH, M::PATH_MIG_STATE, M::RATE_LIMIT]);
const RC_LIVE: AttrMask = union(&[UC_LIVE, M::MIN_RNR_TIMER]);
const UC_SQD: AttrMask =
    union(&[M::AV, M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX, M::PATH_MIG_STATE]);
const RC_SQD: AttrMask = union(&[
    UC_SQD,
    M::PORT,
    M::TIMEOUT,
    M::RETRY_CNT,
    M::RNR_RETRY,
    M::MAX_QP_RD_ATOMIC,
    M::MAX_DEST_RD_ATOMIC,
    M::MIN_RNR_TIMER,
]);

/// The row of the table for one move, `None` where there is none.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    let by_type = |rc, uc, ud| match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => rc,
        QpType::Uc => uc,
        QpType::Ud => ud,
    };
    // Of what a reliable connection needs, each side of an extended one needs its own part.
    let rtr = if qp_type == QpType::XrcSend { UC_RTR } else { RC_RTR };
    let rts = if qp_type == QpType::XrcRecv { XRC_RECV_RTS } else { RC_RTS };
    let (required, optional) = match (from, to) {
        (_, Reset) => (NONE, NONE),
        (Reset, Error) => return None,
        (_, Error) => (NONE, NONE),
        (Reset, Init) => (by_type(CONNECTED_INIT, CONNECTED_INIT, UD_INIT), NONE),
        (Init, Init) => (NONE, by_type(CONNECTED_INIT, CONNECTED_INIT, UD_INIT)),
        (Init, Rtr) => (
            by_type(rtr, UC_RTR, NONE),
            by_type(RTR_OPTIONAL, RTR_OPTIONAL, union(&[M::PKEY_INDEX, M::QKEY])),
        ),
        (Rtr, Rts) => (by_type(rts, M::SQ_PSN, M::SQ_PSN), by_type(RC_LIVE, UC_LIVE, UD_ANY)),
        (Rts, Rts) | (Sqd, Rts) => (NONE, by_type(RC_LIVE, UC_LIVE, UD_ANY)),
        (Rts, Sqd) => (NONE, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (NONE, by_type(RC_SQD, UC_SQD, union(&[M::PKEY_INDEX, M::QKEY]))),
        (Sqe, Rts) => (NONE, by_type(NONE, union(&[M::CUR_STATE, M::ACCESS_FLAGS]), UD_ANY)),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// The attributes that a queue pair has a use for: programs give each side of an extended
/// connection what a whole one needs, and uverbs leaves the other side's part out.
pub(super) fn useful(qp_type: QpType, mask: AttrMask) -> AttrMask {
    match qp_type {
        QpType::XrcSend => mask - (M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        QpType::XrcRecv => mask - (M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY),
        QpType::Rc | QpType::Uc | QpType::Ud => mask,
    }
}

/// Checks a modify against the table; returns the state it leads to.
pub(super) fn check(
    qp_type: QpType,
    from: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState> {
    check_current(from, attr, mask)?;
    let to = if mask.contains(M::STATE) { attr.state } else { from };
    let row = transition(qp_type, from, to).ok_or_else(|| {
        VerbsError::invalid(format!("{qp_type:?} queue pair: no move from {from:?} to {to:?}"))
    })?;
    let given = mask - M::STATE;
    let missing = row.required - given;
    if !missing.is_empty() {
        return Err(refused(to, &missing, "not in attr_mask"));
    }
    let extra = given - row.required - row.optional;
    if !extra.is_empty() {
        return Err(refused(to, &extra, "not allowed in this move"));
    }
    check_values(attr, mask)?;
    Ok(to)
}

fn refused(to: QpState, names: &AttrMask, why: &str) -> VerbsError {
    let names: Vec<&str> = names.iter_names().map(|(name, _)| name).collect();
    VerbsError::invalid(format!("{to:?} refused: {} {why}", names.join(", ")))
}

/// `CUR_STATE` must be the state found.
fn check_current(current: QpState, attr: &QpAttr, mask: AttrMask) -> Result<()> {
    if mask.contains(M::CUR_STATE) && attr.cur_state != current {
        return Err(VerbsError::invalid(format!(
            "modify refused: cur_qp_state says {:?}, the queue pair is in {current:?}",
            attr.cur_state
        )));
    }
    Ok(())
}

fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<()> {
    let in_range = |bit: AttrMask, ok: bool, what: &'static str| {
        if mask.contains(bit) && !ok {
            return Err(VerbsError::invalid(what));
        }
        Ok(())
    };
    in_range(M::PKEY_INDEX, attr.pkey_index == 0, "pkey_index: the table has index 0 only")?;
    in_range(M::PORT, attr.port == 1, "port_num: the device has port 1 only")?;
    let mtu_ok = matches!(attr.path_mtu, 256 | 512 | 1024 | 2048 | 4096);
    in_range(M::PATH_MTU, mtu_ok, "path_mtu: use 256, 512, 1024, 2048 or 4096 (IBV_MTU_*)")?;
    in_range(M::TIMEOUT, attr.timeout < 32, "timeout: above 31")?;
    in_range(M::RETRY_CNT, attr.retry_cnt < 8, "retry_cnt: above 7")?;
    in_range(M::RNR_RETRY, attr.rnr_retry < 8, "rnr_retry: above 7")?;
    in_range(M::MIN_RNR_TIMER, attr.min_rnr_timer < 32, "min_rnr_timer: above 31")
}
