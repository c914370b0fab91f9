//! The border to C: arguments become Rust values, results become C's conventions, and a panic
//! becomes an error number.
//!
//! Invariant: references are made from C pointers here and nowhere else.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// An error number of `<errno.h>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// Sets the calling thread's errno.
pub fn set_errno(Errno(code): Errno) {
    // SAFETY: takes nothing, returns the thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid and unshared as long as the thread lives.
    unsafe { errno.write(code) }
}

/// An argument as it arrives from C.
pub trait FromC: Sized {
    /// The C type.
    type Raw;

    /// Checks what can be checked: EINVAL for a NULL or misaligned pointer.
    ///
    /// # Safety
    /// A pointer that is neither points to what the man page of the called function says,
    /// and stays valid during the call.
    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno>;
}

macro_rules! plain_argument {
    ($($ty:ty)*) => { $(
        impl FromC for $ty {
            type Raw = $ty;

            unsafe fn from_c(raw: $ty) -> Result<$ty, Errno> {
                Ok(raw)
            }
        }
    )* };
}
plain_argument!(i32 u32 usize *mut c_void);

impl FromC for &CStr {
    type Raw = *const c_char;

    unsafe fn from_c(raw: *const c_char) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: not NULL, and the caller's promise is a C string.
        Ok(unsafe { CStr::from_ptr(raw) })
    }
}

/// A buffer of the program: start and, from the next argument, length.
pub struct Buffer<'a> {
    start: NonNull<u8>,
    program: PhantomData<&'a mut [u8]>,
}

impl FromC for Buffer<'_> {
    type Raw = *mut c_char;

    unsafe fn from_c(raw: *mut c_char) -> Result<Self, Errno> {
        let start = NonNull::new(raw.cast()).ok_or(Errno(libc::EINVAL))?;
        Ok(Buffer { start, program: PhantomData })
    }
}

impl Buffer<'_> {
    /// Writes `text` and a closing zero; ERANGE unless both fit `size`, the length that the
    /// program passed beside the buffer.
    pub fn write_text(self, size: usize, text: &[u8]) -> Result<(), Errno> {
        if text.len() >= size {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: the program's buffer has `size` bytes, more than `text`.
        unsafe { self.start.copy_from_nonoverlapping(NonNull::from(text).cast(), text.len()) }
        // SAFETY: as above, there is one byte more.
        let end = unsafe { self.start.add(text.len()) };
        // SAFETY: inside the buffer.
        unsafe { end.write(0) }
        Ok(())
    }
}

/// How a function tells its result to C.
pub trait Answer {
    /// What the Rust function returns when it succeeds.
    type Value;
    /// The C type.
    type Raw;

    /// Translates, with errno where the convention uses it.
    fn to_c(result: Result<Self::Value, Errno>) -> Self::Raw;
}

/// 0, or the error number itself.
pub struct Status;

impl Answer for Status {
    type Value = ();
    type Raw = c_int;

    fn to_c(result: Result<(), Errno>) -> c_int {
        result.map_or_else(|Errno(code)| code, |()| 0)
    }
}

/// A value, or -1 and errno.
pub struct Count;

impl Answer for Count {
    type Value = c_int;
    type Raw = c_int;

    fn to_c(result: Result<c_int, Errno>) -> c_int {
        result.unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }
}

/// A value that never fails; 0 and errno after a panic.
pub struct Plain<T>(PhantomData<T>);

impl<T: Default> Answer for Plain<T> {
    type Value = T;
    type Raw = T;

    fn to_c(result: Result<T, Errno>) -> T {
        result.unwrap_or_else(|errno| {
            set_errno(errno);
            T::default()
        })
    }
}

/// A text that lives as long as the process.
pub struct Text;

impl Answer for Text {
    type Value = &'static CStr;
    type Raw = *const c_char;

    fn to_c(result: Result<&'static CStr, Errno>) -> *const c_char {
        match result {
            Ok(text) => text.as_ptr(),
            Err(errno) => {
                set_errno(errno);
                std::ptr::null()
            }
        }
    }
}

/// Runs the function behind `symbol` and lets no panic out. A panic is a bug of this library:
/// the call fails with EIO.
pub fn cross<A: Answer>(
    symbol: &'static str,
    call: impl FnOnce() -> Result<A::Value, Errno>,
) -> A::Raw {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!(symbol, "panicked, this is a bug of irdma; the device is unusable");
        Err(Errno(libc::EIO))
    });
    A::to_c(result)
}

/// Defines the functions that C calls, one a line: name, arguments, convention of the answer,
/// and the safe Rust function behind it.
macro_rules! export {
    ($( $name:ident($($arg:ident: $ty:ty),*) -> $answer:ty = $function:path; )*) => { $(
        pub unsafe extern "C" fn $name(
            $($arg: <$ty as $crate::boundary::FromC>::Raw),*
        ) -> <$answer as $crate::boundary::Answer>::Raw {
            $crate::boundary::cross::<$answer>(stringify!($name), || {
                $(
                    // SAFETY: whoever calls this symbol promises what its man page asks for.
                    let $arg = unsafe { <$ty as $crate::boundary::FromC>::from_c($arg) }?;
                )*
                $function($($arg),*)
            })
        }
    )* };
}
pub(crate) use export;

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    fn divide(dividend: i32, divisor: i32) -> Result<c_int, Errno> {
        Ok(dividend / divisor)
    }

    export! {
        quotient(dividend: i32, divisor: i32) -> Count = divide;
        length(text: &CStr) -> Count = length_of;
    }

    fn length_of(text: &CStr) -> Result<c_int, Errno> {
        Ok(text.count_bytes() as c_int)
    }

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().expect("an OS error")
    }

    #[test]
    fn a_panic_becomes_eio() {
        // SAFETY: plain numbers.
        let answer = unsafe { quotient(1, 0) };
        assert_eq!((answer, errno()), (-1, libc::EIO));
    }

    #[test]
    fn null_becomes_einval() {
        // SAFETY: NULL is checked.
        let answer = unsafe { length(std::ptr::null()) };
        assert_eq!((answer, errno()), (-1, libc::EINVAL));
    }

    #[test]
    fn values_pass() {
        // SAFETY: a C string.
        assert_eq!(unsafe { length(c"irdma".as_ptr()) }, 5);
        // SAFETY: plain numbers.
        assert_eq!(unsafe { quotient(7, 2) }, 3);
    }

    #[test]
    fn text_needs_room_for_its_zero() {
        let mut bytes = [0x55u8; 4];
        let write = |bytes: &mut [u8; 4], size| {
            // SAFETY: `size` never exceeds the array.
            let buffer = unsafe { Buffer::from_c(bytes.as_mut_ptr().cast()) }.expect("not NULL");
            buffer.write_text(size, b"abc")
        };
        assert_eq!(write(&mut bytes, 3), Err(Errno(libc::ERANGE)));
        assert_eq!(bytes, [0x55; 4]);
        assert_eq!(write(&mut bytes, 4), Ok(()));
        assert_eq!(&bytes, b"abc\0");
    }
}
