//! Objects that a program holds pointers to: a C structure, and behind it what is ours.

use std::cell::UnsafeCell;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use irdma::Refused;

use super::{Bits, Errno, FromC};

/// The private part of an object, and the C structure in front of it.
///
/// # Safety
/// `C` is `repr(C)` and holds a `Seen` at `OFFSET`.
pub unsafe trait Shape {
    /// The C structure.
    type C: Bits;
    /// What the program's pointers point to.
    type Seen;
    /// Where in `C` that is.
    const OFFSET: usize = 0;
}

/// An object of the C interface. The program reads, and may write, its C structure at any time:
/// no reference to that part is ever made.
#[repr(C)]
pub struct Object<S: Shape> {
    c: UnsafeCell<S::C>,
    own: S,
}

// SAFETY: the C structure is touched through raw pointers only, the rest is `Sync`.
unsafe impl<S: Shape + Send + Sync> Sync for Object<S> {}
// SAFETY: raw pointers in the C structure mean the same in every thread.
unsafe impl<S: Shape + Send> Send for Object<S> {}

impl<S: Shape> Deref for Object<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.own
    }
}

impl<S: Shape> Object<S> {
    pub fn new(c: S::C, own: S) -> Box<Self> {
        Box::new(Object { c: UnsafeCell::new(c), own })
    }

    /// The private part alone.
    pub fn into_own(self) -> S {
        self.own
    }

    /// The C structure.
    #[inline]
    pub fn c(&self) -> *mut S::C {
        self.c.get()
    }

    /// A copy of the C structure.
    pub fn seen(&self) -> S::C {
        // SAFETY: it lives as long as the object, and any bytes in it are a value.
        unsafe { self.c().read() }
    }

    /// The pointer that the program knows.
    pub fn as_seen(&self) -> *mut S::Seen {
        self.c().wrapping_byte_add(S::OFFSET).cast()
    }

    /// Gives the object to the program.
    pub fn hand_out(object: Box<Self>) -> *mut S::Seen {
        Box::into_raw(object).wrapping_byte_add(S::OFFSET).cast()
    }

    /// The number that the device names the object by in events.
    pub fn cookie(&self) -> u64 {
        self.c().expose_provenance() as u64
    }

    /// Adds to the counter at `offset` of the C structure, which the program may read.
    pub fn count(&self, offset: usize, events: u32) {
        let counter = self.c().wrapping_byte_add(offset).cast::<u32>();
        // SAFETY: `offset` is that of a `u32` field, and only atomics of ours write it.
        let counter = unsafe { AtomicU32::from_ptr(counter) };
        counter.fetch_add(events, Ordering::Relaxed);
    }
}

/// Stores a value in a field of an object's C structure.
macro_rules! set_field {
    ($object:expr, $($field:ident).+, $value:expr) => {{
        let (c, value) = ($object.c(), $value);
        // SAFETY: the structure lives as long as the object that is borrowed here.
        unsafe { (*c).$($field).+ = value }
    }};
}
pub(crate) use set_field;

fn locate<S: Shape>(raw: *mut S::Seen) -> Result<NonNull<Object<S>>, Errno> {
    if raw.is_null() || !raw.is_aligned() {
        return Err(Errno(libc::EINVAL));
    }
    let object = raw.wrapping_byte_sub(S::OFFSET).cast();
    NonNull::new(object).ok_or(Errno(libc::EINVAL))
}

impl<S: Shape> FromC for &Object<S> {
    type Raw = *mut S::Seen;

    #[inline]
    unsafe fn from_c(raw: *mut S::Seen) -> Result<Self, Errno> {
        let object = locate::<S>(raw)?;
        // SAFETY: the program promises a live object, which came from `hand_out`.
        Ok(unsafe { object.as_ref() })
    }
}

impl<S: Shape> FromC for Option<&Object<S>> {
    type Raw = *mut S::Seen;

    unsafe fn from_c(raw: *mut S::Seen) -> Result<Self, Errno> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: our caller makes the same promise.
        unsafe { <&Object<S>>::from_c(raw) }.map(Some)
    }
}

/// Destroys a handle, or gives it back.
pub type End<H> = fn(H) -> Result<(), Refused<H>>;

/// A private part with a handle that can refuse to be destroyed.
pub trait Ends: Shape {
    type Handle;
    const END: End<Self::Handle>;

    fn handle(&self) -> &ManuallyDrop<Self::Handle>;
}

/// An object that the program asks to destroy.
pub struct Owned<S: Shape>(NonNull<Object<S>>);

impl<S: Shape> FromC for Owned<S> {
    type Raw = *mut S::Seen;

    unsafe fn from_c(raw: *mut S::Seen) -> Result<Self, Errno> {
        locate(raw).map(Owned)
    }
}

impl<S: Shape> Owned<S> {
    /// An object of the library's own.
    pub fn new(object: Box<Object<S>>) -> Self {
        Owned(NonNull::from(Box::leak(object)))
    }

    /// The object, still alive.
    pub fn get(&self) -> &Object<S> {
        // SAFETY: the program's promise, as in `FromC`.
        unsafe { self.0.as_ref() }
    }

    /// Takes the object from the program.
    pub fn take(self) -> Box<Object<S>> {
        // SAFETY: it came from `hand_out`, and the program does not use it any more.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

impl<S: Ends> Owned<S> {
    /// Destroys the object, unless its handle refuses. Meanwhile other threads may use it: to
    /// acknowledge the events that the destruction waits for, or because it will be refused.
    pub fn end(self) -> Result<(), Errno> {
        let handle = ptr::from_ref(self.get().handle());
        // SAFETY: the copy and the original are one handle; of the two exactly one is dropped or
        // forgotten below, the other one is forgotten or stays.
        let handle = unsafe { handle.read() };
        match S::END(ManuallyDrop::into_inner(handle)) {
            Ok(()) => {
                drop(self.take());
                Ok(())
            }
            Err(Refused { handle, error }) => {
                mem::forget(handle);
                Err(error.into())
            }
        }
    }
}

/// An object that cannot be destroyed as long as something that holds this stands on it.
pub struct Kept<S: Shape>(NonNull<Object<S>>);

// SAFETY: as a reference to the object.
unsafe impl<S: Shape + Send + Sync> Send for Kept<S> {}

impl<S: Shape> Kept<S> {
    /// # Safety
    /// Something whose handle stands on the object's holds the result.
    pub unsafe fn new(object: &Object<S>) -> Self {
        Kept(NonNull::from(object))
    }

    /// # Safety
    /// `cookie` is the [`Object::cookie`] of an object whose destruction waits.
    pub unsafe fn from_cookie(cookie: u64) -> Self {
        let object = ptr::with_exposed_provenance_mut(cookie as usize);
        // SAFETY: the cookie of an object is its address.
        Kept(unsafe { NonNull::new_unchecked(object) })
    }
}

impl<S: Shape> Deref for Kept<S> {
    type Target = Object<S>;

    fn deref(&self) -> &Object<S> {
        // SAFETY: the promise made at construction.
        unsafe { self.0.as_ref() }
    }
}
