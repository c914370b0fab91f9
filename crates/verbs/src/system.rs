//! Errors of the system as refusals of verbs: the errno is kept where verbs have one for it.

use std::io;

use irdma_transport::{ErrorKind, VerbsError};

/// `errno` of a process, and of a machine, that has no descriptor left.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// A refusal because of what the system answered; `what` went wrong by it.
pub(crate) fn system_error(what: &str, error: &io::Error) -> VerbsError {
    let kind = kind_of(error);
    let remedy = match kind {
        ErrorKind::TooManyFiles => "; raise RLIMIT_NOFILE, or close what is not needed",
        _ => "",
    };
    VerbsError::new(kind, format!("{what}: {error}{remedy}"))
}

fn kind_of(error: &io::Error) -> ErrorKind {
    if let Some(EMFILE | ENFILE) = error.raw_os_error() {
        return ErrorKind::TooManyFiles;
    }
    match error.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::AddressInUse,
        io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
        io::ErrorKind::OutOfMemory => ErrorKind::NoMemory,
        io::ErrorKind::NetworkUnreachable => ErrorKind::NetworkUnreachable,
        io::ErrorKind::HostUnreachable => ErrorKind::HostUnreachable,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_kept_where_verbs_have_it() {
        // EPERM, EIO, ENOMEM, EACCES, EINVAL, ENFILE, EMFILE, EADDRINUSE, EADDRNOTAVAIL, ENETDOWN,
        // ENETUNREACH, EHOSTUNREACH.
        let answers = [
            (1, 1),
            (5, 5),
            (12, 12),
            (13, 1),
            (22, 22),
            (23, 24),
            (24, 24),
            (98, 98),
            (99, 22),
            (100, 5),
            (101, 101),
            (113, 113),
        ];
        for (system, verbs) in answers {
            let error = system_error("x", &io::Error::from_raw_os_error(system));
            assert_eq!(error.errno(), verbs, "{system}: {error}");
        }
    }
}
