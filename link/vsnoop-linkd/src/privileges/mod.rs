//! Privileges of the process of a link once it has its devices, keys and sockets.
//!
//! It reads bytes of unknown sources and peers. Should one of them take over a thread, this is what
//! the thread can do: see docs/decisions/0026-link-privileges.md. They belong to a thread and are
//! inherited by those that it starts, so [`Plan::drop`] is called before there are others.

mod needs;
mod plan;
mod user;

#[cfg(test)]
mod tests;

pub use needs::Needs;
pub use plan::{DropError, Plan};
pub use user::{AccountError, UserAccount};
