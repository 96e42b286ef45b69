//! A peer over time: dialled, alive, rekeyed, roaming, lost, back again.
