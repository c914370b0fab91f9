//! Scatter/gather lists over one and several regions.

use std::sync::Arc;

use irdma_mem::{
    Access, Buffer, GrantError, MemTable, MrInfo, PdId, Sge, SglError, gather, scatter, total_len,
};

const PD: PdId = PdId(3);

struct Fixture {
    table: MemTable,
    buffer: Arc<Buffer>,
    /// Bytes 0..64 of the buffer, known as 0x1000.
    a: MrInfo,
    /// Bytes 64..128 of the buffer, known as 0x1000 too.
    b: MrInfo,
}

fn fixture() -> Fixture {
    let table = MemTable::new(5, 100);
    let buffer = Arc::new(Buffer::zeroed(128));
    buffer.write(0, &std::array::from_fn::<u8, 128, _>(|i| i as u8));
    let register =
        |range| table.reg_phys_mr(PD, &buffer, range, 0x1000, Access::LOCAL_WRITE).unwrap();
    let (a, b) = (register(0..64), register(64..128));
    Fixture { table, buffer, a, b }
}

fn sge(mr: &MrInfo, offset: u64, length: u32) -> Sge {
    Sge { addr: mr.iova + offset, length, lkey: mr.lkey }
}

impl Fixture {
    fn list(&self) -> [Sge; 4] {
        [sge(&self.a, 10, 3), sge(&self.b, 0, 0), sge(&self.b, 20, 4), sge(&self.a, 0, 2)]
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 128];
        self.buffer.read(0, &mut bytes);
        bytes
    }
}

#[test]
fn gather_reads_any_part_of_the_list() {
    let f = fixture();
    let whole = [10, 11, 12, 84, 85, 86, 87, 0, 1];
    assert_eq!(total_len(&f.list()), 9);
    for start in 0..=9 {
        for end in start..=9 {
            let mut out = vec![0xff; end - start];
            gather(&f.table, PD, &f.list(), start as u64, &mut out).unwrap();
            assert_eq!(out, whole[start..end]);
        }
    }
}

#[test]
fn scatter_writes_any_part_of_the_list_and_nothing_else() {
    let places = [10, 11, 12, 84, 85, 86, 87, 0, 1];
    for start in 0..=9 {
        for end in start..=9 {
            let f = fixture();
            let mut expected = f.bytes();
            for (i, place) in places[start..end].iter().enumerate() {
                expected[*place] = 200 + i as u8;
            }
            let data: Vec<u8> = (0..end - start).map(|i| 200 + i as u8).collect();
            scatter(&f.table, PD, &f.list(), start as u64, &data).unwrap();
            assert_eq!(f.bytes(), expected);
        }
    }
}

#[test]
fn a_bad_element_is_named_and_nothing_is_scattered() {
    let f = fixture();
    let before = f.bytes();
    let past = Sge { length: 65, ..sge(&f.b, 0, 0) };
    for bad in [past, Sge { lkey: 0, ..past }] {
        let list = [sge(&f.a, 0, 8), sge(&f.b, 0, 8), bad];
        let error = scatter(&f.table, PD, &list, 0, &[1; 81]).unwrap_err();
        assert_eq!((error.index, error.lkey), (2, bad.lkey));
        assert_eq!(f.bytes(), before);
        assert_eq!(gather(&f.table, PD, &list, 0, &mut [0; 81]), Err(error));
        scatter(&f.table, PD, &list, 0, &before[..8]).unwrap();
    }
    let error = SglError { index: 2, lkey: 0x300, error: GrantError::ForeignPd };
    assert!(error.to_string().starts_with("sge[2] lkey 0x00000300: the region belongs"));
}

#[test]
fn only_the_touched_part_of_an_element_is_checked() {
    let f = fixture();
    let list = [sge(&f.a, 32, 64)];
    assert!(gather(&f.table, PD, &list, 0, &mut [0; 32]).is_ok());
    assert!(gather(&f.table, PD, &list, 0, &mut [0; 33]).is_err());
}

#[test]
fn an_address_that_wraps_is_refused() {
    let f = fixture();
    let list = [Sge { addr: u64::MAX, length: 8, lkey: f.a.lkey }];
    for offset in 0..4 {
        let error = scatter(&f.table, PD, &list, offset, &[1; 4]).unwrap_err().error;
        assert!(matches!(error, GrantError::Bounds { .. }), "{error}");
    }
}

#[test]
fn gathering_needs_no_access_and_scattering_local_write() {
    let f = fixture();
    let access = Access::REMOTE_READ;
    let mr = f.table.reg_phys_mr(PD, &f.buffer, 0..8, 0, access).unwrap();
    let list = [sge(&mr, 0, 8)];
    gather(&f.table, PD, &list, 0, &mut [0; 8]).unwrap();
    let error = scatter(&f.table, PD, &list, 0, &[0; 8]).unwrap_err().error;
    assert_eq!(error, GrantError::Access { missing: Access::LOCAL_WRITE });
}

#[test]
#[should_panic(expected = "the list ends 1 bytes too early")]
fn a_copy_longer_than_the_list_is_a_bug() {
    let f = fixture();
    _ = gather(&f.table, PD, &f.list(), 0, &mut [0; 10]);
}
