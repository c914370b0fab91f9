//! The classic-BPF program that chooses among the sockets of one address.
//!
//! It sees the UDP payload from byte 0, for a merged batch that of the first datagram, and returns
//! the index of a socket in the group. Bytes past the end read as a return of 0; an index past the
//! end lets the kernel choose by flow.

use crate::sys::Insn;

/// The first eight bytes of a probe; 0xFF is no opcode of a transport.
pub(super) const PROBE_MAGIC: [u8; 8] = *b"\xffirdma:k";

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const RETURN: u16 = 0x06;
const RETURN_LOADED: u16 = 0x16;

/// Which socket of the group, by its index, owns a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) slot: u16,
    pub(super) index: u16,
}

/// Jumps over `yes` instructions if the condition holds and over `no` if not.
const fn insn(code: u16, k: u32, yes: u8, no: u8) -> Insn {
    Insn { code, jt: yes, jf: no, k }
}

const fn step(code: u16, k: u32) -> Insn {
    insn(code, k, 0, 0)
}

const fn magic_word(at: usize) -> u32 {
    let m = PROBE_MAGIC;
    u32::from_be_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]])
}

/// Leaves the slot loaded; what has none goes to the socket at `fallback`, where requests to the
/// connection manager are handed on.
const fn find_slot(fallback: u16) -> [Insn; 23] {
    [
        // A probe carries the index that it wants.
        step(LOAD_WORD, 0),
        insn(JUMP_EQUAL, magic_word(0), 0, 4),
        step(LOAD_WORD, 4),
        insn(JUMP_EQUAL, magic_word(4), 0, 2),
        step(LOAD_HALF, 8),
        step(RETURN_LOADED, 0),
        // BTH: the destination QPN.
        step(LOAD_WORD, 4),
        step(AND, 0x00ff_ffff),
        insn(JUMP_GREATER, 1, 13, 0),
        insn(JUMP_EQUAL, 1, 0, 11),
        // GSI: replies of the connection manager carry an id that the receiver chose.
        step(LOAD_BYTE, 21),
        insn(JUMP_EQUAL, CM_CLASS, 0, 9),
        step(LOAD_HALF, 36),
        insn(JUMP_EQUAL, CM_REQ, 7, 0),
        insn(JUMP_EQUAL, CM_SIDR_REQ, 6, 0),
        insn(JUMP_EQUAL, CM_SIDR_REP, 2, 0),
        step(LOAD_WORD, 48),
        step(JUMP, 1),
        step(LOAD_WORD, 44),
        step(SHIFT_RIGHT, 22),
        step(JUMP, 2),
        step(RETURN, fallback as u32),
        step(SHIFT_RIGHT, 14),
    ]
}

/// Management class and attribute ids of the connection manager (IBTA 12.6, 13.4.4). All messages
/// carry the receiver's id in their second word but these: a request has none, a SIDR reply has it
/// in its first.
const CM_CLASS: u32 = 0x07;
const CM_REQ: u32 = 0x10;
const CM_SIDR_REQ: u32 = 0x17;
const CM_SIDR_REP: u32 = 0x18;

/// The program for a table; slots that are not in it go to index `fallback`.
pub(super) fn program(table: &[Entry], fallback: u16) -> Vec<Insn> {
    let choices = table.iter().flat_map(|entry| {
        [insn(JUMP_EQUAL, entry.slot.into(), 0, 1), step(RETURN, entry.index.into())]
    });
    find_slot(fallback).into_iter().chain(choices).chain([step(RETURN, fallback.into())]).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn disassemble(program: &[Insn]) -> String {
        let line = |(at, insn): (usize, &Insn)| {
            let (yes, no) = (at + 1 + usize::from(insn.jt), at + 1 + usize::from(insn.jf));
            let k = insn.k;
            let text = match insn.code {
                LOAD_WORD => format!("ldw [{k}]"),
                LOAD_HALF => format!("ldh [{k}]"),
                LOAD_BYTE => format!("ldb [{k}]"),
                AND => format!("and {k:#x}"),
                SHIFT_RIGHT => format!("rsh {k}"),
                JUMP => format!("jmp {}", at + 1 + k as usize),
                JUMP_EQUAL => format!("jeq {k:#x}, {yes}, {no}"),
                JUMP_GREATER => format!("jgt {k:#x}, {yes}, {no}"),
                RETURN => format!("ret {k}"),
                RETURN_LOADED => "ret a".to_owned(),
                code => panic!("unknown instruction {code:#x}"),
            };
            format!("{at:2}: {text}\n")
        };
        program.iter().enumerate().map(line).collect()
    }

    #[test]
    fn the_program_reads_as_intended() {
        let table = [Entry { slot: 5, index: 0 }, Entry { slot: 700, index: 1 }];
        expect![[r#"
             0: ldw [0]
             1: jeq 0xff697264, 2, 6
             2: ldw [4]
             3: jeq 0x6d613a6b, 4, 6
             4: ldh [8]
             5: ret a
             6: ldw [4]
             7: and 0xffffff
             8: jgt 0x1, 22, 9
             9: jeq 0x1, 10, 21
            10: ldb [21]
            11: jeq 0x7, 12, 21
            12: ldh [36]
            13: jeq 0x10, 21, 14
            14: jeq 0x17, 21, 15
            15: jeq 0x18, 18, 16
            16: ldw [48]
            17: jmp 19
            18: ldw [44]
            19: rsh 22
            20: jmp 23
            21: ret 3
            22: rsh 14
            23: jeq 0x5, 24, 25
            24: ret 0
            25: jeq 0x2bc, 26, 27
            26: ret 1
            27: ret 3
        "#]]
        .assert_eq(&disassemble(&program(&table, 3)));
    }

    #[test]
    fn a_table_of_all_slots_fits_the_kernels_limits() {
        const BPF_MAXINSNS: usize = 4096;
        const OPTMEM_MAX_BEFORE_6_7: usize = 20_480;
        let table: Vec<_> = (1..=1022).map(|slot| Entry { slot, index: slot }).collect();
        let program = program(&table, 0);
        assert!(program.len() < BPF_MAXINSNS);
        assert!(program.len() * size_of::<Insn>() + 128 < OPTMEM_MAX_BEFORE_6_7);
    }
}
