//! Placeholder of the telemetry room; filled in the next commits.
