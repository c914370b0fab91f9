//! Arguments as they arrive from C.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::Errno;
use crate::types::{ibv_pd, ibv_sge};

/// An argument as it arrives from C.
pub trait FromC: Sized {
    /// The C type.
    type Raw;

    /// Checks what can be checked: EINVAL for a NULL pointer.
    ///
    /// # Safety
    /// A pointer that is not NULL points to what the man page of the called function says,
    /// and stays valid during the call.
    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno>;
}

/// Plain data of a C header.
///
/// # Safety
/// Any bytes that a C program stores are a value of the type.
pub unsafe trait Bits: Copy {}

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
plain_argument!(u8 u16 i32 u32 u64 usize *mut c_void *mut ibv_pd *mut ibv_sge);

macro_rules! bits {
    ($($ty:ty)*) => { $(
        // SAFETY: numbers have no invalid bytes.
        unsafe impl Bits for $ty {}
    )* };
}
bits!(u16 u32 u64 i32);

// SAFETY: numbers have no invalid bytes.
unsafe impl<const N: usize> Bits for [u8; N] {}
// SAFETY: any bytes are a raw pointer.
unsafe impl<T> Bits for *mut T {}

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

impl FromC for Option<&CStr> {
    type Raw = *const c_char;

    unsafe fn from_c(raw: *const c_char) -> Result<Self, Errno> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: our caller makes the same promise.
        unsafe { <&CStr>::from_c(raw) }.map(Some)
    }
}

/// A structure that the program filled in, copied.
pub struct In<T>(pub T);

impl<T: Bits> FromC for In<T> {
    type Raw = *const T;

    #[inline]
    unsafe fn from_c(raw: *const T) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: not NULL, so it is what the caller promises: readable, of this type.
        Ok(In(unsafe { raw.read_unaligned() }))
    }
}

impl<T: Bits> FromC for Option<In<T>> {
    type Raw = *const T;

    unsafe fn from_c(raw: *const T) -> Result<Self, Errno> {
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: our caller makes the same promise.
        unsafe { In::from_c(raw) }.map(Some)
    }
}

/// A structure that the call fills in.
pub struct Out<'a, T> {
    place: NonNull<T>,
    program: PhantomData<&'a mut T>,
}

impl<T: Bits> FromC for Out<'_, T> {
    type Raw = *mut T;

    #[inline]
    unsafe fn from_c(raw: *mut T) -> Result<Self, Errno> {
        let place = NonNull::new(raw).ok_or(Errno(libc::EINVAL))?;
        Ok(Out { place, program: PhantomData })
    }
}

impl<T: Bits> FromC for Option<Out<'_, T>> {
    type Raw = *mut T;

    #[inline]
    unsafe fn from_c(raw: *mut T) -> Result<Self, Errno> {
        Ok(NonNull::new(raw).map(|place| Out { place, program: PhantomData }))
    }
}

impl<T: Bits> Out<'_, T> {
    #[inline]
    pub fn write(self, value: T) {
        // SAFETY: the program's place for one value of this type.
        unsafe { self.place.write_unaligned(value) }
    }
}

/// A structure that the program filled in and the call changes.
pub struct InOut<'a, T> {
    place: NonNull<T>,
    program: PhantomData<&'a mut T>,
}

impl<T: Bits> FromC for InOut<'_, T> {
    type Raw = *mut T;

    unsafe fn from_c(raw: *mut T) -> Result<Self, Errno> {
        let place = NonNull::new(raw).ok_or(Errno(libc::EINVAL))?;
        Ok(InOut { place, program: PhantomData })
    }
}

impl<T: Bits> FromC for Option<InOut<'_, T>> {
    type Raw = *mut T;

    unsafe fn from_c(raw: *mut T) -> Result<Self, Errno> {
        Ok(NonNull::new(raw).map(|place| InOut { place, program: PhantomData }))
    }
}

impl<T: Bits> InOut<'_, T> {
    pub fn get(&self) -> T {
        // SAFETY: the program's initialised value of this type.
        unsafe { self.place.read_unaligned() }
    }

    /// The same structure, for a call that this one makes.
    pub fn again(&mut self) -> InOut<'_, T> {
        InOut { place: self.place, program: PhantomData }
    }

    pub fn set(&mut self, value: T) {
        // SAFETY: as in `get`, and the program does not look before the call returns.
        unsafe { self.place.write_unaligned(value) }
    }
}

/// Structures of which the program has as many bytes as another argument says, because they
/// grow from release to release.
pub struct Partial<'a, T> {
    start: NonNull<T>,
    program: PhantomData<&'a mut [u8]>,
}

impl<T: Bits> FromC for Partial<'_, T> {
    type Raw = *mut T;

    unsafe fn from_c(raw: *mut T) -> Result<Self, Errno> {
        let start = NonNull::new(raw).ok_or(Errno(libc::EINVAL))?;
        Ok(Partial { start, program: PhantomData })
    }
}

impl<T: Bits> Partial<'_, T> {
    /// Writes what fits `size` bytes, and zeros where the program's structure is longer.
    pub fn write(&mut self, size: usize, value: &T) {
        self.write_at(0, size, value);
    }

    /// Writes element `index` of an array of elements of `size` bytes.
    pub fn write_at(&mut self, index: usize, size: usize, value: &T) {
        let known = size.min(size_of::<T>());
        // SAFETY: the program's array is longer than `index` elements.
        let place = unsafe { self.start.cast::<u8>().add(index * size) };
        let source = NonNull::from(value).cast::<u8>();
        // SAFETY: `known` is at most the size of either.
        unsafe { place.copy_from_nonoverlapping(source, known) }
        // SAFETY: the element has `size` bytes, `known` at most.
        let rest = unsafe { place.add(known) };
        // SAFETY: as above.
        unsafe { rest.write_bytes(0, size - known) }
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

/// Copies from a buffer of the program into `to`.
///
/// # Safety
/// The buffer has as many bytes as `to`, unless that is empty.
#[inline]
pub unsafe fn read_program(from: *const u8, to: &mut [u8]) {
    if !to.is_empty() {
        // SAFETY: our caller promises it.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }
}

/// Copies `from` into a buffer of the program.
///
/// # Safety
/// The buffer has as many bytes as `from`, unless that is empty.
pub unsafe fn write_program(from: &[u8], to: *mut u8) {
    if !from.is_empty() {
        // SAFETY: our caller promises it.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }
}
