//! A process of the demo, seen from the director: orders go out, replies come in, in time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::director::Trouble;
use super::order::{Order, Reply};

/// Longer than any order may take.
const REPLY_TIME: Duration = Duration::from_secs(15);
/// How long a process has to end by itself.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// A process; it ends when this is dropped.
pub struct Worker {
    name: &'static str,
    child: Child,
    stream: BufReader<UnixStream>,
}

impl Worker {
    /// Starts this program anew, with a capture of its packets if asked.
    pub fn start(name: &'static str, capture: Option<&Path>) -> io::Result<Worker> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(REPLY_TIME))?;
        ours.set_write_timeout(Some(REPLY_TIME))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("irdma").arg(super::PROCESS_COMMAND);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(path) = capture {
            command.env("IRDMA_CAPTURE", path);
        }
        Ok(Worker { name, child: command.spawn()?, stream: BufReader::new(ours) })
    }

    /// Has an order carried out.
    pub fn obey(&mut self, order: &Order) -> Result<Reply, Trouble> {
        self.send(order)?;
        self.reply()
    }

    /// Sends an order; its reply is to be taken later.
    pub fn send(&mut self, order: &Order) -> Result<(), Trouble> {
        let mut line = serde_json::to_vec(order).expect("an order is plain data");
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|error| self.gone(&error.to_string()))
    }

    /// Waits for a reply, a trouble if the order failed.
    pub fn reply(&mut self) -> Result<Reply, Trouble> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return Err(self.gone("it closed its socket")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let secs = REPLY_TIME.as_secs();
                return Err(self.gone(&format!("no answer within {secs} s")));
            }
            Err(error) => return Err(self.gone(&error.to_string())),
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Mismatch(mismatch)) => Err(Trouble::Mismatch(self.name, mismatch)),
            Ok(Reply::Failed(text)) => Err(Trouble::Failed(format!("{}: {text}", self.name))),
            Ok(Reply::NoDevice(text)) => Err(Trouble::NoDevice(text)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.gone(&error.to_string())),
        }
    }

    /// What became of a process that does not answer.
    fn gone(&mut self, cause: &str) -> Trouble {
        let id = self.child.id();
        let ended = match self.end() {
            Ok(Some(status)) => format!("ended early, {status}"),
            _ => cause.to_string(),
        };
        Trouble::Failed(format!("the {} (process {id}): {ended}", self.name))
    }

    /// Ends the process, by force if it does not end by itself: `None` then.
    fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        // Fails if the other end is gone already.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
        let limit = Instant::now() + EXIT_TIME;
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.child.kill()?;
        self.child.wait().map(|_| None)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails only for a process that is gone.
        let _ = self.end();
    }
}
