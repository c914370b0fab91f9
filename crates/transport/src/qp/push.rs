//! The page for small inline data (seed row 6): memory that a queue pair keeps, so that posting
//! needs none.

use irdma_wire::Qpn;

use super::Qp;
use crate::endpoint::Endpoint;
use crate::wqe::{Wqe, WqeData};
use crate::wr::SendData;

/// The longest inline data that fits the page.
pub const PUSH_PAGE_LEN: usize = 256;

/// The page; absent until it is asked for, and while a request holds it.
#[derive(Debug, Default)]
pub(crate) struct PushPage(Option<Box<[u8; PUSH_PAGE_LEN]>>);

impl PushPage {
    /// Gives the queue pair its page.
    pub(crate) fn alloc(&mut self) {
        self.0 = Some(Box::new([0; PUSH_PAGE_LEN]));
    }
}

impl Endpoint {
    /// Gives a queue pair a page for small inline data; never an error, for without it everything
    /// works all the same.
    pub fn alloc_push_page(&mut self, qpn: Qpn) {
        if let Ok(qp) = self.qps.find(qpn) {
            qp.push.alloc();
        }
    }
}

impl Qp {
    /// Puts the inline data of a request into the page: only of one that finds the queue empty, so
    /// that it leaves at once, and otherwise as if there were no page.
    pub(crate) fn push_data(&mut self, data: &SendData<'_>) -> Option<WqeData> {
        let SendData::Inline(bytes) = data else { return None };
        if bytes.len() > PUSH_PAGE_LEN || !self.sq.is_empty() {
            return None;
        }
        let mut page = self.push.0.take()?;
        page[..bytes.len()].copy_from_slice(bytes);
        Some(WqeData::Pushed(page))
    }

    /// Takes the page back from a request that is done.
    pub(crate) fn reclaim_page(&mut self, wqe: Wqe) {
        if let WqeData::Pushed(page) = wqe.data {
            self.push.0 = Some(page);
        }
    }
}
