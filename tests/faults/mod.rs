//! A store that is slow, busy, refusing, gone or emptied, under live streams: what each fault does to clients, workers
//! and money. Real gateways, real servers.

mod busy;
mod crowd;
mod denied;
mod evicted;
mod freeze;
mod gone;
mod house;
mod refusals;
mod restart;
