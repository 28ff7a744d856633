//! Money: budgets, leases, admission. Filled in the next commits.

pub mod store;
