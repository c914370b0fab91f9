//! The connection manager's verbs.

use std::net::IpAddr;

use irdma_wire::cm::ServiceId;

use super::{CommId, ConnectReply, ConnectRequest, SidrReply, SidrRequest};
use crate::endpoint::{Disposition, Endpoint, Meta};
use crate::error::{Result, VerbsError};
use crate::time::Instant;

fn not_built<T>() -> Result<T> {
    Err(VerbsError::unsupported("the connection manager is not built"))
}

impl Endpoint {
    /// Takes requests for `service` that arrive at `addr`, `None` for any address, from now on;
    /// their events carry `token`. EADDRINUSE where this endpoint listens for the pair already.
    pub fn cm_listen(&mut self, _: u64, _: ServiceId, _: Option<IpAddr>) -> Result<()> {
        not_built()
    }

    /// Ends what [`Endpoint::cm_listen`] began; requests that wait for an answer still do.
    pub fn cm_unlisten(&mut self, _: u64) {}

    /// Asks a peer for a connection, again and again until it answers or all tries are used up.
    pub fn cm_connect(&mut self, _: Instant, _: &ConnectRequest<'_>) -> Result<CommId> {
        not_built()
    }

    /// Accepts a request; the answer is repeated until the peer is ready or `cm_notify` says so.
    pub fn cm_accept(&mut self, _: Instant, _: CommId, _: &ConnectReply<'_>) -> Result<()> {
        not_built()
    }

    /// Tells the peer that accepted that this side is ready.
    pub fn cm_establish(&mut self, _: Instant, _: CommId) -> Result<()> {
        not_built()
    }

    /// Traffic of the peer arrived before it said that it is ready.
    pub fn cm_notify(&mut self, _: Instant, _: CommId) -> Result<()> {
        not_built()
    }

    /// Refuses a request, or a reply, for a reason of IBTA table 109.
    pub fn cm_reject(&mut self, _: Instant, _: CommId, _: u16, _: &[u8]) -> Result<()> {
        not_built()
    }

    /// Ends a connection, or agrees to the peer's wish to.
    pub fn cm_disconnect(&mut self, _: Instant, _: CommId, _: &[u8]) -> Result<()> {
        not_built()
    }

    /// Asks a peer which queue pair offers a service.
    pub fn cm_sidr_request(&mut self, _: Instant, _: &SidrRequest<'_>) -> Result<CommId> {
        not_built()
    }

    /// Answers such a question.
    pub fn cm_sidr_reply(&mut self, _: Instant, _: CommId, _: &SidrReply<'_>) -> Result<()> {
        not_built()
    }

    /// Forgets an id; a peer that waits for it is told.
    pub fn cm_destroy(&mut self, _: Instant, _: CommId) {}

    /// Takes in a datagram that nobody else will: one that was relayed, or that came back as
    /// [`Disposition::Unclaimed`] and has no other taker. A request that nobody here listens for
    /// is refused.
    pub fn handle_unclaimed(&mut self, now: Instant, meta: &Meta, bytes: &[u8]) -> Disposition {
        self.handle_datagram(now, meta, bytes)
    }
}
