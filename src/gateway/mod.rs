//! Placeholder of the gateway room; filled in the next commits.
