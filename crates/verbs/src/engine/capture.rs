//! A tap that writes every datagram of the process to a pcapng file.
//!
//! Each batch is one `write`, so that a capture is whole up to the last batch however the process
//! ends.

use std::fs::{File, TryLockError};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use irdma_net::clock;
use irdma_wire::icrc;
use irdma_wire::ip::{Datagram, Ident, IpHeader};
use irdma_wire::pcapng::{self, Direction};
use irdma_wire::{FlowKey, UDP_PORT};

use crate::write::write_all;

/// One end of a datagram's way and its marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) src: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) dst: IpAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// Place in the batch, from which the IPv4 identification follows.
    pub(crate) index: u16,
}

/// The file that a process's lanes write to.
#[derive(Debug)]
pub(crate) struct Tap {
    path: PathBuf,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: File,
    failed: bool,
}

impl Tap {
    /// Opens `path`, in which `%p` stands for the process id. A file that another process is
    /// writing is left alone: the process id goes into the name.
    fn create(path: &Path) -> io::Result<Self> {
        let text = path.to_string_lossy().replace("%p", &clock::pid().to_string());
        let path = PathBuf::from(text);
        let (file, path) = match open_unused(&path)? {
            Some(file) => (file, path),
            None => {
                let path = with_pid(&path);
                let file = open_unused(&path)?.ok_or(io::ErrorKind::ResourceBusy)?;
                (file, path)
            }
        };
        let mut blocks = Vec::new();
        let comment = format!("irdma {} process {}", env!("CARGO_PKG_VERSION"), clock::pid());
        pcapng::section_header(&mut blocks, &comment);
        pcapng::interface(&mut blocks, "irdma");
        let tap = Tap { path, output: Mutex::new(Output { file, failed: false }) };
        tap.write(&blocks);
        Ok(tap)
    }

    /// As [`Tap::create`]; a failure is logged, and traffic goes on without the tap.
    pub(crate) fn open_or_log(path: &Path) -> Option<Arc<Self>> {
        let opened = Tap::create(path).map(Arc::new);
        opened.inspect_err(|error| tracing::error!("capture {}: {error}", path.display())).ok()
    }

    /// Writes blocks in one go. The first failure is logged; later packets may be missing then.
    fn write(&self, blocks: &[u8]) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write_all(&output.file, blocks)
            && !std::mem::replace(&mut output.failed, true)
        {
            tracing::error!("capture {} is incomplete: {error}", self.path.display());
        }
    }
}

/// A lane's part in the capture.
#[derive(Debug)]
pub(crate) struct Capture {
    tap: Arc<Tap>,
    blocks: Vec<u8>,
}

impl Capture {
    pub(crate) fn new(tap: Arc<Tap>) -> Self {
        Capture { tap, blocks: Vec::new() }
    }

    /// Adds a datagram of the batch.
    pub(crate) fn add(&mut self, direction: Direction, way: &Way, payload: &[u8]) {
        let ip = IpHeader {
            src: way.src,
            dst: way.dst,
            traffic_class: way.tos,
            hop_limit: way.ttl,
            ident: ident(direction, way, payload),
            payload_len: 0,
        };
        let datagram = Datagram { ip, src_port: way.src_port, dst_port: UDP_PORT, payload };
        let mut headers = [0; Datagram::HEADERS_LEN];
        let len = datagram.emit(&mut headers);
        let parts = [&headers[..len], payload];
        pcapng::packet(&mut self.blocks, 0, clock::realtime_ns(), direction, &parts);
    }

    /// Writes the batch.
    pub(crate) fn flush(&mut self) {
        if !self.blocks.is_empty() {
            self.tap.write(&self.blocks);
            self.blocks.clear();
        }
    }
}

/// The identification that the kernel gave; of what arrived, the one that the ICRC was made with.
fn ident(direction: Direction, way: &Way, payload: &[u8]) -> Ident {
    let sent = Ident { id: way.index, dont_fragment: true };
    match direction {
        Direction::Outbound => sent,
        Direction::Inbound => {
            let flow = FlowKey { src: way.src, dst: way.dst, src_port: way.src_port };
            icrc::ident(&flow, payload).unwrap_or(sent)
        }
    }
}

/// Opens and empties a file; `None` if another process is writing it.
fn open_unused(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).write(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    Ok(Some(file))
}

fn with_pid(path: &Path) -> PathBuf {
    let pid = clock::pid().to_string();
    match path.extension() {
        Some(extension) => path.with_extension(format!("{pid}.{}", extension.to_string_lossy())),
        None => path.with_extension(pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> Way {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        Way { src: ip(1), src_port: 50000, dst: ip(2), tos: 0, ttl: 64, index: 3 }
    }

    #[test]
    fn a_received_packet_is_written_with_the_identification_it_was_signed_with() {
        let mut packet = [0x64; 32];
        let flow = FlowKey { src: way().src, dst: way().dst, src_port: way().src_port };
        icrc::sign(&flow, 0x1234, &mut packet);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pcapng");
        let tap = Arc::new(Tap::create(&path).unwrap());
        // Two lanes, one file.
        for direction in [Direction::Inbound, Direction::Outbound] {
            let mut capture = Capture::new(Arc::clone(&tap));
            capture.add(direction, &way(), &packet);
            capture.flush();
        }
        let bytes = std::fs::read(&path).unwrap();
        let frames = pcapng::read(&bytes).unwrap();
        let idents: Vec<_> = frames
            .iter()
            .map(|frame| Datagram::parse(frame.ip_packet().unwrap()).unwrap())
            .inspect(|datagram| assert_eq!(datagram.payload, packet))
            .map(|datagram| datagram.ip.ident.id)
            .collect();
        assert_eq!(idents, [0x1234, 3]);
    }

    #[test]
    fn a_file_in_use_gets_a_sibling_and_an_old_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pcapng");
        std::fs::write(&path, [0; 4096]).unwrap();
        let first = Tap::create(&path).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 4096);
        let second = Tap::create(&path).unwrap();
        assert_eq!(first.path, path);
        let name = format!("x.{}.pcapng", clock::pid());
        assert_eq!(second.path, directory.path().join(name));
    }

    #[test]
    fn percent_p_is_the_process_id() {
        let directory = tempfile::tempdir().unwrap();
        let tap = Tap::create(&directory.path().join("%p.pcapng")).unwrap();
        assert_eq!(tap.path, directory.path().join(format!("{}.pcapng", clock::pid())));
    }
}
