//! Waking a sleeping thread: event counters and readiness of many descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use crate::fd::Fd;
use crate::sys;

/// An event counter (`eventfd(2)`).
#[derive(Debug)]
pub struct EventFd(Fd);

impl EventFd {
    /// A counter of the engine's own, non-blocking; one read takes all signals.
    pub fn engine() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Fd::engine(eventfd(0, flags)?)?))
    }

    /// A counter that a program sees as a channel: blocking, one read takes one signal, and its
    /// number is the lowest free one, within the range of `select(2)`.
    pub fn channel() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Self(Fd::visible(eventfd(0, flags)?)))
    }

    /// Adds one signal. A counter that cannot take more is as signalled as it can be.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes signals, never blocking: [`io::ErrorKind::WouldBlock`] if there is none.
    ///
    /// A program may make a channel's descriptor blocking and read from it itself, so neither its
    /// mode nor what was signalled says whether a plain read would block.
    pub fn read(&self) -> io::Result<u64> {
        let mut count = [0u8; 8];
        sys::read_now(&self.0, &mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What a [`Poll`] watches a descriptor for; errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to read.
    Read,
    /// Room to write.
    Write,
    /// Both.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::Write => epoll::EventFlags::OUT,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// One descriptor that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The value given when the descriptor was added.
    pub token: u64,
    /// There is something to read, an error or the end of the stream among it.
    pub readable: bool,
    /// There is room to write, or writing answers an error.
    pub writable: bool,
}

impl Ready {
    fn from_kernel(event: libc::epoll_event) -> Self {
        let has = |flags: i32| event.events & flags as u32 != 0;
        Self {
            token: event.u64,
            readable: has(libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP),
            writable: has(libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP),
        }
    }
}

/// Events taken from the kernel by one wait.
const MAX_EVENTS: usize = 64;

/// The readiness of many descriptors, level-triggered (`epoll(7)`).
#[derive(Debug)]
pub struct Poll(Fd);

impl Poll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Fd::engine(epoll::create(epoll::CreateFlags::CLOEXEC)?)?))
    }

    /// Watches `fd`; `token` comes back in [`Ready`].
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Changes what a watched descriptor is watched for.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Stops watching. To be called before the descriptor is closed if it has duplicates.
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits until a descriptor is ready or `timeout_ns` passed (`None`: for ever) and replaces
    /// the content of `ready`. A signal handler surfaces as [`io::ErrorKind::Interrupted`].
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<()> {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        let count = sys::epoll_wait(&self.0, &mut events, timeout_ns)?;
        ready.extend(events[..count].iter().map(|event| Ready::from_kernel(*event)));
        Ok(())
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for `time`, or until a signal handler has run, which it tells.
pub fn sleep(time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    poll(&mut [], Some(&time)) == Err(Errno::INTR)
}

/// Blocks every signal in the calling thread, so that the program's handlers run in its own.
pub fn block_all_signals() -> io::Result<()> {
    sys::block_all_signals()
}

/// Whether the program has a signal handler that is to interrupt system calls: one installed
/// without `SA_RESTART`. For calls that the kernel interrupts in any case.
pub fn signals_interrupt() -> bool {
    const LAST_SIGNAL: i32 = 64;
    // These answer faults of the running code; language runtimes handle them.
    const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    let interrupts = |number| {
        let Some((handler, flags)) = sys::signal_action(number) else { return false };
        let handled = handler != libc::SIG_DFL && handler != libc::SIG_IGN;
        handled && flags & libc::SA_RESTART as libc::c_ulong == 0
    };
    (1..=LAST_SIGNAL).filter(|number| !FAULTS.contains(number)).any(interrupts)
}

/// Asks for the shortest time slices for the calling thread: on a busy core it then runs soon after
/// it wakes, in turn for running briefly. Kernels before 6.12 accept and ignore that.
pub fn ask_for_short_slices() -> io::Result<()> {
    const SHORTEST_NS: u64 = 100_000;
    sys::set_slice(SHORTEST_NS)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::fs::OFlags;
    use syscalls::Sysno;

    use super::*;

    #[test]
    fn a_channel_gives_one_signal_per_read() {
        let channel = EventFd::channel().unwrap();
        channel.signal();
        channel.signal();
        assert_eq!((channel.read().unwrap(), channel.read().unwrap()), (1, 1));
        assert_eq!(channel.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(channel.as_raw_fd() < 1024);
    }

    #[test]
    fn a_blocking_channel_that_the_program_emptied_does_not_block() {
        let channel = EventFd::channel().unwrap();
        channel.signal();
        rustix::io::read(&channel, &mut [0u8; 8]).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&channel).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(channel.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_engine_counter_gives_all_signals_at_once_and_never_blocks() {
        let counter = EventFd::engine().unwrap();
        counter.signal();
        counter.signal();
        assert_eq!(counter.read().unwrap(), 2);
        assert_eq!(counter.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_poll_reports_tokens_and_follows_changes_of_interest() {
        let (poll, counter) = (Poll::new().unwrap(), EventFd::engine().unwrap());
        let mut ready = Vec::new();
        poll.add(&counter, 7, Interest::Read).unwrap();
        poll.wait(&mut ready, Some(0)).unwrap();
        assert_eq!(ready, []);
        counter.signal();
        poll.wait(&mut ready, None).unwrap();
        assert_eq!(ready, [Ready { token: 7, readable: true, writable: false }]);
        poll.modify(&counter, 8, Interest::ReadWrite).unwrap();
        poll.wait(&mut ready, Some(0)).unwrap();
        assert_eq!(ready, [Ready { token: 8, readable: true, writable: true }]);
        poll.delete(&counter).unwrap();
        poll.wait(&mut ready, Some(0)).unwrap();
        assert_eq!(ready, []);
    }

    #[test]
    fn a_timeout_below_a_millisecond_is_kept() {
        let (poll, mut ready) = (Poll::new().unwrap(), Vec::new());
        let shortest = (0..20)
            .map(|_| {
                let start = Instant::now();
                poll.wait(&mut ready, Some(100_000)).unwrap();
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(shortest >= Duration::from_micros(100), "{shortest:?}");
        assert!(shortest < Duration::from_micros(900), "{shortest:?}");
    }

    #[test]
    fn calls_that_a_container_forbids_have_fallbacks() {
        let forbidden = std::thread::spawn(|| {
            sys::testing::forbid(&[Sysno::epoll_pwait2, Sysno::preadv2]).unwrap();
            let (poll, counter) = (Poll::new().unwrap(), EventFd::engine().unwrap());
            let mut ready = Vec::new();
            poll.add(&counter, 7, Interest::Read).unwrap();
            let start = Instant::now();
            poll.wait(&mut ready, Some(1_500_000)).unwrap();
            assert!(ready.is_empty() && start.elapsed() >= Duration::from_micros(1500));
            counter.signal();
            poll.wait(&mut ready, Some(1_500_000)).unwrap();
            assert_eq!((ready.len(), counter.read().unwrap()), (1, 1));
            assert_eq!(counter.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        });
        forbidden.join().unwrap();
    }

    #[test]
    fn a_thread_with_blocked_signals_has_them_all_blocked() {
        let status = std::thread::spawn(|| {
            block_all_signals().unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = status.join().unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        // SIGKILL and SIGSTOP cannot be blocked.
        assert_eq!(u64::from_str_radix(mask, 16).unwrap(), !(1 << 8 | 1 << 18));
    }
}
