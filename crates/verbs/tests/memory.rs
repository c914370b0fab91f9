//! Regions beyond the plain ones: re-registered, on demand, null, of the device, of a file.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;

use common::{ALL, Node, pair, poll_one};
use irdma::{
    Access, Advice, AdviseFlags, Buffer, DmAttr, ErrorKind, Mr, MrChange, Placement, QpType,
    SendData, SendFlags, SendOp, SendWr, Sge, Translation, WcOpcode, WcStatus,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: usize = 4096;

fn write(from: &Node, remote_addr: u64, rkey: u32, len: usize) -> WcStatus {
    from.post(1, SendOp::Write { remote_addr, rkey, imm: None }, 0, len);
    from.completion().status
}

fn change_access(access: Access) -> MrChange<'static> {
    MrChange { access: Some(access), ..MrChange::default() }
}

#[test]
fn a_re_registration_is_what_the_peer_meets() {
    let (a, b) = pair(QpType::Rc, 4096);
    let other = Arc::new(Buffer::zeroed(4096));
    let (addr, rkey) = (b.buffer.addr(), b.mr.rkey());
    a.fill(0, 64, 1);
    assert_eq!(write(&a, addr, rkey, 64), WcStatus::Success);
    b.expect_bytes(0, 64, 1);

    let moved = Translation { addr: other.addr() as usize, len: 4096, iova: 0x5000 };
    let change = MrChange { translation: Some(moved), ..MrChange::default() };
    // SAFETY: `other` outlives the region.
    unsafe { b.mr.rereg_user_mr(&change) }.unwrap();
    assert_eq!((b.mr.rkey(), b.mr.info().iova, b.mr.info().access), (rkey, 0x5000, ALL));
    a.fill(0, 64, 2);
    assert_eq!(write(&a, 0x5000 + 10, rkey, 64), WcStatus::Success);
    let mut found = [0; 64];
    other.read(10, &mut found);
    assert_eq!(found[..], common::pattern(64, 2)[..]);
    b.expect_bytes(0, 64, 1);

    // SAFETY: as above.
    unsafe { b.mr.rereg_user_mr(&change_access(Access::LOCAL_WRITE)) }.unwrap();
    assert_eq!(write(&a, 0x5000, rkey, 64), WcStatus::RemAccessErr);
}

#[test]
fn a_region_moves_to_another_domain_and_keeps_it() {
    let (a, b) = pair(QpType::Rc, 4096);
    let second = b.context.alloc_pd().unwrap();
    let change = MrChange { pd: Some(&second), ..MrChange::default() };
    // SAFETY: nothing but the domain changes.
    unsafe { b.mr.rereg_user_mr(&change) }.unwrap();
    assert_eq!(write(&a, b.buffer.addr(), b.mr.rkey(), 8), WcStatus::RemAccessErr);
    let second = second.dealloc_pd().unwrap_err();
    assert_eq!(second.error.kind(), ErrorKind::Busy);
    let back = MrChange { pd: Some(&b.pd), ..MrChange::default() };
    // SAFETY: nothing but the domain changes.
    unsafe { b.mr.rereg_user_mr(&back) }.unwrap();
    second.handle.dealloc_pd().unwrap();
}

#[test]
fn a_refused_re_registration_changes_nothing() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let (other, _) = pair(QpType::Rc, 64);
    let before = b.mr.info();
    let at = |addr, len| MrChange {
        translation: Some(Translation { addr, len, iova: 0 }),
        ..MrChange::default()
    };
    let rows = [
        (change_access(Access::REMOTE_WRITE), ErrorKind::Invalid),
        (change_access(Access::FLUSH_PERSISTENT), ErrorKind::Unsupported),
        (at(8, 0), ErrorKind::Invalid),
        (at(8, 8), ErrorKind::Fault),
        (at(8, 1 << 46), ErrorKind::Invalid),
        (MrChange { pd: Some(&other.pd), ..MrChange::default() }, ErrorKind::Invalid),
    ];
    for (change, kind) in rows {
        // SAFETY: refused calls touch no memory.
        let refused = unsafe { b.mr.rereg_user_mr(&change) }.unwrap_err();
        assert_eq!((refused.kind(), b.mr.info()), (kind, before), "{change:?}");
    }
}

/// Traffic that goes on while the region's access is changed to and fro never fails.
#[test]
fn re_registration_under_traffic_disturbs_nothing_that_both_allow() {
    let (a, b) = pair(QpType::Rc, 1 << 16);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for turn in 0..2000 {
                let more = if turn % 2 == 0 { Access::MW_BIND } else { Access::empty() };
                // SAFETY: the buffer stays and is writable.
                unsafe { b.mr.rereg_user_mr(&change_access(ALL | more)) }.unwrap();
            }
        });
        while !changer.is_finished() {
            assert_eq!(write(&a, b.buffer.addr(), b.mr.rkey(), 1 << 15), WcStatus::Success);
        }
    });
}

#[test]
fn zero_based_and_relaxed_regions_are_as_others() {
    let (a, b) = pair(QpType::Rc, 4096);
    let access = ALL | Access::ZERO_BASED | Access::RELAXED_ORDERING;
    let mr = b.pd.reg_buffer(&b.buffer, 100..200, access).unwrap();
    a.fill(0, 50, 4);
    assert_eq!(write(&a, 50, mr.rkey(), 50), WcStatus::Success);
    b.expect_bytes(150, 50, 4);
    assert_eq!(write(&a, 51, mr.rkey(), 50), WcStatus::RemAccessErr);
}

/// Memory of the program that may go again.
struct Pages(usize);

impl Pages {
    fn new() -> Pages {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a place of the kernel's choice.
        let place = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, prot, MapFlags::PRIVATE) };
        Pages(place.unwrap().expose_provenance())
    }

    fn unmap(self) {
        let place = std::ptr::with_exposed_provenance_mut(self.0);
        // SAFETY: nothing refers to it.
        unsafe { munmap(place, PAGE) }.unwrap();
    }
}

#[test]
fn the_whole_address_space_is_one_region_and_holes_in_it_are_protection_errors() {
    let (a, b) = pair(QpType::Rc, 4096);
    let access = ALL | Access::ON_DEMAND;
    // SAFETY: on-demand memory need not be there.
    let all = unsafe { b.pd.reg_user_mr(0, u64::MAX, 0, access) }.unwrap();
    a.fill(0, 64, 6);
    assert_eq!(write(&a, b.buffer.addr() + 8, all.rkey(), 64), WcStatus::Success);
    b.expect_bytes(8, 64, 6);
    let counter = b.buffer.addr();
    a.post(2, SendOp::FetchAdd { remote_addr: counter, rkey: all.rkey(), add: 3 }, 0, 8);
    assert_eq!(a.complete().opcode, WcOpcode::FetchAdd);
    let pages = Pages::new();
    let place = pages.0 as u64;
    assert_eq!(write(&a, place, all.rkey(), 64), WcStatus::Success);
    pages.unmap();
    assert_eq!(write(&a, place, all.rkey(), 64), WcStatus::RemAccessErr);
}

#[test]
fn an_unmapped_source_on_demand_is_a_local_protection_error() {
    let (a, b) = pair(QpType::Rc, 4096);
    let pages = Pages::new();
    let place = pages.0;
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    // SAFETY: on-demand memory may go while nothing accesses it.
    let mr = unsafe { a.pd.reg_user_mr(place, PAGE as u64, place as u64, access) }.unwrap();
    b.post_recv(1, 0, 64);
    b.post_recv(2, 0, 64);
    let sges = [Sge { addr: place as u64, length: 64, lkey: mr.lkey() }];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), ud: None };
    a.qp.post_send(&wr).unwrap();
    a.complete();
    pages.unmap();
    a.qp.post_send(&wr).unwrap();
    assert_eq!(a.completion().status, WcStatus::LocProtErr);
}

#[test]
fn advice_is_checked_as_its_man_page_says() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let access = Access::ON_DEMAND;
    let (addr, iova) = (b.buffer.addr() as usize, b.buffer.addr());
    // SAFETY: the buffer outlives the regions.
    let mr = unsafe { b.pd.reg_user_mr(addr, 4096, iova, access) }.unwrap();
    let second = b.context.alloc_pd().unwrap();
    let (flush, sync) = (AdviseFlags::FLUSH, AdviseFlags::empty());
    let sge = |mr: &Mr, length| [Sge { addr: iova, length, lkey: mr.lkey() }];
    b.pd.advise_mr(Advice::Prefetch, flush, &sge(&mr, 4096)).unwrap();
    b.pd.advise_mr(Advice::PrefetchNoFault, sync, &sge(&mr, 4096)).unwrap();
    let kind = |pd: &irdma::Pd, advice, flags, sges: &[Sge]| {
        pd.advise_mr(advice, flags, sges).map_err(|error| error.kind())
    };
    let good = sge(&mr, 1);
    assert_eq!(kind(&b.pd, Advice::Prefetch, sync, &[]), Err(ErrorKind::Invalid));
    let unknown = AdviseFlags::from_bits_retain(2);
    assert_eq!(kind(&b.pd, Advice::Prefetch, unknown, &good), Err(ErrorKind::Invalid));
    assert_eq!(kind(&b.pd, Advice::PrefetchWrite, sync, &good), Err(ErrorKind::NotPermitted));
    assert_eq!(kind(&second, Advice::Prefetch, sync, &good), Err(ErrorKind::NotPermitted));
    assert_eq!(kind(&b.pd, Advice::Prefetch, sync, &sge(&mr, 4097)), Err(ErrorKind::Fault));
    assert_eq!(kind(&b.pd, Advice::Prefetch, sync, &sge(&b.mr, 1)), Err(ErrorKind::Invalid));
    let wrong = [Sge { lkey: mr.lkey() ^ 1, ..good[0] }];
    assert_eq!(kind(&b.pd, Advice::Prefetch, sync, &wrong), Err(ErrorKind::Fault));
}

#[test]
fn a_null_region_gives_zeros_and_takes_anything() {
    let (a, b) = pair(QpType::Rc, 4096);
    let null = a.pd.alloc_null_mr().unwrap();
    b.fill(0, 64, 9);
    b.post_recv(1, 0, 64);
    let sges = [a.sge(0, 16), Sge { addr: 0, length: 32, lkey: null.lkey() }, a.sge(16, 16)];
    a.fill(0, 32, 1);
    let send = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        ud: None,
    };
    a.qp.post_send(&send).unwrap();
    a.complete();
    b.complete();
    let mut found = [0xff; 64];
    b.buffer.read(0, &mut found);
    let sent = common::pattern(32, 1);
    assert_eq!((&found[..16], &found[48..]), (&sent[..16], &sent[16..]));
    assert_eq!(found[16..48], [0; 32]);

    let ends = b.ends();
    let op = SendOp::Read { remote_addr: ends.addr, rkey: ends.rkey };
    let data = SendData::Sges(&sges[1..2]);
    a.qp.post_send(&SendWr { op, data, ..send }).unwrap();
    assert_eq!(poll_one(&a.cq).opcode, WcOpcode::RdmaRead);
}

#[test]
fn device_memory_is_a_region_named_by_offsets() {
    let (a, b) = pair(QpType::Rc, 4096);
    let dm = b.context.alloc_dm(DmAttr { length: 100, log_align_req: 12 }).unwrap();
    let access = ALL | Access::ZERO_BASED;
    let mr = b.pd.reg_dm_mr(&dm, 20, 80, access).unwrap();
    a.fill(0, 64, 7);
    assert_eq!(write(&a, 4, mr.rkey(), 64), WcStatus::Success);
    let mut found = [0; 64];
    dm.memcpy_from_dm(24, &mut found).unwrap();
    assert_eq!(found[..], common::pattern(64, 7)[..]);
    dm.memcpy_to_dm(20, b"1234").unwrap();
    a.post(2, SendOp::Read { remote_addr: 0, rkey: mr.rkey() }, 100, 4);
    a.complete();
    let mut back = [0; 4];
    a.buffer.read(100, &mut back);
    assert_eq!(&back, b"1234");

    let dm = dm.free_dm().unwrap_err();
    assert_eq!(dm.error.kind(), ErrorKind::Busy);
    mr.dereg_mr().unwrap();
    dm.handle.free_dm().unwrap();
}

#[test]
fn device_memory_has_its_limits() {
    let (_a, b) = pair(QpType::Rc, 4096);
    let max = b.context.query_device().limits.max_dm_size;
    let alloc = |length, log_align_req| {
        b.context.alloc_dm(DmAttr { length, log_align_req }).map_err(|error| error.kind())
    };
    assert_eq!(alloc(0, 0).unwrap_err(), ErrorKind::Invalid);
    assert_eq!(alloc(4, 13).unwrap_err(), ErrorKind::Invalid);
    assert_eq!(alloc(max + 1, 0).unwrap_err(), ErrorKind::NoMemory);
    let dm = alloc(100, 0).unwrap();
    for (offset, len) in [(1, 4), (0, 3), (100, 4), (96, 8), (u64::MAX - 3, 4)] {
        assert!(dm.memcpy_to_dm(offset, &vec![0; len]).is_err(), "{len} at {offset}");
        assert!(dm.memcpy_from_dm(offset, &mut vec![0; len]).is_err(), "{len} at {offset}");
    }
    let reg = |offset, len, access| {
        b.pd.reg_dm_mr(&dm, offset, len, access).map(drop).map_err(|error| error.kind())
    };
    let zero_based = ALL | Access::ZERO_BASED;
    assert_eq!(reg(0, 100, ALL), Err(ErrorKind::Invalid), "not zero-based");
    assert_eq!(reg(4, 100, zero_based), Err(ErrorKind::Invalid));
    assert_eq!(reg(0, 0, zero_based), Ok(()), "as hardware does");
    assert_eq!(reg(0, 100, zero_based), Ok(()));
}

#[test]
fn a_memfd_is_registered_by_its_descriptor() {
    let (a, b) = pair(QpType::Rc, 4096);
    let file = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 3 * PAGE as u64).unwrap();
    let offset = PAGE as u64 + 16;
    let iova = 0x70_0010;
    let mr = b.pd.reg_dmabuf_mr(offset, 100, iova, file.as_fd(), ALL).unwrap();
    a.fill(0, 64, 2);
    assert_eq!(write(&a, iova + 1, mr.rkey(), 64), WcStatus::Success);
    let mut found = [0; 64];
    rustix::io::pread(&file, &mut found[..], offset + 1).unwrap();
    assert_eq!(found[..], common::pattern(64, 2)[..]);
    // What is cut off is an error of the access, and no signal.
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert_eq!(write(&a, iova, mr.rkey(), 64), WcStatus::RemAccessErr);

    let end = 3 * PAGE as u64;
    rustix::fs::ftruncate(&file, end).unwrap();
    let reg = |offset, len, iova| {
        let mr = b.pd.reg_dmabuf_mr(offset, len, iova, file.as_fd(), ALL);
        mr.map(drop).map_err(|error| error.kind())
    };
    assert_eq!(reg(0, end, 0x1000), Ok(()));
    assert_eq!(reg(0, end + 1, 0x1000), Err(ErrorKind::Invalid), "past the end");
    assert_eq!(reg(0, 0, 0x1000), Err(ErrorKind::Invalid), "nothing");
    assert_eq!(reg(8, 8, 0x1000), Err(ErrorKind::Invalid), "another place in the page");
    // SAFETY: refused.
    let rereg = unsafe { mr.rereg_user_mr(&change_access(ALL)) };
    assert_eq!(rereg.unwrap_err().kind(), ErrorKind::Unsupported);
    let null = std::fs::File::open("/dev/null").unwrap();
    let refused = b.pd.reg_dmabuf_mr(0, 8, 0, null.as_fd(), Access::empty()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn atomic_writes_and_flushes_go_over_the_wire() {
    let (a, b) = pair(QpType::Rc, 4096);
    let attr = irdma::QpAttr { access: ALL | Access::FLUSH_GLOBAL, ..irdma::QpAttr::default() };
    b.qp.modify_qp(&attr, irdma::AttrMask::ACCESS_FLAGS).unwrap();
    let access = ALL | Access::FLUSH_GLOBAL;
    let mr = b.pd.reg_buffer(&b.buffer, 0..4096, access).unwrap();
    let (remote_addr, rkey) = (b.buffer.addr() + 64, mr.rkey());
    a.buffer.write(0, b"8 bytes!");
    a.post(1, SendOp::AtomicWrite { remote_addr, rkey }, 0, 8);
    assert_eq!(a.complete().opcode, WcOpcode::AtomicWrite);
    let mut found = [0; 8];
    b.buffer.read(64, &mut found);
    assert_eq!(&found, b"8 bytes!");
    for whole_region in [false, true] {
        let placement = Placement::GLOBAL;
        let flush = SendOp::Flush { remote_addr, rkey, len: 100, placement, whole_region };
        a.post(2, flush, 0, 0);
        assert_eq!(a.complete().opcode, WcOpcode::Flush);
    }
    let placement = Placement::PERSISTENT;
    let flush = SendOp::Flush { remote_addr, rkey, len: 8, placement, whole_region: false };
    a.post(3, flush, 0, 0);
    assert_eq!(a.completion().status, WcStatus::RemInvReqErr, "the queue pair does not allow it");
}

#[test]
fn a_key_for_all_memory_is_the_owners_alone() {
    let (a, b) = pair(QpType::Rc, 4096);
    for access in [Access::REMOTE_READ, ALL, Access::LOCAL_WRITE | Access::MW_BIND] {
        assert_eq!(a.pd.get_dma_mr(access).unwrap_err().errno(), 22);
    }
    let everywhere = a.pd.get_dma_mr(Access::LOCAL_WRITE).unwrap();
    let unregistered = Buffer::zeroed(64);
    unregistered.write(0, b"from anywhere");
    let sges = [Sge { addr: unregistered.addr(), length: 13, lkey: everywhere.lkey() }];
    b.post_recv(1, 0, 64);
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    a.qp.post_send(&SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), ud: None }).unwrap();
    a.complete();
    b.complete();
    assert_eq!(b.buffer.byte(12), b'e');
    assert_eq!(write(&b, unregistered.addr(), everywhere.rkey(), 8), WcStatus::RemAccessErr);
}

/// Persistence is that of a file: what is mapped from one that lasts can be flushed to it.
#[test]
fn a_flush_to_persistence_is_for_files_that_last() {
    let (a, b) = pair(QpType::Rc, 4096);
    let access = ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let refused = b.pd.reg_buffer(&b.buffer, 0..4096, access).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let (file, memory) = (file_that_stays(), memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
    rustix::fs::ftruncate(&memory, PAGE as u64).unwrap();
    let map = |file: std::os::fd::BorrowedFd<'_>| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a place of the kernel's choice.
        let place = unsafe { mmap(std::ptr::null_mut(), PAGE, prot, MapFlags::SHARED, file, 0) };
        place.unwrap().expose_provenance()
    };
    let register = |addr: usize| {
        // SAFETY: mapped until the end of the process.
        unsafe { b.pd.reg_user_mr(addr, PAGE as u64, addr as u64, access) }
    };
    let refused = register(map(memory.as_fd())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "a file in memory");
    let Some(file) = file else {
        assert!(std::env::var_os("CI").is_none(), "the target folder is on no disk");
        return eprintln!("SKIPPED: the target folder is on no disk");
    };
    let addr = map(file.as_file().as_fd());
    let mr = register(addr).unwrap();
    let attr = irdma::QpAttr { access, ..irdma::QpAttr::default() };
    b.qp.modify_qp(&attr, irdma::AttrMask::ACCESS_FLAGS).unwrap();
    a.fill(0, 64, 9);
    assert_eq!(write(&a, addr as u64 + 100, mr.rkey(), 64), WcStatus::Success);
    for whole_region in [false, true] {
        let (remote_addr, rkey) = (addr as u64 + 100, mr.rkey());
        let placement = Placement::GLOBAL | Placement::PERSISTENT;
        a.post(2, SendOp::Flush { remote_addr, rkey, len: 64, placement, whole_region }, 0, 0);
        assert_eq!(a.complete().opcode, WcOpcode::Flush);
    }
    let stored = std::fs::read(file.path()).unwrap();
    assert_eq!(stored[100..164], common::pattern(64, 9)[..]);
}

/// A page of a file on a filesystem that outlives a loss of power, where the build has one.
fn file_that_stays() -> Option<tempfile::NamedTempFile> {
    const TMPFS: u64 = 0x0102_1994;
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    let volatile = rustix::fs::fstatfs(&file).unwrap().f_type as u64 == TMPFS;
    (!volatile).then_some(file)
}
