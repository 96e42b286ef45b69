//! Records as they pass between hosts: sealed, counted, not replayed.
