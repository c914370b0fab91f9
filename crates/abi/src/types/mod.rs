//! The C structures of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, field for field.
//!
//! Enumerations are plain integers: a C program can store any value. Every structure is all
//! zeros before it is filled, which each of its fields allows.
#![expect(non_snake_case, reason = "the names of the C headers")]
#![allow(dead_code, reason = "the headers' structures and fields are complete")]

mod cm;
mod device;
mod object;
mod values;
mod work;

pub use cm::*;
pub use device::*;
pub use object::*;
pub use values::*;
pub use work::*;

/// What a test compares with the C compiler's view.
#[cfg(test)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [(&'static str, usize)],
}

/// Defines structures and unions as C does, and lists their layouts for the test.
macro_rules! c_types {
    ($layouts:ident $(
        $(#[$meta:meta])*
        $kind:ident $name:ident { $( $field:ident: $ty:ty, )* }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $( pub $field: $ty, )* }

            // SAFETY: integers, raw pointers and `Option<fn>` have no invalid bytes.
            unsafe impl crate::boundary::Bits for $name {}

            impl $name {
                pub const fn zeroed() -> Self {
                    // SAFETY: integers, raw pointers and `Option<fn>` may all be zero.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        #[cfg(test)]
        pub const $layouts: &[crate::types::Layout] = &[ $(
            crate::types::Layout {
                name: stringify!($name),
                size: std::mem::size_of::<$name>(),
                fields: &[ $( (stringify!($field), std::mem::offset_of!($name, $field)), )* ],
            },
        )* ];
    };
}
use c_types;

#[cfg(test)]
mod tests;
