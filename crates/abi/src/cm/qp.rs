//! Queue pairs of identifiers, with queues for completions where the program names none.

use std::ffi::c_void;
use std::mem;
use std::ptr;

use crate::boundary::{Errno, InOut, Object, Owned, arg, refuse, set_field};
use crate::cm::id::CmId;
use crate::cm::states;
use crate::context::Context;
use crate::cq::{self, CompChannel, Cq};
use crate::pd::Pd;
use crate::qp::{self, Qp};
use crate::types::{
    IBV_QP_INIT_ATTR_PD, ibv_cq, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};

const CALL: &str = "rdma_create_qp";

/// A completion queue and its channel; they stay unless they are ended.
struct Queue {
    channel: Owned<CompChannel>,
    cq: Owned<Cq>,
}

/// What an identifier has made for its queue pair.
#[derive(Default)]
pub struct Queues {
    send: Option<Queue>,
    receive: Option<Queue>,
}

impl Queue {
    fn new(id: &Object<CmId>, entries: u32) -> Result<Self, Errno> {
        // SAFETY: an identifier that has a device shows its context, which is never closed.
        let context = unsafe { arg::<&Object<Context>>(CALL, "id->verbs", id.seen().verbs) }?;
        let channel = cq::create_channel(context)?;
        let cookie = id.as_seen().cast::<c_void>();
        match cq::create(context, entries.max(1) as i32, cookie, Some(&channel), 0) {
            Ok(cq) => Ok(Queue { channel: Owned::new(channel), cq: Owned::new(cq) }),
            Err(errno) => {
                // Nothing uses it yet, so it goes.
                let _ = Owned::new(channel).end();
                Err(errno)
            }
        }
    }

    /// The program may still have a queue pair on it, against the manual; then it stays.
    fn end(self) {
        if self.cq.end().is_ok() {
            let _ = self.channel.end();
        }
    }
}

impl Queues {
    /// Those that the identifier and `attr` lack.
    fn missing(
        id: &Object<CmId>,
        cap: &ibv_qp_cap,
        send: *mut ibv_cq,
        receive: *mut ibv_cq,
    ) -> Result<Self, Errno> {
        let seen = id.seen();
        let mut queues = Queues::default();
        if send.is_null() && seen.send_cq.is_null() {
            queues.send = Some(Queue::new(id, cap.max_send_wr)?);
        }
        if receive.is_null() && seen.recv_cq.is_null() {
            match Queue::new(id, cap.max_recv_wr) {
                Ok(queue) => queues.receive = Some(queue),
                Err(errno) => {
                    queues.end();
                    return Err(errno);
                }
            }
        }
        Ok(queues)
    }

    fn end(self) {
        [self.send, self.receive].into_iter().flatten().for_each(Queue::end);
    }

    /// Names the queues in the attributes of a queue pair that name none.
    fn name(&self, id: &Object<CmId>, send: &mut *mut ibv_cq, receive: &mut *mut ibv_cq) {
        let seen = id.seen();
        let own = |queue: &Option<Queue>, else_: *mut ibv_cq| {
            queue.as_ref().map_or(else_, |queue| queue.cq.get().as_seen())
        };
        if send.is_null() {
            *send = own(&self.send, seen.send_cq);
        }
        if receive.is_null() {
            *receive = own(&self.receive, seen.recv_cq);
        }
    }

    /// Shows them to the program and keeps them.
    fn keep(self, id: &Object<CmId>) {
        let mut own = id.own();
        if let Some(queue) = self.send {
            set_field!(id, send_cq, queue.cq.get().as_seen());
            set_field!(id, send_cq_channel, queue.channel.get().as_seen());
            own.queues.send = Some(queue);
        }
        if let Some(queue) = self.receive {
            set_field!(id, recv_cq, queue.cq.get().as_seen());
            set_field!(id, recv_cq_channel, queue.channel.get().as_seen());
            own.queues.receive = Some(queue);
        }
    }
}

/// `rdma_create_qp(3)`: queues and granted sizes go back to the program.
pub fn create(
    id: &Object<CmId>,
    pd: Option<&Object<Pd>>,
    mut attr: InOut<'_, ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let mut asked = attr.get();
    make(id, pd, &mut asked)?;
    attr.set(asked);
    Ok(())
}

/// A queue pair for the identifier.
pub fn make(
    id: &Object<CmId>,
    pd: Option<&Object<Pd>>,
    asked: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let pd = domain(CALL, id, pd)?;
    check_free(id)?;
    let queues = Queues::missing(id, &asked.cap, asked.send_cq, asked.recv_cq)?;
    queues.name(id, &mut asked.send_cq, &mut asked.recv_cq);
    if asked.srq.is_null() {
        asked.srq = id.seen().srq;
    }
    let made = qp::create_plain(CALL, pd, asked);
    finish(id, pd, made, queues)
}

/// `rdma_create_qp_ex(3)`.
pub fn create_ex(id: &Object<CmId>, mut attr: InOut<'_, ibv_qp_init_attr_ex>) -> Result<(), Errno> {
    let before = attr.get();
    let mut asked = before;
    let named = asked.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
    // SAFETY: `comp_mask` says whether the program filled it in.
    let pd = unsafe {
        let pd = if named { asked.pd } else { ptr::null_mut() };
        arg::<Option<&Object<Pd>>>(CALL, "pd", pd)
    }?;
    let pd = domain(CALL, id, pd)?;
    check_free(id)?;
    asked.pd = pd.as_seen();
    asked.comp_mask |= IBV_QP_INIT_ATTR_PD;
    let queues = Queues::missing(id, &asked.cap, asked.send_cq, asked.recv_cq)?;
    queues.name(id, &mut asked.send_cq, &mut asked.recv_cq);
    if asked.srq.is_null() {
        asked.srq = id.seen().srq;
    }
    attr.set(asked);
    // SAFETY: an identifier that has a device shows its context.
    let context = unsafe { arg::<&Object<Context>>(CALL, "id->verbs", id.seen().verbs) }?;
    let made = qp::create_ex(context, attr.again());
    let done = finish(id, pd, made, queues);
    if done.is_err() {
        attr.set(before);
    }
    done
}

/// The domain of the program, or of the device; EINVAL without a device, or of another one.
pub fn domain<'a>(
    call: &str,
    id: &'a Object<CmId>,
    pd: Option<&'a Object<Pd>>,
) -> Result<&'a Object<Pd>, Errno> {
    let seen = id.seen();
    if seen.verbs.is_null() {
        let cause = "the identifier has no device yet: bind it or resolve an address";
        return Err(refuse(call, libc::EINVAL, cause));
    }
    let Some(pd) = pd else {
        // SAFETY: `id->pd` is the program's, which lives, or the device's.
        return unsafe { arg(call, "id->pd", seen.pd) };
    };
    if !ptr::eq(pd.seen().context, seen.verbs) {
        return Err(refuse(call, libc::EINVAL, "pd is of another context than id->verbs"));
    }
    Ok(pd)
}

fn check_free(id: &Object<CmId>) -> Result<(), Errno> {
    if !id.seen().qp.is_null() {
        return Err(refuse(CALL, libc::EINVAL, "the identifier has a queue pair already"));
    }
    Ok(())
}

/// Prepares the queue pair, or ends what was made for it.
fn finish(
    id: &Object<CmId>,
    pd: &Object<Pd>,
    made: Result<Box<Object<Qp>>, Errno>,
    queues: Queues,
) -> Result<(), Errno> {
    let prepared = made.and_then(|qp| match states::begin(id, &qp) {
        Ok(()) => Ok(qp),
        Err(errno) => {
            // A queue pair that nobody has seen is not in use.
            let _ = Owned::new(qp).end();
            Err(errno)
        }
    });
    match prepared {
        Ok(qp) => {
            queues.keep(id);
            set_field!(id, pd, pd.as_seen());
            set_field!(id, qp, Object::hand_out(qp));
            Ok(())
        }
        Err(errno) => {
            queues.end();
            Err(errno)
        }
    }
}

/// `rdma_destroy_qp(3)`, and the queues that were made for it.
pub fn destroy(id: &Object<CmId>) -> Result<(), Errno> {
    let qp = id.seen().qp;
    // SAFETY: `id->qp` is what `rdma_create_qp` made.
    let qp = unsafe { arg::<Owned<Qp>>("rdma_destroy_qp", "id->qp", qp) }?;
    qp.end()?;
    set_field!(id, qp, ptr::null_mut());
    end_queues(id);
    Ok(())
}

/// Ends the queues that the identifier made.
pub fn end_queues(id: &Object<CmId>) {
    let queues = mem::take(&mut id.own().queues);
    if queues.send.is_some() {
        set_field!(id, send_cq, ptr::null_mut());
        set_field!(id, send_cq_channel, ptr::null_mut());
    }
    if queues.receive.is_some() {
        set_field!(id, recv_cq, ptr::null_mut());
        set_field!(id, recv_cq_channel, ptr::null_mut());
    }
    queues.end();
}
