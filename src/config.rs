//! Placeholder of the config room; filled in the next commits.
