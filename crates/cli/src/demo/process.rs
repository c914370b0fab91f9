//! What a process of the demo does: carries out orders until there are no more.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use irdma::{Context, Gid, Pd, VerbsError};
use irdma_net::netdev;

use super::exchange::Side;
use super::image::Mismatch;
use super::order::{Opened, Order, Reply, Round};
use super::session::Session;
use crate::pick::{self, NoDevice};

/// Why an order was not carried out.
#[derive(Debug)]
pub enum Halt {
    /// Messages of an unreliable service are missing; so many arrived.
    Lost(usize),
    /// A byte is wrong.
    Mismatch(Mismatch),
    /// There is no device.
    NoDevice(String),
    /// Anything else.
    Failed(String),
}

impl From<VerbsError> for Halt {
    fn from(error: VerbsError) -> Self {
        Halt::Failed(error.to_string())
    }
}

impl From<NoDevice> for Halt {
    fn from(error: NoDevice) -> Self {
        Halt::NoDevice(error.to_string())
    }
}

impl From<Mismatch> for Halt {
    fn from(mismatch: Mismatch) -> Self {
        Halt::Mismatch(mismatch)
    }
}

impl From<Halt> for Reply {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Lost(arrived) => Reply::Lost { arrived },
            Halt::Mismatch(mismatch) => Reply::Mismatch(mismatch),
            Halt::NoDevice(text) => Reply::NoDevice(text),
            Halt::Failed(text) => Reply::Failed(text),
        }
    }
}

/// An open device.
pub struct Station {
    pub context: Context,
    pub pd: Pd,
    pub gid: Gid,
    pub gid_index: u8,
}

/// Takes orders from standard input, which must be a socket, and replies there.
pub fn serve() -> ExitCode {
    match take_orders() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("irdma demo-process: {error}; it is started by `irdma demo`");
            ExitCode::FAILURE
        }
    }
}

fn take_orders() -> io::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.peer_addr()?;
    let mut replies = stream.try_clone()?;
    let mut process = Process::default();
    for line in BufReader::new(stream).lines() {
        let order = serde_json::from_str(&line?)?;
        let reply = process.carry_out(order).unwrap_or_else(Reply::from);
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        replies.write_all(&text)?;
    }
    Ok(())
}

#[derive(Default)]
struct Process {
    // Dropped before the station that it stands on.
    session: Option<Session>,
    station: Option<Station>,
}

impl Process {
    fn carry_out(&mut self, order: Order) -> Result<Reply, Halt> {
        match order {
            Order::Open { device } => return self.open(device.as_deref()).map(Reply::Opened),
            Order::Create { service, area_len } => {
                self.session = None;
                let session = Session::create(self.station()?, service, area_len)?;
                let remote = session.remote();
                self.session = Some(session);
                return Ok(Reply::Created(remote));
            }
            Order::Connect(remote) => {
                let station = self.station.as_ref().ok_or_else(out_of_order)?;
                self.session.as_mut().ok_or_else(out_of_order)?.connect(&station.pd, remote)?;
            }
            Order::Attach(group) => self.session()?.attach(Gid(group))?,
            Order::Detach(group) => self.session()?.detach(Gid(group))?,
            Order::Prepare(round) => self.side(round)?.prepare()?,
            Order::Run(round) => return self.side(round)?.run().map(Reply::Ran),
            Order::Check(round) => self.side(round)?.check()?,
            Order::CountArrivals => {
                return Side::count_arrivals(self.session()?).map(Reply::Arrivals);
            }
        }
        Ok(Reply::Done)
    }

    fn open(&mut self, name: Option<&str>) -> Result<Opened, Halt> {
        let device = pick::pick(name)?;
        let (gid_index, gid) = pick::gid(&device)?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let opened = Opened {
            device: device.name().to_string(),
            netdev: device.get_netdev().to_string(),
            address: gid.to_ip(),
            mtu: device.query_port(irdma::PORT)?.active_mtu as usize,
            no_multicast: no_multicast(device.netdev_index(), gid),
        };
        self.station = Some(Station { context, pd, gid, gid_index });
        Ok(opened)
    }

    fn station(&self) -> Result<&Station, Halt> {
        self.station.as_ref().ok_or_else(out_of_order)
    }

    fn session(&self) -> Result<&Session, Halt> {
        self.session.as_ref().ok_or_else(out_of_order)
    }

    fn side(&self, round: Round) -> Result<Side<'_>, Halt> {
        Ok(Side::new(self.session()?, round))
    }
}

fn out_of_order() -> Halt {
    Halt::Failed("an order came before those that it builds on".into())
}

/// Why the interface carries no multicast between processes of this host, if so.
fn no_multicast(ifindex: u32, gid: Gid) -> Option<String> {
    let interfaces = netdev::list().ok()?;
    let interface = interfaces.into_iter().find(|interface| interface.index == ifindex)?;
    if interface.loopback && !gid.is_v4() {
        return Some(format!("{} has no route to IPv6 groups", interface.name));
    }
    let carries = interface.loopback || interface.multicast;
    (!carries).then(|| format!("{} has multicast switched off", interface.name))
}
