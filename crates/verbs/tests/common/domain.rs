//! Queue pairs in thread domains.

use std::sync::Arc;

use irdma::{Buffer, Context, Cq, Pd, Qp, QpInitAttr, QpType, Srq, Td};

use super::{ALL, CAP, Node, loopback, to_init};

/// A protection domain in a thread domain, which ends with the last object on it.
pub fn domain(context: &Context) -> Pd {
    let (_td, pd) = held_domain(context);
    pd
}

/// The same over a given protection domain.
pub fn domain_over(context: &Context, pd: &Pd) -> Pd {
    let td = context.alloc_td().expect("a thread domain");
    pd.alloc_parent_domain(Some(&td)).expect("a parent domain")
}

/// The same with the thread domain's handle.
pub fn held_domain(context: &Context) -> (Td, Pd) {
    let td = context.alloc_td().expect("a thread domain");
    let pd = context.alloc_pd().expect("a protection domain");
    let parent = pd.alloc_parent_domain(Some(&td)).expect("a parent domain");
    (td, parent)
}

/// A queue pair in INIT.
pub fn queue_pair(pd: &Pd, qp_type: QpType, cq: &Cq, srq: Option<&Srq>) -> Qp {
    let init = QpInitAttr {
        qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq,
        cap: CAP,
        sq_sig_all: false,
        block_self_mcast: false,
    };
    let qp = pd.create_qp(&init).expect("a queue pair");
    to_init(&qp);
    qp
}

/// A node on `pd`.
pub fn node_on(context: Context, pd: Pd, qp_type: QpType, len: usize) -> Node {
    let channel = context.create_comp_channel().expect("a completion channel");
    let cq = context.create_cq(512, Some(&channel), 0).expect("a completion queue");
    let buffer = Arc::new(Buffer::zeroed(len));
    let mr = pd.reg_buffer(&buffer, 0..len, ALL).expect("a memory region");
    let qp = queue_pair(&pd, qp_type, &cq, None);
    Node { qp, cq, channel, mr, buffer, pd, context, gid_index: 0, timeout: 14 }
}

/// A node in a thread domain of its own.
pub fn node(qp_type: QpType, len: usize) -> Node {
    let context = loopback().open().expect("an open device");
    let pd = domain(&context);
    node_on(context, pd, qp_type, len)
}

/// Two connected nodes in a thread domain each.
pub fn pair(qp_type: QpType, len: usize) -> (Node, Node) {
    let (a, b) = (node(qp_type, len), node(qp_type, len));
    a.connect(&b.ends());
    b.connect(&a.ends());
    (a, b)
}
