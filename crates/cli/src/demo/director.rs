//! Has processes exchange messages, case by case, and keeps what it measures.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Instant;

use irdma::{Gid, Qpn};
use serde::Serialize;

use super::image::Mismatch;
use super::order::{Opened, Order, Pace, Remote, Reply, Role, Round, Times};
use super::plan::{Case, Plan, Service};
use super::worker::Worker;

/// Messages lost by an unreliable service are sent anew, so often.
const TRIES: usize = 4;

/// Why the demo stops.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// A byte is wrong, on this side.
    #[error("{0}: {1}")]
    Mismatch(&'static str, Mismatch),
    /// There is no device to use.
    #[error("{0}")]
    NoDevice(String),
    /// Something else went wrong.
    #[error("{0}")]
    Failed(String),
}

/// A trouble, and what was being done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{trouble}", case.map(|case| format!("{case}: ")).unwrap_or_default())]
pub struct Stopped {
    /// The case, once there was one.
    pub case: Option<Case>,
    /// The trouble.
    pub trouble: Trouble,
}

/// What was measured of a case; every message was compared.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was done.
    pub case: Case,
    /// Median time of a message: half a round trip if the target answers it, else the whole.
    pub latency_ns: u64,
    /// Median rate of the rounds.
    pub bytes_per_s: f64,
    /// Messages compared.
    pub messages: u64,
    /// Messages that an unreliable service lost, and that were sent anew.
    pub lost: u64,
}

/// Who received what was sent to a group.
#[derive(Clone, Debug, Serialize)]
pub struct Membership {
    /// The group.
    pub group: IpAddr,
    /// Datagrams sent, each time.
    pub sent: usize,
    /// Arrived at the member that had left.
    pub after_leaving: usize,
    /// Arrived meanwhile at the one that had stayed.
    pub while_staying: usize,
    /// Arrived at either after both had left.
    pub after_all_left: usize,
}

/// The processes, each with the device open.
pub struct Director {
    /// What they opened.
    pub opened: Opened,
    initiator: Worker,
    target: Worker,
    listener: Worker,
    group: Gid,
    seed: u64,
}

impl Director {
    /// Starts the processes; the initiator's packets go to `capture`.
    pub fn start(device: Option<&str>, capture: Option<&Path>) -> Result<Self, Trouble> {
        let start = |name, capture| {
            Worker::start(name, capture)
                .map_err(|error| Trouble::Failed(format!("the {name} does not start: {error}")))
        };
        let mut initiator = start("initiator", capture)?;
        let mut target = start("target", None)?;
        let mut listener = start("listener", None)?;
        let order = Order::Open { device: device.map(str::to_string) };
        let opened = opened(initiator.obey(&order)?)?;
        opened_same(&mut target, &order)?;
        opened_same(&mut listener, &order)?;
        let group = group(opened.address);
        Ok(Director { opened, initiator, target, listener, group, seed: 0 })
    }

    /// Runs all cases of a plan that the device can do; tells each before it starts.
    pub fn run(
        &mut self,
        plan: &Plan,
        mut starts: impl FnMut(&Case),
    ) -> Result<Vec<Measured>, Stopped> {
        let mut results = Vec::new();
        let mut service = None;
        let no_multicast = self.opened.no_multicast.is_some();
        let cases = plan.cases.iter();
        for case in cases.filter(|case| case.kind.service != Service::Multicast || !no_multicast) {
            starts(case);
            let stopped = |trouble| Stopped { case: Some(*case), trouble };
            if service.replace(case.kind.service) != Some(case.kind.service) {
                self.connect(plan, case.kind.service).map_err(stopped)?;
            }
            results.push(self.measure(plan, *case).map_err(stopped)?);
        }
        Ok(results)
    }

    /// Has one of two members leave the group, and then the other.
    pub fn membership(&mut self, plan: &Plan) -> Result<Option<Membership>, Stopped> {
        if self.opened.no_multicast.is_some() {
            return Ok(None);
        }
        let to_group = |case: &&Case| case.kind.service == Service::Multicast;
        let Some(&case) = plan.cases.iter().find(to_group) else { return Ok(None) };
        let stopped = |trouble| Stopped { case: Some(case), trouble };
        for _ in 1..TRIES {
            if let Some(found) = self.leave_group(plan, case).map_err(stopped)? {
                return Ok(Some(found));
            }
        }
        Err(stopped(too_much_lost()))
    }

    /// `None` if the member that stays did not receive everything.
    fn leave_group(&mut self, plan: &Plan, case: Case) -> Result<Option<Membership>, Trouble> {
        self.connect(plan, Service::Multicast)?;
        let round = self.round(plan, case, Pace::Streaming);
        let listener = Round { role: Role::Listener, ..round };
        let run = Order::Run(Round { role: Role::Initiator, ..round });
        self.all(round, Order::Prepare)?;

        done(self.target.obey(&Order::Detach(self.group.0))?)?;
        self.listener.send(&Order::Run(listener))?;
        ran(self.initiator.obey(&run)?)?;
        if let Reply::Lost { .. } = self.listener.reply()? {
            return Ok(None);
        }
        done(self.listener.obey(&Order::Check(listener))?)?;
        let after_leaving = arrivals(&mut self.target)?;

        done(self.listener.obey(&Order::Prepare(listener))?)?;
        done(self.listener.obey(&Order::Detach(self.group.0))?)?;
        ran(self.initiator.obey(&run)?)?;
        let after_all_left = arrivals(&mut self.target)? + arrivals(&mut self.listener)?;
        let sent = round.layout.count;
        let group = self.group.to_ip();
        if after_leaving + after_all_left > 0 {
            return Err(Trouble::Failed(format!(
                "{after_leaving} datagrams to {group} arrived at a member that had left, and \
                 {after_all_left} after all had left"
            )));
        }
        let while_staying = sent;
        Ok(Some(Membership { group, sent, after_leaving, while_staying, after_all_left }))
    }

    /// New queue pairs of a service, connected.
    fn connect(&mut self, plan: &Plan, service: Service) -> Result<(), Trouble> {
        let area_len = plan.area_len(service);
        let order = Order::Create { service, area_len };
        let initiator = created(self.initiator.obey(&order)?)?;
        let target = created(self.target.obey(&order)?)?;
        done(self.target.obey(&Order::Connect(initiator))?)?;
        if service != Service::Multicast {
            return done(self.initiator.obey(&Order::Connect(target))?);
        }
        created(self.listener.obey(&order)?)?;
        done(self.listener.obey(&Order::Connect(initiator))?)?;
        let everyone = Remote { gid: self.group.0, qpn: Qpn::MULTICAST.get(), ..target };
        done(self.initiator.obey(&Order::Connect(everyone))?)?;
        done(self.target.obey(&Order::Attach(self.group.0))?)?;
        done(self.listener.obey(&Order::Attach(self.group.0))?)
    }

    fn measure(&mut self, plan: &Plan, case: Case) -> Result<Measured, Trouble> {
        let mut lost = 0;
        let mut each_ns = Vec::new();
        let one_by_one = self.repeat(plan, case, Pace::OneByOne, &mut lost)?;
        let mut messages = 0;
        for times in one_by_one {
            messages += times.each_ns.len() as u64;
            each_ns.extend(times.each_ns);
        }
        let streamed = self.repeat(plan, case, Pace::Streaming, &mut lost)?;
        let layout = plan.layout(case);
        messages += (streamed.len() * layout.count) as u64;
        let bytes = (layout.count * case.size) as f64;
        let rate = |times: &Times| bytes * 1e9 / (times.end_ns - times.start_ns).max(1) as f64;
        let mut rates: Vec<f64> = streamed.iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        each_ns.sort_unstable();
        let trips = if case.kind.operation.is_two_sided() { 2 } else { 1 };
        Ok(Measured {
            case,
            latency_ns: each_ns[each_ns.len() / 2] / trips,
            bytes_per_s: rates[rates.len() / 2],
            messages,
            lost,
        })
    }

    /// Rounds of a case, until there are enough and its time is over.
    fn repeat(
        &mut self,
        plan: &Plan,
        case: Case,
        pace: Pace,
        lost: &mut u64,
    ) -> Result<Vec<Times>, Trouble> {
        let mut rounds = Vec::new();
        let mut failures = 0;
        let least = if pace == Pace::Streaming { plan.rounds } else { 1 };
        let start = Instant::now();
        while rounds.len() < least || start.elapsed() < plan.time {
            let round = self.round(plan, case, pace);
            match self.exchange(round)? {
                Ok(times) => rounds.push(times),
                Err(missing) => {
                    *lost += missing as u64;
                    failures += 1;
                    if failures == TRIES {
                        return Err(too_much_lost());
                    }
                    // Requests of the broken round still wait in the old queue pairs.
                    self.connect(plan, case.kind.service)?;
                }
            }
        }
        Ok(rounds)
    }

    /// One round, compared; the inner error is how many messages were lost.
    fn exchange(&mut self, round: Round) -> Result<Result<Times, usize>, Trouble> {
        let target = Order::Run(Round { role: Role::Target, ..round });
        let listener = Order::Run(Round { role: Role::Listener, ..round });
        self.all(round, Order::Prepare)?;
        if round.operation.is_two_sided() {
            self.target.send(&target)?;
        }
        if round.listened {
            self.listener.send(&listener)?;
        }
        let ours = self.initiator.obey(&Order::Run(Round { role: Role::Initiator, ..round }));
        let theirs = round.operation.is_two_sided().then(|| self.target.reply());
        let heard = round.listened.then(|| self.listener.reply());
        let replies = all_well([Some(ours), theirs, heard])?;
        let mut missing = 0;
        let mut times = Times::default();
        for reply in replies {
            match reply {
                Reply::Ran(ran) => {
                    times.start_ns = times.start_ns.max(ran.start_ns);
                    times.end_ns = times.end_ns.max(ran.end_ns);
                    times.each_ns.extend(ran.each_ns);
                }
                Reply::Lost { arrived } => missing = missing.max(round.layout.count - arrived),
                other => return Err(unexpected(&other)),
            }
        }
        if missing > 0 {
            return Ok(Err(missing));
        }
        self.all(round, Order::Check)?;
        Ok(Ok(times))
    }

    /// Has all sides of a round do the same, at the same time.
    fn all(&mut self, round: Round, order: fn(Round) -> Order) -> Result<(), Trouble> {
        self.initiator.send(&order(Round { role: Role::Initiator, ..round }))?;
        self.target.send(&order(Round { role: Role::Target, ..round }))?;
        if round.listened {
            self.listener.send(&order(Round { role: Role::Listener, ..round }))?;
        }
        let replies = [self.target.reply(), self.initiator.reply()];
        let heard = round.listened.then(|| self.listener.reply());
        replies.into_iter().chain(heard).try_for_each(|reply| done(reply?))
    }

    fn round(&mut self, plan: &Plan, case: Case, pace: Pace) -> Round {
        self.seed += 1;
        Round {
            role: Role::Initiator,
            operation: case.kind.operation,
            listened: case.kind.service == Service::Multicast,
            layout: plan.layout(case),
            pace,
            seed: self.seed,
        }
    }
}

/// The replies, or all that went wrong: the failure of one side often is another's silence.
fn all_well(
    replies: impl IntoIterator<Item = Option<Result<Reply, Trouble>>>,
) -> Result<Vec<Reply>, Trouble> {
    let (well, wrong): (Vec<_>, Vec<_>) = replies.into_iter().flatten().partition(Result::is_ok);
    let troubles: Vec<String> =
        wrong.into_iter().filter_map(Result::err).map(|trouble| trouble.to_string()).collect();
    match troubles.is_empty() {
        true => Ok(well.into_iter().flatten().collect()),
        false => Err(Trouble::Failed(troubles.join("; "))),
    }
}

/// A group that other programs of this machine are unlikely to use, for this run.
fn group(address: IpAddr) -> Gid {
    let [.., a, b, c] = std::process::id().to_be_bytes();
    Gid::from(match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::new(239, 255 ^ a & 63, b, c)),
        IpAddr::V6(_) => {
            let (high, low) = (u16::from(a), u16::from_be_bytes([b, c]));
            IpAddr::from(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0x1d3a, high, low))
        }
    })
}

fn opened_same(worker: &mut Worker, order: &Order) -> Result<(), Trouble> {
    opened(worker.obey(order)?).map(drop)
}

fn opened(reply: Reply) -> Result<Opened, Trouble> {
    match reply {
        Reply::Opened(opened) => Ok(opened),
        other => Err(unexpected(&other)),
    }
}

fn created(reply: Reply) -> Result<Remote, Trouble> {
    match reply {
        Reply::Created(remote) => Ok(remote),
        other => Err(unexpected(&other)),
    }
}

fn done(reply: Reply) -> Result<(), Trouble> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn ran(reply: Reply) -> Result<(), Trouble> {
    match reply {
        Reply::Ran(_) => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn arrivals(worker: &mut Worker) -> Result<usize, Trouble> {
    match worker.obey(&Order::CountArrivals)? {
        Reply::Arrivals(count) => Ok(count),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> Trouble {
    Trouble::Failed(format!("a process answers out of order: {reply:?}"))
}

fn too_much_lost() -> Trouble {
    let text = format!(
        "an unreliable service lost messages {TRIES} times in a row; is IRDMA_FAULTS set? else \
         raise net.core.rmem_max (8 MiB is enough)"
    );
    Trouble::Failed(text)
}
