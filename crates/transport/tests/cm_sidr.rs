//! Which queue pair offers a datagram service.

use irdma_sim::cm_script::{
    CmScript, LISTENER, PEER_ID, PEER_QPN, PEER_TID, QPN, RESPONSE_NS, SERVICE, path, sidr_req,
    sidr_request,
};
use irdma_sim::script::{HERE, THERE};
use irdma_transport::cm::{CmEventKind, SidrReply, SidrRequest};
use irdma_transport::{AddressVector, DropReason};
use irdma_wire::cm::{CmMessage, ServiceId, SidrReq};

fn asking() -> CmScript {
    let mut t = CmScript::listening();
    t.id = t.node.endpoint.cm_sidr_request(t.now, &sidr_request()).unwrap();
    assert_eq!(t.sent_text(), ["SIDR_REQ us"]);
    t
}

fn asked() -> CmScript {
    let mut t = CmScript::listening();
    assert_eq!(t.exchange(&sidr_req()), [""; 0]);
    let path = AddressVector { sgid: HERE.into(), dgid: THERE.into(), ..AddressVector::default() };
    let (listener, private_data) = (LISTENER, vec![6; 216]);
    let event = CmEventKind::SidrRequest { listener, service: SERVICE, path, private_data };
    assert_eq!(t.events(), [event]);
    t
}

#[test]
fn the_side_that_asks() {
    let mut t = asking();
    let rep = t.sidr_rep(0);
    t.exchange(&rep);
    let (status, qpn, qkey, private_data) = (0, PEER_QPN, 0x0123_4567, vec![5; 136]);
    let event = CmEventKind::SidrResponse { status, qpn, qkey, path: path(), private_data };
    assert_eq!(t.events(), [event]);
    assert_eq!(t.wait(1 << 40), [""; 0]);
    t.exchange(&rep);
    assert_eq!((t.events_text().len(), t.drops(DropReason::Stale)), (0, 1));
    t.node.endpoint.cm_destroy(t.now, t.id);
    assert_eq!((t.node.endpoint.cm_count(), t.sent_text().len()), (0, 0));
}

#[test]
fn the_side_that_is_asked() {
    let mut t = asked();
    assert_eq!(t.exchange(&sidr_req()), [""; 0], "it is known");
    let reply = SidrReply { status: 0, qpn: QPN, qkey: 0x0123_4567, private_data: &[1] };
    t.node.endpoint.cm_sidr_reply(t.now, t.id, &reply).unwrap();
    let (tid, CmMessage::SidrRep(rep)) = t.sent().remove(0) else { panic!("a reply") };
    assert_eq!((tid, rep.request_id, rep.service), (PEER_TID, PEER_ID, SERVICE));
    assert_eq!((rep.status, rep.qpn, rep.qkey, rep.private_data[0]), (0, QPN, 0x0123_4567, 1));
    assert_eq!(t.exchange(&sidr_req()), ["SIDR_REP them 0"], "the answer was lost");
    let again = t.node.endpoint.cm_sidr_reply(t.now, t.id, &reply);
    assert_eq!(again.unwrap_err().errno(), 22);
    assert_eq!(t.events_text(), [""; 0]);
}

/// As with connections, it may be about to listen.
#[test]
fn the_peer_does_not_listen_yet() {
    let mut t = asking();
    let rep = t.sidr_rep(1);
    for _ in 0..8 {
        t.exchange(&rep);
        assert_eq!(t.wait(50_000_000), ["SIDR_REQ us"]);
    }
    t.exchange(&rep);
    assert_eq!(t.events_text(), ["SidrResponse 1"]);
}

#[test]
fn refusals_have_a_status() {
    let mut t = asking();
    let rep = t.sidr_rep(2);
    t.exchange(&rep);
    assert_eq!(t.events_text(), ["SidrResponse 2"]);

    let mut t = CmScript::listening();
    let CmMessage::SidrReq(req) = sidr_req() else { panic!("a request") };
    let other = CmMessage::SidrReq(SidrReq { service: ServiceId(1), ..req });
    assert_eq!(t.deliver_unclaimed(&other), ["SIDR_REP them 1"]);

    let mut t = asked();
    t.node.endpoint.cm_destroy(t.now, t.id);
    assert_eq!(t.sent_text(), ["SIDR_REP them 2"]);
    assert_eq!(t.node.endpoint.cm_count(), 0);
}

#[test]
fn a_question_is_repeated_until_all_tries_are_used_up() {
    let mut t = asking();
    for _ in 0..15 {
        assert_eq!(t.wait(RESPONSE_NS), ["SIDR_REQ us"]);
    }
    assert_eq!(t.wait(RESPONSE_NS), [""; 0]);
    assert_eq!(t.events_text(), ["Unreachable"]);
}

#[test]
fn private_data_that_does_not_fit_is_refused() {
    let mut t = asked();
    let request = SidrRequest { private_data: &[0; 217], ..sidr_request() };
    assert_eq!(t.node.endpoint.cm_sidr_request(t.now, &request).unwrap_err().errno(), 22);
    let reply = SidrReply { status: 0, qpn: QPN, qkey: 1, private_data: &[0; 137] };
    assert_eq!(t.node.endpoint.cm_sidr_reply(t.now, t.id, &reply).unwrap_err().errno(), 22);
    assert_eq!(t.node.endpoint.cm_count(), 1);
}
