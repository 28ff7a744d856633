//! A script that loops over all that was ever taken, beside the one-key script, while the list grows.

use std::time::{Duration, Instant};

use redis::RedisError;
use serde::Serialize;
use voxgate::quota::script;
use voxgate::quota::store::Store;

use super::super::{Failure, admit};
use super::slow::{Neighbour, fault};

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// Adds up a list of all takes to see what is left.
    Loop,
    /// `lua/admit.lua`.
    Bounded,
}

impl Way {
    /// Its name in reports.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Loop => "loop over the list",
            Self::Bounded => "admit.lua",
        }
    }
}

/// One way at one length of the list.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) way: Way,
    pub(super) elements: u32,
    /// Of each call, in seconds.
    pub(super) took: Vec<f64>,
    /// Its calls were made between these seconds of the run.
    pub(super) from: f64,
    pub(super) to: f64,
}

/// Calls one way again and again for a short time, with pauses. `now` gives the seconds of the run.
pub(super) async fn call(
    way: Way,
    elements: u32,
    (neighbour, store): (&Neighbour, &Store),
    now: &(dyn Fn() -> f64 + Sync),
) -> Result<Calls, Failure> {
    let (from, until) = (now(), Instant::now() + TIME);
    let mut took = Vec::new();
    let mut connection = neighbour.connection();
    while took.is_empty() || Instant::now() < until {
        let sent = Instant::now();
        match way {
            Way::Loop => {
                let mut call = redis::cmd("EVAL");
                call.arg(LOOP).arg(1).arg(LIST).arg(1).arg(u64::from(u32::MAX) * 1000);
                let left: Result<u64, RedisError> = call.query_async(&mut connection).await;
                left.map_err(fault)?;
            }
            Way::Bounded => {
                admit(store, &script::ADMIT, QUOTA, "1").await?;
            }
        }
        took.push(sent.elapsed().as_secs_f64());
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Calls { way, elements, took, from, to: now() })
}

/// Makes the list so long.
pub(super) async fn grow(neighbour: &mut Neighbour, store: &Store, elements: u32) -> Result<(), Failure> {
    store.command(&["SET", QUOTA, "1000000000", "PX", "600000"]).await?;
    neighbour.fill(LIST, elements).await
}

/// Takes both keys away.
pub(super) async fn leave(store: &Store) -> Result<(), Failure> {
    store.command(&["UNLINK", LIST, QUOTA]).await?;
    Ok(())
}

/// One more entry and one less, so that the list stays as long as it is.
const LOOP: &str = "local spent = 0 \
    for _, units in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do spent = spent + units end \
    if spent + ARGV[1] > tonumber(ARGV[2]) then return 0 end \
    redis.call('RPUSH', KEYS[1], ARGV[1]) redis.call('LPOP', KEYS[1]) \
    return tonumber(ARGV[2]) - spent";
const LIST: &str = "load:busy:{list}:taken";
const QUOTA: &str = "load:busy:{list}:quota";
const TIME: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(10);
