//! Connections that come about, and what each side is told of the other.

use std::net::{Ipv4Addr, Ipv6Addr};

use irdma_sim::cm_script::{
    CmScript, GUID, LISTENER, PEER_GUID, PEER_ID, PEER_QPN, PEER_TID, QPN, SERVICE, connect_reply,
    connect_request, path, req, req_fields,
};
use irdma_sim::script::{HERE, THERE};
use irdma_transport::cm::{CmEventKind, ConnectRequest, ReplyInfo, RequestInfo};
use irdma_transport::{AddressVector, QpType};
use irdma_wire::cm::{CmMessage, PortSpace, Rep, Req, ServiceId, Transport};
use irdma_wire::{Psn, Qpn};

#[test]
fn the_side_that_asks() {
    let mut t = CmScript::connecting();
    let rep = t.rep();
    assert_eq!(t.exchange(&rep), [""; 0], "the program gets ready first");
    let reply = ReplyInfo {
        remote_qpn: PEER_QPN,
        starting_psn: Psn::new(200),
        ca_guid: PEER_GUID,
        responder_resources: 6,
        initiator_depth: 5,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        target_ack_delay: 15,
        private_data: vec![8; 196],
    };
    assert_eq!(t.events(), [CmEventKind::Response(reply)]);
    t.node.endpoint.cm_establish(t.now, t.id).unwrap();
    assert_eq!(t.sent_text(), ["RTU us them"]);
    assert_eq!(t.events_text(), [""; 0], "the program knows");
    assert_eq!(t.wait(1 << 40), [""; 0], "nothing is repeated any more");
}

#[test]
fn the_side_that_is_asked() {
    let mut t = CmScript::listening();
    assert_eq!(t.exchange(&req()), [""; 0]);
    let request = RequestInfo {
        service: SERVICE,
        qp_type: QpType::Rc,
        remote_qpn: PEER_QPN,
        starting_psn: Psn::new(200),
        ca_guid: PEER_GUID,
        responder_resources: 4,
        initiator_depth: 3,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        ack_timeout: 17,
        path_mtu: 1024,
        path: AddressVector {
            sgid: HERE.into(),
            dgid: THERE.into(),
            flow_label: 0xABCDE,
            traffic_class: 0x48,
            hop_limit: 64,
            ..AddressVector::default()
        },
        private_data: vec![9; 92],
    };
    assert_eq!(t.events(), [CmEventKind::Request { listener: LISTENER, request }]);
    assert_eq!(t.wait(1 << 35), [""; 0], "the program may think for as long as it likes");
    t.accept().unwrap();
    assert_eq!(t.sent_text(), ["REP us them"]);
    let rtu = t.rtu();
    assert_eq!(t.exchange(&rtu), [""; 0]);
    assert_eq!(t.events_text(), ["Established"]);
    assert_eq!(t.wait(1 << 40), [""; 0]);
}

#[test]
fn a_request_says_what_was_asked() {
    let mut t = CmScript::connecting();
    let id = t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    let (tid, CmMessage::Req(req)) = t.sent().remove(0) else { panic!("a request") };
    // The kernel's transactions end in the id, byte by byte from its end.
    assert_eq!(tid as u32, id.get().swap_bytes());
    let mut private_data = [0; 92];
    private_data[..3].copy_from_slice(&[1, 2, 3]);
    let expected = Req {
        local_id: id.get(),
        ca_guid: GUID,
        qpn: QPN,
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: false,
        starting_psn: Psn::new(100),
        path: irdma_wire::cm::CmPath {
            local_gid: HERE.into(),
            remote_gid: THERE.into(),
            flow_label: 0x12345,
            traffic_class: 0xB8,
            ..req_fields().path
        },
        private_data,
        ..req_fields()
    };
    assert_eq!(req, expected);
}

#[test]
fn a_reply_says_what_was_accepted_in_the_requests_transaction() {
    let mut t = CmScript::asked();
    t.accept().unwrap();
    let (tid, CmMessage::Rep(rep)) = t.sent().remove(0) else { panic!("a reply") };
    let mut private_data = [0; 196];
    private_data[..2].copy_from_slice(&[7, 7]);
    let expected = Rep {
        local_id: t.id.get(),
        remote_id: PEER_ID,
        qkey: 0,
        qpn: QPN,
        eecn: 0,
        starting_psn: Psn::new(100),
        responder_resources: 1,
        initiator_depth: 2,
        target_ack_delay: 14,
        failover: 0,
        flow_control: true,
        rnr_retry_count: 5,
        srq: false,
        ca_guid: GUID,
        private_data,
    };
    assert_eq!((tid, rep), (PEER_TID, expected));
}

#[test]
fn messages_travel_as_the_path_says() {
    let mut t = CmScript::connecting();
    let path = AddressVector { hop_limit: 9, ..path() };
    let request = ConnectRequest { path, ..connect_request() };
    t.node.endpoint.cm_connect(t.now, &request).unwrap();
    let mut buffer = vec![0; 65_536];
    let transmit = t.node.endpoint.poll_transmit(t.now, &mut buffer).unwrap();
    assert_eq!((transmit.src, transmit.dst), (HERE, THERE));
    assert_eq!((transmit.tos, transmit.hop_limit), (0xB8, 9));
}

#[test]
fn traffic_tells_that_the_peer_is_ready() {
    let mut t = CmScript::accepting();
    t.node.endpoint.cm_notify(t.now, t.id).unwrap();
    assert_eq!(t.events_text(), ["Established"]);
    t.node.endpoint.cm_notify(t.now, t.id).unwrap();
    let rtu = t.rtu();
    t.exchange(&rtu);
    assert_eq!(t.events_text(), [""; 0], "once is enough");
    assert_eq!(t.wait(1 << 40), [""; 0]);
}

#[test]
fn each_service_has_its_transport() {
    for (asked, transport, answers) in [
        (QpType::Rc, Transport::Rc, QpType::Rc),
        (QpType::Uc, Transport::Uc, QpType::Uc),
        (QpType::XrcSend, Transport::Xrc, QpType::XrcRecv),
    ] {
        let mut t = CmScript::listening();
        let request = ConnectRequest { qp_type: asked, ..connect_request() };
        t.node.endpoint.cm_connect(t.now, &request).unwrap();
        let (_, CmMessage::Req(sent)) = t.sent().remove(0) else { panic!("a request") };
        assert_eq!(sent.transport, transport);
        t.exchange(&CmMessage::Req(Req { transport, ..req_fields() }));
        let CmEventKind::Request { request, .. } = t.events().remove(0) else { panic!("asked") };
        assert_eq!(request.qp_type, answers);
    }
}

#[test]
fn extended_connections_name_their_queue_pair_elsewhere() {
    let mut t = CmScript::listening();
    t.exchange(&CmMessage::Req(Req { transport: Transport::Xrc, ..req_fields() }));
    t.events();
    t.accept().unwrap();
    let (_, CmMessage::Rep(rep)) = t.sent().remove(0) else { panic!("a reply") };
    assert_eq!((rep.qpn, rep.eecn, rep.srq), (Qpn::default(), QPN.get(), true));

    let request = ConnectRequest { qp_type: QpType::XrcSend, ..connect_request() };
    t.id = t.node.endpoint.cm_connect(t.now, &request).unwrap();
    t.sent();
    let CmMessage::Rep(rep) = t.rep() else { panic!("a reply") };
    let (qpn, eecn) = (Qpn::default(), 0x123_456);
    t.exchange(&CmMessage::Rep(Rep { qpn, eecn, local_id: 77, ..rep }));
    let CmEventKind::Response(reply) = t.events().remove(0) else { panic!("accepted") };
    assert_eq!(reply.remote_qpn, Qpn::new(0x123_456));
}

#[test]
fn ids_are_of_the_slot_and_differ() {
    let mut t = CmScript::connecting();
    let mut ids = vec![t.id];
    for _ in 0..100 {
        let id = t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
        t.node.endpoint.cm_destroy(t.now, id);
        ids.push(id);
    }
    assert!(ids.iter().all(|id| id.get() >> 22 == 1), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 101);
    assert_eq!(t.node.endpoint.cm_count(), 1);
}

#[test]
fn values_that_no_message_can_carry_are_refused() {
    let mut t = CmScript::connecting();
    let good = connect_request();
    let long = [0; 93];
    let gone = AddressVector { sgid: THERE.into(), ..path() };
    for bad in [
        ConnectRequest { private_data: &long, ..good },
        ConnectRequest { retry_count: 8, ..good },
        ConnectRequest { rnr_retry_count: 8, ..good },
        ConnectRequest { ack_timeout: 32, ..good },
        ConnectRequest { path_mtu: 1500, ..good },
        ConnectRequest { qp_type: QpType::Ud, ..good },
        ConnectRequest { path: gone, ..good },
        ConnectRequest { path: AddressVector { flow_label: 1 << 20, ..path() }, ..good },
    ] {
        assert_eq!(t.node.endpoint.cm_connect(t.now, &bad).unwrap_err().errno(), 22, "{bad:?}");
    }
    assert_eq!(t.node.endpoint.cm_count(), 1);
    assert_eq!(t.sent_text(), [""; 0]);

    let mut t = CmScript::asked();
    let (long, good) = ([0; 197], connect_reply());
    for bad in [
        irdma_transport::cm::ConnectReply { private_data: &long, ..good },
        irdma_transport::cm::ConnectReply { rnr_retry_count: 8, ..good },
        irdma_transport::cm::ConnectReply { target_ack_delay: 32, ..good },
    ] {
        assert_eq!(t.node.endpoint.cm_accept(t.now, t.id, &bad).unwrap_err().errno(), 22);
    }
    let refused = t.node.endpoint.cm_reject(t.now, t.id, 28, &[0; 149]);
    assert_eq!(refused.unwrap_err().errno(), 22);
    assert_eq!(t.sent_text(), [""; 0]);
    t.accept().expect("nothing has changed");
}

#[test]
fn a_call_in_the_wrong_state_changes_nothing() {
    let mut t = CmScript::connecting();
    let (now, id) = (t.now, t.id);
    let endpoint = &mut t.node.endpoint;
    for refused in [
        endpoint.cm_accept(now, id, &connect_reply()),
        endpoint.cm_establish(now, id),
        endpoint.cm_notify(now, id),
        endpoint.cm_reject(now, id, 28, &[]),
        endpoint.cm_disconnect(now, id, &[]),
    ] {
        assert_eq!(refused.unwrap_err().errno(), 22);
    }
    endpoint.cm_destroy(now, id);
    assert_eq!(endpoint.cm_establish(now, id).unwrap_err().errno(), 22);
    let mut t = CmScript::connecting();
    let rep = t.rep();
    t.exchange(&rep);
    assert_eq!(t.events_text(), ["Response"], "it still waits for its answer");
}

/// The listener that is told of a request with this id.
fn listener(t: &mut CmScript, local_id: u32) -> u64 {
    let qpn = Qpn::new(local_id);
    t.exchange(&CmMessage::Req(Req { local_id, qpn, ..req_fields() }));
    let CmEventKind::Request { listener, .. } = t.events().remove(0) else { panic!("asked") };
    listener
}

#[test]
fn a_pair_has_one_listener_and_the_narrowest_goes_first() {
    let mut t = CmScript::listening();
    let endpoint = &mut t.node.endpoint;
    assert_eq!(endpoint.cm_listen(5, SERVICE, None).unwrap_err().errno(), 98);
    endpoint.cm_listen(5, SERVICE, Some(HERE)).unwrap();
    endpoint.cm_listen(6, SERVICE, Some(THERE)).unwrap();
    endpoint.cm_listen(7, SERVICE, Some(Ipv4Addr::UNSPECIFIED.into())).unwrap();
    endpoint.cm_listen(8, SERVICE, Some(Ipv6Addr::UNSPECIFIED.into())).unwrap();
    endpoint.cm_listen(9, ServiceId::rdma_ip(PortSpace::Tcp, 7481), None).unwrap();
    assert_eq!(listener(&mut t, 1), 5);
    t.node.endpoint.cm_unlisten(5);
    assert_eq!(listener(&mut t, 2), 7);
    t.node.endpoint.cm_unlisten(7);
    assert_eq!(listener(&mut t, 3), LISTENER);
}
