//! What a meter must always get right.
