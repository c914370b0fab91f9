use std::ffi::CStr;
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

#[test]
fn a_panic_is_told_to_every_open_device() {
    let devices = irdma::Device::list().expect("interfaces are listed");
    let context = devices[0].open().expect("an open device");
    // SAFETY: plain numbers.
    unsafe { quotient(1, 0) };
    let event = context.get_async_event().expect("an event");
    assert_eq!(event.kind(), irdma::EventKind::DeviceFatal);
}
