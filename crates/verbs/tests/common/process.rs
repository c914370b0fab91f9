//! Other processes: this very executable, started again.
//!
//! The role of the new process is in the environment, and the ends of its queue pair go over its
//! standard streams.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use irdma::{Gid, QpType, Qpn};
use rustix::process::{Pid, Signal, kill_process};

use super::{Ends, Node, loopback};

pub const ROLE: &str = "IRDMA_TEST_ROLE";
/// A process that echoes what it gets.
pub struct Peer {
    pub child: Child,
    pub stdin: ChildStdin,
    pub stdout: BufReader<ChildStdout>,
    pub ends: Ends,
}

impl Peer {
    pub fn start(role: &str) -> Peer {
        Peer::start_with(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// A process in a network namespace.
    pub fn start_in(namespace: &str, role: &str) -> Peer {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Peer::start_with(command, role)
    }

    /// A process with more environment variables.
    pub fn start_env(role: &str, variables: &[(&str, &str)]) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(variables.iter().copied());
        Peer::start_with(command, role)
    }

    fn start_with(command: Command, role: &str) -> Peer {
        let mut peer = Peer::spawn(command, role);
        peer.ends = parse(&line_after(&mut peer.stdout, "ends "));
        peer
    }

    /// A process that has nothing to tell yet.
    pub fn start_silent(role: &str) -> Peer {
        Peer::spawn(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// The same, in a network namespace.
    pub fn start_silent_in(namespace: &str, role: &str) -> Peer {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Peer::spawn(command, role)
    }

    /// The same, with more environment variables.
    pub fn start_silent_env(role: &str, variables: &[(&str, &str)]) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(variables.iter().copied());
        Peer::spawn(command, role)
    }

    fn spawn(mut command: Command, role: &str) -> Peer {
        let mut child = command
            .args(["--exact", "another_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let ends = Ends { qpn: Qpn::default(), gid: Gid::default(), addr: 0, rkey: 0 };
        Peer { child, stdin, stdout, ends }
    }

    pub fn tell(&mut self, ends: &Ends) {
        writeln!(self.stdin, "{}", text(ends)).unwrap();
        assert_eq!(line_after(&mut self.stdout, "connected"), "");
    }

    /// Ends the process and expects it to have been content.
    pub fn finish(mut self) {
        // One that has ended by itself reads nothing any more.
        let _ = writeln!(self.stdin, "end");
        drop(self.stdin);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.stdout, &mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

/// A process that is stopped until this is dropped.
pub struct Pause(Pid);

impl Pause {
    pub fn of(peer: &Peer) -> Self {
        let pid = Pid::from_child(&peer.child);
        kill_process(pid, Signal::STOP).unwrap();
        Pause(pid)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The rest of the first line with this start; the test harness prints others.
pub fn line_after(stdout: &mut impl BufRead, start: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the process ended early");
        // The harness leaves its own line open.
        if let Some((_, rest)) = line.split_once(&format!("@{start}")) {
            return rest.trim_end().into();
        }
    }
}

pub fn text(ends: &Ends) -> String {
    format!("{} {} {} {}", ends.qpn.get(), ends.gid, ends.addr, ends.rkey)
}

pub fn parse(text: &str) -> Ends {
    let fields: Vec<&str> = text.split(' ').collect();
    let number = |index: usize| fields[index].parse::<u64>().unwrap();
    Ends {
        qpn: Qpn::new(number(0) as u32),
        gid: fields[1].parse::<Gid>().unwrap(),
        addr: number(2),
        rkey: number(3) as u32,
    }
}

pub fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().into()
}

/// Shows the own ends and connects to those that the other process tells.
pub fn meet(node: &Node) -> Ends {
    println!("@ends {}", text(&node.ends()));
    let peer = parse(&read_line());
    node.connect(&peer);
    println!("@connected");
    peer
}

/// A queue pair connected to the other process's.
pub fn connected_to(peer: &mut Peer, len: usize, prepare: impl Fn(&Node)) -> Node {
    let node = Node::new(&loopback(), QpType::Rc, len);
    prepare(&node);
    node.connect(&peer.ends);
    peer.tell(&node.ends());
    node
}
