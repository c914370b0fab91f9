//! Requests that a program builds between `ibv_wr_start` and `ibv_wr_complete`, posted together or
//! not at all.

use std::ops::Range;

use irdma::{FULL, SendData, SendFlags, SendOp, SendWr, Sge, UdDest};

use crate::boundary::{Errno, Kept};
use crate::mw::Mw;

/// The requests of one batch. The lists keep their memory for the next.
#[derive(Default)]
pub struct Batch {
    wrs: Vec<Building>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first refusal: nothing of the batch is posted.
    error: Option<Errno>,
}

struct Building {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    ud: Option<UdDest>,
    /// The peer's shared queue, of an extended connection.
    srqn: u32,
    window: Option<Kept<Mw>>,
}

/// Where the data of a request lies in the lists of the batch.
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// Why data or an address was refused.
const NO_REQUEST: &str = "there is no request that it could belong to";
const TOO_MUCH_INLINE: &str = "more inline data than any queue pair takes";

impl Batch {
    /// Forgets the batch before.
    pub fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    /// Notes a refusal; the first is what the program is told.
    pub fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    /// Begins a request.
    pub fn begin(&mut self, wr_id: u64, op: SendOp, flags: SendFlags) {
        let data = Data::Sges(0..0);
        self.wrs.push(Building { wr_id, op, flags, data, ud: None, srqn: 0, window: None });
    }

    /// Names the window that the last request binds: posted, it has a new key.
    pub fn set_window(&mut self, window: Kept<Mw>) {
        if let Some(wr) = self.wrs.last_mut() {
            wr.window = Some(window);
        }
    }

    /// Gives the last request a scatter/gather list, in place of data that it had.
    pub fn set_sges(&mut self, sges: impl Iterator<Item = Sge>) -> Result<(), &'static str> {
        let wr = self.wrs.last_mut().ok_or(NO_REQUEST)?;
        let start = self.sges.len();
        self.sges.extend(sges);
        wr.data = Data::Sges(start..self.sges.len());
        Ok(())
    }

    /// Gives the last request inline data, in place of data that it had, from buffers that `read`
    /// copies.
    pub fn set_inline<T: Copy>(
        &mut self,
        buffers: impl Iterator<Item = (T, usize)>,
        mut read: impl FnMut(T, &mut [u8]),
    ) -> Result<(), &'static str> {
        let wr = self.wrs.last_mut().ok_or(NO_REQUEST)?;
        let start = self.inline.len();
        let most = start + FULL.max_inline_data as usize;
        for (buffer, len) in buffers {
            let at = self.inline.len();
            let end = at.checked_add(len).filter(|end| *end <= most).ok_or(TOO_MUCH_INLINE)?;
            self.inline.resize(end, 0);
            read(buffer, &mut self.inline[at..]);
        }
        wr.data = Data::Inline(start..self.inline.len());
        Ok(())
    }

    /// Says where the last request, a datagram, goes.
    pub fn set_ud(&mut self, ud: UdDest) -> Result<(), &'static str> {
        self.wrs.last_mut().ok_or(NO_REQUEST)?.ud = Some(ud);
        Ok(())
    }

    /// Says which shared queue of the peer's the last request is for.
    pub fn set_srqn(&mut self, srqn: u32) -> Result<(), &'static str> {
        self.wrs.last_mut().ok_or(NO_REQUEST)?.srqn = srqn;
        Ok(())
    }

    /// Posts all requests, or says why none was.
    pub fn post(&self, qp: &irdma::Qp) -> Result<(), Errno> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut posting = qp.start_post()?;
        if self.wrs.len() > 1 {
            for (ahead, wr) in self.wrs.iter().enumerate() {
                posting.check_post_send(&self.request(wr), ahead)?;
            }
        }
        for wr in &self.wrs {
            posting.post_xrc_send(&self.request(wr), wr.srqn)?;
            if let (Some(window), SendOp::BindMw(bind)) = (&wr.window, wr.op) {
                window.set_rkey(bind.new_rkey);
            }
        }
        Ok(())
    }

    fn request(&self, wr: &Building) -> SendWr<'_> {
        let data = match &wr.data {
            Data::Sges(range) => SendData::Sges(&self.sges[range.clone()]),
            Data::Inline(range) => SendData::Inline(&self.inline[range.clone()]),
        };
        SendWr { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, data, ud: wr.ud.clone() }
    }
}
