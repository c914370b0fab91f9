//! One round of probes: which socket of the group has which index.
//!
//! An index below the number of sockets reaches one socket, and no two reach the same. An index
//! past the end reaches some socket again. So probing upwards, the first index answered by a socket
//! that answered a lower one is past the end, and the round is complete when all below it are
//! answered.

use std::collections::BTreeMap;

use super::program::{self, Entry};
use crate::sys::Insn;

/// Probes on the way at once: as many answers as the prober's queue holds for certain
/// (`net.unix.max_dgram_qlen` is 10).
const WINDOW: usize = 8;

/// Indices that can ever exist: one socket for each slot.
const MAX_INDEX: u16 = 1022;

/// Who answered for an index: the slots of one socket.
#[derive(Debug)]
struct Owner {
    slots: Vec<u16>,
}

impl Owner {
    /// A socket is known by its first slot.
    fn id(&self) -> Option<u16> {
        self.slots.first().copied()
    }
}

/// The answers of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    answers: BTreeMap<u16, Owner>,
    /// Indices below this were probed.
    probed: u16,
    /// Probes that are no longer expected to be answered, and count as not on their way.
    lapsed: usize,
}

impl Round {
    /// The next index to probe for the first time; `None` if answers must come first.
    pub(super) fn next_probe(&mut self) -> Option<u16> {
        let unanswered = usize::from(self.probed) - self.answers.len();
        let in_flight = unanswered.saturating_sub(self.lapsed);
        if in_flight >= WINDOW || self.probed > MAX_INDEX || self.end().is_some() {
            return None;
        }
        self.probed += 1;
        Some(self.probed - 1)
    }

    /// Indices that were probed and still matter, without an answer.
    pub(super) fn unanswered(&self) -> Vec<u16> {
        let end = self.end().unwrap_or(self.probed);
        (0..end).filter(|index| !self.answers.contains_key(index)).collect()
    }

    /// Has probing go on past sockets whose owners do not answer: they may be stopped.
    pub(super) fn give_room(&mut self) {
        self.lapsed = usize::from(self.probed) - self.answers.len();
    }

    /// Nobody has answered yet.
    pub(super) fn is_silent(&self) -> bool {
        self.answers.is_empty()
    }

    /// Notes an answer to a probe of this round; nonsense is ignored.
    pub(super) fn note(&mut self, index: u16, slots: Vec<u16>) {
        if index < self.probed && !slots.is_empty() {
            self.answers.entry(index).or_insert(Owner { slots });
        }
    }

    /// The lowest answered index that must be past the end of the group.
    fn end(&self) -> Option<u16> {
        let mut seen = Vec::new();
        self.answers.iter().find_map(|(&index, owner)| {
            let again = seen.contains(&owner.id());
            seen.push(owner.id());
            again.then_some(index)
        })
    }

    /// Every socket of the group is known.
    pub(super) fn is_complete(&self) -> bool {
        self.end().is_some() && self.unanswered().is_empty()
    }

    /// Each known slot with the lowest index that its socket answered for.
    pub(super) fn table(&self) -> Vec<Entry> {
        let mut table: BTreeMap<u16, u16> = BTreeMap::new();
        for (&index, owner) in &self.answers {
            for &slot in &owner.slots {
                table.entry(slot).or_insert(index);
            }
        }
        table.into_iter().map(|(slot, index)| Entry { slot, index }).collect()
    }

    /// The program for what is known. What has no known owner goes to the first socket that
    /// answered: the owner of one that did not may be stopped, and would relay nothing.
    pub(super) fn program(&self) -> Vec<Insn> {
        let first = self.answers.keys().next().copied().unwrap_or_default();
        program::program(&self.table(), first)
    }

    /// The first slot of every socket that answered.
    pub(super) fn members(&self) -> Vec<u16> {
        let mut members: Vec<_> = self.answers.values().filter_map(Owner::id).collect();
        members.sort_unstable();
        members.dedup();
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every probe as a group of sockets would; `silent` indices never answer.
    fn run(group: &[&[u16]], silent: &[u16]) -> Round {
        let mut round = Round::default();
        while let Some(index) = round.next_probe() {
            let owner = group[usize::from(index).min(group.len() - 1)];
            if !silent.contains(&index) {
                round.note(index, owner.to_vec());
            }
        }
        round
    }

    fn table(round: &Round) -> Vec<(u16, u16)> {
        round.table().iter().map(|entry| (entry.slot, entry.index)).collect()
    }

    #[test]
    fn a_group_is_found_whole_with_one_probe_past_its_end() {
        let round = run(&[&[7, 8], &[3], &[500]], &[]);
        assert!(round.is_complete());
        assert_eq!(table(&round), [(3, 1), (7, 0), (8, 0), (500, 2)]);
        assert_eq!((round.probed, round.members()), (4, vec![3, 7, 500]));
    }

    #[test]
    fn a_group_of_every_size_is_found() {
        for len in 1..=40u16 {
            let slots: Vec<[u16; 1]> = (1..=len).map(|slot| [slot]).collect();
            let group: Vec<&[u16]> = slots.iter().map(|slot| &slot[..]).collect();
            let round = run(&group, &[]);
            assert!(round.is_complete(), "{len}");
            let expected: Vec<_> = (1..=len).map(|slot| (slot, slot - 1)).collect();
            assert_eq!(table(&round), expected);
        }
    }

    #[test]
    fn a_silent_socket_leaves_the_round_incomplete_and_the_others_known() {
        let round = run(&[&[7], &[3], &[500]], &[1]);
        assert!(!round.is_complete());
        assert_eq!((table(&round), round.unanswered()), (vec![(7, 0), (500, 2)], vec![1]));
    }

    #[test]
    fn probes_stop_when_nobody_answers() {
        let round = run(&[&[7]], &(0..=MAX_INDEX).collect::<Vec<_>>());
        assert_eq!((usize::from(round.probed), round.is_complete()), (WINDOW, false));
    }

    #[test]
    fn probing_goes_on_past_many_silent_sockets() {
        let slots: Vec<[u16; 1]> = (1..=20).map(|slot| [slot]).collect();
        let group: Vec<&[u16]> = slots.iter().map(|slot| &slot[..]).collect();
        let mut round = run(&group, &(0..19).collect::<Vec<_>>());
        let mut resends = 0;
        while !round.members().contains(&20) {
            assert_eq!(round.next_probe(), None);
            round.give_room();
            resends += 1;
            while let Some(index) = round.next_probe() {
                if index >= 19 {
                    round.note(index, vec![20]);
                }
            }
        }
        assert_eq!((resends, round.is_complete()), (2, false));
        assert_eq!(round.program(), program::program(&[Entry { slot: 20, index: 19 }], 19));
    }

    #[test]
    fn answers_that_were_not_asked_for_are_ignored() {
        let mut round = Round::default();
        round.note(0, vec![7]);
        assert_eq!(round.next_probe(), Some(0));
        round.note(0, vec![]);
        round.note(1, vec![7]);
        assert_eq!(table(&round), []);
    }
}
