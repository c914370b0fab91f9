//! Connections that end.

use irdma_sim::cm_script::{
    CmScript, PEER_ID, PEER_QPN, PEER_TID, RESPONSE_NS, TIMEWAIT_NS, connect_request,
};
use irdma_transport::DropReason;
use irdma_transport::cm::CmEventKind;
use irdma_wire::Qpn;
use irdma_wire::cm::{CmMessage, Dreq};

#[test]
fn this_side_ends_it() {
    for mut t in [CmScript::active(), CmScript::passive()] {
        t.node.endpoint.cm_disconnect(t.now, t.id, &[1]).unwrap();
        let (tid, CmMessage::Dreq(dreq)) = t.sent().remove(0) else { panic!("a DREQ") };
        assert_eq!(tid as u32, t.id.get().swap_bytes(), "a question of this side");
        assert_eq!((dreq.remote_id, dreq.remote_qpn, dreq.private_data[0]), (PEER_ID, PEER_QPN, 1));
        let drep = t.drep();
        t.exchange(&drep);
        assert_eq!(t.events_text(), ["Disconnected"]);
        t.wait(TIMEWAIT_NS - 1);
        assert_eq!(t.events_text(), [""; 0]);
        t.wait(1);
        assert_eq!(t.events_text(), ["TimewaitExit"]);
        t.node.endpoint.cm_destroy(t.now, t.id);
        assert_eq!((t.node.endpoint.cm_count(), t.sent_text().len()), (0, 0));
    }
}

/// The answer waits for the program, as that of the kernel does.
#[test]
fn the_peer_ends_it() {
    let mut t = CmScript::passive();
    let dreq = t.dreq();
    assert_eq!(t.exchange(&dreq), [""; 0]);
    let private_data = vec![4; 220];
    assert_eq!(t.events(), [CmEventKind::DisconnectRequested { private_data }]);
    assert_eq!(t.exchange(&dreq), [""; 0], "the program has not agreed");
    assert_eq!(t.drops(DropReason::Duplicate), 1);
    t.node.endpoint.cm_disconnect(t.now, t.id, &[5]).unwrap();
    let (tid, CmMessage::Drep(drep)) = t.sent().remove(0) else { panic!("a DREP") };
    assert_eq!((tid, drep.remote_id, drep.private_data[0]), (PEER_TID, PEER_ID, 5));
    assert_eq!(t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap_err().errno(), 22);
    assert_eq!(t.exchange(&dreq), ["DREP us them"], "the answer was lost");
    t.wait(TIMEWAIT_NS);
    assert_eq!(t.events_text(), ["TimewaitExit"]);
    assert_eq!(t.exchange(&dreq), ["DREP us them"]);
}

#[test]
fn both_end_it_at_once() {
    let mut t = CmScript::active();
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    assert_eq!(t.sent_text(), ["DREQ us them"]);
    let (dreq, drep) = (t.dreq(), t.drep());
    assert_eq!(t.exchange(&dreq), ["DREP us them"], "each is answered");
    assert_eq!(t.events_text(), ["Disconnected"]);
    assert_eq!(t.exchange(&drep), [""; 0]);
    assert_eq!(t.exchange(&dreq), ["DREP us them"]);
    t.wait(TIMEWAIT_NS);
    assert_eq!(t.events_text(), ["TimewaitExit"], "and it ends once");
}

#[test]
fn a_peer_that_is_gone_is_not_asked_for_ever() {
    let mut t = CmScript::active();
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    assert_eq!(t.sent_text(), ["DREQ us them"]);
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    assert_eq!(t.sent_text(), [""; 0], "it is asked already");
    for _ in 0..15 {
        assert_eq!(t.wait(RESPONSE_NS), ["DREQ us them"]);
    }
    assert_eq!(t.wait(RESPONSE_NS), [""; 0]);
    assert_eq!(t.events_text(), ["Disconnected unanswered"]);
    t.wait(TIMEWAIT_NS);
    assert_eq!(t.events_text(), ["TimewaitExit"]);
}

/// The message that told this side of the connection was lost, the one that ends it was not.
#[test]
fn the_end_may_come_before_the_peer_was_known_to_be_ready() {
    let mut t = CmScript::accepting();
    let dreq = t.dreq();
    t.exchange(&dreq);
    assert_eq!(t.events_text(), ["DisconnectRequested"]);
    assert_eq!(t.wait(RESPONSE_NS), [""; 0], "nothing is repeated");
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    assert_eq!(t.sent_text(), ["DREP us them"]);
}

#[test]
fn a_connection_that_nobody_knows_may_end() {
    let mut t = CmScript::connecting();
    let CmMessage::Dreq(dreq) = t.dreq() else { panic!("a DREQ") };
    let remote_id = t.id.get() ^ 0x1000;
    let unknown = CmMessage::Dreq(Dreq { remote_id, ..dreq });
    assert_eq!(t.exchange(&unknown), [format!("DREP {remote_id:#x} them")]);
    let mut t = CmScript::active();
    let CmMessage::Dreq(dreq) = t.dreq() else { panic!("a DREQ") };
    let former = CmMessage::Dreq(Dreq { local_id: 0x33, ..dreq });
    assert_eq!(t.exchange(&former), ["DREP us 0x33"]);
    assert_eq!(t.events_text(), [""; 0]);
}

#[test]
fn it_ends_only_for_its_queue_pair() {
    let mut t = CmScript::active();
    let CmMessage::Dreq(dreq) = t.dreq() else { panic!("a DREQ") };
    let other = CmMessage::Dreq(Dreq { remote_qpn: Qpn::new(77), ..dreq });
    assert_eq!(t.exchange(&other), [""; 0]);
    assert_eq!((t.events_text().len(), t.drops(DropReason::Stale)), (0, 1));
}

#[test]
fn a_destroyed_connection_ends_and_is_gone_after_its_packets() {
    let mut t = CmScript::passive();
    t.node.endpoint.cm_destroy(t.now, t.id);
    assert_eq!(t.sent_text(), ["DREQ us them"]);
    assert_eq!(t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap_err().errno(), 22);
    let dreq = t.dreq();
    assert_eq!(t.exchange(&dreq), ["DREP us them"]);
    assert_eq!(t.node.endpoint.cm_count(), 1);
    assert_eq!(t.wait(TIMEWAIT_NS), [""; 0]);
    assert_eq!((t.node.endpoint.cm_count(), t.events_text().len()), (0, 0));
    assert_eq!(t.exchange(&dreq), ["DREP us them"]);
}

#[test]
fn who_is_destroyed_before_it_agreed_agrees() {
    let mut t = CmScript::passive();
    let dreq = t.dreq();
    t.exchange(&dreq);
    t.events();
    t.node.endpoint.cm_destroy(t.now, t.id);
    assert_eq!(t.sent_text(), ["DREP us them"]);
    let mut t = CmScript::active();
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    t.sent();
    t.node.endpoint.cm_destroy(t.now, t.id);
    assert_eq!(t.wait(1 << 40), [""; 0]);
    assert_eq!(t.node.endpoint.cm_count(), 0);
}

/// Who agrees may exit at once: the peer would ask the dead for a minute.
#[test]
fn an_answer_waits_neither_for_room_nor_for_what_does() {
    let mut t = CmScript::passive();
    let dreq = t.dreq();
    t.exchange(&dreq);
    let asked = 200;
    for _ in 0..asked {
        t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    }
    let sent = t.sent_text().len();
    assert!(sent < asked, "{sent} requests fill the peer's buffer");
    assert!(t.node.endpoint.cm_has_outgoing());
    t.node.endpoint.cm_disconnect(t.now, t.id, &[]).unwrap();
    assert_eq!(t.sent_text(), ["DREP us them"]);
}
