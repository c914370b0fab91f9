//! Queue pairs by number.

use irdma_wire::Qpn;

use crate::error::{ErrorKind, Result, VerbsError};
use crate::qp::{Qp, QpInit};

/// Numbers of one slot; index 0 is the slot's control address and is never handed out.
const INDEXES: u32 = 1 << 14;

/// The queue pairs of one slot. Numbers rise from a random start and are not reused soon, because
/// a stale peer cannot be told from a new one by RC requests.
#[derive(Debug)]
pub(crate) struct QpTable {
    slot: u16,
    max: usize,
    next: u16,
    len: usize,
    entries: Vec<Option<Box<Qp>>>,
}

impl QpTable {
    pub(crate) fn new(slot: u16, max: u32, random: u64) -> Self {
        let max = max.min(INDEXES - 1) as usize;
        let next = (random % u64::from(INDEXES - 1)) as u16 + 1;
        QpTable { slot, max, next, len: 0, entries: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, init: QpInit) -> Result<Qpn> {
        if self.len >= self.max {
            return Err(VerbsError::new(
                ErrorKind::Overflow,
                format!("create_qp: all {} queue pair numbers of the slot are in use", self.max),
            ));
        }
        while self.at(self.next).is_some() {
            self.advance();
        }
        let index = self.next;
        self.advance();
        if self.entries.len() <= usize::from(index) {
            self.entries.resize_with(usize::from(index) + 1, || None);
        }
        let qpn = Qpn::from_parts(self.slot, index);
        self.entries[usize::from(index)] = Some(Box::new(Qp::new(qpn, init)));
        self.len += 1;
        Ok(qpn)
    }

    fn advance(&mut self) {
        self.next = if u32::from(self.next) + 1 >= INDEXES { 1 } else { self.next + 1 };
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        self.get(qpn)?;
        self.len -= 1;
        self.entries[usize::from(qpn.index())].take()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.entries.iter_mut().flatten().map(|qp| &mut **qp)
    }

    fn at(&self, index: u16) -> Option<&Qp> {
        self.entries.get(usize::from(index))?.as_deref()
    }

    pub(crate) fn at_mut(&mut self, index: u16) -> Option<&mut Qp> {
        self.entries.get_mut(usize::from(index))?.as_deref_mut()
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        self.at(qpn.index()).filter(|qp| qp.qpn == qpn)
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.at_mut(qpn.index()).filter(|qp| qp.qpn == qpn)
    }

    /// As `get_mut`, for verbs: EINVAL where there is none.
    pub(crate) fn find(&mut self, qpn: Qpn) -> Result<&mut Qp> {
        self.get_mut(qpn).ok_or_else(|| {
            VerbsError::invalid(format!("QP {qpn} does not exist, or was destroyed"))
        })
    }
}
