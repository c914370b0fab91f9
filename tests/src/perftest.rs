//! The distribution's perftest programs between two hosts.

use std::time::Duration;

use crate::host::{Family, Host};
use crate::pair::{Ready, next_port, run_pair};
use crate::{Finished, Program};

/// The programs that measure SENDs, WRITEs, READs and atomics.
pub const TOOLS: [&str; 8] = [
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
];

/// Both ends of one run.
#[derive(Debug)]
pub struct Measured {
    /// The server's end.
    pub server: Finished,
    /// The client's end.
    pub client: Finished,
}

impl Measured {
    /// # Panics
    /// Unless both exited with status 0 and wrote nothing to their standard error.
    pub fn expect_clean(&self) {
        for end in [&self.server, &self.client] {
            end.expect_success().expect_quiet();
        }
    }

    /// The rows of numbers of the client's table.
    ///
    /// # Panics
    /// When it printed none.
    pub fn rows(&self) -> Vec<Vec<f64>> {
        let parse = |line: &str| -> Option<Vec<f64>> {
            let row: Option<Vec<f64>> = line.split_whitespace().map(|w| w.parse().ok()).collect();
            row.filter(|row| row.len() >= 4)
        };
        let rows: Vec<_> = self.client.stdout.lines().filter_map(parse).collect();
        assert!(!rows.is_empty(), "no numbers: {}", self.client);
        rows
    }
}

/// Runs `tool` with `words` on both hosts, the server first.
pub fn measure(
    server: &Host,
    client: &Host,
    family: Family,
    tool: &str,
    words: &str,
    limit: Duration,
) -> Measured {
    measure_with(server, client, family, tool, words, limit, &|program| program)
}

/// As [`measure`], with what `adjust` makes of both programs.
pub fn measure_with(
    server: &Host,
    client: &Host,
    family: Family,
    tool: &str,
    words: &str,
    limit: Duration,
    adjust: &dyn Fn(Program) -> Program,
) -> Measured {
    let port = next_port();
    let side = |host: &Host| -> Program {
        adjust(host.program(tool))
            .words("-F")
            .args(["-d", &host.device()])
            .args(["-x", &host.gid_index(family).to_string()])
            .args(["-p", &port.to_string()])
            .words(if family == Family::V6 { "--ipv6" } else { "" })
            .words(words)
            .within(limit)
    };
    // The programs find each other over IPv4; the packets go where the GIDs say.
    let address = server.v4.to_string();
    let client = side(client).arg(address);
    let (server, client) = run_pair(side(server), Ready::Port(port), client);
    Measured { server, client }
}
