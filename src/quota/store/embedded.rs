//! In-process store; filled in the next commits.
