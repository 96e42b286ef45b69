//! What waits for an ordered transport: fair, short, dropped at its entry.
