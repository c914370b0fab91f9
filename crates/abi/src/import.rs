//! Objects found again by their numbers (`ibv_import_device(3)`), within the process: there is no
//! kernel that another process could ask.

use std::collections::HashMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_net::fork::PerProcess;

use crate::boundary::{Errno, Object, Owned, refuse};
use crate::context::{self, Context};
use crate::device;
use crate::dm::{self, Dm};
use crate::mr::{self, Mr};
use crate::pd::{self, Pd};

/// Objects of one kind, by the numbers in their `handle` fields.
pub struct Registry<T>(Mutex<HashMap<u32, T>>);

/// An object's place in a registry, which ends with the object.
pub struct Listed<T> {
    registry: Arc<Registry<T>>,
    number: u32,
}

/// What can be found in an open device, by all contexts that stand for it.
#[derive(Default)]
pub struct Directory {
    pub pds: Arc<Registry<irdma::Pd>>,
    pub dms: Arc<Registry<irdma::Dm>>,
    pub mrs: Arc<Registry<mr::Keys>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Registry(Mutex::default())
    }
}

impl<T> Registry<T> {
    pub fn list(self: &Arc<Self>, number: u32, object: T) -> Listed<T> {
        self.lock().insert(number, object);
        Listed { registry: Arc::clone(self), number }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `found` of the object with this number. ENOENT if there is none.
    fn find<R>(&self, call: &str, number: u32, found: impl FnOnce(&T) -> R) -> Result<R, Errno> {
        self.lock().get(&number).map(found).ok_or_else(|| {
            refuse(call, libc::ENOENT, &format!("no object of the device has the handle {number}"))
        })
    }
}

impl<T> Drop for Listed<T> {
    fn drop(&mut self) {
        let removed = self.registry.lock().remove(&self.number);
        drop(removed);
    }
}

/// Open devices by their command descriptors.
static OPEN: PerProcess<Mutex<Vec<Open>>> = PerProcess::new();

struct Open {
    id: FileId,
    handle: Weak<irdma::Context>,
    directory: Arc<Directory>,
}

/// Device and inode: what a descriptor has in common with its duplicates.
type FileId = (u64, u64);

fn file_id(fd: BorrowedFd<'_>) -> Result<FileId, Errno> {
    let id = || {
        let file = File::from(fd.try_clone_to_owned()?).metadata()?;
        Ok((file.dev(), file.ino()))
    };
    id().map_err(|error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// A descriptor by which the device can be found again; there is nothing to be read from it.
pub fn command_fd(
    handle: &Arc<irdma::Context>,
    directory: &Arc<Directory>,
) -> Result<OwnedFd, Errno> {
    let broken = |error: std::io::Error| {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        refuse("ibv_open_device", code, &format!("no command descriptor: {error}"))
    };
    let (fd, _) = std::io::pipe().map_err(broken)?;
    let fd = OwnedFd::from(fd);
    let id = file_id(fd.as_fd())?;
    let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|open| open.handle.strong_count() > 0);
    open.push(Open { id, handle: Arc::downgrade(handle), directory: Arc::clone(directory) });
    Ok(fd)
}

/// `ibv_import_device(3)`: the new context closes the descriptor.
pub fn open_device(fd: i32) -> Result<Box<Object<Context>>, Errno> {
    const CALL: &str = "ibv_import_device";
    if fd < 0 {
        return Err(refuse(CALL, libc::EBADF, &format!("{fd} is no file descriptor")));
    }
    // SAFETY: the program's descriptor, which it does not close during the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let id = file_id(borrowed).map_err(|code| refuse(CALL, code.0, "cmd_fd"))?;
    let open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    let found = open.iter().find(|open| open.id == id);
    let found = found.and_then(|open| Some((open.handle.upgrade()?, Arc::clone(&open.directory))));
    let (handle, directory) = found.ok_or_else(|| {
        let cause = "cmd_fd is no open device of this process: objects cannot be shared between \
                     processes, there is no kernel to hold them";
        refuse(CALL, libc::EOPNOTSUPP, cause)
    })?;
    // SAFETY: the call takes the descriptor over.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let device = device::known(handle.device());
    Ok(context::make(handle, directory, fd, device))
}

/// `ibv_import_pd(3)`.
pub fn pd(context: &Object<Context>, number: u32) -> Result<Box<Object<Pd>>, Errno> {
    let found = |pd: &irdma::Pd| pd.import_pd();
    let handle = context.directory.pds.find("ibv_import_pd", number, found)?;
    Ok(pd::imported(context, handle, number))
}

/// `ibv_unimport_pd(3)`.
pub fn unimport_pd(pd: Owned<Pd>) -> Result<(), Errno> {
    drop(ManuallyDrop::into_inner(pd.take().into_own().handle));
    Ok(())
}

/// `ibv_import_dm(3)`.
pub fn dm(context: &Object<Context>, number: u32) -> Result<Box<Object<Dm>>, Errno> {
    let found = |dm: &irdma::Dm| dm.import_dm();
    let handle = context.directory.dms.find("ibv_import_dm", number, found)?;
    Ok(dm::make(context, handle, number, None))
}

/// `ibv_unimport_dm(3)`.
pub fn unimport_dm(dm: Owned<Dm>) -> Result<(), Errno> {
    drop(ManuallyDrop::into_inner(dm.take().into_own().handle));
    Ok(())
}

/// `ibv_import_mr(3)`: keys alone; the region ends where it was registered.
pub fn mr(pd: &Object<Pd>, number: u32) -> Result<Box<Object<Mr>>, Errno> {
    let keys = pd.directory.mrs.find("ibv_import_mr", number, |keys| *keys)?;
    Ok(mr::imported(pd, keys, number))
}

/// `ibv_unimport_mr(3)`.
pub fn unimport_mr(mr: Owned<Mr>) -> Result<(), Errno> {
    drop(mr.take());
    Ok(())
}
