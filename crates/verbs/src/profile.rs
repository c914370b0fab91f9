//! Profiles: which device is imitated, what it offers, and how it sizes its queues.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use irdma_mem::Access;
use irdma_transport::{QpCap, QpType, Result, SrqAttr, VerbsError};

use crate::limits::{FULL, GEN2, GEN3, Limits};
use crate::mode::Mode;

/// The device whose limits, refusals and sizes a process meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As the E810 family: no atomics, no shared receive queues, no windows.
    Gen2,
    /// As the IPU generation: atomics, shared receive queues and windows.
    Gen3,
    /// Everything that software can do.
    #[default]
    Full,
}

bitflags! {
    /// What some devices offer and others refuse.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        /// Unreliable connections.
        const UC = 1;
        /// Shared receive queues.
        const SRQ = 1 << 1;
        /// 8-byte compare-and-swap and fetch-and-add.
        const ATOMICS = 1 << 2;
        /// Memory windows.
        const WINDOWS = 1 << 3;
        /// Flags at the creation of queue pairs.
        const CREATE_FLAGS = 1 << 4;
        /// Extended reliable connections.
        const XRC = 1 << 5;
        /// ATOMIC WRITE and FLUSH.
        const PERSISTENCE = 1 << 6;
        /// Device memory.
        const DEVICE_MEMORY = 1 << 7;
        /// Regions whose memory need not be there: on demand, of all addresses, of none (null).
        const ON_DEMAND = 1 << 8;
        /// Queue pairs that send at a rate.
        const RATE_LIMIT = 1 << 9;
    }
}

/// What a ring keeps for itself, in quanta of 32 bytes.
const SQ_RESERVE: u32 = 258;
const RQ_RESERVE: u32 = 1;
/// The longest send or receive queue, and the longest shared one, in quanta.
const MAX_QUANTA: u32 = 32768;
const MAX_SRQ_QUANTA: u32 = 262_144;
/// The low-water mark of a shared receive queue is a 12-bit number.
const MAX_SRQ_LIMIT: u32 = 4095;
/// With a shared receive queue the hardware keeps a ring of so many requests all the same.
const RECV_WR_WITH_SRQ: u32 = 4;

impl Profile {
    /// How much the device holds.
    pub const fn limits(self) -> &'static Limits {
        match self {
            Profile::Gen2 => &GEN2,
            Profile::Gen3 => &GEN3,
            Profile::Full => &FULL,
        }
    }

    /// What the device offers.
    pub const fn features(self) -> Features {
        match self {
            Profile::Gen2 => Features::empty(),
            Profile::Gen3 => Features::SRQ.union(Features::ATOMICS).union(Features::WINDOWS),
            Profile::Full => Features::all(),
        }
    }

    /// EOPNOTSUPP unless the device offers `feature`.
    pub(crate) fn check(self, feature: Features) -> Result<()> {
        if self.features().contains(feature) {
            return Ok(());
        }
        let names: Vec<&str> = feature.iter_names().map(|(name, _)| name).collect();
        Err(VerbsError::unsupported(format!(
            "profile {self} does not offer {}; use --profile full",
            names.join(", ")
        )))
    }

    /// EOPNOTSUPP for flags that the device does not offer.
    pub(crate) fn check_access(self, access: Access) -> Result<()> {
        if access.contains(Access::ON_DEMAND) {
            self.check(Features::ON_DEMAND)?;
        }
        if access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) {
            self.check(Features::PERSISTENCE)?;
        }
        Ok(())
    }

    /// EOPNOTSUPP for a service that the device does not offer.
    pub(crate) fn check_service(self, service: QpType) -> Result<()> {
        match service {
            QpType::Uc => self.check(Features::UC),
            QpType::XrcSend | QpType::XrcRecv => self.check(Features::XRC),
            _ => Ok(()),
        }
    }

    /// `IBV_DEVICE_*` bits (seed 2.2); gen2 leaves out MEM_WINDOW, which the driver sets without
    /// offering windows.
    pub(crate) const fn device_cap_flags(self, mode: Mode) -> u64 {
        const RC_RNR_NAK_GEN: u64 = 1 << 12;
        const MEM_WINDOW: u64 = 1 << 17;
        const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
        const MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
        const GEN2: u64 = MEM_MGT_EXTENSIONS;
        const GEN3: u64 = GEN2 | MEM_WINDOW | MEM_WINDOW_TYPE_2B;
        /// CURR_QP_STATE_MOD, PORT_ACTIVE_EVENT, SYS_IMAGE_GUID, XRC, and the kernel's
        /// BLOCK_MULTICAST_LOOPBACK, FLUSH_GLOBAL, FLUSH_PERSISTENT and ATOMIC_WRITE.
        const SOFTWARE: u64 =
            1 << 7 | 1 << 10 | 1 << 11 | 1 << 20 | 1 << 22 | 1 << 38 | 1 << 39 | 1 << 40;
        let of_mode = if matches!(mode, Mode::Roce) { RC_RNR_NAK_GEN } else { 0 };
        of_mode
            | match self {
                Profile::Gen2 => GEN2,
                Profile::Gen3 => GEN3,
                Profile::Full => GEN3 | SOFTWARE,
            }
    }

    /// `enum ibv_atomic_cap`: NONE, or HCA.
    pub(crate) const fn atomic_cap(self) -> u32 {
        self.features().contains(Features::ATOMICS) as u32
    }

    /// The bits that a completion timestamp has, in nanoseconds; 0 for no timestamps.
    pub(crate) const fn timestamp_mask(self) -> u64 {
        match self {
            Profile::Gen2 => 0,
            Profile::Gen3 => u32::MAX as u64,
            Profile::Full => u64::MAX,
        }
    }

    /// How many of the driver's hardware counters the device has (seed 3.11).
    pub(crate) const fn counter_count(self) -> usize {
        match self {
            Profile::Gen2 => 46,
            Profile::Gen3 | Profile::Full => 57,
        }
    }

    /// The fewest requests of a queue; `None` where a queue is as long as asked.
    const fn min_wrs(self) -> Option<u32> {
        match self {
            Profile::Gen2 => Some(8),
            Profile::Gen3 => Some(16),
            Profile::Full => None,
        }
    }

    /// EINVAL for sizes above the limits.
    ///
    /// The rings of gen2 and gen3 are checked as a whole, in [`Profile::setup_kmode_qp`]: a queue
    /// of small requests holds more than `max_qp_wr`, which counts the largest.
    pub(crate) fn check_cap(self, cap: &QpCap, has_srq: bool) -> Result<()> {
        let limits = self.limits();
        let max_wr = if self.min_wrs().is_some() { MAX_QUANTA } else { limits.max_qp_wr };
        let checks = [
            ("max_send_sge", cap.max_send_sge, limits.max_send_sge),
            ("max_inline_data", cap.max_inline_data, limits.max_inline_data),
            ("max_send_wr", cap.max_send_wr, max_wr),
            ("max_recv_wr", cap.max_recv_wr, max_wr),
            ("max_recv_sge", cap.max_recv_sge, limits.max_recv_sge),
        ];
        let own = if has_srq { &checks[..3] } else { &checks[..] };
        own.iter().try_for_each(|(what, asked, max)| at_most(what, *asked, *max))
    }

    /// The queues that the library allocates for `cap`: what was asked, rounded up to what the
    /// rings hold (seed 2.6). EINVAL where they would be too long.
    pub(crate) fn setup_kmode_qp(self, cap: &QpCap, has_srq: bool) -> Result<QpCap> {
        let Some(min_wrs) = self.min_wrs() else { return Ok(*cap) };
        let recv = match has_srq {
            true => (RECV_WR_WITH_SRQ, self.limits().max_recv_sge),
            false => (cap.max_recv_wr, cap.max_recv_sge),
        };
        let sq = Ring {
            shift: wr_shift(cap.max_send_sge + 1, cap.max_inline_data),
            reserve: SQ_RESERVE,
            max: MAX_QUANTA,
        };
        let rq = Ring { shift: wr_shift(recv.1, 0), reserve: RQ_RESERVE, max: MAX_QUANTA };
        Ok(QpCap {
            max_send_wr: sq.capacity("max_send_wr", cap.max_send_wr, min_wrs)?,
            max_recv_wr: rq.capacity("max_recv_wr", recv.0, min_wrs)?,
            max_recv_sge: recv.1,
            ..*cap
        })
    }

    /// The shared receive queue made for `attr`: more requests where the ring has room, and as many
    /// elements as its requests hold. EINVAL above the limits.
    pub(crate) fn size_srq(self, attr: &SrqAttr) -> Result<SrqAttr> {
        let limits = self.limits();
        at_most("max_sge", attr.max_sge, limits.max_srq_sge)?;
        at_most("max_wr", attr.max_wr, limits.max_srq_wr)?;
        let Some(min_wrs) = self.min_wrs() else { return Ok(*attr) };
        let shift = wr_shift(attr.max_sge, 0);
        let ring = Ring { shift, reserve: RQ_RESERVE, max: MAX_SRQ_QUANTA };
        Ok(SrqAttr {
            max_wr: ring.capacity("max_wr", attr.max_wr, min_wrs)?,
            max_sge: [1, 3, 7, limits.max_srq_sge][shift as usize],
            ..*attr
        })
    }

    /// The low-water mark that arming with `asked` sets.
    pub(crate) fn srq_limit(self, asked: u32) -> u32 {
        if self.min_wrs().is_some() { asked.min(MAX_SRQ_LIMIT) } else { asked }
    }
}

/// EINVAL for more of something than there is.
pub(crate) fn at_most(what: &str, asked: u32, max: u32) -> Result<()> {
    if asked > max {
        return Err(VerbsError::invalid(format!("{what} {asked}: the device has at most {max}")));
    }
    Ok(())
}

/// Size of a request as a shift of the quantum.
fn wr_shift(sges: u32, inline_len: u32) -> u32 {
    match (sges, inline_len) {
        (..=1, ..=8) => 0,
        (..=3, ..=39) => 1,
        (..=7, ..=101) => 2,
        _ => 3,
    }
}

/// How a ring's length follows from the size of its requests.
struct Ring {
    shift: u32,
    reserve: u32,
    max: u32,
}

impl Ring {
    fn capacity(&self, what: &str, wrs: u32, min_wrs: u32) -> Result<u32> {
        let needed = (u64::from(wrs) << self.shift) + u64::from(self.reserve);
        let depth = needed.next_power_of_two().max(u64::from(min_wrs << self.shift));
        if depth > u64::from(self.max) {
            return Err(VerbsError::invalid(format!(
                "{what} {wrs}: at this many elements and inline bytes a queue holds {}",
                (self.max - self.reserve) >> self.shift
            )));
        }
        Ok((depth as u32 - self.reserve) >> self.shift)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Profile::Gen2 => "gen2",
            Profile::Gen3 => "gen3",
            Profile::Full => "full",
        })
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Profile::Gen2, Profile::Gen3, Profile::Full]
            .into_iter()
            .find(|profile| profile.to_string() == text)
            .ok_or_else(|| "use gen2, gen3 or full".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(wrs: u32, send_sge: u32, recv_sge: u32, max_inline_data: u32) -> QpCap {
        QpCap {
            max_send_wr: wrs,
            max_recv_wr: wrs,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline_data,
        }
    }

    fn granted(profile: Profile, asked: QpCap) -> (u32, u32) {
        let cap = profile.setup_kmode_qp(&asked, false).unwrap();
        assert_eq!(
            (cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data),
            (asked.max_send_sge, asked.max_recv_sge, asked.max_inline_data)
        );
        (cap.max_send_wr, cap.max_recv_wr)
    }

    #[test]
    fn the_size_of_a_request_follows_from_elements_and_inline_bytes() {
        let cases = [
            ((0, 0), 0),
            ((1, 8), 0),
            ((1, 9), 1),
            ((2, 0), 1),
            ((3, 39), 1),
            ((4, 0), 2),
            ((3, 40), 2),
            ((7, 101), 2),
            ((8, 0), 3),
            ((1, 102), 3),
        ];
        for ((sges, inline_len), shift) in cases {
            assert_eq!(wr_shift(sges, inline_len), shift, "{sges} elements, {inline_len} bytes");
        }
    }

    #[test]
    fn queues_are_rounded_up_to_their_rings() {
        assert_eq!(granted(Profile::Gen2, cap(1, 1, 1, 0)), (127, 7));
        assert_eq!(granted(Profile::Gen3, cap(1, 1, 1, 0)), (127, 15));
        assert_eq!(granted(Profile::Gen2, cap(128, 1, 1, 0)), (383, 255));
        assert_eq!(granted(Profile::Gen2, cap(64, 2, 2, 101)), (63 + 1 + 127, 127));
        assert_eq!(granted(Profile::Full, cap(1, 1, 1, 0)), (1, 1));
    }

    #[test]
    fn the_advertised_length_holds_for_the_largest_request() {
        for profile in [Profile::Gen2, Profile::Gen3] {
            let limits = profile.limits();
            let (send, recv, inline) =
                (limits.max_send_sge, limits.max_recv_sge, limits.max_inline_data);
            let most = cap(limits.max_qp_wr, send, recv, inline);
            assert_eq!(granted(profile, most), (limits.max_qp_wr, 4095));
            let past = QpCap { max_send_wr: limits.max_qp_wr + 1, ..most };
            assert_eq!(profile.setup_kmode_qp(&past, false).unwrap_err().errno(), 22);
            let past = QpCap { max_recv_wr: 4096, ..most };
            assert_eq!(profile.setup_kmode_qp(&past, false).unwrap_err().errno(), 22);
        }
    }

    #[test]
    fn a_shared_queue_tells_what_its_requests_hold() {
        let sized = |max_wr, max_sge| {
            let attr = SrqAttr { max_wr, max_sge, srq_limit: 0 };
            let sized = Profile::Gen3.size_srq(&attr);
            sized.map(|sized| (sized.max_wr, sized.max_sge)).map_err(|error| error.errno())
        };
        assert_eq!(sized(1, 1), Ok((15, 1)));
        assert_eq!(sized(100, 2), Ok((127, 3)));
        assert_eq!(sized(100, 4), Ok((127, 7)));
        assert_eq!(sized(32767, 14), Ok((32767, 14)));
        assert_eq!((sized(32768, 1), sized(1, 15)), (Err(22), Err(22)));
        assert_eq!((Profile::Gen3.srq_limit(5000), Profile::Full.srq_limit(5000)), (4095, 5000));
    }

    #[test]
    fn with_a_shared_queue_the_receive_sizes_are_the_devices() {
        let cap = Profile::Gen3.setup_kmode_qp(&cap(1, 1, 1, 0), true).unwrap();
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (15, 14));
    }

    #[test]
    fn what_a_profile_lacks_is_not_supported() {
        assert_eq!(Profile::Gen2.check(Features::SRQ).unwrap_err().errno(), 95);
        assert_eq!(Profile::Gen3.check_service(QpType::Uc).unwrap_err().errno(), 95);
        assert!(Profile::Gen3.check(Features::ATOMICS | Features::SRQ).is_ok());
        assert!(Profile::Full.check(Features::all()).is_ok());
    }

    #[test]
    fn only_roce_devices_make_rnr_naks() {
        let flags = |profile: Profile, mode| profile.device_cap_flags(mode);
        assert_eq!(flags(Profile::Gen2, Mode::Roce), 1 << 12 | 1 << 21);
        assert_eq!(flags(Profile::Gen2, Mode::Iwarp), 1 << 21);
        assert_eq!(flags(Profile::Gen3, Mode::Roce), 1 << 12 | 1 << 17 | 1 << 21 | 1 << 24);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for profile in [Profile::Gen2, Profile::Gen3, Profile::Full] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert_eq!("gen1".parse::<Profile>(), Err("use gen2, gen3 or full".into()));
    }
}
