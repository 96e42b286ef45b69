//! This host's key, certificate and revocation lists, as files hold them.

pub mod credentials;
pub mod key_file;
pub mod revocation;
