//! What every test stands on: real processes, real sockets, real frames; this module owns their lives and ports.
//!
//! Everything started here listens on loopback at a port the system chose, and dies with its handle. Fakes stop
//! at the socket: a scripted peer is a real server, a store is a real server, and the gateway is the real program.
#![allow(dead_code, reason = "each test file uses its own part of the harness")]

pub mod audio;
pub mod certificates;
pub mod client;
pub mod cluster;
pub mod gateway;
pub mod proxy;
pub mod raw;
pub mod redis_server;
pub mod scripted_worker;
pub mod sdk;
pub mod sentinel;
pub mod signal;
pub mod worker_process;

use std::time::Duration;

/// How long a test waits for something that must happen, before it fails instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether every tool must be there (`./test` sets it): a missing one then fails its test.
pub fn all_tools_required() -> bool {
    std::env::var_os("VOXGATE_TEST_ALL").is_some()
}

/// Waits until `done` gives a value, looking again whenever `changed` fires; panics after [`PATIENCE`].
///
/// `what` names the thing waited for in the panic message.
pub async fn until<T>(what: &str, changed: &tokio::sync::Notify, mut done: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            let fired = changed.notified();
            tokio::pin!(fired);
            fired.as_mut().enable();
            if let Some(value) = done() {
                return value;
            }
            fired.await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {what} in {PATIENCE:?}"))
}

/// Waits until `look` gives a value, asking a foreign process that tells nobody when it changes; panics after
/// [`PATIENCE`].
pub async fn polled<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            if let Some(value) = look().await {
                return value;
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {what} in {PATIENCE:?}"))
}
