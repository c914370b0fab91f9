//! Thread cancellation (`pthread_cancel(3)`): programs end their event threads by it.
//!
//! The C library unwinds a cancelled thread from wherever it notices, which must not be inside
//! this library: its frames hold locks, and `catch_unwind` does not take foreign exceptions.

use std::ffi::c_int;
use std::time::Duration;

use irdma_net::wake;

use super::{Errno, set_errno};

/// How often a thread that waits for an event looks whether it was cancelled.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// What a function says that has waited for [`PATIENCE`] in vain.
pub const NOT_YET: c_int = 1;

/// What a function says whose object is gone.
pub const NEVER: c_int = 2;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Keeps the calling thread from being cancelled.
pub struct Uncancelled(c_int);

impl Uncancelled {
    pub fn new() -> Self {
        let mut old = 0;
        // SAFETY: `old` is a place for the answer.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
        Uncancelled(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, &raw mut disabled) };
    }
}

/// Calls `wait` until it has an answer; between two calls the thread can be cancelled. One that is
/// told [`NEVER`] sleeps until then, or until a signal, as it would in `read(2)` of a descriptor
/// that another thread has closed. Nothing in the calling frames may need to be dropped, for
/// cancellation unwinds through them.
macro_rules! cancellation_point {
    ($($name:ident($($arg:ident: $ty:ty),*) = $wait:path;)*) => { $(
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            loop {
                // SAFETY: our caller makes the same promise.
                let answer = unsafe { $wait($($arg),*) };
                match answer {
                    $crate::boundary::NOT_YET => $crate::boundary::test_cancel(),
                    $crate::boundary::NEVER => return $crate::boundary::sleep_cancellably(),
                    _ => return answer,
                }
            }
        }
    )* };
}
pub(crate) use cancellation_point;

/// Sleeps until the calling thread is cancelled, which ends it, or a signal interrupts it: -1 and
/// EINTR. It does not look for its object again: one that is made at the same address is another.
pub extern "C-unwind" fn sleep_cancellably() -> c_int {
    while !is_interrupted() {
        test_cancel();
    }
    set_errno(Errno(libc::EINTR));
    -1
}

/// Sleeps for [`PATIENCE`], or until a signal whose handler is to interrupt calls.
fn is_interrupted() -> bool {
    // The C library may notice a cancellation in the middle of it.
    let _guard = Uncancelled::new();
    wake::sleep(PATIENCE) && wake::signals_interrupt()
}

/// Ends the calling thread if it was cancelled.
pub extern "C-unwind" fn test_cancel() {
    // SAFETY: no frame of ours up to the program's needs to be dropped.
    unsafe { pthread_testcancel() }
}
