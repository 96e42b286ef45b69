//! Decisions about split connections, with sockets and hooks that only say what a test needs.

mod give_up;
mod leave;
mod moved;
mod scene;
