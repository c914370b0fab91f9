//! Connections that do not come about.

use irdma_sim::cm_script::{
    CmScript, GUID, PEER_GUID, PEER_ID, PEER_QPN, PEER_TID, RESPONSE_NS, connect_request, req,
    req_fields,
};
use irdma_transport::DropReason;
use irdma_transport::cm::CmEventKind;
use irdma_wire::Qpn;
use irdma_wire::cm::{About, CmMessage, Rej, Rep, Req, ServiceId, Transport};

const EARLY_REFUSALS: u8 = 8;
const EARLY_NS: u64 = 50_000_000;
const MAX_RETRIES: u8 = 15;

#[test]
fn nobody_listens() {
    let mut t = CmScript::listening();
    let other = CmMessage::Req(Req { service: ServiceId(1), ..req_fields() });
    assert_eq!(t.deliver_unclaimed(&other), ["REJ - them Req 8"]);
    assert_eq!(t.node.endpoint.cm_count(), 0);
    // Those that listen here are found here.
    assert_eq!(t.deliver_unclaimed(&req()), [""; 0]);
    assert_eq!(t.events_text(), ["Request"]);
}

/// Its program may be about to listen: it is asked again, for a while.
#[test]
fn the_peer_does_not_listen_yet() {
    let mut t = CmScript::connecting();
    let rej = t.rej(0, About::Req, 8);
    for _ in 0..EARLY_REFUSALS {
        assert_eq!(t.exchange(&rej), [""; 0]);
        assert_eq!(t.wait(EARLY_NS - 1), [""; 0]);
        assert_eq!(t.wait(1), ["REQ us -"]);
    }
    assert_eq!(t.node.endpoint.stats().rto, 0, "it did answer");
    for _ in 0..MAX_RETRIES {
        assert_eq!(t.wait(RESPONSE_NS), ["REQ us -"]);
    }
    assert_eq!(t.exchange(&t.rep()), [""; 0]);
    assert_eq!(t.events_text(), ["Response"]);
}

#[test]
fn the_peer_refuses() {
    // Without an id where nobody listens, else with one.
    for (local_id, reason, early) in [(0, 8, EARLY_REFUSALS), (PEER_ID, 28, 0)] {
        let mut t = CmScript::connecting();
        let rej = t.rej(local_id, About::Req, reason);
        for _ in 0..early {
            t.exchange(&rej);
            t.wait(EARLY_NS);
        }
        assert_eq!(t.exchange(&rej), [""; 0]);
        let private_data = vec![3; 148];
        assert_eq!(t.events(), [CmEventKind::Rejected { reason, private_data }]);
        assert_eq!(t.wait(1 << 40), [""; 0]);
        assert_eq!(t.exchange(&rej), [""; 0]);
        assert_eq!(t.drops(DropReason::Stale), 1);
    }
}

#[test]
fn the_program_refuses() {
    let mut t = CmScript::asked();
    t.node.endpoint.cm_reject(t.now, t.id, 28, &[1, 2]).unwrap();
    let (tid, CmMessage::Rej(rej)) = t.sent().remove(0) else { panic!("a reject") };
    let mut private_data = [0; 148];
    private_data[..2].copy_from_slice(&[1, 2]);
    let expected = Rej {
        local_id: t.id.get(),
        remote_id: PEER_ID,
        about: About::Req,
        info_len: 0,
        reason: 28,
        info: [0; 72],
        private_data,
    };
    assert_eq!((tid, rej), (PEER_TID, expected));
    assert_eq!(t.exchange(&req()), ["REJ us them Req 28"], "the first one was lost");
    assert_eq!(t.accept().unwrap_err().errno(), 22);
}

#[test]
fn the_program_refuses_the_reply() {
    let mut t = CmScript::connecting();
    let rep = t.rep();
    t.exchange(&rep);
    t.node.endpoint.cm_reject(t.now, t.id, 28, &[]).unwrap();
    assert_eq!(t.sent_text(), ["REJ us them Rep 28"]);
    assert_eq!(t.exchange(&rep), ["REJ us them Rep 28"]);
    assert_eq!(t.events_text(), ["Response"]);
}

#[test]
fn the_peer_refuses_the_reply_or_gives_up() {
    for (local_id, reason) in [(PEER_ID, 28), (0, 6), (PEER_ID, 4)] {
        let mut t = CmScript::accepting();
        let rej = t.rej(local_id, About::Rep, reason);
        t.exchange(&rej);
        assert_eq!(t.events_text(), [format!("Rejected {reason}")]);
        assert_eq!(t.wait(1 << 40), [""; 0], "it is not repeated");
    }
}

/// Who gives up before it was answered knows no id of this side.
#[test]
fn a_request_that_is_given_up_is_found_by_its_guid() {
    let mut t = CmScript::asked();
    let CmMessage::Rej(rej) = t.rej(PEER_ID, About::Req, 4) else { panic!("a reject") };
    let mut info = [0; 72];
    info[..8].copy_from_slice(&PEER_GUID.to_be_bytes());
    let given_up = Rej { remote_id: 0, info, info_len: 8, ..rej };
    t.exchange(&CmMessage::Rej(Rej { info: [1; 72], ..given_up.clone() }));
    t.exchange(&CmMessage::Rej(Rej { local_id: 1, ..given_up.clone() }));
    assert_eq!((t.events_text().len(), t.drops(DropReason::Stale)), (0, 2));
    t.exchange(&CmMessage::Rej(given_up.clone()));
    assert_eq!(t.events_text(), ["Rejected 4"]);
    assert_eq!(t.accept().unwrap_err().errno(), 22);

    let mut t = CmScript::passive();
    t.exchange(&CmMessage::Rej(given_up));
    assert_eq!(t.events_text(), [""; 0], "it is connected: somebody pretends");
}

#[test]
fn this_side_says_its_guid_when_it_gives_up() {
    let mut t = CmScript::connecting();
    let id = t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    t.sent();
    t.node.endpoint.cm_destroy(t.now, id);
    let (_, CmMessage::Rej(rej)) = t.sent().remove(0) else { panic!("a reject") };
    assert_eq!((rej.local_id, rej.remote_id, rej.reason), (id.get(), 0, 4));
    assert_eq!((rej.info_len, &rej.info[..8]), (8, &GUID.to_be_bytes()[..]));
    assert_eq!(t.node.endpoint.cm_count(), 1);
}

#[test]
fn whoever_is_destroyed_tells_the_peer() {
    let destroyed = |mut t: CmScript| {
        t.node.endpoint.cm_destroy(t.now, t.id);
        let sent = t.sent_text();
        assert_eq!(t.events_text(), [""; 0], "the program does not ask any more");
        sent
    };
    assert_eq!(destroyed(CmScript::connecting()), ["REJ us - Req 4"]);
    assert_eq!(destroyed(CmScript::asked()), ["REJ us them Req 28"]);
    assert_eq!(destroyed(CmScript::accepting()), ["REJ us them Req 28"]);
    let mut t = CmScript::connecting();
    let rep = t.rep();
    t.exchange(&rep);
    t.events();
    assert_eq!(destroyed(t), ["REJ us them Rep 28"]);
}

#[test]
fn a_request_that_was_forgotten_is_a_new_one() {
    let mut t = CmScript::asked();
    let first = t.id;
    t.node.endpoint.cm_destroy(t.now, first);
    t.sent();
    assert_eq!(t.exchange(&req()), [""; 0]);
    assert_eq!(t.events_text(), ["Request"]);
    assert_ne!(t.id, first);
}

#[test]
fn who_waits_for_a_side_that_forgot_is_told() {
    let mut t = CmScript::connecting();
    t.node.endpoint.cm_destroy(t.now, t.id);
    t.sent();
    let rep = t.rep();
    assert_eq!(t.exchange(&rep), ["REJ - them Rep 6"]);
}

#[test]
fn what_this_side_cannot_do_is_refused() {
    for (bad, reason) in [
        (Req { transport: Transport::Other(2, 0), ..req_fields() }, 9),
        (Req { path_mtu: 0, ..req_fields() }, 26),
        (Req { path_mtu: 6, ..req_fields() }, 26),
    ] {
        let mut t = CmScript::listening();
        assert_eq!(t.exchange(&CmMessage::Req(bad)), [format!("REJ - them Req {reason}")]);
        assert_eq!(t.node.endpoint.cm_count(), 0);
    }
}

/// The peer's process died, and its queue pair number has come round (IBTA 12.9.8.3.1).
#[test]
fn a_queue_pair_that_is_connected_makes_a_request_stale() {
    let mut t = CmScript::passive();
    let again = CmMessage::Req(Req { local_id: 0x33, ..req_fields() });
    assert_eq!(t.exchange(&again), ["REJ - 0x33 Req 10", "DREQ us them"]);
    let drep = t.drep();
    t.exchange(&drep);
    assert_eq!(t.events_text(), ["Disconnected"], "the old one hears of it");
    assert_eq!(t.exchange(&again), [""; 0]);
    assert_eq!(t.events_text(), ["Request"]);
    // Another device, or another queue pair, is not stale.
    let mut t = CmScript::passive();
    let other = Req { local_id: 0x34, ca_guid: 5, ..req_fields() };
    assert_eq!(t.exchange(&CmMessage::Req(other)), [""; 0]);
    let other = Req { local_id: 0x35, qpn: Qpn::new(5), ..req_fields() };
    assert_eq!(t.exchange(&CmMessage::Req(other)), [""; 0]);
    assert_eq!(t.events_text(), ["Request", "Request"]);
}

#[test]
fn a_queue_pair_that_is_connected_makes_a_reply_stale() {
    let mut t = CmScript::active();
    let old = t.id;
    t.id = t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    t.sent();
    let new = t.id;
    let CmMessage::Rep(rep) = t.rep() else { panic!("a reply") };
    assert_eq!(rep.qpn, PEER_QPN);
    let stale = CmMessage::Rep(Rep { local_id: 0x33, ..rep });
    let dreq = format!("DREQ {:#x} them", old.get());
    assert_eq!(t.exchange(&stale), ["REJ us 0x33 Rep 10".into(), dreq]);
    assert_eq!(t.events_text(), ["Rejected 10"]);
    assert_eq!(t.id, new);
}

#[test]
fn a_pending_request_outlives_its_listener() {
    let mut t = CmScript::asked();
    t.node.endpoint.cm_unlisten(irdma_sim::cm_script::LISTENER);
    assert_eq!(t.exchange(&req()), ["MRA us them Req 24"]);
    t.accept().unwrap();
    assert_eq!(t.sent_text(), ["REP us them"]);
}

#[test]
fn a_peer_that_takes_its_acceptance_back_ends_the_connection() {
    let mut t = CmScript::active();
    let rej = t.rej(PEER_ID, About::Rep, 4);
    t.exchange(&rej);
    assert_eq!(t.events_text(), ["Rejected 4"]);
    t.wait(irdma_sim::cm_script::TIMEWAIT_NS);
    assert_eq!(t.events_text(), ["TimewaitExit"]);
}
