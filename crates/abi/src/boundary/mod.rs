//! The border to C: arguments become Rust values, results become C's conventions, and a panic
//! becomes an error number.
//!
//! Invariant: references are made from C pointers here, and in `work` to the scatter/gather lists
//! of requests, and nowhere else.

mod answer;
mod args;
mod cancel;
mod object;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use answer::{Answer, Count, Ended, List, Made, Part, Plain, Size, Status, Success, Text};
pub use args::{Bits, Buffer, FromC, In, InOut, Out, Partial, read_program, write_program};
pub(crate) use cancel::cancellation_point;
pub use cancel::{NEVER, NOT_YET, PATIENCE, Uncancelled, sleep_cancellably, test_cancel};
pub(crate) use object::set_field;
pub use object::{End, Ends, Kept, Object, Owned, Shape};

/// An error number of `<errno.h>`; the refusal that it stands for has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl From<irdma::VerbsError> for Errno {
    fn from(error: irdma::VerbsError) -> Self {
        Errno(error.errno())
    }
}

/// Sets the calling thread's errno.
pub fn set_errno(Errno(code): Errno) {
    // SAFETY: takes nothing, returns the thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid and unshared as long as the thread lives.
    unsafe { errno.write(code) }
}

/// Logs why this library, rather than the device below it, refuses a call.
#[cold]
pub fn refuse(call: &str, code: c_int, cause: &str) -> Errno {
    let name = match code {
        libc::EINVAL => "EINVAL",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENODATA => "ENODATA",
        libc::ENOENT => "ENOENT",
        libc::EBADF => "EBADF",
        libc::ENODEV => "ENODEV",
        libc::ENOSYS => "ENOSYS",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        _ => "error",
    };
    tracing::info!("{call} refused ({name}): {cause}");
    Errno(code)
}

/// An argument, or the refusal that names it.
///
/// # Safety
/// As [`FromC::from_c`].
#[inline]
pub unsafe fn arg<T: FromC>(call: &str, name: &str, raw: T::Raw) -> Result<T, Errno> {
    // SAFETY: our caller makes the same promise.
    unsafe { T::from_c(raw) }.map_err(|code| refuse_argument(call, name, code))
}

#[cold]
fn refuse_argument(call: &str, name: &str, Errno(code): Errno) -> Errno {
    refuse(call, code, &format!("{name} is NULL, not aligned or unknown"))
}

/// Runs the function behind `symbol` and lets no panic out. A panic is a bug of this library:
/// the call fails with EIO, and every open device says that it is unusable.
#[inline]
pub fn cross<A: Answer>(
    symbol: &'static str,
    call: impl FnOnce() -> Result<A::Value, Errno>,
) -> A::Raw {
    A::to_c(catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panicked(symbol)))
}

#[cold]
fn panicked<T>(symbol: &'static str) -> Result<T, Errno> {
    tracing::error!("{symbol} panicked, which is a bug of irdma; the devices are unusable");
    // A panic while it reports one has nobody left to report it to.
    let _ = catch_unwind(irdma::device_fatal);
    Err(Errno(libc::EIO))
}

/// Defines the functions that C calls, one a line: name, arguments, convention of the answer,
/// and the safe Rust function behind it.
macro_rules! export {
    ($( $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $answer:ty = $function:path; )*) => { $(
        pub unsafe extern "C" fn $name(
            $($arg: <$ty as $crate::boundary::FromC>::Raw),*
        ) -> <$answer as $crate::boundary::Answer>::Raw {
            let _uncancelled = $crate::boundary::Uncancelled::new();
            $crate::boundary::cross::<$answer>(stringify!($name), || {
                $(
                    // SAFETY: whoever calls this symbol promises what its man page asks for.
                    let $arg = unsafe {
                        $crate::boundary::arg::<$ty>(stringify!($name), stringify!($arg), $arg)
                    }?;
                )*
                $function($($arg),*)
            })
        }
    )* };
}
pub(crate) use export;

#[cfg(test)]
mod tests;
