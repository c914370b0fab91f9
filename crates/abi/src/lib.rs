//! `libibverbs.so.1` and `librdmacm.so.1` on top of `irdma`: one shared object that programs
//! built for rdma-core load in its place.
//!
//! `surface.rs` lists every symbol and version for the build script, `exported.rs` the signatures
//! of those that work.
//! References are made from C pointers in `boundary` only, work requests excepted, and no panic
//! leaves it.

mod ah;
mod batch;
mod boundary;
mod cm;
mod context;
mod cq;
mod device;
mod dm;
mod events;
mod exported;
mod fork;
mod handle;
mod import;
mod mr;
mod mw;
mod ops;
mod pd;
mod poll;
mod qp;
mod query;
mod rate;
mod refused;
mod srq;
mod sysfs;
mod td;
mod text;
mod turn;
mod types;
mod waited;
mod work;
mod wr;
mod xrc;

/// Exports `$function` under a name and version: `@@` is the version that programs linked
/// today get. The label is gone afterwards.
macro_rules! export_fn {
    ($label:literal, $versioned:literal, $function:path) => {
        core::arch::global_asm!(
            ".pushsection .text.irdma_abi,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl ", $label),
            concat!(".type ", $label, ",@function"),
            concat!($label, ":"),
            ".cfi_startproc",
            #[cfg(target_arch = "x86_64")]
            "jmp {function}",
            #[cfg(target_arch = "aarch64")]
            "b {function}",
            ".cfi_endproc",
            concat!(".size ", $label, ", . - ", $label),
            concat!(".symver ", $label, ",", $versioned, ",remove"),
            ".popsection",
            function = sym $function,
        );
    };
}

/// Exports one zero byte under a name and version.
macro_rules! export_data {
    ($label:literal, $versioned:literal) => {
        core::arch::global_asm!(
            ".pushsection .data.irdma_abi,\"aw\",@progbits",
            concat!(".globl ", $label),
            concat!(".type ", $label, ",@object"),
            concat!($label, ":"),
            ".byte 0",
            concat!(".size ", $label, ", 1"),
            concat!(".symver ", $label, ",", $versioned, ",remove"),
            ".popsection",
        );
    };
}

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));
