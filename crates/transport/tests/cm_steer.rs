//! Datagrams to QP1 that another process is to have.

use irdma_sim::cm_script::{CmScript, SERVICE, req, req_fields, sidr_req};
use irdma_transport::{Disposition, DropReason};
use irdma_wire::FlowKey;
use irdma_wire::cm::{About, CmMessage, Req, ServiceId};

/// Slot 5, and something in it.
const FOREIGN: u32 = 5 << 22 | 0x1234;

#[test]
fn the_receivers_id_tells_its_slot() {
    let mut t = CmScript::connecting();
    let (own, dreq) = (t.id, t.dreq());
    t.id = foreign_id(&mut t, FOREIGN);
    let messages = [
        t.mra(About::Req, 20),
        t.rej(7, About::Req, 8),
        t.rep(),
        t.rtu(),
        t.dreq(),
        t.drep(),
        t.sidr_rep(0),
    ];
    for message in &messages {
        assert_eq!(t.deliver(message), Disposition::Foreign(5), "{message:?}");
    }
    assert_eq!(t.node.endpoint.stats().rx_udp, 0, "whoever takes them counts them");
    t.id = own;
    assert_eq!(t.deliver(&dreq), Disposition::Done);
}

/// An id as a peer would give it back: made by an endpoint of that slot.
fn foreign_id(t: &mut CmScript, number: u32) -> irdma_transport::cm::CommId {
    use irdma_sim::{Node, cm_script::connect_request, script::HERE};
    let config = irdma_transport::Config { slot: (number >> 22) as u16, ..Default::default() };
    let mut other = Node::new(HERE, config);
    other.endpoint.cm_connect(t.now, &connect_request()).unwrap()
}

#[test]
fn a_request_is_for_who_listens_or_knows_it() {
    let mut t = CmScript::connecting();
    assert_eq!(t.deliver(&req()), Disposition::Unclaimed(SERVICE));
    assert_eq!(t.deliver(&sidr_req()), Disposition::Unclaimed(SERVICE));
    let mut t = CmScript::listening();
    let other = CmMessage::Req(Req { service: ServiceId(9), ..req_fields() });
    assert_eq!(t.deliver(&other), Disposition::Unclaimed(ServiceId(9)));
    assert_eq!(t.deliver(&req()), Disposition::Done);
    t.node.endpoint.cm_unlisten(irdma_sim::cm_script::LISTENER);
    assert_eq!(t.deliver(&req()), Disposition::Done, "it is known");
    let unknown = CmMessage::Req(Req { local_id: 3, ..req_fields() });
    assert_eq!(t.deliver(&unknown), Disposition::Unclaimed(SERVICE));
}

/// Nobody is looked for in the name of a peer that did not send this.
#[test]
fn a_damaged_request_is_dropped_at_once() {
    let mut t = CmScript::connecting();
    let meta = t.meta();
    let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port };
    let mut bytes = irdma_sim::cm_script::packet(&req()).emit(&flow, meta.index);
    bytes[100] ^= 1;
    let disposition = t.node.endpoint.handle_datagram(t.now, &meta, &bytes);
    assert_eq!((disposition, t.drops(DropReason::Icrc)), (Disposition::Done, 1));
}

/// The slot's owner is gone.
#[test]
fn what_nobody_takes_is_answered_here() {
    let mut t = CmScript::connecting();
    t.id = foreign_id(&mut t, FOREIGN);
    let (dreq, rep, rtu) = (t.dreq(), t.rep(), t.rtu());
    assert_eq!(t.deliver_unclaimed(&dreq), ["DREP us them"]);
    assert_eq!(t.deliver_unclaimed(&rep), ["REJ - them Rep 6"]);
    assert_eq!(t.deliver_unclaimed(&rtu), [""; 0]);
}
