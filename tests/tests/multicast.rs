//! Multicast groups across processes and hosts (`tests/c/mcast.c`).

use std::time::Duration;

use irdma_tests::host::{Family, Host};
use irdma_tests::setup::{PEER, tools};
use irdma_tests::{Lan, Need, Running, need};

const LIMIT: Duration = Duration::from_secs(60);

fn group(family: Family) -> &'static str {
    match family {
        Family::V4 => "239.1.2.1",
        Family::V6 => "ff0e::1:2:1",
    }
}

/// A member that takes commands and says when each is done.
struct Member {
    running: Running,
    tag: u32,
}

impl Member {
    fn new(host: &Host, family: Family, tag: u32, words: &str) -> Self {
        let running = host
            .c_program("mcast")
            .args(family.option())
            .args(["--group", group(family), "--tag", &tag.to_string()])
            .words(words)
            .arg("stdin")
            .within(LIMIT)
            .start();
        Self { running, tag }
    }

    /// Starts a command.
    fn say(&mut self, command: &str) {
        self.running.say(command);
    }

    /// Waits until the command is done; each is given once.
    fn done(&mut self, command: &str) {
        self.running.wait_for(&format!("ok {command}\n"));
    }

    fn perform(&mut self, command: &str) {
        self.say(command);
        self.done(command);
    }

    fn finish(self) {
        let tag = self.tag;
        let end = self.running.finish();
        assert!(end.succeeded(), "member {tag}: {end}");
    }
}

/// The kernel's membership list of a host's interface.
fn is_member(host: &Host, family: Family) -> bool {
    let list = host.plain("ip").args(["maddr", "show", "dev", &host.netdev]).run();
    list.expect_success().stdout.split_whitespace().any(|word| word == group(family))
}

/// Two members on one host, one on another: all hear, the list agrees, none hears after leaving.
fn a_group_from_first_to_last(near: &Host, far: &Host, family: Family) {
    let mut members = [
        Member::new(near, family, 1, ""),
        Member::new(near, family, 2, ""),
        Member::new(far, family, 3, ""),
    ];
    assert!(!is_member(near, family));
    for member in &mut members {
        member.perform("attach");
    }
    assert!(is_member(near, family) && is_member(far, family));
    for sender in [0, 2] {
        members[sender].perform(&format!("send:{}", 5 + sender));
    }
    for member in &mut members {
        member.say("expect:12");
    }
    for member in &mut members {
        member.done("expect:12");
    }
    members[0].perform("detach");
    assert!(is_member(near, family), "one member is left");
    members[1].perform("detach");
    assert!(!is_member(near, family), "the last one left");
    members[2].perform("send:3");
    members[2].perform("expect:3");
    for member in &mut members[..2] {
        member.perform("silence:300");
    }
    members.into_iter().for_each(Member::finish);
}

#[test]
fn two_processes_and_a_second_host() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        a_group_from_first_to_last(lan.a(), lan.b(), family);
    }
}

#[test]
fn three_processes_on_one_host() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    for family in Family::ALL {
        let mut members: Vec<_> =
            (0..3).map(|tag| Member::new(lan.a(), family, tag, "--qps 2")).collect();
        members.iter_mut().for_each(|member| member.perform("attach"));
        members[0].perform("send:4");
        members.iter_mut().for_each(|member| member.perform("expect:4"));
        members.into_iter().for_each(Member::finish);
    }
}

/// A group that nobody left goes with its last process.
#[test]
fn a_killed_member_leaves_the_group() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    let mut member = Member::new(lan.a(), Family::V4, 1, "");
    member.perform("attach");
    assert!(is_member(lan.a(), Family::V4));
    drop(member);
    assert!(!is_member(lan.a(), Family::V4));
}

#[test]
fn a_sender_need_not_be_a_member() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::two_hosts();
    for family in Family::ALL {
        let mut member = Member::new(lan.a(), family, 1, "");
        member.perform("attach");
        let mut stranger = Member::new(lan.b(), family, 2, "");
        stranger.perform("send:6");
        member.perform("expect:6");
        stranger.perform("silence:200");
        [member, stranger].into_iter().for_each(Member::finish);
    }
}

#[test]
fn own_messages_can_be_blocked() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    let mut deaf = Member::new(lan.a(), Family::V4, 1, "--block-loopback");
    let mut other = Member::new(lan.a(), Family::V4, 2, "");
    deaf.perform("attach");
    other.perform("attach");
    deaf.perform("send:3");
    other.perform("expect:3");
    deaf.perform("silence:300");
    [deaf, other].into_iter().for_each(Member::finish);
}

/// The kernel's device hears a group once the kernel itself joined it.
#[test]
fn the_peer_hears_and_is_heard() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let (ours, peer) = (lan.a(), lan.b());
    for family in Family::ALL {
        let mut member = Member::new(ours, family, 1, "");
        member.perform("attach");
        // The peer's output comes at its end: its messages are the sign that it is there.
        let far = peer
            .c_program("mcast")
            .args(family.option())
            .args(["--group", group(family), "--tag", "2"])
            .words("attach join sleep:500 send:3 expect:7 silence:200")
            .within(LIMIT)
            .start();
        member.perform("expect:3");
        member.perform("send:4");
        far.finish().expect_success();
        member.finish();
    }
}
