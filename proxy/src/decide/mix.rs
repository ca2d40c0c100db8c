//! Mixing of hashes already made: one multiplication each, equal on every host.
