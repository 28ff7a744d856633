//! The store in every shape it may have: standalone, watched by Sentinels, a cluster; over TLS, as a limited user; and
//! what its failovers, moves and refusals do to money and to streams.

mod access;
mod crowd;
mod doubt;
mod failover;
mod flow;
mod loss;
mod moves;
mod servers;
mod shapes;
