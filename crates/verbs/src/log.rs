//! Log lines on stderr, silent unless asked for.

use std::fmt::{self, Write as _};

use irdma_net::clock;
use irdma_transport::{ErrorKind, VerbsError};
use irdma_wire::Qpn;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::write::write_all;

/// Writes events of this workspace as `[irdma PID] level: text`.
struct Stderr(Level);

/// Sends this process's log lines to stderr from now on, unless the program set a subscriber of
/// its own before.
pub fn init(level: Level) {
    // An error says that the program listens itself, which is as good.
    let _ = tracing::subscriber::set_global_default(Stderr(level));
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0 && metadata.target().starts_with("irdma")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.0.into())
    }

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut line = Line(format!("[irdma {}] {level}: ", clock::pid()));
        event.record(&mut line);
        line.0.push('\n');
        // One write a line, so that lines of several threads and processes do not mix.
        let _ = write_all(std::io::stderr(), line.0.as_bytes());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Logs a refused verb once, at the boundary to the program.
pub(crate) fn refused(verb: &str, error: &VerbsError) {
    tracing::info!("{verb} refused ({}): {error}", errno_name(error.kind()));
}

fn errno_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "EINVAL",
        ErrorKind::NoMemory => "ENOMEM",
        ErrorKind::Busy => "EBUSY",
        ErrorKind::Unsupported => "EOPNOTSUPP",
        ErrorKind::Overflow => "EOVERFLOW",
        ErrorKind::Io => "EIO",
        ErrorKind::Again => "EAGAIN",
        ErrorKind::NoDevice => "ENODEV",
        ErrorKind::AddressInUse => "EADDRINUSE",
        ErrorKind::AddressNotAvailable => "EADDRNOTAVAIL",
        ErrorKind::NetworkUnreachable => "ENETUNREACH",
        ErrorKind::HostUnreachable => "EHOSTUNREACH",
        ErrorKind::NotPermitted => "EPERM",
        ErrorKind::Interrupted => "EINTR",
        ErrorKind::NoData => "ENODATA",
        ErrorKind::TooManyFiles => "EMFILE",
        ErrorKind::Fault => "EFAULT",
        ErrorKind::Destroyed => "EBADF",
    }
}

/// Passes a result on, logging its refusal.
pub(crate) trait Logged {
    fn logged(self, verb: &str) -> Self;

    /// As `logged`, with the queue pair that the verb is about.
    fn logged_of(self, verb: &str, qpn: Qpn) -> Self;
}

impl<T> Logged for irdma_transport::Result<T> {
    fn logged(self, verb: &str) -> Self {
        if let Err(error) = &self {
            refused(verb, error);
        }
        self
    }

    fn logged_of(self, verb: &str, qpn: Qpn) -> Self {
        if let Err(error) = &self {
            refused(&format!("{verb} of QP {qpn}"), error);
        }
        self
    }
}
