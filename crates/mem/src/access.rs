//! What may be done with a region: the flags a program asks for, the rights it gets.

use bitflags::bitflags;

bitflags! {
    /// Access flags of a registration, with the numbers of `IBV_ACCESS_*` (`ibv_reg_mr(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and READ results may be placed in the region.
        const LOCAL_WRITE = 1;
        /// The peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read.
        const REMOTE_READ = 1 << 2;
        /// The peer may run atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region, not from a virtual address.
        const ZERO_BASED = 1 << 5;
        /// Memory need not be mapped yet: it is asked for at each access.
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages; no effect here.
        const HUGETLB = 1 << 7;
        /// The peer may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered; no effect here, they never are.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Rights of a region, with the numbers that the hardware's region context uses.
    ///
    /// The atomic and flush rights are separate there; their numbers here are ours.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u32 {
        /// The owner may read; every region has it.
        const LOCAL_READ = 0x01;
        /// The owner may write.
        const LOCAL_WRITE = 0x02;
        /// The peer may read, and so may the owner.
        const REMOTE_READ = 0x05;
        /// The peer may write, and so may the owner.
        const REMOTE_WRITE = 0x0a;
        /// Windows may be bound.
        const BIND_WINDOW = 0x10;
        /// Addresses count from 0.
        const ZERO_BASED = 0x20;
        /// The peer may run atomic operations.
        const REMOTE_ATOMIC = 0x40;
        /// The peer may flush to global visibility.
        const FLUSH_GLOBAL = 0x80;
        /// The peer may flush to persistence.
        const FLUSH_PERSISTENT = 0x100;
    }
}
