//! Multicast groups of a queue pair.

use std::sync::{MutexGuard, PoisonError};

use irdma_transport::{QpType, Result};
use irdma_wire::Gid;

use super::{Qp, QpInner};
use crate::engine::{Attachment, LaneGuard};
use crate::log::Logged;

/// A multicast attachment.
#[derive(Debug)]
pub(crate) struct Attached {
    gid: Gid,
    lid: u16,
    _place: Option<Attachment>,
}

impl Qp {
    /// Joins a multicast group. EINVAL unless the service is UD and `gid` a group, ENOMEM when
    /// the group is full. Attaching again with the same `lid` changes nothing.
    pub fn attach_mcast(&self, gid: &Gid, lid: u16) -> Result<()> {
        self.inner.attach(gid, lid).logged_of("attach_mcast", self.inner.qpn)
    }

    /// Leaves a multicast group. EINVAL if the queue pair is not attached to it with `lid`.
    pub fn detach_mcast(&self, gid: &Gid, lid: u16) -> Result<()> {
        self.inner.detach(gid, lid).logged_of("detach_mcast", self.inner.qpn)
    }
}

impl QpInner {
    fn attach(&self, gid: &Gid, lid: u16) -> Result<()> {
        self.check()?;
        let context = &self.context;
        if self.qp_type == QpType::Ud {
            self.lane.start_background();
            self.lane.listen(&context.device)?;
        }
        let ifindex = context.device.netdev_index();
        // Whoever ends the queue pair reads the list under the lane's lock, too: it then either has
        // this group, or the attachment is refused.
        let mut lane = self.lane.lock();
        let mut groups = self.groups();
        if groups.iter().any(|attached| attached.gid == *gid && attached.lid == lid) {
            return Ok(());
        }
        let place = match self.qp_type {
            QpType::Ud => Some(context.engine.groups.attach(self.qpn, (gid.to_ip(), ifindex))?),
            // What the service has to say comes before the limits.
            _ => None,
        };
        lane.attach_mcast(self.qpn, gid, lid, ifindex)?;
        groups.push(Attached { gid: *gid, lid, _place: place });
        Ok(())
    }

    fn detach(&self, gid: &Gid, lid: u16) -> Result<()> {
        self.check()?;
        let ifindex = self.context.device.netdev_index();
        let mut lane = self.lane.lock();
        lane.endpoint.detach_mcast(self.qpn, gid, lid, ifindex)?;
        self.groups().retain(|attached| attached.gid != *gid || attached.lid != lid);
        Ok(())
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every attachment.
    pub(super) fn leave_groups(&self, lane: &mut LaneGuard<'_>) {
        let ifindex = self.context.device.netdev_index();
        for attached in std::mem::take(&mut *self.groups()) {
            // Only fails for what is detached already.
            let _ = lane.endpoint.detach_mcast(self.qpn, &attached.gid, attached.lid, ifindex);
        }
    }
}
