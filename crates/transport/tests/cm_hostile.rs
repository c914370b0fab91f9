//! Datagrams to QP1 that no connection manager would send.

use std::net::IpAddr;

use irdma_sim::cm_script::{
    CmScript, PEER_GUID, PEER_QPN, SERVICE, connect_request, packet, req, req_fields, sidr_req,
};
use irdma_sim::script::HERE;
use irdma_transport::{Disposition, DropReason, Meta};
use irdma_wire::cm::{About, CmMessage, Req, ServiceId, SidrReq};
use irdma_wire::{Deth, Opcode, Operation, Position, Qpn, Service, mad};

const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));

#[test]
fn what_is_no_message_is_dropped_and_counted() {
    let good = packet(&req());
    let with_byte = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet.payload[at] = byte;
        packet
    };
    let mut qkey = good.clone();
    qkey.headers.deth = Some(Deth { qkey: mad::QKEY + 1, src_qpn: Qpn::GSI });
    let mut source = good.clone();
    source.headers.deth = Some(Deth { qkey: mad::QKEY, src_qpn: PEER_QPN });
    let service = {
        let mut packet = good.clone();
        packet.headers.bth.opcode = Opcode::new(Service::Rc, Operation::Send, Position::Only);
        packet.headers.deth = None;
        packet
    };
    let short = good.clone().payload(&good.payload[..252]);
    let long = good.clone().payload(&[&good.payload[..], &[0; 4]].concat());
    let mut t = CmScript::listening();
    for (bad, reason) in [
        (qkey, DropReason::QKey),
        (source, DropReason::Source),
        (service, DropReason::Service),
        (good.clone().imm([1, 2, 3, 4]), DropReason::Service),
        (short, DropReason::Length),
        (long, DropReason::Length),
        (good.clone().payload(&[]), DropReason::Length),
        (with_byte(0, 2), DropReason::Malformed),
        (with_byte(1, 4), DropReason::Service),
        (with_byte(2, 1), DropReason::Malformed),
        (with_byte(3, 0x81), DropReason::Malformed),
        (with_byte(17, 0x19), DropReason::Malformed),
    ] {
        let before = t.drops(reason);
        assert_eq!(t.deliver_packet(&t.meta(), &bad), Disposition::Done);
        assert_eq!((t.drops(reason), t.sent_text().len()), (before + 1, 0), "{bad}");
    }
    assert_eq!((t.events_text().len(), t.node.endpoint.cm_count()), (0, 0));
}

#[test]
fn a_strangers_messages_about_a_connection_are_dropped() {
    for mut t in [CmScript::connecting(), CmScript::accepting(), CmScript::active()] {
        let stranger = Meta { src: STRANGER, ..t.meta() };
        let messages = [
            t.rep(),
            t.rtu(),
            t.mra(About::Req, 1),
            t.rej(0, About::Req, 8),
            t.dreq(),
            t.drep(),
            t.sidr_rep(0),
        ];
        for message in &messages {
            assert_eq!(t.deliver_from(&stranger, message), Disposition::Done);
        }
        assert_eq!(t.drops(DropReason::Source), messages.len() as u64);
        assert_eq!((t.sent_text().len(), t.events_text().len()), (0, 0));
    }
}

#[test]
fn a_request_must_come_from_where_it_says() {
    let mut t = CmScript::listening();
    let stranger = Meta { src: STRANGER, ..t.meta() };
    t.deliver_from(&stranger, &req());
    let mut elsewhere = req_fields();
    elsewhere.path.remote_gid = STRANGER.into();
    t.exchange(&CmMessage::Req(elsewhere));
    assert_eq!((t.drops(DropReason::Source), t.events_text().len()), (2, 0));
    // Nor does somebody else's request end the connection of a queue pair with that number.
    let mut t = CmScript::passive();
    let mut foreign = req_fields();
    foreign.path.local_gid = STRANGER.into();
    assert_eq!((foreign.ca_guid, foreign.qpn), (PEER_GUID, PEER_QPN));
    t.deliver_from(&stranger, &CmMessage::Req(foreign));
    assert_eq!(t.events_text(), ["Request"]);
}

#[test]
fn a_wrong_id_of_the_peer_is_dropped() {
    for mut t in [CmScript::accepting(), CmScript::active()] {
        for message in [t.rej(0x33, About::Req, 28), t.rej(0x33, About::Rep, 4)] {
            assert_eq!(t.exchange(&message), [""; 0]);
        }
        assert_eq!((t.drops(DropReason::Stale), t.events_text().len()), (2, 0));
    }
    let mut t = CmScript::active();
    let rej = t.rej(0, About::Req, 8);
    t.exchange(&rej);
    assert_eq!(t.events_text(), [""; 0], "a connected peer has an id");
}

#[test]
fn requests_that_nobody_decides_about_are_bounded() {
    let mut t = CmScript::listening();
    let mut ids = Vec::new();
    for local_id in 1..=3000 {
        let message = match local_id % 2 {
            0 => CmMessage::Req(Req { local_id, qpn: Qpn::new(local_id), ..req_fields() }),
            _ => {
                let CmMessage::SidrReq(req) = sidr_req() else { panic!("a request") };
                CmMessage::SidrReq(SidrReq { request_id: local_id, ..req })
            }
        };
        assert_eq!(t.exchange(&message), [""; 0]);
        ids.push(t.id);
    }
    assert_eq!(t.events_text().len(), 1024);
    assert_eq!((t.drops(DropReason::Backlog), t.node.endpoint.cm_count()), (3000 - 1024, 1024));
    // A decision makes room for another one.
    t.node.endpoint.cm_reject(t.now, ids[1], 28, &[]).unwrap();
    t.sent();
    t.exchange(&CmMessage::Req(Req { local_id: 9999, ..req_fields() }));
    assert_eq!(t.events_text(), ["Request"]);
    // Another service has room of its own.
    let other = ServiceId(7);
    t.node.endpoint.cm_listen(1, other, None).unwrap();
    let qpn = Qpn::new(9998);
    t.exchange(&CmMessage::Req(Req { local_id: 9998, qpn, service: other, ..req_fields() }));
    assert_eq!(t.events_text(), ["Request"]);
    assert_ne!(other, SERVICE);
}

#[test]
fn answers_that_wait_to_be_sent_are_bounded() {
    let mut t = CmScript::connecting();
    let meta = t.meta();
    for local_id in 1..=3000 {
        let flow = irdma_wire::FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
        let message = CmMessage::Req(Req { local_id, ..req_fields() });
        let bytes = packet(&message).emit(&flow, 0);
        t.node.endpoint.handle_unclaimed(t.now, &meta, &bytes);
    }
    assert_eq!(t.drops(DropReason::Backlog), 3000 - 1024);
    assert_eq!((t.sent_text().len(), t.node.endpoint.cm_count()), (1024, 1));
}

#[test]
fn questions_are_clocked() {
    let mut t = CmScript::connecting();
    for _ in 0..1000 {
        t.node.endpoint.cm_connect(t.now, &connect_request()).unwrap();
    }
    let mut sent = t.sent_text().len();
    assert!(sent <= 64, "no more at once than any receiver's buffer holds: {sent}");
    for _ in 0..20 {
        sent += t.wait(1_000_000).len();
    }
    assert_eq!(sent, 1000);
}

#[test]
fn an_address_that_is_gone_does_not_hold_up_others() {
    let mut t = CmScript::connecting();
    let second: IpAddr = [10, 0, 0, 3].into();
    t.node.endpoint.add_local(second, vec![1; 8], 1024);
    t.node.endpoint.remove_local(HERE);
    assert_eq!(t.wait(irdma_sim::cm_script::RESPONSE_NS), [""; 0]);
    let mut request = connect_request();
    request.path.sgid = second.into();
    t.node.endpoint.cm_connect(t.now, &request).unwrap();
    let mut buffer = vec![0; 65_536];
    assert_eq!(t.node.endpoint.poll_transmit(t.now, &mut buffer).unwrap().src, second);
}
