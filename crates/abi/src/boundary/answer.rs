//! Results as C expects them.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr;

use super::{Errno, Object, Shape, set_errno};

/// How a function tells its result to C.
pub trait Answer {
    /// What the Rust function returns when it succeeds.
    type Value;
    /// The C type.
    type Raw;

    /// Translates, with errno where the convention uses it.
    fn to_c(result: Result<Self::Value, Errno>) -> Self::Raw;
}

/// 0, or the error number itself; errno has it, too, since programs call `perror` all the same.
pub struct Status;

impl Answer for Status {
    type Value = ();
    type Raw = c_int;

    #[inline]
    fn to_c(result: Result<(), Errno>) -> c_int {
        result.map_or_else(
            |Errno(code)| {
                set_errno(Errno(code));
                code
            },
            |()| 0,
        )
    }
}

/// 0, or -1 and errno.
pub struct Success;

impl Answer for Success {
    type Value = ();
    type Raw = c_int;

    fn to_c(result: Result<(), Errno>) -> c_int {
        Count::to_c(result.map(|()| 0))
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

/// A count, or a negative error number.
pub struct Size;

impl Answer for Size {
    type Value = isize;
    type Raw = isize;

    fn to_c(result: Result<isize, Errno>) -> isize {
        result.unwrap_or_else(|Errno(code)| -(code as isize))
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

/// Nothing: the call cannot tell that it failed.
pub struct Ended;

impl Answer for Ended {
    type Value = ();
    type Raw = ();

    fn to_c(_: Result<(), Errno>) {}
}

/// A text that lives as long as the process; NULL and errno on failure.
pub struct Text;

impl Answer for Text {
    type Value = &'static CStr;
    type Raw = *const c_char;

    fn to_c(result: Result<&'static CStr, Errno>) -> *const c_char {
        match result {
            Ok(text) => text.as_ptr(),
            Err(errno) => {
                set_errno(errno);
                ptr::null()
            }
        }
    }
}

/// A new object, which belongs to the program until it is destroyed; NULL and errno on failure.
pub struct Made<S>(PhantomData<S>);

impl<S: Shape> Answer for Made<S> {
    type Value = Box<Object<S>>;
    type Raw = *mut S::Seen;

    fn to_c(result: Result<Box<Object<S>>, Errno>) -> *mut S::Seen {
        match result {
            Ok(object) => Object::hand_out(object),
            Err(errno) => {
                set_errno(errno);
                ptr::null_mut()
            }
        }
    }
}

/// A pointer to part of an object; NULL and errno on failure.
pub struct Part<T>(PhantomData<T>);

impl<T> Answer for Part<T> {
    type Value = *mut T;
    type Raw = *mut T;

    fn to_c(result: Result<*mut T, Errno>) -> *mut T {
        result.unwrap_or_else(|errno| {
            set_errno(errno);
            ptr::null_mut()
        })
    }
}

/// An array of pointers with NULL at its end; NULL and errno on failure.
pub struct List<T>(PhantomData<T>);

impl<T> Answer for List<T> {
    type Value = Vec<*mut T>;
    type Raw = *mut *mut T;

    fn to_c(result: Result<Vec<*mut T>, Errno>) -> *mut *mut T {
        match result {
            Ok(mut list) => {
                list.push(ptr::null_mut());
                Box::into_raw(list.into_boxed_slice()).cast()
            }
            Err(errno) => {
                set_errno(errno);
                ptr::null_mut()
            }
        }
    }
}
