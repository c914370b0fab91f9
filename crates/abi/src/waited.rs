//! Objects whose events threads wait for.
//!
//! Programs end such an object, or exit, while a thread of theirs waits for its events or is about
//! to: where a kernel has the events, the thread sleeps in `read(2)` and touches nothing of the
//! object any more. Here the thread finds the events in a table, and an object that is gone as the
//! mark that it leaves there: some 50 bytes for each address that ever was one's.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma::ErrorKind;
use irdma_net::fork::PerProcess;

use crate::boundary::{Errno, FromC, NEVER, NOT_YET, Object, Shape};

/// A private part whose object has events.
pub trait Waits: Shape {
    /// The events, which may be waited for longer than the object lives.
    type Events: Clone + Send + 'static;
    /// All objects of the kind.
    const TABLE: &'static Table<Self::Events>;
}

/// Events by the addresses that the program knows; `None` for those of objects that are gone.
pub struct Table<E>(PerProcess<Mutex<BTreeMap<usize, Option<E>>>>);

/// An object's place in the table, where a mark is left when this is dropped.
pub struct Place<E: 'static> {
    table: &'static Table<E>,
    address: usize,
}

impl<E> Table<E> {
    pub const fn new() -> Self {
        Table(PerProcess::new())
    }

    /// Lists an object that the program is about to see.
    pub fn enter<S>(&'static self, object: &Object<S>, events: E) -> Place<E>
    where
        S: Waits<Events = E>,
    {
        let address = object.as_seen().addr();
        self.lock().insert(address, Some(events));
        Place { table: self, address }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Option<E>>> {
        self.0.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> Drop for Place<E> {
    fn drop(&mut self) {
        // What the events end, they end without the lock.
        let events = self.table.lock().insert(self.address, None);
        drop(events);
    }
}

/// The object whose events a thread asks for; `None` of one that is gone.
pub struct Source<S: Waits>(Option<S::Events>);

/// What a thread gets that asks for an event.
pub enum Next<T> {
    Event(T),
    /// [`NOT_YET`] or [`NEVER`].
    None(c_int),
}

impl<S: Waits> FromC for Source<S> {
    type Raw = *mut S::Seen;

    unsafe fn from_c(raw: *mut S::Seen) -> Result<Self, Errno> {
        let known = S::TABLE.lock().get(&raw.addr()).cloned();
        // What a child has inherited belongs to its parent.
        let unknown = if S::TABLE.0.is_inherited() { libc::EIO } else { libc::EINVAL };
        known.map(Source).ok_or(Errno(unknown))
    }
}

impl<S: Waits> Source<S> {
    /// The event that `get` waits for. A thread whose object goes meanwhile does not hear of it.
    ///
    /// Between two calls it finds its object by address, as one finds a file by descriptor: an
    /// object made there in that moment is taken for its own.
    pub fn next<T>(
        &self,
        get: impl FnOnce(&S::Events) -> irdma::Result<Option<T>>,
    ) -> Result<Next<T>, Errno> {
        let Some(events) = &self.0 else { return Ok(Next::None(NEVER)) };
        match get(events) {
            Ok(Some(event)) => Ok(Next::Event(event)),
            Ok(None) => Ok(Next::None(NOT_YET)),
            Err(error) if error.kind() == ErrorKind::Destroyed => Ok(Next::None(NEVER)),
            Err(error) => Err(error.into()),
        }
    }
}
