//! Multicast groups: which queue pairs hear which address (seed rows 1 and 69 to 74).
//!
//! What a program sees follows uverbs: attaching twice counts once, detaching a stranger is
//! refused. A group is one address on one interface.

use std::collections::BTreeMap;
use std::net::IpAddr;

use irdma_wire::{Gid, Qpn};

use crate::effects::Effect;
use crate::error::{Result, VerbsError};

/// Queue pairs that one group can have (`max_mcast_qp_attach`).
pub const MAX_MEMBERS: usize = 8;

/// A group's identity: its address and the interface it is joined on.
pub(crate) type GroupKey = (IpAddr, u32);

/// What changed about a group, as the driver tells its control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupOp {
    Create,
    Modify,
    Destroy,
}

/// One attachment: uverbs tells them apart by LID, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    qpn: Qpn,
    lid: u16,
}

#[derive(Clone, Debug, Default)]
struct Group {
    members: Vec<Member>,
}

impl Group {
    /// The queue pairs, each once, and how many they are.
    fn queue_pairs(&self) -> ([Qpn; MAX_MEMBERS], usize) {
        let (mut qpns, mut count) = ([Qpn::default(); MAX_MEMBERS], 0);
        for member in &self.members {
            if !qpns[..count].contains(&member.qpn) {
                qpns[count] = member.qpn;
                count += 1;
            }
        }
        (qpns, count)
    }
}

/// The groups of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct McastTable {
    groups: BTreeMap<GroupKey, Group>,
    max_groups: usize,
}

impl McastTable {
    pub(crate) fn new(max_groups: u32) -> Self {
        McastTable { groups: BTreeMap::new(), max_groups: max_groups as usize }
    }

    /// Attaches a UD queue pair. ENOMEM for a ninth queue pair or one group too many.
    ///
    /// Returns whether an attachment was added, and what the caller has to do.
    pub(crate) fn attach_mcast(
        &mut self,
        qpn: Qpn,
        key: GroupKey,
        lid: u16,
    ) -> Result<(bool, Option<Effect>)> {
        let member = Member { qpn, lid };
        let existing = self.mcast_list_lookup_ip(key);
        if existing.is_some_and(|group| group.members.contains(&member)) {
            return Ok((false, None));
        }
        match existing {
            Some(group) => {
                let (qpns, count) = group.queue_pairs();
                if count >= MAX_MEMBERS && !qpns.contains(&qpn) {
                    return Err(VerbsError::no_memory(format!(
                        "attach_mcast: group {} has {MAX_MEMBERS} queue pairs already; \
                         detach one first",
                        key.0
                    )));
                }
            }
            None if self.groups.len() >= self.max_groups => {
                return Err(VerbsError::no_memory(format!(
                    "attach_mcast: all {} groups are in use",
                    self.max_groups
                )));
            }
            None => {}
        }
        let op = if existing.is_some() { GroupOp::Modify } else { GroupOp::Create };
        self.mcast_list_add(key).members.push(member);
        Ok((true, mcast_cqp_op(op, key)))
    }

    /// Ends one attachment. EINVAL where there is none.
    pub(crate) fn detach_mcast(
        &mut self,
        qpn: Qpn,
        key: GroupKey,
        lid: u16,
    ) -> Result<Option<Effect>> {
        let member = Member { qpn, lid };
        let found = self.groups.get_mut(&key).and_then(|group| {
            let at = group.members.iter().position(|other| *other == member)?;
            Some((group, at))
        });
        let Some((group, at)) = found else {
            return Err(VerbsError::invalid(format!(
                "detach_mcast: QP {qpn} is not attached to group {} with LID {lid}",
                key.0
            )));
        };
        group.members.swap_remove(at);
        let op = if group.members.is_empty() { GroupOp::Destroy } else { GroupOp::Modify };
        if op == GroupOp::Destroy {
            self.mcast_list_del(key);
        }
        Ok(mcast_cqp_op(op, key))
    }

    /// The queue pairs that a datagram to this group goes to, each once, and how many they are.
    pub(crate) fn members(&self, key: GroupKey) -> ([Qpn; MAX_MEMBERS], usize) {
        self.mcast_list_lookup_ip(key).map(Group::queue_pairs).unwrap_or_default()
    }

    fn mcast_list_add(&mut self, key: GroupKey) -> &mut Group {
        self.groups.entry(key).or_default()
    }

    fn mcast_list_del(&mut self, key: GroupKey) {
        self.groups.remove(&key);
    }

    fn mcast_list_lookup_ip(&self, key: GroupKey) -> Option<&Group> {
        self.groups.get(&key)
    }
}

/// The seam to the engine: what the interface has to do about a group.
fn mcast_cqp_op(op: GroupOp, (group, ifindex): GroupKey) -> Option<Effect> {
    match op {
        GroupOp::Create => Some(Effect::JoinGroup { group, ifindex }),
        GroupOp::Destroy => Some(Effect::LeaveGroup { group, ifindex }),
        GroupOp::Modify => None,
    }
}

/// The address of a multicast GID. EINVAL for any other GID.
pub fn mcast_address(gid: &Gid) -> Result<IpAddr> {
    if !gid.is_multicast() {
        return Err(VerbsError::invalid(format!(
            "attach_mcast: {gid} is no multicast GID; it starts with ff, or maps 224.0.0.0/4"
        )));
    }
    Ok(gid.to_ip())
}

/// The Ethernet address of a group: RFC 1112 section 6.4, RFC 2464 section 7.
pub fn mcast_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) => {
            let o = v6.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_group_makes_room() {
        let mut table = McastTable::new(1);
        let group = |last| (IpAddr::from([239, 1, 1, last]), 1);
        let qpn = Qpn::new(7);
        table.attach_mcast(qpn, group(1), 0).unwrap();
        assert_eq!(table.attach_mcast(qpn, group(2), 0).unwrap_err().errno(), 12);
        table.detach_mcast(qpn, group(1), 0).unwrap();
        assert!(table.attach_mcast(qpn, group(2), 0).is_ok());
    }
}
