//! Placeholder of the wire room; filled in the next commits.
