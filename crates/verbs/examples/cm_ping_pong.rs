//! Two ends find each other by IP address and port, as sockets do, and send one message to and
//! fro: the connection manager in place of a TCP connection.
//!
//!     cargo run --example cm_ping_pong              both ends in this process
//!     cargo run --example cm_ping_pong listen       a server; on another host or terminal:
//!     cargo run --example cm_ping_pong 192.0.2.1    its client

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::Outcome;
use irdma::cm::{ConnParam, Event, EventChannel, EventKind, Id, MAX_RESOURCES, PortSpace};
use irdma::{
    Buffer, Cq, Device, Mr, Qp, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    WcOpcode,
};

const PORT: u16 = 7471;
const ROUNDS: usize = 1000;
const LEN: usize = 64;
/// The buffer: what is sent, then what is received.
const OUT: usize = 0;
const IN: usize = LEN;
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Outcome {
    match std::env::args().nth(1).as_deref() {
        None => {
            let listener = Listener::new(0)?;
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()?));
            let server = thread::spawn(move || serve(&listener));
            client(addr)?;
            server.join().map_err(|_| "the server panicked")?
        }
        Some("listen") => serve(&Listener::new(PORT)?),
        Some(address) => client(SocketAddr::new(address.parse()?, PORT)),
    }
}

/// A queue pair that the connection manager connects.
struct Player {
    qp: Qp,
    cq: Cq,
    buffer: Arc<Buffer>,
    mr: Mr,
}

impl Player {
    /// On the device that the connection leads over.
    fn new(device: &Device) -> Outcome<Player> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(128, None, 0)?;
        let buffer = Arc::new(Buffer::zeroed(2 * LEN));
        let mr = pd.reg_buffer(&buffer, 0..2 * LEN, common::ALL)?;
        let qp = common::create_qp(&pd, &cq, None, QpType::Rc)?;
        Ok(Player { qp, cq, buffer, mr })
    }

    /// Moves the queue pair on, as the identifier says; receives may be posted from INIT on.
    fn advance(&self, id: &Id, state: QpState) -> Outcome {
        let (attr, mask) = id.init_qp_attr(state)?;
        Ok(self.qp.modify_qp(&attr, mask)?)
    }

    fn offer(&self) -> ConnParam<'static> {
        ConnParam {
            responder_resources: MAX_RESOURCES,
            initiator_depth: MAX_RESOURCES,
            retry_count: 7,
            rnr_retry_count: 7,
            qpn: self.qp.qpn(),
            ..ConnParam::default()
        }
    }

    fn part(&self, offset: usize) -> [Sge; 1] {
        let addr = self.buffer.addr() + offset as u64;
        [Sge { addr, length: LEN as u32, lkey: self.mr.lkey() }]
    }

    fn post_recv(&self) -> Outcome {
        Ok(self.qp.post_recv(&RecvWr { wr_id: IN as u64, sges: &self.part(IN) })?)
    }

    fn send(&self, ball: &[u8; LEN]) -> Outcome {
        self.buffer.write(OUT, ball);
        let sges = self.part(OUT);
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
        let data = SendData::Sges(&sges);
        Ok(self.qp.post_send(&SendWr { wr_id: OUT as u64, op, flags, data, ud: None })?)
    }

    /// Takes completions until one is of a receive request.
    fn receive(&self) -> Outcome<[u8; LEN]> {
        while common::completion(&self.cq)?.opcode != WcOpcode::Recv {}
        let mut ball = [0; LEN];
        self.buffer.read(IN, &mut ball);
        Ok(ball)
    }
}

/// What calls begin, events end.
fn await_event(channel: &EventChannel, kind: EventKind) -> Outcome<Event> {
    let event = channel.get_cm_event()?;
    match event.kind() == kind {
        true => Ok(event),
        false => Err(format!("{:?}, status {}", event.kind(), event.status()).into()),
    }
}

struct Listener {
    channel: EventChannel,
    id: Id,
}

impl Listener {
    fn new(port: u16) -> Outcome<Listener> {
        let channel = EventChannel::create_event_channel()?;
        let id = Id::create(Some(&channel), PortSpace::Tcp)?;
        id.bind_addr((IpAddr::from(Ipv4Addr::UNSPECIFIED), port).into())?;
        id.listen(1)?;
        Ok(Listener { channel, id })
    }

    fn port(&self) -> Outcome<u16> {
        Ok(self.id.local_addr().ok_or("not bound")?.port())
    }
}

fn serve(listener: &Listener) -> Outcome {
    let mut request = await_event(&listener.channel, EventKind::ConnectRequest)?;
    let id = request.take_id().ok_or("no peer")?;
    let player = Player::new(&id.device().ok_or("no device")?)?;
    player.advance(&id, QpState::Init)?;
    // Before the peer can send: a message that finds no receive request is sent again later.
    player.post_recv()?;
    player.advance(&id, QpState::Rtr)?;
    player.advance(&id, QpState::Rts)?;
    id.accept(&player.offer())?;
    await_event(&listener.channel, EventKind::Established)?;
    for _ in 0..ROUNDS {
        let ball = player.receive()?;
        player.post_recv()?;
        player.send(&ball.map(|byte| byte.wrapping_add(1)))?;
    }
    await_event(&listener.channel, EventKind::Disconnected)?;
    Ok(id.disconnect()?)
}

fn client(server: SocketAddr) -> Outcome {
    let channel = EventChannel::create_event_channel()?;
    let id = Id::create(Some(&channel), PortSpace::Tcp)?;
    id.resolve_addr(None, server, PATIENCE)?;
    await_event(&channel, EventKind::AddrResolved)?;
    id.resolve_route(PATIENCE)?;
    await_event(&channel, EventKind::RouteResolved)?;
    let player = Player::new(&id.device().ok_or("no device")?)?;
    id.connect(&player.offer())?;
    await_event(&channel, EventKind::ConnectResponse)?;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        player.advance(&id, state)?;
    }
    id.establish()?;
    play(&player)?;
    id.disconnect()?;
    await_event(&channel, EventKind::Disconnected)?;
    Ok(())
}

fn play(player: &Player) -> Outcome {
    let start = Instant::now();
    for round in 0..ROUNDS {
        let ball = [round as u8; LEN];
        player.post_recv()?;
        player.send(&ball)?;
        if player.receive()? != ball.map(|byte| byte.wrapping_add(1)) {
            return Err(format!("round {round}: the answer is wrong").into());
        }
    }
    let each = start.elapsed() / ROUNDS as u32;
    println!("connected by address; {ROUNDS} round trips of {LEN} bytes, {each:?} each");
    Ok(())
}
