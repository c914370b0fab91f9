//! Advertised limits are truthful: the value works, one more is refused.

mod common;

use std::sync::Arc;

use common::{CAP, loopback};
use irdma::{Access, Buffer, Context, Cq, Limits, Pd, QpCap, QpInitAttr, QpType, SrqAttr};

fn init<'a>(cq: &'a Cq, cap: QpCap) -> QpInitAttr<'a> {
    QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap,
        sq_sig_all: false,
        block_self_mcast: false,
    }
}

/// Every size at its limit is granted; each one past it alone is refused.
#[test]
fn sizes_are_exact() {
    let context = loopback().open().unwrap();
    let limits = context.query_device().limits;
    let pd = context.alloc_pd().unwrap();
    queue_pairs(&context, &pd, &limits);
    let refused = |attr| pd.create_srq(attr).unwrap_err().errno() == 22;
    let most = SrqAttr { max_wr: limits.max_srq_wr, max_sge: limits.max_srq_sge, srq_limit: 0 };
    assert!(pd.create_srq(most).is_ok());
    assert!(refused(SrqAttr { max_wr: most.max_wr + 1, ..most }));
    assert!(refused(SrqAttr { max_sge: most.max_sge + 1, ..most }));
    assert!(refused(SrqAttr { max_wr: 0, ..most }));
    assert!(context.create_cq(limits.max_cqe, None, 0).is_ok());
    for cqe in [0, limits.max_cqe + 1] {
        assert_eq!(context.create_cq(cqe, None, 0).unwrap_err().errno(), 22);
    }
    assert_eq!(context.create_cq(1, None, 1).unwrap_err().errno(), 22);
}

fn queue_pairs(context: &Context, pd: &Pd, limits: &Limits) {
    let cq = context.create_cq(1, None, 0).unwrap();
    let most = QpCap {
        max_send_wr: limits.max_qp_wr,
        max_recv_wr: limits.max_qp_wr,
        max_send_sge: limits.max_send_sge,
        max_recv_sge: limits.max_recv_sge,
        max_inline_data: limits.max_inline_data,
    };
    assert!(pd.create_qp(&init(&cq, most)).is_ok());
    let past = [
        QpCap { max_send_wr: most.max_send_wr + 1, ..most },
        QpCap { max_recv_wr: most.max_recv_wr + 1, ..most },
        QpCap { max_send_sge: most.max_send_sge + 1, ..most },
        QpCap { max_recv_sge: most.max_recv_sge + 1, ..most },
        QpCap { max_inline_data: most.max_inline_data + 1, ..most },
    ];
    for cap in past {
        assert_eq!(pd.create_qp(&init(&cq, cap)).unwrap_err().errno(), 22, "{cap:?}");
    }
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (a, b) = (loopback().open().unwrap(), loopback().open().unwrap());
    let pd = a.alloc_pd().unwrap();
    let foreign = b.create_cq(1, None, 0).unwrap();
    assert_eq!(pd.create_qp(&init(&foreign, CAP)).unwrap_err().errno(), 22);
    let channel = b.create_comp_channel().unwrap();
    assert_eq!(a.create_cq(1, Some(&channel), 0).unwrap_err().errno(), 22);
}

#[test]
fn a_region_is_of_memory_that_is_there() {
    let context = loopback().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let constant: &'static [u8; 64] = &[7; 64];
    let place = constant.as_ptr().expose_provenance();
    let register = |addr, len, access| {
        // SAFETY: what is registered here is read only, and stays.
        let mr = unsafe { pd.reg_user_mr(addr, len, addr as u64, access) };
        mr.err().map_or(0, |error| error.errno())
    };
    let (most, unmapped) = (context.query_device().limits.max_mr_size, 8);
    assert_eq!(most, 32 << 40);
    assert_eq!(register(place, 64, Access::REMOTE_READ), 0);
    assert_eq!(register(place, 64, Access::LOCAL_WRITE), libc::EFAULT, "it is constant");
    assert_eq!(register(place, 64, Access::REMOTE_WRITE), libc::EINVAL, "without LOCAL_WRITE");
    assert_eq!(register(unmapped, 64, Access::empty()), libc::EFAULT);
    assert_eq!(register(unmapped, most, Access::empty()), libc::EFAULT);
    assert_eq!(register(unmapped, most + 1, Access::empty()), libc::EINVAL);
    assert_eq!(register(place, 0, Access::empty()), libc::EINVAL);
    assert_eq!(register(usize::MAX - 8, 64, Access::empty()), libc::EINVAL, "it wraps");
}

#[test]
fn what_others_stand_on_is_busy() {
    let context = loopback().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let buffer = Arc::new(Buffer::zeroed(64));
    let mr = pd.reg_buffer(&buffer, 0..64, Access::empty()).unwrap();
    let refused = pd.dealloc_pd().unwrap_err();
    assert_eq!(refused.error.errno(), 16);
    mr.dereg_mr().unwrap();
    refused.handle.dealloc_pd().unwrap();
}

#[test]
fn a_closed_context_refuses_everything_and_frees_its_queue_pairs() {
    let (a, b) = common::pair(QpType::Rc, 64);
    a.context.dealloc_ucontext();
    assert_eq!(a.pd.create_srq(SrqAttr::default()).unwrap_err().errno(), 22);
    assert_eq!(a.qp.query_qp().unwrap_err().errno(), 22);
    assert_eq!(a.mr.dereg_mr().unwrap_err().error.errno(), 22);
    drop((a.qp, a.cq));
    let (state, _) = b.qp.query_qp().unwrap();
    assert_eq!(state.state, irdma::QpState::Rts);
}
