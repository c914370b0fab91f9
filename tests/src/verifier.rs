//! The C verifier (`tests/c/verify.c`) between two hosts.

use std::time::Duration;

use crate::host::{Family, Host};
use crate::pair::{Ready, next_port, run_pair};
use crate::{Finished, Program};

/// Every operation of a device without memory windows.
pub const EVERY_OP: &str = "--ops send,send_imm,write,write_imm,read,fetch_add,cmp_swap";

/// Both ends of one run of the verifier.
#[derive(Debug)]
pub struct Verified {
    /// The server's end.
    pub server: Finished,
    /// The client's end.
    pub client: Finished,
}

impl Verified {
    /// How many messages were compared.
    ///
    /// # Panics
    /// Unless both sides found every byte right.
    pub fn messages(&self) -> u64 {
        let both = format!("{}\n{}", self.server, self.client);
        assert!(self.server.succeeded() && self.client.succeeded(), "{both}");
        let count = self.client.stdout.rsplit(" messages").nth(1);
        let count = count.and_then(|text| text.rsplit(' ').next()?.parse().ok());
        count.unwrap_or_else(|| panic!("no number of messages: {both}"))
    }
}

/// What stays the same over the runs of one test.
#[derive(Clone, Copy, Debug)]
pub struct Verifier<'a> {
    /// Where the server runs.
    pub server: &'a Host,
    /// Where the client runs, which says what is done.
    pub client: &'a Host,
    /// Which addresses the packets have.
    pub family: Family,
    /// Limit of each process.
    pub limit: Duration,
}

impl Verifier<'_> {
    /// Runs the matrix that `words` describes (see the head of `verify.c`).
    pub fn run(&self, words: &str) -> Verified {
        let port = next_port();
        let server = self.side(self.server, port).arg("-s");
        let address = self.server.address(self.family).to_string();
        let client = self.side(self.client, port).arg(address).words(words);
        let (server, client) = run_pair(server, Ready::Port(port), client);
        Verified { server, client }
    }

    fn side(&self, host: &Host, port: u16) -> Program {
        host.c_program("verify")
            .args(["--port", &port.to_string()])
            .args(self.family.option())
            .within(self.limit)
    }
}
