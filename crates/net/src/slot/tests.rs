use std::io::IoSlice;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use super::*;
use crate::sys::testing::in_forked_child;
use crate::testing::{as_nobody, eventually, in_namespace};

fn pair() -> (Slot, Slot) {
    (Slot::claim(1).unwrap(), Slot::claim(2).unwrap())
}

fn relay(data: &[u8]) -> Message<'_> {
    let (src, dst) = ("10.0.0.1:5".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let meta =
        crate::udp::RecvMeta { len: data.len(), stride: 1000, src, dst, tos: 0, ttl: 0, drops: 0 };
    Message::Relay { meta, data }
}

#[test]
fn a_slot_lives_while_it_is_owned_and_is_not_reused_at_once() {
    in_namespace(|| {
        let slot = Slot::claim(7).unwrap();
        let number = slot.number();
        assert!((FIRST..=LAST).contains(&number) && is_alive(number));
        assert_eq!(list().unwrap(), [number]);
        drop(slot);
        // A child that another test starts may hold a copy for an instant.
        assert!(eventually(Duration::from_secs(1), || !is_alive(number)));
        assert_ne!(Slot::claim(7).unwrap().number(), number);
    });
}

#[test]
fn all_slots_can_be_taken_and_one_more_is_refused() {
    in_namespace(|| {
        let all: Vec<_> = (0..COUNT).map(|seed| Slot::claim(seed.into()).unwrap()).collect();
        assert_eq!(list().unwrap(), (FIRST..=LAST).collect::<Vec<_>>());
        assert_eq!(Slot::claim(0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(all);
        assert!(Slot::claim(0).is_ok());
    });
}

#[test]
fn both_forms_of_a_name_agree() {
    for number in [0, 1, 9, 10, 99, 100, 999, 1000, 1022] {
        let mut space = [0; NAME_SPACE];
        let raw = raw_name(number, &mut space);
        assert_eq!(&raw[3..], name(number).abstract_name().unwrap());
        assert_eq!(slot_in(raw), (FIRST..=LAST).contains(&number).then_some(number));
    }
    assert_eq!(slot_in(b"\x01\x00\x00irdma/slot/1023"), None);
    assert_eq!(slot_in(b"\x01\x00\x00irdma/slot/x"), None);
    assert_eq!(slot_in(b"\x01"), None);
}

#[test]
fn a_whole_batch_is_relayed_with_its_metadata() {
    let (a, b) = pair();
    let data = vec![7; BATCH_LEN - 1];
    let meta = crate::udp::RecvMeta {
        len: data.len(),
        stride: 1000,
        src: "10.0.0.1:5".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        tos: 1,
        ttl: 2,
        drops: 0,
    };
    let message = Message::Relay { meta, data: &data };
    assert_eq!(a.send(b.number(), &message).unwrap(), Delivery::Sent);
    let mut buf = vec![0; MESSAGE_LEN];
    let received = b.recv(&mut buf).unwrap().unwrap();
    let expected = Received { from: None, pid: crate::clock::pid(), message };
    assert_eq!(received, expected);
    assert_eq!(b.recv(&mut buf).unwrap(), None);
}

#[test]
fn what_cannot_be_delivered_is_told() {
    let (a, b) = pair();
    let to = b.number();
    let deliveries: Vec<_> = (0..2000).map(|_| a.send(to, &Message::User(b"x")).unwrap()).collect();
    assert_eq!((deliveries[0], deliveries[1999]), (Delivery::Sent, Delivery::Full));
    drop(b);
    assert!(eventually(Duration::from_secs(1), || !is_alive(to)));
    assert_eq!(a.send(to, &Message::User(b"x")).unwrap(), Delivery::Gone);
}

#[test]
fn strangers_are_refused() {
    let (_, b) = pair();
    let mut raw = [0; NAME_SPACE];
    let to = raw_name(b.number(), &mut raw);
    let nameless = named::socket().unwrap();
    Message::User(&[]).send(&nameless, to).unwrap();
    let a = Slot::claim(3).unwrap();
    named::send(&a, to, &[IoSlice::new(b"nonsense")]).unwrap();
    a.send(b.number(), &Message::User(b"x")).unwrap();
    let mut buf = [0; MESSAGE_LEN];
    let received = b.recv(&mut buf).unwrap().unwrap();
    assert_eq!((received.from, received.message), (Some(a.number()), Message::User(b"x")));
}

#[test]
fn strangers_do_not_hold_up_a_receiver() {
    let (a, b) = pair();
    let mut raw = [0; NAME_SPACE];
    let to = raw_name(b.number(), &mut raw);
    let (stranger, mut buf, mut calls) = (named::socket().unwrap(), vec![0; MESSAGE_LEN], 0);
    for _ in 0..10 {
        // The queue is short: each call takes what is there, and never more than its share.
        let nonsense = [IoSlice::new(b"nonsense")];
        while named::send(&stranger, to, &nonsense).unwrap() == Delivery::Sent {
            calls += 1;
        }
        assert_eq!(b.recv(&mut buf).unwrap(), None);
    }
    assert!(calls > MAX_REFUSALS, "{calls}");
    while b.recv_any(&mut buf).unwrap().is_some() {}
    a.send(b.number(), &Message::User(b"x")).unwrap();
    assert_eq!(b.recv(&mut buf).unwrap().map(|got| got.from), Some(Some(a.number())));
}

#[test]
fn a_receiver_that_is_stopped_does_not_hold_up_its_senders_other_messages() {
    let (a, stopped) = pair();
    let others = [Slot::claim(3).unwrap(), Slot::claim(4).unwrap()];
    let data = vec![7; 60_000];
    let relay = relay(&data);
    while a.send(stopped.number(), &relay).unwrap() == Delivery::Sent {}
    assert_eq!(a.send(others[0].number(), &Message::User(b"x")).unwrap(), Delivery::Sent);
    assert_eq!(a.send(others[1].number(), &relay).unwrap(), Delivery::Sent);
}

#[test]
fn relays_to_many_slots_take_few_descriptors() {
    in_namespace(|| {
        let a = Slot::claim(1).unwrap();
        let others: Vec<_> = (2..42).map(|seed| Slot::claim(seed).unwrap()).collect();
        let relay = relay(b"x");
        for other in others.iter().chain(&others[..2]) {
            assert_eq!(a.send(other.number(), &relay).unwrap(), Delivery::Sent);
        }
        let relays = a.relays.lock().unwrap();
        let kept: Vec<u16> = relays.0.iter().map(|(to, _)| *to).collect();
        let newest = others[26..].iter().chain(&others[..2]).map(Slot::number);
        assert_eq!(kept, newest.collect::<Vec<_>>());
    });
}

#[test]
fn without_descriptors_relays_go_through_the_slots_own_socket() {
    let (a, b) = pair();
    let to = b.number();
    let sent = in_forked_child(move || {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        a.send(to, &relay(b"x")).unwrap() == Delivery::Sent
    });
    assert!(sent);
    let mut buf = vec![0; MESSAGE_LEN];
    assert_eq!(b.recv(&mut buf).unwrap().map(|got| got.message), Some(relay(b"x")));
}

#[test]
fn another_users_messages_are_refused() {
    let slot = Slot::claim(1).unwrap();
    let to = slot.number();
    let sent = as_nobody(move || Slot::claim(2).unwrap().send(to, &Message::User(b"x")).unwrap());
    let Some(sent) = sent else { return };
    assert_eq!(sent, Delivery::Sent);
    assert_eq!(slot.recv(&mut vec![0; MESSAGE_LEN]).unwrap(), None);
}

#[test]
fn a_child_that_forgets_does_not_keep_the_slot() {
    in_namespace(|| {
        let slot = Slot::claim(5).unwrap();
        let number = slot.number();
        let verdict = in_forked_child(|| {
            crate::fd::forget_all_in_child();
            true
        });
        assert!(verdict && is_alive(number));
    });
}
