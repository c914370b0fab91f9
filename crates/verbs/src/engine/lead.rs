//! Threads of the program that wait for an event, and run the lanes that bring it meanwhile.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use irdma_net::clock;
use irdma_net::wake;
use irdma_transport::{ErrorKind, Result, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Engine;
use super::feeders::Feeders;
use super::lane::{Lane, NEVER};

impl Engine {
    /// Waits until `fd` is readable or `waits` says so; runs the lanes that feed it meanwhile, but
    /// for those that another thread runs so. May return early. EINTR for a signal whose handler
    /// is to interrupt calls.
    pub(crate) fn wait_readable(
        &self,
        feeders: &Feeders,
        fd: BorrowedFd<'_>,
        waits: &dyn Fn() -> bool,
        until_ns: u64,
    ) -> Result<()> {
        let mut lanes = Vec::new();
        feeders.each(self, |lane| {
            if !lane.is_closed() && lane.hand_off.enter_leader() {
                lanes.push(Arc::clone(lane));
            }
        });
        if lanes.is_empty() {
            return wait(&mut [PollFd::new(&fd, PollFlags::IN)], until_ns);
        }
        let result = lead(&lanes, fd, waits, until_ns);
        for lane in lanes {
            if lane.hand_off.leave_leader() {
                lane.wake.signal();
            } else {
                // Deadlines that were set meanwhile were told to the leader alone.
                lane.wake_for(lane.deadline_ns());
            }
        }
        result
    }
}

fn lead(
    lanes: &[Arc<Lane>],
    fd: BorrowedFd<'_>,
    waits: &dyn Fn() -> bool,
    until_ns: u64,
) -> Result<()> {
    let mut fds = vec![PollFd::new(&fd, PollFlags::IN)];
    fds.extend(lanes.iter().map(|lane| PollFd::new(lane.poll(), PollFlags::IN)));
    loop {
        for lane in lanes {
            // If another thread runs the lane, its effects make `fd` readable all the same.
            lane.try_run();
        }
        if waits() || lanes.iter().any(|lane| lane.is_closed()) {
            return Ok(());
        }
        let (mut earliest_ns, mut changed) = (until_ns, false);
        for lane in lanes {
            let deadline_ns = lane.deadline_ns();
            lane.hand_off.leader_sleeps(deadline_ns);
            changed |= lane.deadline_ns() < deadline_ns;
            earliest_ns = earliest_ns.min(deadline_ns);
        }
        if changed {
            continue;
        }
        wait(&mut fds, earliest_ns)?;
        lanes.iter().for_each(|lane| lane.hand_off.leader_sleeps(0));
        if !fds[0].revents().is_empty() || clock::monotonic_ns() >= until_ns {
            return Ok(());
        }
    }
}

/// Waits until a descriptor is ready or the deadline has come; a signal ends the wait early.
/// EINTR for one whose handler is to interrupt calls, as `read(2)` would answer.
fn wait(fds: &mut [PollFd<'_>], deadline_ns: u64) -> Result<()> {
    let left_ns = deadline_ns.saturating_sub(clock::monotonic_ns());
    let timeout = Timespec {
        tv_sec: (left_ns / 1_000_000_000) as i64,
        tv_nsec: (left_ns % 1_000_000_000) as i64,
    };
    fds.iter_mut().for_each(|fd| fd.clear_revents());
    match poll(fds, Some(&timeout).filter(|_| deadline_ns != NEVER)) {
        Err(rustix::io::Errno::INTR) if wake::signals_interrupt() => {
            Err(VerbsError::new(ErrorKind::Interrupted, "a signal handler ran during the wait"))
        }
        _ => Ok(()),
    }
}
