//! The system calls that rustix does not offer in the needed form, made safe one by one.
//!
//! Nothing here goes through libc's wrappers, which a preload library may interpose. This file
//! holds all of the package's `unsafe` code.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::ReadWriteFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use syscalls::{Errno, Sysno, syscall};

/// One classic-BPF instruction, the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// The kernel's `struct user_msghdr`.
#[repr(C)]
struct MsgHdr {
    name: *const u8,
    name_len: u32,
    iov: *const IoSlice<'static>,
    iov_len: usize,
    control: *const u8,
    control_len: usize,
    flags: u32,
}

/// The kernel's `struct iovec`, for a buffer to be filled.
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    insns: *const Insn,
}

/// What `recvmsg` reported beside the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) len: usize,
    pub(crate) name_len: usize,
    pub(crate) control_len: usize,
    pub(crate) truncated: bool,
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.into_raw())
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result.map_err(io_error),
        }
    }
}

/// `setsockopt(2)` with an `int` value.
pub(crate) fn set_option(fd: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (fd, at, len) = (fd.as_fd().as_raw_fd(), &raw const value, size_of::<i32>());
    // SAFETY: the kernel reads the four bytes of `value`.
    unsafe { syscall!(Sysno::setsockopt, fd, level, name, at, len) }.map(drop).map_err(io_error)
}

/// Installs `program` as the choice of socket in the reuseport group of `fd`.
pub(crate) fn attach_reuseport_filter(fd: impl AsFd, program: &[Insn]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = Program { len, insns: program.as_ptr() };
    let (fd, at, size) = (fd.as_fd().as_raw_fd(), &raw const header, size_of::<Program>());
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    // SAFETY: the kernel reads the header and `len` instructions, all borrowed for the call.
    unsafe { syscall!(Sysno::setsockopt, fd, level, name, at, size) }.map(drop).map_err(io_error)
}

/// `sendmsg(2)`, never blocking; `name` is a socket address and `control` holds whole messages.
pub(crate) fn sendmsg(
    fd: impl AsFd,
    name: &[u8],
    data: &[IoSlice<'_>],
    control: &[u8],
) -> io::Result<usize> {
    let header = MsgHdr {
        name: name.as_ptr(),
        name_len: name.len() as u32,
        iov: data.as_ptr().cast(),
        iov_len: data.len(),
        control: if control.is_empty() { ptr::null() } else { control.as_ptr() },
        control_len: control.len(),
        flags: 0,
    };
    let (fd, at) = (fd.as_fd().as_raw_fd(), &raw const header);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel only reads, and every pointer comes from a slice borrowed for the call.
    retry(|| unsafe { syscall!(Sysno::sendmsg, fd, at, flags) })
}

/// `recvmsg(2)`, never blocking; received descriptors are close-on-exec.
pub(crate) fn recvmsg(
    fd: impl AsFd,
    name: &mut [u8],
    data: &mut [u8],
    control: &mut [u8],
) -> io::Result<Received> {
    let iov = IoVec { base: data.as_mut_ptr(), len: data.len() };
    let mut header = MsgHdr {
        name: name.as_mut_ptr(),
        name_len: name.len() as u32,
        iov: (&raw const iov).cast(),
        iov_len: 1,
        control: control.as_mut_ptr(),
        control_len: control.len(),
        flags: 0,
    };
    let (fd, at) = (fd.as_fd().as_raw_fd(), &raw mut header);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes at most the given lengths into slices borrowed mutably.
    let len = retry(|| unsafe { syscall!(Sysno::recvmsg, fd, at, flags) })?;
    Ok(Received {
        len,
        name_len: (header.name_len as usize).min(name.len()),
        control_len: header.control_len.min(control.len()),
        truncated: header.flags & libc::MSG_TRUNC as u32 != 0,
    })
}

/// Reads what is there now, whatever the mode of the descriptor (`preadv2(2)` with `RWF_NOWAIT`).
pub(crate) fn read_now(fd: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    const CURRENT_POSITION: u64 = u64::MAX;
    let mut buf = [io::IoSliceMut::new(buf)];
    match rustix::io::preadv2(&fd, &mut buf, CURRENT_POSITION, ReadWriteFlags::NOWAIT) {
        // Event counters know the flag since Linux 5.7.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => read_if_ready(fd, &mut buf),
        Err(error) if is_missing(error.raw_os_error()) => read_if_ready(fd, &mut buf),
        result => Ok(result?),
    }
}

/// Blocks if another thread is faster between the look and the read.
fn read_if_ready(fd: impl AsFd, buf: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(rustix::io::readv(fd, buf)?),
    }
}

/// Whether a system call is not to be had: the kernel is too old, or the filter of a container
/// runtime that is older than the call answers EPERM.
fn is_missing(errno: i32) -> bool {
    matches!(errno, libc::ENOSYS | libc::EPERM)
}

/// `epoll_pwait2(2)`, or where it is not to be had `epoll_pwait(2)` with milliseconds rounded up.
pub(crate) fn epoll_wait(
    fd: impl AsFd,
    events: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
) -> io::Result<usize> {
    let (fd, at, len) = (fd.as_fd().as_raw_fd(), events.as_mut_ptr(), events.len());
    let mask = ptr::null::<u64>();
    if let Some(timeout_ns @ 1..) = timeout_ns {
        let time = [(timeout_ns / 1_000_000_000) as i64, (timeout_ns % 1_000_000_000) as i64];
        // SAFETY: the kernel writes at most `len` events and reads the 16 bytes of `time`.
        match unsafe { syscall!(Sysno::epoll_pwait2, fd, at, len, time.as_ptr(), mask, 8) } {
            Err(error) if is_missing(error.into_raw()) => {}
            result => return result.map_err(io_error),
        }
    }
    let timeout_ms = match timeout_ns {
        Some(ns) => i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX),
        None => -1,
    };
    // SAFETY: the kernel writes at most `len` events, borrowed mutably for the call.
    unsafe { syscall!(Sysno::epoll_pwait, fd, at, len, timeout_ms, mask, 8) }.map_err(io_error)
}

/// Closes a descriptor whose owner is being dropped or was forgotten after fork.
pub(crate) fn close(raw: RawFd) {
    // SAFETY: closing touches no memory; the caller owns the number.
    let _ = unsafe { syscall!(Sysno::close, raw) };
}

/// Blocks every signal in the calling thread.
pub(crate) fn block_all_signals() -> io::Result<()> {
    let all = u64::MAX;
    let (at, size) = (&raw const all, size_of::<u64>());
    // SAFETY: the kernel reads eight bytes of `all` and writes nothing.
    unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, at, ptr::null_mut::<u64>(), size) }
        .map(drop)
        .map_err(io_error)
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct KernelSigAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// The handler and flags of a signal, `None` for a number that has none.
pub(crate) fn signal_action(number: i32) -> Option<(usize, libc::c_ulong)> {
    let mut action = KernelSigAction::default();
    let (null, at) = (ptr::null::<KernelSigAction>(), &raw mut action);
    // SAFETY: the kernel writes the action and changes nothing.
    unsafe { syscall!(Sysno::rt_sigaction, number, null, at, size_of::<u64>()) }.ok()?;
    Some((action.handler, action.flags))
}

/// The kernel's `struct sched_attr`, in its first published size.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks for time slices of `slice_ns` for the calling thread, which keeps its policy and niceness.
pub(crate) fn set_slice(slice_ns: u64) -> io::Result<()> {
    const SIZE: u32 = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr::default();
    let at = &raw mut attr;
    // SAFETY: the kernel writes at most `SIZE` bytes of `attr`.
    unsafe { syscall!(Sysno::sched_getattr, 0, at, SIZE, 0) }.map_err(io_error)?;
    attr.size = SIZE;
    attr.runtime_ns = slice_ns;
    let at = &raw const attr;
    // SAFETY: the kernel reads `SIZE` bytes of `attr`.
    unsafe { syscall!(Sysno::sched_setattr, 0, at, 0) }.map(drop).map_err(io_error)
}

/// Has `child` run in every child made by the C library's `fork`; it must be async-signal-safe.
pub(crate) fn at_fork_child(child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the handler stays mapped: this code is never unloaded.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A word in a page of its own that reads zero in every child made by `fork(2)`.
pub(crate) fn wipe_on_fork_word() -> io::Result<&'static AtomicU32> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let size = rustix::param::page_size();
    // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
    let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, prot, flags) }?;
    // SAFETY: the advice changes what a child sees and leaves this process's page as it is.
    if let Err(errno) = unsafe { rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) } {
        // SAFETY: nothing refers to the page yet.
        let _ = unsafe { rustix::mm::munmap(page, size) };
        return Err(errno.into());
    }
    // SAFETY: the page is aligned, zeroed, and stays mapped for the life of the process.
    Ok(unsafe { AtomicU32::from_ptr(page.cast()) })
}

/// `SIOCETHTOOL` with the legacy "get settings" command: speed in Mb/s of `name`.
pub(crate) fn ethtool_speed(fd: impl AsFd, name: &str) -> io::Result<u32> {
    const ETHTOOL_GSET: u32 = 1;
    const SIOCETHTOOL: usize = 0x8946;
    #[repr(C)]
    struct IfReq {
        name: [u8; libc::IFNAMSIZ],
        data: *mut [u32; 11],
        unused: [u8; 16],
    }
    let mut settings = [0u32; 11];
    settings[0] = ETHTOOL_GSET;
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], data: &raw mut settings, unused: [0; 16] };
    let len = name.len().min(libc::IFNAMSIZ - 1);
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    let (fd, at) = (fd.as_fd().as_raw_fd(), &raw mut request);
    // SAFETY: `request` and the 44 bytes of settings it points to outlive the call.
    unsafe { syscall!(Sysno::ioctl, fd, SIOCETHTOOL, at) }.map_err(io_error)?;
    let bytes = settings.map(u32::to_ne_bytes).concat();
    let half = |at: usize| u32::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    Ok(half(28) << 16 | half(12))
}

/// Calls that only tests make.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Moves the calling thread to a new network namespace of its own.
    pub(crate) fn unshare_network() -> io::Result<()> {
        // SAFETY: changes what later socket calls of this thread see; touches no memory.
        unsafe { syscall!(Sysno::unshare, libc::CLONE_NEWNET) }.map(drop).map_err(io_error)
    }

    /// Makes the calling thread, and no other, act for another user without capabilities.
    pub(crate) fn become_user(id: u32) -> io::Result<()> {
        // SAFETY: changes the thread's credentials; touches no memory.
        unsafe { syscall!(Sysno::setresgid, id, id, id) }.map_err(io_error)?;
        // SAFETY: as above.
        unsafe { syscall!(Sysno::setresuid, id, id, id) }.map(drop).map_err(io_error)
    }

    /// Has the kernel answer EPERM to `calls` of the calling thread, as container runtimes do for
    /// calls that they do not know.
    pub(crate) fn forbid(calls: &[Sysno]) -> io::Result<()> {
        const ALLOW: u32 = 0x7fff_0000;
        const ERRNO: u32 = 0x0005_0000;
        const FILTER: usize = 1;
        let step = |code, jf, k| Insn { code, jt: 0, jf, k };
        let mut insns = vec![step(0x20, 0, 0)];
        for call in calls {
            insns.push(step(0x15, 1, call.id() as u32));
            insns.push(step(0x06, 0, ERRNO | libc::EPERM as u32));
        }
        insns.push(step(0x06, 0, ALLOW));
        let program = Program { len: insns.len() as u16, insns: insns.as_ptr() };
        // SAFETY: changes what later calls of this thread may gain; touches no memory.
        unsafe { syscall!(Sysno::prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }
            .map_err(io_error)?;
        // SAFETY: the kernel reads the header and the instructions, all borrowed for the call.
        unsafe { syscall!(Sysno::seccomp, FILTER, 0, &raw const program) }
            .map(drop)
            .map_err(io_error)
    }

    /// Runs `child` in a forked child, which must neither allocate nor lock, and returns its
    /// verdict.
    pub(crate) fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
        let no_stack = ptr::null::<u8>();
        // SAFETY: a plain fork; the child runs only async-signal-safe code and then exits.
        let pid = unsafe { syscall!(Sysno::clone, libc::SIGCHLD, no_stack, 0, 0, 0) }.unwrap();
        if pid == 0 {
            let code = i32::from(!child());
            // SAFETY: ends the child; nothing of it runs after this.
            let _ = unsafe { syscall!(Sysno::exit_group, code) };
        }
        let mut status = -1i32;
        // SAFETY: the kernel writes one `int` to `status`.
        unsafe { syscall!(Sysno::wait4, pid, &raw mut status, 0, 0) }.unwrap();
        status == 0
    }
}
