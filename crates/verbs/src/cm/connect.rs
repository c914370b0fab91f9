//! Connections: asking for one, accepting, refusing, ending.

use irdma_transport::cm::{CommId, ConnectReply, ConnectRequest, SidrReply, SidrRequest};
use irdma_transport::{Result, VerbsError};
use irdma_wire::cm::{
    IpHeader, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN, SIDR_REP_PRIVATE_LEN,
    SIDR_REQ_PRIVATE_LEN, ServiceId,
};

use super::id::Id;
use super::param::{ConnParam, MAX_RESOURCES, UD_QKEY};
use super::state::{Phase, State};
use crate::device::Device;
use crate::engine::LaneInner;

/// Retry counts have three bits; the kernel cuts what is larger.
const MAX_RETRIES: u8 = 7;
/// The program does not want the connection (IBTA table 109).
const CONSUMER_REJECT: u16 = 28;
/// The program does not want the peer (IBTA 12.11.2).
const SIDR_REJECT: u8 = 2;
const SIDR_ACCEPT: u8 = 0;

impl Id {
    pub(super) fn try_connect(&self, param: &ConnParam<'_>) -> Result<()> {
        let lane = self.lane()?;
        let most = match self.inner.is_datagram() {
            true => SIDR_REQ_PRIVATE_LEN,
            false => REQ_PRIVATE_LEN,
        };
        check_private(param.private, most - IpHeader::LEN)?;
        let mut lane = lane.lock();
        let mut state = self.inner.state();
        state.check(Phase::RouteResolved, "connect")?;
        let comm = match self.inner.is_datagram() {
            true => self.ask_for_qp(&mut lane, &state, param)?,
            false => self.ask_for_connection(&mut lane, &mut state, param)?,
        };
        self.engine().targets.cm.add_comm(comm, &self.inner);
        state.comm = Some(comm);
        state.phase = Phase::Connecting;
        Ok(())
    }

    fn ask_for_connection(
        &self,
        lane: &mut LaneInner,
        state: &mut State,
        param: &ConnParam<'_>,
    ) -> Result<CommId> {
        let (device, path) = state.way()?;
        let (responder, initiator) = resources(&device, param, (u8::MAX, u8::MAX))?;
        let starting_psn = self.engine().targets.cm.random_psn();
        let ack_delay = device.query_device().local_ca_ack_delay;
        let now = lane.now();
        let comm = lane.endpoint.cm_connect(
            now,
            &ConnectRequest {
                service: self.service(state),
                qp_type: self.inner.qp_type,
                qpn: param.qpn,
                starting_psn,
                ca_guid: device.node_guid(),
                responder_resources: responder,
                initiator_depth: initiator,
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(MAX_RETRIES),
                rnr_retry_count: param.rnr_retry_count.min(MAX_RETRIES),
                srq: param.srq,
                ack_timeout: ack_timeout(ack_delay, state.packet_life_time()),
                path_mtu: state.conn.path_mtu,
                path,
                private_data: &self.headed(state, param.private),
            },
        )?;
        state.conn.rq_psn = starting_psn;
        state.conn.responder_resources = responder;
        state.conn.initiator_depth = initiator;
        state.conn.retry_count = param.retry_count.min(MAX_RETRIES);
        Ok(comm)
    }

    fn ask_for_qp(
        &self,
        lane: &mut LaneInner,
        state: &State,
        param: &ConnParam<'_>,
    ) -> Result<CommId> {
        let (_, path) = state.way()?;
        let (service, private_data) = (self.service(state), &self.headed(state, param.private));
        let now = lane.now();
        lane.endpoint.cm_sidr_request(now, &SidrRequest { service, path, private_data })
    }

    fn service(&self, state: &State) -> ServiceId {
        ServiceId::rdma_ip(self.inner.space, state.peer.map_or(0, |peer| peer.port()))
    }

    /// Private data behind the header that says who asks.
    fn headed(&self, state: &State, private: &[u8]) -> Vec<u8> {
        let (Some(local), Some(peer)) = (state.local, state.peer) else { return Vec::new() };
        let header = IpHeader { src_port: local.port(), src: local.ip(), dst: peer.ip() };
        [&header.emit()[..], private].concat()
    }

    pub(super) fn try_accept(&self, param: &ConnParam<'_>) -> Result<()> {
        let lane = self.lane()?;
        let most = if self.inner.is_datagram() { SIDR_REP_PRIVATE_LEN } else { REP_PRIVATE_LEN };
        check_private(param.private, most)?;
        let mut lane = lane.lock();
        let mut state = self.inner.state();
        let comm = state.comm("accept")?;
        match self.inner.is_datagram() {
            true => {
                let qkey = if param.qkey == 0 { UD_QKEY } else { param.qkey };
                let (qpn, private_data) = (param.qpn, param.private);
                let reply = SidrReply { status: SIDR_ACCEPT, qpn, qkey, private_data };
                let now = lane.now();
                lane.endpoint.cm_sidr_reply(now, comm, &reply)?;
            }
            false => accept_connection(&mut lane, &mut state, comm, param)?,
        }
        state.unaccepted = false;
        Ok(())
    }

    pub(super) fn try_reject(&self, private: &[u8]) -> Result<()> {
        let lane = self.lane()?;
        let datagram = self.inner.is_datagram();
        check_private(private, if datagram { SIDR_REP_PRIVATE_LEN } else { REJ_PRIVATE_LEN })?;
        let mut lane = lane.lock();
        let mut state = self.inner.state();
        let comm = state.comm("reject")?;
        let now = lane.now();
        if datagram {
            let reply = SidrReply {
                status: SIDR_REJECT,
                qpn: Default::default(),
                qkey: 0,
                private_data: private,
            };
            lane.endpoint.cm_sidr_reply(now, comm, &reply)?;
        } else {
            lane.endpoint.cm_reject(now, comm, CONSUMER_REJECT, private)?;
        }
        state.asked_at = None;
        Ok(())
    }

    pub(super) fn try_establish(&self) -> Result<()> {
        let lane = self.lane()?;
        let mut lane = lane.lock();
        let comm = self.inner.state().comm("establish")?;
        let now = lane.now();
        lane.endpoint.cm_establish(now, comm)
    }

    pub(super) fn try_disconnect(&self) -> Result<()> {
        let lane = self.lane()?;
        let mut lane = lane.lock();
        let comm = self.inner.state().comm("disconnect")?;
        let now = lane.now();
        // There is none yet, or no more: a peer that refused, or another thread, was faster. The
        // kernel does not mind either.
        let _ = lane.endpoint.cm_disconnect(now, comm, &[]);
        Ok(())
    }

    pub(super) fn try_notify(&self, event: irdma_transport::EventKind) -> Result<()> {
        if event != irdma_transport::EventKind::CommEst {
            return Err(VerbsError::invalid(format!("notify: {event:?}; only CommEst counts")));
        }
        let lane = self.lane()?;
        let mut lane = lane.lock();
        let comm = self.inner.state().comm("notify")?;
        let now = lane.now();
        lane.endpoint.cm_notify(now, comm)
    }
}

fn accept_connection(
    lane: &mut LaneInner,
    state: &mut State,
    comm: CommId,
    param: &ConnParam<'_>,
) -> Result<()> {
    let (device, _) = state.way()?;
    let asked = (state.conn.responder_resources, state.conn.initiator_depth);
    let (responder_resources, initiator_depth) = resources(&device, param, asked)?;
    let now = lane.now();
    lane.endpoint.cm_accept(
        now,
        comm,
        &ConnectReply {
            qpn: param.qpn,
            starting_psn: state.conn.rq_psn,
            ca_guid: device.node_guid(),
            responder_resources,
            initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count.min(MAX_RETRIES),
            srq: param.srq,
            target_ack_delay: device.query_device().local_ca_ack_delay,
            private_data: param.private,
        },
    )?;
    state.conn.responder_resources = responder_resources;
    state.conn.initiator_depth = initiator_depth;
    Ok(())
}

fn check_private(private: &[u8], most: usize) -> Result<()> {
    if private.len() > most {
        return Err(VerbsError::invalid(format!(
            "{} bytes of private data: the message has room for {most}",
            private.len()
        )));
    }
    Ok(())
}

/// Responder resources and initiator depth that this side offers; `asked` is what the peer wants
/// of them.
fn resources(device: &Device, param: &ConnParam<'_>, asked: (u8, u8)) -> Result<(u8, u8)> {
    let limits = device.limits();
    let of = |what: &str, wanted: u8, most: u8, asked: u8| match wanted {
        MAX_RESOURCES => Ok(most.min(asked)),
        wanted if wanted > most => {
            Err(VerbsError::invalid(format!("{what} {wanted}: {} has {most}", device.name())))
        }
        wanted => Ok(wanted),
    };
    Ok((
        of("responder_resources", param.responder_resources, limits.max_qp_rd_atom, asked.0)?,
        of("initiator_depth", param.initiator_depth, limits.max_qp_init_rd_atom, asked.1)?,
    ))
}

/// The timeout of a side whose packets live `life_time` on their way and whose peer takes
/// `ack_delay` to answer, all of them exponents (IBTA 12.7.34): twice the one and the other.
pub(super) fn ack_timeout(ack_delay: u8, life_time: u8) -> u8 {
    let both_ways = life_time + 1;
    let (longer, shorter) = (both_ways.max(ack_delay), both_ways.min(ack_delay));
    // The sum of two powers of two, rounded up to one unless the smaller hardly counts.
    let sum = if shorter + 1 >= longer { longer + 1 } else { longer };
    sum.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_covers_the_way_there_and_back_and_the_answer() {
        // Packets that live 4.096 us * 2^16, answered after 2^15, as on RoCE.
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(17, 16), 18);
        assert_eq!(ack_timeout(18, 16), 19);
        assert_eq!(ack_timeout(20, 16), 20);
        assert_eq!(ack_timeout(0, 31), 31);
        assert_eq!(ack_timeout(31, 30), 31);
    }
}
