//! Running a program: limits, output, exit status.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

const STEP: Duration = Duration::from_millis(5);
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

/// A program that is not started yet.
#[derive(Clone, Debug)]
pub struct Program {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    limit: Duration,
    guest: Option<Guest>,
}

/// What stands before a command line that the peer's shell runs.
#[derive(Clone, Debug)]
struct Guest {
    shell: Vec<OsString>,
}

impl Program {
    /// A program by name or path, without arguments.
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        let argv = vec![name.as_ref().to_owned()];
        Self { argv, env: Vec::new(), limit: DEFAULT_LIMIT, guest: None }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    pub fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// The arguments in `line`, which holds no spaces inside one.
    pub fn words(self, line: &str) -> Self {
        self.args(line.split_whitespace())
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// How long it may run before it is killed (60 s when not said).
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Puts another command in front: `prefix... program args...`.
    pub fn after<A: AsRef<OsStr>>(mut self, prefix: impl IntoIterator<Item = A>) -> Self {
        let prefix = prefix.into_iter().map(|word| word.as_ref().to_owned());
        self.argv = prefix.chain(self.argv).collect();
        self
    }

    /// Has the command line run by the peer's shell, which `shell` reaches.
    pub(crate) fn in_guest<A: AsRef<OsStr>>(mut self, shell: impl IntoIterator<Item = A>) -> Self {
        let shell = shell.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self.guest = Some(Guest { shell });
        self
    }

    /// The time limit.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The words that are really executed here.
    fn command_line(&self) -> Vec<OsString> {
        let Some(guest) = &self.guest else { return self.argv.clone() };
        let env = self.env.iter().map(|(name, value)| {
            format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy()))
        });
        let words = self.argv.iter().map(|word| quoted(&word.to_string_lossy()));
        let line: Vec<String> = env.chain(words).collect();
        let bounded = format!(
            "cd /tmp; exec env timeout -k 1 {} env {}",
            self.limit.as_secs().max(1),
            line.join(" ")
        );
        guest.shell.iter().cloned().chain([bounded.into()]).collect()
    }

    /// Starts it in a process group of its own.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(self) -> Running {
        let line = self.command_line();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).process_group(0);
        if self.guest.is_none() {
            command.envs(self.env.iter().map(|(name, value)| (name, value)));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = shown(&line);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {shown}: {e}"));
        let stdout = Stream::of(child.stdout.take());
        let stderr = Stream::of(child.stderr.take());
        // The peer's command has a limit of its own and needs time to report it.
        let slack = if self.guest.is_some() { Duration::from_secs(10) } else { Duration::ZERO };
        let deadline = Instant::now() + self.limit + slack;
        Running { line: shown, child, stdout, stderr, deadline, guest: self.guest.is_some() }
    }

    /// Starts it and waits for its end.
    pub fn run(self) -> Finished {
        self.start().finish()
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn shown(line: &[OsString]) -> String {
    let words: Vec<String> = line.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// One output stream, read by a thread as it comes.
#[derive(Debug)]
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn of(source: Option<impl Read + Send + 'static>) -> Self {
        let mut source = source.expect("the stream is piped");
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = source.read(&mut buffer) {
                sink.lock().expect("no reader panics").extend_from_slice(&buffer[..n]);
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("no reader panics")).into_owned()
    }

    /// All of it, unless a stray grandchild keeps the stream open for another second.
    fn complete(&self) -> String {
        let deadline = Instant::now() + Duration::from_secs(1);
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(STEP);
        }
        self.so_far()
    }
}

/// A program that runs. It is killed, with its process group, when dropped.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
    deadline: Instant,
    guest: bool,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True for a program in the peer, whose processes are not visible here.
    pub(crate) fn is_in_guest(&self) -> bool {
        self.guest
    }

    /// What it wrote to its standard output until now.
    pub fn output(&self) -> String {
        self.stdout.so_far()
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// When it no longer reads.
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("the stream is piped");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("{} does not read: {e}", self.line));
    }

    /// True while it has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `condition` holds, within the program's own limit.
    ///
    /// # Panics
    /// When the program ends before, or its limit passes.
    pub fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            if !self.is_alive() || Instant::now() >= self.deadline {
                // The last words of a program that ended may still be on their way.
                self.stdout.complete();
                assert!(condition(self), "{what} did not come from {}\n{}", self.line, self.told());
                return;
            }
            thread::sleep(STEP);
        }
    }

    /// Waits until its standard output holds `text`.
    pub fn wait_for(&mut self, text: &str) {
        self.wait_until(&format!("output {text:?}"), |running| running.output().contains(text));
    }

    fn told(&self) -> String {
        format!("stdout:\n{}\nstderr:\n{}", self.stdout.so_far(), self.stderr.so_far())
    }

    /// Sends a signal to it and its process group.
    pub fn signal(&self, signal: Signal) {
        let group = Pid::from_child(&self.child);
        // A group that is gone already has nothing left to be told.
        let _ = kill_process_group(group, signal);
    }

    fn wait(&mut self) -> Option<ExitStatus> {
        drop(self.child.stdin.take());
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= self.deadline {
                return None;
            }
            thread::sleep(STEP);
        }
    }

    /// Waits for its end; when the limit passes first, kills it.
    pub fn finish(mut self) -> Finished {
        let status = self.wait();
        self.signal(Signal::KILL);
        if status.is_none() {
            // Killed: the wait cannot last.
            let _ = self.child.wait();
        }
        Finished {
            line: self.line.clone(),
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out: status.is_none(),
            stdout: self.stdout.complete(),
            stderr: self.stderr.complete(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_alive() {
            self.signal(Signal::KILL);
            // Killed: the wait cannot last.
            let _ = self.child.wait();
        }
    }
}

/// A program that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub line: String,
    /// The exit status; none when a signal or the time limit ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The time limit passed and it was killed.
    pub timed_out: bool,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error; in the peer both are in `stdout`.
    pub stderr: String,
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match (self.timed_out, self.code, self.signal) {
            (true, ..) => "killed at its time limit".to_owned(),
            (_, Some(code), _) => format!("exit status {code}"),
            (.., signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        writeln!(f, "{}\n  {end}", self.line)?;
        writeln!(f, "  stdout:\n{}\n  stderr:\n{}", self.stdout, self.stderr)
    }
}

impl Finished {
    /// True for exit status 0.
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// # Panics
    /// Unless it exited with this status.
    pub fn expect_code(&self, code: i32) -> &Self {
        assert!(self.code == Some(code), "expected exit status {code}: {self}");
        self
    }

    /// # Panics
    /// Unless it exited with status 0.
    pub fn expect_success(&self) -> &Self {
        self.expect_code(0)
    }

    /// # Panics
    /// When it wrote anything to its standard error.
    pub fn expect_quiet(&self) -> &Self {
        assert!(self.stderr.is_empty(), "expected an empty stderr: {self}");
        self
    }

    /// # Panics
    /// Unless its standard output holds `text`.
    pub fn expect_output(&self, text: &str) -> &Self {
        assert!(self.stdout.contains(text), "expected {text:?} in the output: {self}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("sh").args(["-c", script])
    }

    #[test]
    fn reports_status_and_both_streams() {
        let done = shell("echo out; echo err >&2; exit 7").run();
        done.expect_code(7).expect_output("out");
        assert_eq!(done.stderr, "err\n");
    }

    #[test]
    fn kills_a_whole_group_at_the_limit() {
        let started = Instant::now();
        let done = shell("sleep 60 & sleep 60").within(Duration::from_millis(200)).run();
        assert!(done.timed_out && done.code.is_none());
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn talks_to_a_program_that_runs() {
        let mut running = shell("echo ready; read line; echo got $line").start();
        running.wait_for("ready");
        running.say("hello");
        running.finish().expect_success().expect_output("got hello");
    }

    #[test]
    #[should_panic(expected = "did not come")]
    fn waiting_for_output_of_a_program_that_ended_fails() {
        shell("echo other").start().wait_for("ready");
    }

    #[test]
    fn quotes_for_the_shell() {
        let word = "it's $HOME";
        let done = shell(&format!("printf %s {}", quoted(word))).run();
        assert_eq!(done.stdout, word);
    }
}
