//! One simulated machine: an endpoint, its memory, its objects.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_mem::{Access, Buffer, MemTable, MrInfo, Sge};
use irdma_transport::{Config, Cq, Endpoint, Pd, PdTable};

/// Source ports of a node's sending sockets.
pub(crate) const PORTS: [u16; 8] = [49152, 49153, 49154, 49155, 49156, 49157, 49158, 49159];

/// A registered buffer between two guards.
pub struct Memory {
    buffer: Arc<Buffer>,
    /// What is registered: all but the guards.
    pub mr: MrInfo,
}

/// Bytes before and after a registration that nobody may touch.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;

impl Memory {
    /// Registers `len` zero bytes under the address `iova`.
    ///
    /// # Panics
    /// When the table refuses.
    pub fn new(mem: &MemTable, pd: &Pd, len: usize, iova: u64, access: Access) -> Self {
        let buffer = Arc::new(Buffer::zeroed(len + 2 * GUARD));
        for at in (0..GUARD).chain(GUARD + len..buffer.len()) {
            buffer.write(at, &[GUARD_BYTE]);
        }
        let range = GUARD..GUARD + len;
        let mr = mem.reg_phys_mr(pd.id(), &buffer, range, iova, access).expect("registered");
        Memory { buffer, mr }
    }

    /// Registered bytes.
    pub fn len(&self) -> usize {
        self.buffer.len() - 2 * GUARD
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len(), "inside the registration");
        let mut out = vec![0; len];
        self.buffer.read(GUARD + at, &mut out);
        out
    }

    /// Stores bytes.
    pub fn write(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len(), "inside the registration");
        self.buffer.write(GUARD + at, data);
    }

    /// The word at `at` as atomics see it.
    pub fn word(&self, at: usize) -> u64 {
        let mut out = [0; 8];
        self.buffer.read(GUARD + at, &mut out);
        u64::from_ne_bytes(out)
    }

    /// The element that covers `len` bytes from `at`; may reach past the registration.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.addr(at), length: len as u32, lkey: self.mr.lkey }
    }

    /// The address of the byte `at`, for keys.
    pub fn addr(&self, at: usize) -> u64 {
        self.mr.iova + at as u64
    }

    /// Whether the guards are as they were made.
    pub fn guards_are_whole(&self) -> bool {
        let end = self.buffer.len();
        (0..GUARD).chain(end - GUARD..end).all(|at| self.buffer.byte(at) == GUARD_BYTE)
    }
}

/// The completion queues of a queue pair.
#[derive(Clone, Debug)]
pub struct Cqs {
    /// Where sends complete.
    pub send: Arc<Cq>,
    /// Where receives complete.
    pub recv: Arc<Cq>,
}

impl Cqs {
    /// Two queues of `capacity`, with tokens `token` and `token + 1`.
    pub fn new(token: u64, capacity: usize) -> Self {
        Cqs {
            send: Arc::new(Cq::new(token, capacity)),
            recv: Arc::new(Cq::new(token + 1, capacity)),
        }
    }
}

/// One simulated machine.
pub struct Node {
    /// Its protocol.
    pub endpoint: Endpoint,
    /// Its keys.
    pub mem: Arc<MemTable>,
    /// A protection domain.
    pub pd: Arc<Pd>,
    /// Its address.
    pub addr: IpAddr,
    next_iova: u64,
    next_token: u64,
}

impl Node {
    /// A machine at `addr`, whose interface carries a path MTU of 4096.
    ///
    /// # Panics
    /// Never: a fresh table has a domain to give.
    pub fn new(addr: IpAddr, config: Config) -> Self {
        let mem = Arc::new(MemTable::new(config.seed, 4096));
        let mut endpoint = Endpoint::new(config, Arc::clone(&mem));
        endpoint.add_local(addr, PORTS.to_vec(), 4096);
        let pd = PdTable::new(16).alloc_pd().expect("a fresh table has room");
        Node { endpoint, mem, pd, addr, next_iova: 0x1_0000, next_token: 1 }
    }

    /// Registers `len` bytes with every right, at an address of its own.
    pub fn memory(&mut self, len: usize) -> Memory {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND
            | Access::FLUSH_GLOBAL;
        self.memory_with(len, access)
    }

    /// As [`Node::memory`], with chosen rights.
    pub fn memory_with(&mut self, len: usize, access: Access) -> Memory {
        let iova = self.next_iova;
        self.next_iova += (len as u64).next_multiple_of(0x1_0000) + 0x1_0000;
        Memory::new(&self.mem, &self.pd, len, iova, access)
    }

    /// Two completion queues of their own.
    pub fn cqs(&mut self, capacity: usize) -> Cqs {
        self.next_token += 2;
        Cqs::new(self.next_token, capacity)
    }
}
