//! On-demand paging: advice about ranges that will be accessed (`ibv_advise_mr(3)`).

use bitflags::bitflags;
use irdma_mem::{Access, GrantError, Sge};
use irdma_transport::{ErrorKind, Result, VerbsError};

use super::Pd;
use crate::log::Logged;
use crate::profile::Features;

/// What will be done with the ranges, numbered as `enum ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Advice {
    /// They will be read.
    Prefetch = 0,
    /// They will be written.
    PrefetchWrite = 1,
    /// They will be accessed; pages that are not there stay away.
    PrefetchNoFault = 2,
}

bitflags! {
    /// How advice is taken, with the values of `enum ib_uverbs_advise_mr_flag`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AdviseFlags: u32 {
        /// Return when it is done. It always is.
        const FLUSH = 1;
    }
}

impl Pd {
    /// Says that ranges of regions registered with [`Access::ON_DEMAND`] will be accessed. Their
    /// pages are brought in; nothing else is gained, as no page is ever translated ahead.
    ///
    /// EOPNOTSUPP where the profile has no such regions; EINVAL for an empty list, unknown flags,
    /// a region that is not on demand, or the key of a window; EFAULT for an unknown key, a range
    /// outside its region, or pages that are not mapped; EPERM for a region of another protection
    /// domain, or not writable with [`Advice::PrefetchWrite`].
    pub fn advise_mr(&self, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.try_advise_mr(advice, flags, sges).logged("advise_mr")
    }

    fn try_advise_mr(&self, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.0.context.check()?;
        self.0.context.device.profile().check(Features::ON_DEMAND)?;
        if sges.is_empty() || !AdviseFlags::all().contains(flags) {
            return Err(VerbsError::invalid(format!("{} ranges, {flags:?}", sges.len())));
        }
        sges.iter().enumerate().try_for_each(|(i, sge)| self.prefetch(advice, i, sge))
    }

    fn prefetch(&self, advice: Advice, index: usize, sge: &Sge) -> Result<()> {
        let mem = &self.0.context.engine.mem;
        let Sge { addr, length, lkey } = *sge;
        let need = match advice {
            Advice::PrefetchWrite => Access::LOCAL_WRITE,
            Advice::Prefetch | Advice::PrefetchNoFault => Access::empty(),
        };
        // No page is looked for in a range of no bytes.
        let granted = mem.grant(lkey, addr, length.into(), need, self.0.id).map(drop);
        let refused = match granted {
            Err(GrantError::Unmapped { .. }) if advice == Advice::PrefetchNoFault => None,
            other => other.err(),
        };
        if let Some(error) = refused {
            let text = format!("sge[{index}] lkey {lkey:#010x}: {error}");
            return Err(VerbsError::new(kind(&error), text));
        }
        let on_demand = |access: Access| access.contains(Access::ON_DEMAND);
        if !mem.query(lkey).is_some_and(|info| on_demand(info.access)) {
            return Err(VerbsError::invalid(format!(
                "sge[{index}] lkey {lkey:#010x}: the region was not registered with ON_DEMAND"
            )));
        }
        Ok(())
    }
}

fn kind(error: &GrantError) -> ErrorKind {
    match error {
        GrantError::ForeignPd | GrantError::Access { .. } => ErrorKind::NotPermitted,
        GrantError::Window | GrantError::Invalid | GrantError::ForeignQp => ErrorKind::Invalid,
        GrantError::UnknownKey | GrantError::Bounds { .. } | GrantError::Unmapped { .. } => {
            ErrorKind::Fault
        }
    }
}
