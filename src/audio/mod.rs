//! Placeholder of the audio room; filled in the next commits.
