//! Messages of the connection manager: captured, dissected by others, made up and damaged.

use irdma_wire::cm::{
    About, CmMessage, CmPath, Drep, Dreq, IpHeader, Mra, PortSpace, Rej, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq, Transport,
};
use irdma_wire::ip::Datagram;
use irdma_wire::{Bth, Deth, Gid, Headers, Opcode, Operation, Position, Psn, Qpn, Service};
use irdma_wire::{icrc, mad, pcapng};
use proptest::prelude::*;

use crate::capture::{Sent, dissect, write};
use crate::golden;
use crate::judge::flow;
use crate::samples::{build, flow6};

/// Packets of the connection manager in the golden folder.
const GOLDEN: usize = 78;

/// The packet that carries the message that `datagram` carries, built anew.
fn rebuild(datagram: &Datagram<'_>) -> Option<Vec<u8>> {
    let packet = irdma_wire::parse(datagram.payload).ok()?;
    if packet.headers.bth.dest_qpn != Qpn::GSI {
        return None;
    }
    let deth = packet.headers.deth.expect("a datagram");
    assert_eq!((deth.qkey, deth.src_qpn), (mad::QKEY, Qpn::GSI));
    assert!(packet.headers.bth.ack_request, "the kernel sets it");
    let (header, message) = CmMessage::parse(packet.payload).expect("well-formed");
    if let CmMessage::Req(Req { service, private_data, .. }) = &message {
        let (space, port) = service.to_rdma_ip().expect("a port");
        assert!(space == PortSpace::Tcp && port > 0, "{service}");
        let ip = IpHeader::parse(private_data).expect("an IP header");
        assert_eq!((ip.src, ip.dst), (datagram.ip.src, datagram.ip.dst));
        assert_eq!(ip.emit(), private_data[..IpHeader::LEN]);
    }
    let mad = message.emit(header.transaction_id);
    Some(build(&packet.headers, &mad, &flow(datagram), datagram.ip.ident.id))
}

#[test]
fn every_captured_message_is_emitted_again_byte_for_byte() {
    let Some(folder) = golden::folder() else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcapng") {
            continue;
        }
        let file = std::fs::read(&path).unwrap();
        let frames = pcapng::read(&file).unwrap();
        for datagram in frames.iter().filter_map(|f| Datagram::parse(f.ip_packet()?)) {
            if datagram.dst_port == irdma_wire::UDP_PORT
                && let Some(again) = rebuild(&datagram)
            {
                assert_eq!(again, datagram.payload, "{}", path.display());
                count += 1;
            }
        }
    }
    assert_eq!(count, GOLDEN);
}

fn private_data<const N: usize>() -> [u8; N] {
    std::array::from_fn(|i| i as u8 ^ N as u8)
}

fn req() -> Req {
    Req {
        local_id: 0x0102_0304,
        service: ServiceId::rdma_ip(PortSpace::Tcp, 0x1d38),
        ca_guid: 0x1112_1314_1516_1718,
        qkey: 0x2122_2324,
        qpn: Qpn::new(0x31_3233),
        responder_resources: 41,
        initiator_depth: 42,
        remote_response_timeout: 21,
        transport: Transport::Uc,
        flow_control: true,
        starting_psn: Psn::new(0x51_5253),
        local_response_timeout: 22,
        retry_count: 6,
        pkey: 0xFFFF,
        path_mtu: 5,
        rnr_retry_count: 3,
        max_cm_retries: 14,
        srq: true,
        path: CmPath {
            local_lid: 0x6162,
            remote_lid: 0x6364,
            local_gid: "fd77::2".parse().unwrap(),
            remote_gid: "fd77::3".parse().unwrap(),
            flow_label: 0x7_1727,
            packet_rate: 33,
            traffic_class: 0xB8,
            hop_limit: 63,
            sl: 9,
            subnet_local: true,
            ack_timeout: 19,
        },
        private_data: private_data(),
    }
}

fn rep() -> Rep {
    Rep {
        local_id: 0x0102_0304,
        remote_id: 0x0506_0708,
        qkey: 0x2122_2324,
        qpn: Qpn::new(0x31_3233),
        eecn: 0x34_3536,
        starting_psn: Psn::new(0x51_5253),
        responder_resources: 41,
        initiator_depth: 42,
        target_ack_delay: 21,
        failover: 2,
        flow_control: true,
        rnr_retry_count: 5,
        srq: true,
        ca_guid: 0x1112_1314_1516_1718,
        private_data: private_data(),
    }
}

fn samples() -> [CmMessage; 9] {
    let (local_id, remote_id) = (0x0102_0304, 0x0506_0708);
    [
        CmMessage::Req(req()),
        CmMessage::Mra(Mra {
            local_id,
            remote_id,
            about: About::Rep,
            service_timeout: 24,
            private_data: private_data(),
        }),
        CmMessage::Rej(Rej {
            local_id,
            remote_id,
            about: About::Rep,
            info_len: 8,
            reason: 0x1234,
            info: private_data(),
            private_data: private_data(),
        }),
        CmMessage::Rep(rep()),
        CmMessage::Rtu(Rtu { local_id, remote_id, private_data: private_data() }),
        CmMessage::Dreq(Dreq {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(0x31_3233),
            private_data: private_data(),
        }),
        CmMessage::Drep(Drep { local_id, remote_id, private_data: private_data() }),
        CmMessage::SidrReq(SidrReq {
            request_id: local_id,
            pkey: 0xFFFF,
            service: ServiceId::rdma_ip(PortSpace::Udp, 0x1d38),
            private_data: private_data(),
        }),
        CmMessage::SidrRep(SidrRep {
            request_id: remote_id,
            status: 2,
            info_len: 3,
            qpn: Qpn::new(0x31_3233),
            service: ServiceId::rdma_ip(PortSpace::Udp, 0x1d38),
            qkey: 0x0123_4567,
            info: private_data(),
            private_data: private_data(),
        }),
    ]
}

#[test]
fn each_message_parses_to_itself() {
    for message in samples() {
        let (header, parsed) = CmMessage::parse(&message.emit(0x99)).unwrap();
        assert_eq!((header.transaction_id, &parsed), (0x99, &message));
        let has_id = !matches!(message, CmMessage::Req(_) | CmMessage::SidrReq(_));
        assert_eq!(message.remote_id(), has_id.then_some(0x0506_0708));
    }
    for transport in [Transport::Rc, Transport::Uc, Transport::Xrc, Transport::Other(2, 0)] {
        let message = CmMessage::Req(Req { transport, ..req() });
        assert_eq!(CmMessage::parse(&message.emit(0)).unwrap().1, message);
    }
}

/// The names of tshark's fields, after "infiniband.cm.", and what it must show.
fn check_with_tshark(message: &CmMessage, expected: &[(&str, &str)]) {
    let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
    let deth = Some(Deth { qkey: mad::QKEY, src_qpn: Qpn::GSI });
    let headers = Headers { deth, ..Headers::new(Bth::new(opcode, Qpn::GSI, Psn::new(1))) };
    let flow = flow6();
    let packet = build(&headers, &message.emit(0x99), &flow, 0);
    assert!(icrc::verify(&flow, 0, &packet) == icrc::Verdict::Good);
    let sent = Sent { flow, opcode, packet };
    let names: Vec<_> = expected.iter().map(|(name, _)| format!("infiniband.cm.{name}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let Some(frames) = dissect(&write(&[sent]), &names) else { return };
    for ((name, value), shown) in expected.iter().zip(&frames[0]) {
        assert_eq!(shown, value, "{name}");
    }
}

#[test]
fn tshark_sees_a_request_as_it_was_sent() {
    check_with_tshark(
        &CmMessage::Req(req()),
        &[
            ("req", "0x01020304"),
            ("req.serviceid", "0x0000000001061d38"),
            ("req.localcaguid", "0x1112131415161718"),
            ("req.localqkey", "0x21222324"),
            ("req.localqpn", "0x313233"),
            ("req.responderres", "0x29"),
            ("req.initdepth", "0x2a"),
            ("req.remoteresptout", "0x15"),
            ("req.transpsvctype", "0x01"),
            ("req.e2eflowctrl", "0x01"),
            ("req.startpsn", "0x515253"),
            ("req.localresptout", "0x16"),
            ("req.retrcount", "0x06"),
            ("req.pkey", "0xffff"),
            ("req.pppmtu", "0x05"),
            ("req.rnrretrcount", "0x03"),
            ("req.maxcmretr", "0x0e"),
            ("req.srq", "0x01"),
            ("req.prim_locallid", "24930"),
            ("req.prim_remotelid", "25444"),
            ("req.prim_localgid", "fd77::2"),
            ("req.prim_remotegid", "fd77::3"),
            ("req.prim_tfcclass", "0xb8"),
            ("req.prim_hoplim", "0x3f"),
            ("req.prim_sl", "0x09"),
            ("req.prim_subnetlocal", "0x01"),
            ("req.prim_localacktout", "0x13"),
        ],
    );
}

#[test]
fn tshark_sees_a_reply_as_it_was_sent() {
    check_with_tshark(
        &CmMessage::Rep(rep()),
        &[
            ("rep", "0x01020304"),
            ("rep.remotecommid", "0x05060708"),
            ("rep.localqkey", "0x21222324"),
            ("rep.localqpn", "0x313233"),
            ("rep.localeecn", "0x343536"),
            ("rep.startpsn", "0x515253"),
            ("rep.respres", "0x29"),
            ("rep.initdepth", "0x2a"),
            ("rep.tgtackdelay", "0x15"),
            ("rep.failoveracc", "0x02"),
            ("rep.e2eflowctrl", "0x01"),
            ("rep.rnrretrcount", "0x05"),
            ("rep.srq", "0x01"),
            ("rep.localcaguid", "0x1112131415161718"),
        ],
    );
}

#[test]
fn tshark_sees_a_reject_as_it_was_sent() {
    check_with_tshark(
        &samples()[2],
        &[
            ("rej.localcommid", "0x01020304"),
            ("rej.remotecommid", "0x05060708"),
            ("rej.msgrej", "0x01"),
            ("rej.rejinfolen", "0x08"),
            ("rej.reason", "0x1234"),
        ],
    );
}

proptest! {
    /// Reserved bits are not kept: what is compared is the message.
    #[test]
    fn any_message_parses_to_itself(
        attribute in 0x10u8..=0x18,
        data in prop::collection::vec(any::<u8>(), mad::LEN - mad::HEADER_LEN),
        tid: u64,
    ) {
        let mut bytes = samples()[0].emit(tid).to_vec();
        bytes[17] = attribute;
        bytes[mad::HEADER_LEN..].copy_from_slice(&data);
        let (header, message) = CmMessage::parse(&bytes).unwrap();
        let again = message.emit(tid);
        prop_assert_eq!(CmMessage::parse(&again), Ok((header, message)));
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in 0..mad::HEADER_LEN,
        byte: u8,
    ) {
        let _ = CmMessage::parse(&bytes);
        let _ = IpHeader::parse(&bytes);
        let mut almost = samples()[0].emit(1);
        almost[at] = byte;
        let _ = CmMessage::parse(&almost);
    }
}

#[test]
fn gids_of_a_captured_kind_are_mapped_addresses() {
    let gid = Gid::from(std::net::IpAddr::from([10, 77, 0, 3]));
    let path = CmPath { local_gid: gid, ..req().path };
    let message = CmMessage::Req(Req { path, ..req() });
    let bytes = message.emit(0);
    assert_eq!(bytes[80..96], *b"\0\0\0\0\0\0\0\0\0\0\xFF\xFF\x0A\x4D\0\x03");
}
