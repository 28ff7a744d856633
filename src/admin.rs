//! Placeholder of the admin room; filled in the next commits.
