//! Redis and Valkey; filled in the next commits.
