//! Finding the objects that effects name, and telling the program about them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_transport::{Effect, EventKind, EventSource, Rng};
use irdma_wire::Qpn;

use crate::channel::Target;
use crate::cm;
use crate::context::ContextInner;
use crate::handles::{CqInner, QpInner, SrqInner};
use crate::page::Page;

/// The objects of a process by the numbers that the transport knows them by.
#[derive(Debug)]
pub(crate) struct Targets {
    tables: Mutex<Tables>,
    pub(crate) cm: cm::Table,
    /// What the program watches without a call.
    pub(crate) page: Arc<Page>,
}

#[derive(Debug, Default)]
struct Tables {
    contexts: Vec<Weak<ContextInner>>,
    cqs: HashMap<u64, Weak<CqInner>>,
    srqs: HashMap<u64, Weak<SrqInner>>,
    qps: HashMap<Qpn, Weak<QpInner>>,
}

impl Targets {
    pub(crate) fn new(random: u64) -> Self {
        let mut rng = Rng::new(random);
        Targets {
            tables: Mutex::default(),
            cm: cm::Table::new(rng.next_u64()),
            page: Arc::new(Page::new(rng.next_u64())),
        }
    }

    pub(crate) fn add_context(&self, context: &Arc<ContextInner>) {
        let mut tables = self.lock();
        tables.contexts.retain(|context| context.strong_count() > 0);
        tables.contexts.push(Arc::downgrade(context));
    }

    pub(crate) fn add_cq(&self, cq: &Arc<CqInner>) {
        self.lock().cqs.insert(cq.cq.token(), Arc::downgrade(cq));
    }

    pub(crate) fn remove_cq(&self, token: u64) {
        self.lock().cqs.remove(&token);
    }

    pub(crate) fn add_srq(&self, srq: &Arc<SrqInner>) {
        self.lock().srqs.insert(srq.srq.token(), Arc::downgrade(srq));
    }

    pub(crate) fn remove_srq(&self, token: u64) {
        self.lock().srqs.remove(&token);
    }

    pub(crate) fn add_qp(&self, qp: &Arc<QpInner>) {
        self.lock().qps.insert(qp.qpn, Arc::downgrade(qp));
    }

    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        self.lock().qps.remove(&qpn);
    }

    /// The open contexts.
    pub(crate) fn contexts(&self) -> Vec<Arc<ContextInner>> {
        self.lock().contexts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Does what an effect asks; called without the lane's lock.
    pub(crate) fn dispatch(&self, effect: Effect) {
        match effect {
            Effect::CqEvent(token) => {
                if let Some(cq) = self.cq(token) {
                    cq.comp_event();
                }
            }
            Effect::Async(kind, source) => self.notify(kind, source),
            // The lane handles these itself, under its lock.
            Effect::Cm(_) | Effect::JoinGroup { .. } | Effect::LeaveGroup { .. } => {}
        }
    }

    /// Tells the program about an event.
    pub(crate) fn notify(&self, kind: EventKind, source: EventSource) {
        tracing::info!("event {kind:?} for {source}");
        match source {
            EventSource::Cq(token) => {
                if let Some(cq) = self.cq(token) {
                    let target = Target::Object(Arc::downgrade(&cq) as _);
                    cq.context.notify(kind, target);
                }
            }
            EventSource::Qp(qpn) => {
                let qp = self.lock().qps.get(&qpn).and_then(Weak::upgrade);
                if let Some(qp) = qp {
                    let target = Target::Object(Arc::downgrade(&qp) as _);
                    qp.context().notify(kind, target);
                }
            }
            EventSource::Srq(token) => {
                let srq = self.lock().srqs.get(&token).and_then(Weak::upgrade);
                if let Some(srq) = srq {
                    let target = Target::Object(Arc::downgrade(&srq) as _);
                    srq.context.notify(kind, target);
                }
            }
            EventSource::Port(port) => self.notify_all(kind, || Target::Port(port)),
            EventSource::Device => self.notify_all(kind, || Target::Device),
        }
    }

    fn notify_all(&self, kind: EventKind, target: impl Fn() -> Target) {
        for context in self.contexts() {
            context.notify(kind, target());
        }
    }

    fn cq(&self, token: u64) -> Option<Arc<CqInner>> {
        self.lock().cqs.get(&token).and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
