//! Placeholder of the worker room; filled in the next commits.
