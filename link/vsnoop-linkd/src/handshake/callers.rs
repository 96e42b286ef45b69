//! Connections of callers whose handshakes are under way, so that one can be ended from outside.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::debug;
use vsnoop_link::handshake::CallId;

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Callers(Arc<Mutex<HashMap<CallId, TcpStream>>>);

impl Callers {
    /// Keeps a second descriptor of the connection until [`Callers::forget_call`].
    pub fn note_begun(&self, id: CallId, stream: &TcpStream) {
        match stream.try_clone() {
            Ok(stream) => drop(self.lock_streams().insert(id, stream)),
            // It ends by its deadline, at the latest.
            Err(error) => debug!("a caller that cannot be displaced: {error}"),
        }
    }

    /// Its handshake is over.
    pub fn forget_call(&self, id: CallId) {
        self.lock_streams().remove(&id);
    }

    /// Shuts the connection of a handshake down; the thread that reads it gets end of file.
    pub fn end_call(&self, id: CallId) {
        if let Some(stream) = self.lock_streams().remove(&id) {
            // The caller may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lock_streams(&self) -> MutexGuard<'_, HashMap<CallId, TcpStream>> {
        // An insertion or a removal is whole or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
