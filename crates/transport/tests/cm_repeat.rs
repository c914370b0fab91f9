//! Lost and repeated messages.

use irdma_sim::cm_script::{
    CmScript, PEER_ID, RESPONSE_NS, connect_request, event_text, req, req_fields,
};
use irdma_transport::DropReason;
use irdma_wire::cm::{About, CmMessage, Rep, Req};

#[test]
fn a_request_is_repeated_until_all_tries_are_used_up() {
    let mut t = CmScript::connecting();
    for _ in 0..15 {
        assert_eq!(t.wait(RESPONSE_NS - 1), [""; 0]);
        assert_eq!(t.wait(1), ["REQ us -"]);
    }
    assert_eq!(t.events_text(), [""; 0]);
    assert_eq!(t.wait(RESPONSE_NS), ["REJ us - Req 4"], "it says that it gives up");
    assert_eq!(t.events_text(), ["Unreachable"]);
    assert_eq!(t.wait(1 << 40), [""; 0]);
    let rep = t.rep();
    assert_eq!(t.exchange(&rep), ["REJ us - Req 4"], "too late");
    assert_eq!(t.events_text(), [""; 0]);
}

#[test]
fn the_repeated_request_is_the_same() {
    let mut t = CmScript::connecting();
    t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    let first = t.sent();
    t.now = t.now + RESPONSE_NS;
    t.node.endpoint.handle_timeout(t.now);
    assert_eq!(t.sent()[1], first[0]);
}

#[test]
fn a_peer_that_needs_time_gets_it() {
    let mut t = CmScript::connecting();
    let mra = t.mra(About::Req, 24);
    assert_eq!(t.exchange(&mra), [""; 0]);
    let patience = (4096 << 24) + RESPONSE_NS;
    assert_eq!(t.wait(patience - 1), [""; 0]);
    assert_eq!(t.wait(1), ["REQ us -"]);
    assert_eq!(t.wait(RESPONSE_NS), ["REQ us -"]);
    // From now on the peer has an id, and only with it can it accept.
    let CmMessage::Rep(rep) = t.rep() else { panic!("a reply") };
    t.exchange(&CmMessage::Rep(Rep { local_id: PEER_ID + 1, ..rep.clone() }));
    assert_eq!((t.drops(DropReason::Stale), t.events_text().len()), (1, 0));
    t.exchange(&CmMessage::Rep(rep));
    assert_eq!(t.events_text(), ["Response"]);
}

#[test]
fn nobody_gets_more_time_than_24_stands_for() {
    let mut t = CmScript::connecting();
    let mra = t.mra(About::Req, 31);
    t.exchange(&mra);
    assert_eq!(t.wait((4096 << 24) + RESPONSE_NS), ["REQ us -"]);
}

#[test]
fn a_program_that_thinks_lets_the_peer_wait() {
    let mut t = CmScript::asked();
    assert_eq!(t.exchange(&req()), ["MRA us them Req 24"]);
    assert_eq!(t.exchange(&req()), ["MRA us them Req 24"]);
    assert_eq!(t.events_text(), [""; 0], "one request, however often it comes");
}

#[test]
fn a_lost_reply_is_sent_again_for_a_repeated_request() {
    let mut t = CmScript::accepting();
    assert_eq!(t.exchange(&req()), ["REP us them"]);
}

#[test]
fn a_lost_reply_is_repeated_until_all_tries_are_used_up() {
    let mut t = CmScript::accepting();
    for _ in 0..15 {
        assert_eq!(t.wait(RESPONSE_NS - 1), [""; 0]);
        assert_eq!(t.wait(1), ["REP us them"]);
    }
    assert_eq!(t.wait(RESPONSE_NS), ["REJ us them Rep 4"]);
    assert_eq!(t.events_text(), ["Unreachable"]);
}

#[test]
fn a_reply_is_repeated_as_the_request_says_within_bounds() {
    for (timeout, retries, ns) in [(16, 0, 4096 << 16), (0, 2, 4096 << 16), (31, 1, 4096 << 22)] {
        let mut t = CmScript::listening();
        let (local_response_timeout, max_cm_retries) = (timeout, retries);
        let req = Req { local_response_timeout, max_cm_retries, ..req_fields() };
        t.exchange(&CmMessage::Req(req));
        t.events();
        t.accept().unwrap();
        for _ in 0..=retries {
            assert_eq!(t.sent_text(), ["REP us them"]);
            t.now = t.now + ns;
            t.node.endpoint.handle_timeout(t.now);
        }
        assert_eq!(t.sent_text(), ["REJ us them Rep 4"]);
    }
}

#[test]
fn a_peer_that_gets_ready_slowly_gets_time() {
    let mut t = CmScript::accepting();
    let mra = t.mra(About::Rep, 20);
    t.exchange(&mra);
    assert_eq!(t.wait(2 * RESPONSE_NS - 1), [""; 0]);
    assert_eq!(t.wait(1), ["REP us them"]);
}

#[test]
fn a_repeated_reply_finds_a_program_that_gets_ready() {
    let mut t = CmScript::connecting();
    let rep = t.rep();
    t.exchange(&rep);
    assert_eq!(t.exchange(&rep), ["MRA us them Rep 24"]);
    assert_eq!(t.events_text(), ["Response"], "once");
}

#[test]
fn a_lost_rtu_is_sent_again_for_a_repeated_reply() {
    let mut t = CmScript::active();
    let rep = t.rep();
    assert_eq!(t.exchange(&rep), ["RTU us them"]);
    assert_eq!(t.exchange(&rep), ["RTU us them"]);
    assert_eq!(t.events_text(), [""; 0]);
}

#[test]
fn a_request_that_was_under_way_for_long_does_not_begin_a_connection() {
    let mut t = CmScript::passive();
    assert_eq!(t.exchange(&req()), [""; 0]);
    assert_eq!(t.drops(DropReason::Duplicate), 1);
    let rtu = t.rtu();
    t.exchange(&rtu);
    assert_eq!(t.drops(DropReason::Duplicate), 2);
    let dreq = t.dreq();
    t.exchange(&dreq);
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    t.sent();
    assert_eq!(t.exchange(&req()), ["REJ us them Req 10"], "its packets are under way");
    let events: Vec<_> = t.events().iter().map(event_text).collect();
    assert_eq!(events, ["DisconnectRequested"]);
}

#[test]
fn messages_of_another_state_are_dropped() {
    let mut t = CmScript::asked();
    let (rtu, drep, rep, mra) = (t.rtu(), t.drep(), t.rep(), t.mra(About::Req, 20));
    for message in [rtu, drep, rep, mra] {
        assert_eq!(t.exchange(&message), [""; 0]);
    }
    assert_eq!((t.drops(DropReason::State), t.drops(DropReason::Stale)), (1, 2));
    assert_eq!((t.drops(DropReason::Duplicate), t.events_text().len()), (1, 0));
}
