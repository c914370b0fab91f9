//! One side of a round: prepare the memory, move the messages, compare every byte.

use std::time::{Duration, Instant};

use irdma::{Cq, SendOp, Wc, WcStatus};
use irdma_net::clock;

use super::atomics::{self, Step};
use super::image;
use super::order::{Pace, Role, Round, Times};
use super::plan::{Operation, Service};
use super::process::Halt;
use super::session::{QUEUE_LEN, Session};

/// How long a reliable service may be silent, which has retries of its own.
const RELIABLE_PATIENCE: Duration = Duration::from_secs(8);
/// After so long a silence a datagram is lost.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(700);
/// How long a message that must not arrive is waited for.
const ARRIVAL_TIME: Duration = Duration::from_millis(30);
/// Empty polls in a row before another process gets the processor.
const POLLS_PER_TURN: u32 = 256;

/// A side of a round, with its session.
pub struct Side<'a> {
    session: &'a Session,
    round: Round,
    steps: Vec<Step>,
}

impl<'a> Side<'a> {
    pub fn new(session: &'a Session, round: Round) -> Self {
        let Round { operation, layout, seed, .. } = round;
        let steps = match operation.is_atomic() {
            true => atomics::steps(operation, seed, layout.count),
            false => Vec::new(),
        };
        Side { session, round, steps }
    }

    /// Fills both areas and posts the receive requests of the round.
    pub fn prepare(&self) -> Result<(), Halt> {
        let Round { role, layout, seed, .. } = self.round;
        self.session.sending(layout).fill(|i, out| image::message(seed, i, out));
        let word = !self.steps.is_empty() && role == Role::Target;
        self.session.receiving(layout).fill(|i, out| match word {
            true => image::message(seed, i, out),
            false => image::blank(seed, i, out),
        });
        if self.receives() {
            let area = self.session.receiving(layout);
            let area = (self.round.operation == Operation::Send).then_some(&area);
            (0..layout.count).try_for_each(|index| self.session.post_recv(area, index))?;
        }
        Ok(())
    }

    /// Moves the messages.
    pub fn run(&self) -> Result<Times, Halt> {
        match (self.round.role, self.round.pace) {
            (Role::Initiator, Pace::OneByOne) => self.initiate_one_by_one(),
            (Role::Initiator, Pace::Streaming) => self.initiate_streaming(),
            (Role::Target, Pace::OneByOne) => self.echo(),
            (Role::Target, Pace::Streaming) | (Role::Listener, _) => self.collect(),
        }
    }

    /// Compares all that the round moved, and all around it.
    pub fn check(&self) -> Result<(), Halt> {
        let Round { role, operation, layout, seed, .. } = self.round;
        self.session.sending(layout).check(false, |i, out| image::message(seed, i, out))?;
        let grh = operation == Operation::Send && self.session.grh_len() > 0;
        let arrives = match operation {
            Operation::Read | Operation::FetchAdd | Operation::CompareSwap => {
                role == Role::Initiator
            }
            _ => role != Role::Initiator || self.receives(),
        };
        self.session.receiving(layout).check(grh, |i, out| match &self.steps[..] {
            [] if arrives => image::message(seed, i, out),
            [] => image::blank(seed, i, out),
            steps if arrives => out.copy_from_slice(&steps[i].original.to_ne_bytes()),
            [.., last] if i == 0 => out.copy_from_slice(&last.result.to_ne_bytes()),
            _ => image::message(seed, i, out),
        })?;
        Ok(())
    }

    /// Completions that arrive though nothing is expected.
    pub fn count_arrivals(session: &Session) -> Result<usize, Halt> {
        let end = Instant::now() + ARRIVAL_TIME;
        let mut wcs = [Wc::default(); 16];
        let mut count = 0;
        while Instant::now() < end {
            count += session.recv_cq.poll_cq(&mut wcs)?;
            std::thread::yield_now();
        }
        Ok(count)
    }

    /// Whether receive requests are posted on this side.
    fn receives(&self) -> bool {
        let answered = self.round.pace == Pace::OneByOne;
        self.round.operation.is_two_sided() && (self.round.role != Role::Initiator || answered)
    }

    fn initiate_one_by_one(&self) -> Result<Times, Halt> {
        let mut times = Times { start_ns: clock::monotonic_ns(), ..Times::default() };
        for index in 0..self.round.layout.count {
            let start_ns = clock::monotonic_ns();
            self.post(index)?;
            if self.receives() {
                self.expect_arrival(index)?;
            } else {
                self.next(&self.session.send_cq, index)?;
            }
            times.each_ns.push(clock::monotonic_ns() - start_ns);
            if self.receives() {
                self.next(&self.session.send_cq, index)?;
            }
        }
        times.end_ns = clock::monotonic_ns();
        Ok(times)
    }

    fn initiate_streaming(&self) -> Result<Times, Halt> {
        let count = self.round.layout.count;
        let start_ns = clock::monotonic_ns();
        let (mut posted, mut completed) = (0, 0);
        let mut wcs = [Wc::default(); 16];
        while completed < count {
            while posted < count && posted - completed < QUEUE_LEN as usize {
                self.post(posted)?;
                posted += 1;
            }
            let found = self.wait(&self.session.send_cq, &mut wcs, completed)?;
            for wc in &wcs[..found] {
                check_completion(wc, completed)?;
                completed += 1;
            }
        }
        Ok(Times { start_ns, end_ns: clock::monotonic_ns(), each_ns: Vec::new() })
    }

    /// Sends each message that arrives back in kind, from where it was placed.
    fn echo(&self) -> Result<Times, Halt> {
        let receiving = self.session.receiving(self.round.layout);
        for index in 0..self.round.layout.count {
            self.expect_arrival(index)?;
            self.session.post_send(self.request(index)?, &receiving, index)?;
            self.next(&self.session.send_cq, index)?;
        }
        Ok(Times::default())
    }

    fn collect(&self) -> Result<Times, Halt> {
        for index in 0..self.round.layout.count {
            self.expect_arrival(index)?;
        }
        Ok(Times { end_ns: clock::monotonic_ns(), ..Times::default() })
    }

    fn post(&self, index: usize) -> Result<(), Halt> {
        let layout = self.round.layout;
        let area = match self.round.operation {
            Operation::Send | Operation::Write | Operation::WriteImm => {
                self.session.sending(layout)
            }
            _ => self.session.receiving(layout),
        };
        self.session.post_send(self.request(index)?, &area, index)
    }

    fn request(&self, index: usize) -> Result<SendOp, Halt> {
        let Round { operation, layout, .. } = self.round;
        if operation == Operation::Send {
            return Ok(SendOp::Send { imm: None });
        }
        let rkey = self.session.rkey()?;
        let at = |receiving, index| self.session.remote_addr(receiving, layout, index);
        Ok(match operation {
            Operation::Read => SendOp::Read { remote_addr: at(false, index)?, rkey },
            Operation::Write => SendOp::Write { remote_addr: at(true, index)?, rkey, imm: None },
            Operation::WriteImm => {
                let imm = Some((index as u32).to_be_bytes());
                SendOp::Write { remote_addr: at(true, index)?, rkey, imm }
            }
            _ => self.steps[index].request(operation, at(true, 0)?, rkey),
        })
    }

    /// Waits for the receive completion of message `index`.
    fn expect_arrival(&self, index: usize) -> Result<(), Halt> {
        let wc = self.next(&self.session.recv_cq, index)?;
        let Round { operation, layout, .. } = self.round;
        let grh_len = if operation == Operation::Send { self.session.grh_len() } else { 0 };
        if wc.byte_len as usize != grh_len + layout.size {
            let text = format!("message {index}: byte_len {} in its completion", wc.byte_len);
            return Err(Halt::Failed(text));
        }
        if operation == Operation::WriteImm && wc.imm != (index as u32).to_be_bytes() {
            if self.is_reliable() {
                return Err(Halt::Failed(format!("message {index}: immediate {:?}", wc.imm)));
            }
            // A message before this one did not arrive.
            return Err(Halt::Lost(index));
        }
        Ok(())
    }

    /// Waits for the one completion that must come next.
    fn next(&self, cq: &Cq, index: usize) -> Result<Wc, Halt> {
        let mut wc = [Wc::default()];
        self.wait(cq, &mut wc, index)?;
        check_completion(&wc[0], index)?;
        Ok(wc[0])
    }

    /// Polls until there are completions; `done` were seen before.
    fn wait(&self, cq: &Cq, wcs: &mut [Wc], done: usize) -> Result<usize, Halt> {
        let patience = if self.is_reliable() { RELIABLE_PATIENCE } else { DATAGRAM_PATIENCE };
        let mut end = None;
        loop {
            for _ in 0..POLLS_PER_TURN {
                let found = cq.poll_cq(wcs)?;
                if found > 0 {
                    return Ok(found);
                }
            }
            if Instant::now() > *end.get_or_insert_with(|| Instant::now() + patience) {
                return Err(self.silence(done, patience));
            }
            std::thread::yield_now();
        }
    }

    fn silence(&self, done: usize, patience: Duration) -> Halt {
        if !self.is_reliable() {
            return Halt::Lost(done);
        }
        let secs = patience.as_secs();
        Halt::Failed(format!("message {done}: no completion within {secs} s"))
    }

    fn is_reliable(&self) -> bool {
        self.session.service == Service::Rc
    }
}

fn check_completion(wc: &Wc, index: usize) -> Result<(), Halt> {
    if wc.status != WcStatus::Success {
        let text = format!("message {index}: completed with {:?} ({})", wc.status, wc.vendor_err);
        return Err(Halt::Failed(text));
    }
    if wc.wr_id != index as u64 {
        return Err(Halt::Failed(format!("message {index}: completion of request {}", wc.wr_id)));
    }
    Ok(())
}
