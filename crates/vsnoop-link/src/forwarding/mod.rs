//! Where a frame goes: learned addresses, floods, split horizon.
