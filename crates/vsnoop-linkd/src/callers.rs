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
    /// Keeps a second descriptor of the connection until [`Callers::forget`].
    pub fn begin(&self, id: CallId, stream: &TcpStream) {
        match stream.try_clone() {
            Ok(stream) => drop(self.streams().insert(id, stream)),
            // It ends by its deadline, at the latest.
            Err(error) => debug!("a caller that cannot be displaced: {error}"),
        }
    }

    /// Its handshake is over.
    pub fn forget(&self, id: CallId) {
        self.streams().remove(&id);
    }

    /// Shuts the connection of a handshake down; the thread that reads it gets end of file.
    pub fn end(&self, id: CallId) {
        if let Some(stream) = self.streams().remove(&id) {
            // The caller may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<CallId, TcpStream>> {
        // An insertion or a removal is whole or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
