//! Money as a whole: random walks with lost answers, crashes and period edges; races through two gateways.

pub mod books;
mod race;
mod walk;
