//! A lane's counters: what the protocol and the sockets count, and what lanes that ended had.

use irdma_transport::{Endpoint, Stats};

use super::traffic::Traffic;
use crate::page::Page;
use crate::profile::Profile;
use crate::stats::HwStats;

/// What is to be known beside the protocol's own counters.
#[derive(Debug)]
pub(super) struct Counts {
    profile: Profile,
    /// The counters of lanes that have ended.
    ended: Option<HwStats>,
    /// The counters as the page has them.
    published: Vec<u64>,
}

impl Counts {
    pub(super) fn new(profile: Profile) -> Self {
        Counts { profile, ended: None, published: Vec::new() }
    }

    /// The counters as they are now.
    pub(super) fn snapshot(&self, endpoint: &Endpoint, traffic: &Traffic) -> HwStats {
        let (stats, counters) = (endpoint.stats(), traffic.counters());
        let mut stats = HwStats::new(self.profile, stats, &counters, traffic.overflows());
        self.ended.iter().for_each(|ended| stats.add(ended));
        stats
    }

    /// Takes over the counters of a lane that has ended.
    pub(super) fn inherit(&mut self, stats: HwStats) {
        match &mut self.ended {
            Some(ended) => ended.add(&stats),
            None => self.ended = Some(stats),
        }
    }

    /// Brings the page of counters up to date.
    pub(super) fn publish(&mut self, page: &Page, stats: &Stats) {
        page.publish(stats, &mut self.published);
    }
}
