//! Reads a capture back: what packets are in it, and whether their ICRCs are right.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use irdma_wire::ip::Datagram;
use irdma_wire::{
    FlowKey, Opcode, Operation, Position, Service, UDP_PORT, Verdict, icrc, pcapng, roce,
};
use serde::Serialize;

/// What is in a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Contents {
    /// The file.
    pub file: PathBuf,
    /// RoCEv2 packets.
    pub packets: usize,
    /// How many of each opcode, by name.
    pub opcodes: BTreeMap<String, usize>,
}

/// A new file in the folder for temporary files, which nobody else can have put there.
pub fn temporary() -> io::Result<PathBuf> {
    let folder = env::temp_dir();
    let names = (0..).map(|n| match n {
        0 => format!("irdma-demo-{}.pcapng", process::id()),
        n => format!("irdma-demo-{}-{n}.pcapng", process::id()),
    });
    for path in names.map(|name| folder.join(name)) {
        match fs::File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map(|_| path),
        }
    }
    unreachable!("the names have no end")
}

/// Reads a capture and checks every packet. An error says what is wrong, or what is missing of
/// the opcodes that the operations of the demo use.
pub fn read(file: &Path) -> Result<Contents, String> {
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    let frames = pcapng::read(&bytes).map_err(|error| error.to_string())?;
    let mut found: Vec<(Opcode, usize)> = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let opcode = frame.ip_packet().ok_or("no IP packet").and_then(check_packet);
        let opcode = opcode.map_err(|wrong| format!("packet {}: {wrong}", number + 1))?;
        match found.iter_mut().find(|(known, _)| *known == opcode) {
            Some((_, count)) => *count += 1,
            None => found.push((opcode, 1)),
        }
    }
    let has = |opcode: &Opcode| found.iter().any(|(known, _)| known == opcode);
    if let Some(missing) = expected().iter().find(|opcode| !has(opcode)) {
        return Err(format!("there is no {} packet in it", name(*missing)));
    }
    let opcodes = found.into_iter().map(|(opcode, count)| (name(opcode), count)).collect();
    Ok(Contents { file: file.to_owned(), packets: frames.len(), opcodes })
}

fn check_packet(ip_packet: &[u8]) -> Result<Opcode, &'static str> {
    let datagram = Datagram::parse(ip_packet).ok_or("no UDP datagram")?;
    if datagram.dst_port != UDP_PORT {
        return Err("not to the RoCEv2 port");
    }
    let packet = roce::parse(datagram.payload).map_err(|_| "no RoCEv2 packet")?;
    let ip = datagram.ip;
    let flow = FlowKey { src: ip.src, dst: ip.dst, src_port: datagram.src_port };
    match icrc::verify(&flow, ip.ident.id, datagram.payload) {
        Verdict::Good => Ok(packet.headers.bth.opcode),
        _ => Err("its ICRC is wrong"),
    }
}

fn expected() -> Vec<Opcode> {
    use Operation::*;
    use Position::*;
    let opcode = |service, operation, position| Opcode::new(service, operation, position);
    let mut all = Vec::new();
    for service in [Service::Rc, Service::Uc] {
        for position in [First, Middle, Last, Only] {
            all.push(opcode(service, Send, position));
        }
        for position in [First, Middle] {
            all.push(opcode(service, Write, position));
        }
        for position in [Last, Only] {
            all.push(Opcode { immediate: true, ..opcode(service, Write, position) });
        }
    }
    for position in [First, Middle, Last, Only] {
        all.push(opcode(Service::Rc, ReadResponse, position));
    }
    for operation in [ReadRequest, Ack, AtomicAck, CompareSwap, FetchAdd, Write] {
        all.push(opcode(Service::Rc, operation, Only));
    }
    all.push(opcode(Service::Rc, Write, Last));
    all.push(opcode(Service::Ud, Send, Only));
    all
}

/// The opcode as the specification writes it.
fn name(opcode: Opcode) -> String {
    let service = match opcode.service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
    };
    let (operation, is_message) = match opcode.operation {
        Operation::Send => ("SEND", true),
        Operation::Write => ("RDMA WRITE", true),
        Operation::ReadRequest => ("RDMA READ request", false),
        Operation::ReadResponse => ("RDMA READ response", true),
        Operation::Ack => ("acknowledge", false),
        Operation::AtomicAck => ("ATOMIC acknowledge", false),
        Operation::CompareSwap => ("CmpSwap", false),
        Operation::FetchAdd => ("FetchAdd", false),
        Operation::Flush => ("FLUSH", false),
        Operation::AtomicWrite => ("ATOMIC WRITE", false),
    };
    let position = match opcode.position {
        _ if !is_message => "",
        Position::First => " first",
        Position::Middle => " middle",
        Position::Last => " last",
        Position::Only => " only",
    };
    let immediate = if opcode.immediate { " with immediate" } else { "" };
    let invalidate = if opcode.invalidate { " with invalidate" } else { "" };
    format!("{service} {operation}{position}{immediate}{invalidate}")
}
