//! What the dialect must always get right.
