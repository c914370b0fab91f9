//! The whole transition table, printed.

use expect_test::expect;

use super::attr::{AttrMask, QpState, QpType};
use super::modify::transition;

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

fn names(mask: AttrMask) -> String {
    let names: Vec<String> = mask.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

fn table(qp_type: QpType) -> String {
    let mut out = String::new();
    for from in STATES {
        for to in STATES {
            if let Some(row) = transition(qp_type, from, to) {
                let (required, optional) = (names(row.required), names(row.optional));
                out += &format!("{from:?} {to:?}: {required} / {optional}\n");
            }
        }
    }
    out
}

#[test]
fn reliable_connection() {
    expect![[r#"
        Reset Reset: - / -
        Reset Init: access_flags pkey_index port / -
        Init Reset: - / -
        Init Init: - / access_flags pkey_index port
        Init Rtr: av path_mtu rq_psn min_rnr_timer max_dest_rd_atomic dest_qpn / access_flags pkey_index alt_path
        Init Err: - / -
        Rtr Reset: - / -
        Rtr Rts: timeout retry_cnt rnr_retry max_qp_rd_atomic sq_psn / cur_state access_flags alt_path min_rnr_timer path_mig_state rate_limit
        Rtr Err: - / -
        Rts Reset: - / -
        Rts Rts: - / cur_state access_flags alt_path min_rnr_timer path_mig_state rate_limit
        Rts Sqd: - / en_sqd_async_notify
        Rts Err: - / -
        Sqd Reset: - / -
        Sqd Rts: - / cur_state access_flags alt_path min_rnr_timer path_mig_state rate_limit
        Sqd Sqd: - / access_flags pkey_index port av timeout retry_cnt rnr_retry max_qp_rd_atomic alt_path min_rnr_timer max_dest_rd_atomic path_mig_state
        Sqd Err: - / -
        Sqe Reset: - / -
        Sqe Rts: - / -
        Sqe Err: - / -
        Err Reset: - / -
        Err Err: - / -
    "#]].assert_eq(&table(QpType::Rc));
}

#[test]
fn unreliable_connection() {
    expect![[r#"
        Reset Reset: - / -
        Reset Init: access_flags pkey_index port / -
        Init Reset: - / -
        Init Init: - / access_flags pkey_index port
        Init Rtr: av path_mtu rq_psn dest_qpn / access_flags pkey_index alt_path
        Init Err: - / -
        Rtr Reset: - / -
        Rtr Rts: sq_psn / cur_state access_flags alt_path path_mig_state rate_limit
        Rtr Err: - / -
        Rts Reset: - / -
        Rts Rts: - / cur_state access_flags alt_path path_mig_state rate_limit
        Rts Sqd: - / en_sqd_async_notify
        Rts Err: - / -
        Sqd Reset: - / -
        Sqd Rts: - / cur_state access_flags alt_path path_mig_state rate_limit
        Sqd Sqd: - / access_flags pkey_index av alt_path path_mig_state
        Sqd Err: - / -
        Sqe Reset: - / -
        Sqe Rts: - / cur_state access_flags
        Sqe Err: - / -
        Err Reset: - / -
        Err Err: - / -
    "#]]
    .assert_eq(&table(QpType::Uc));
}

#[test]
fn datagram() {
    expect![[r#"
        Reset Reset: - / -
        Reset Init: pkey_index port qkey / -
        Init Reset: - / -
        Init Init: - / pkey_index port qkey
        Init Rtr: - / pkey_index qkey
        Init Err: - / -
        Rtr Reset: - / -
        Rtr Rts: sq_psn / cur_state qkey rate_limit
        Rtr Err: - / -
        Rts Reset: - / -
        Rts Rts: - / cur_state qkey rate_limit
        Rts Sqd: - / en_sqd_async_notify
        Rts Err: - / -
        Sqd Reset: - / -
        Sqd Rts: - / cur_state qkey rate_limit
        Sqd Sqd: - / pkey_index qkey
        Sqd Err: - / -
        Sqe Reset: - / -
        Sqe Rts: - / cur_state qkey rate_limit
        Sqe Err: - / -
        Err Reset: - / -
        Err Err: - / -
    "#]]
    .assert_eq(&table(QpType::Ud));
}
