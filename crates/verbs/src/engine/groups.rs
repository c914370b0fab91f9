//! Multicast attachments in all lanes: the limits are the device's, not those of a lane.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use irdma_transport::{Result, VerbsError};
use irdma_wire::Qpn;

use crate::limits::Limits;

/// A group's address, and the interface that it is joined on.
type Group = (IpAddr, u32);

/// The queue pairs of each group, once for each attachment.
#[derive(Debug)]
pub(crate) struct Groups {
    members: Mutex<BTreeMap<Group, Vec<Qpn>>>,
    max_groups: usize,
    max_members: usize,
}

/// The right to be attached; gives its place back when dropped.
#[derive(Debug)]
pub(crate) struct Attachment {
    groups: Arc<Groups>,
    group: Group,
    qpn: Qpn,
}

impl Groups {
    pub(crate) fn new(limits: &Limits) -> Self {
        Groups {
            members: Mutex::default(),
            max_groups: limits.max_mcast_grp as usize,
            max_members: limits.max_mcast_qp_attach as usize,
        }
    }

    /// Takes a place for a queue pair. ENOMEM for one queue pair or one group too many.
    pub(crate) fn attach(self: &Arc<Self>, qpn: Qpn, group: Group) -> Result<Attachment> {
        let mut groups = self.lock();
        let full = groups.len() >= self.max_groups;
        match groups.get_mut(&group) {
            None if full => {
                return Err(VerbsError::no_memory(format!(
                    "all {} multicast groups are in use",
                    self.max_groups
                )));
            }
            None => drop(groups.insert(group, vec![qpn])),
            Some(members) => {
                let others = distinct(members, qpn);
                if others >= self.max_members {
                    return Err(VerbsError::no_memory(format!(
                        "group {} has {others} queue pairs already; detach one first",
                        group.0
                    )));
                }
                members.push(qpn);
            }
        }
        Ok(Attachment { groups: Arc::clone(self), group, qpn })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Group, Vec<Qpn>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many queue pairs other than `qpn` are members.
fn distinct(members: &[Qpn], qpn: Qpn) -> usize {
    let first = |&(at, member): &(usize, &Qpn)| *member != qpn && !members[..at].contains(member);
    members.iter().enumerate().filter(first).count()
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut groups = self.groups.lock();
        let Some(members) = groups.get_mut(&self.group) else { return };
        if let Some(at) = members.iter().position(|member| *member == self.qpn) {
            members.swap_remove(at);
        }
        if members.is_empty() {
            groups.remove(&self.group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FULL;

    #[test]
    fn the_limits_are_exact_and_places_come_back() {
        let limits = Limits { max_mcast_grp: 1, max_mcast_qp_attach: 2, ..FULL };
        let groups = Arc::new(Groups::new(&limits));
        let group = |last| (IpAddr::from([239, 1, 1, last]), 1);
        let [one, two, three] = [1, 2, 3].map(Qpn::new);
        let first = groups.attach(one, group(1)).unwrap();
        let _again = groups.attach(one, group(1)).unwrap();
        let _second = groups.attach(two, group(1)).unwrap();
        assert_eq!(groups.attach(three, group(1)).unwrap_err().errno(), 12);
        assert_eq!(groups.attach(one, group(2)).unwrap_err().errno(), 12);
        let _third = groups.attach(two, group(1)).unwrap();
        drop(first);
        assert_eq!(groups.attach(three, group(1)).unwrap_err().errno(), 12, "one is there still");
        drop((_again, _second, _third));
        assert!(groups.attach(three, group(2)).is_ok());
    }
}
