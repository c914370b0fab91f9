//! Queue pairs: the object, its creation and its queries.

mod attr;
mod modify;

pub use attr::{AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};
pub use modify::{Transition, transition};
