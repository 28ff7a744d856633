//! Keys and values of the in-process store; filled in the next commits.
