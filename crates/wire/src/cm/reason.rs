//! Why a connection was refused (IBTA 12.6.7.2).

/// No queue pair, memory or id is left.
pub const NO_RESOURCES: u16 = 3;
/// The answer did not come in time.
pub const TIMEOUT: u16 = 4;
/// The message is about a connection that the sender does not know.
pub const INVALID_COMM_ID: u16 = 6;
/// Nobody listens for the service.
pub const INVALID_SERVICE_ID: u16 = 8;
/// The service is not offered over this transport.
pub const INVALID_TRANSPORT: u16 = 9;
/// The queue pair is connected, as far as the sender knows.
pub const STALE_CONNECTION: u16 = 10;
/// There is no such path MTU.
pub const INVALID_PATH_MTU: u16 = 26;
/// The program refuses.
pub const CONSUMER: u16 = 28;

/// What a reason means, in a few words.
pub const fn text(reason: u16) -> &'static str {
    match reason {
        NO_RESOURCES => "no resources",
        TIMEOUT => "timeout",
        INVALID_COMM_ID => "unknown connection",
        INVALID_SERVICE_ID => "nobody listens",
        INVALID_TRANSPORT => "invalid transport service",
        STALE_CONNECTION => "stale connection",
        INVALID_PATH_MTU => "invalid path MTU",
        CONSUMER => "refused by the program",
        _ => "see IBTA 12.6.7.2",
    }
}
