//! Which server is the primary, by asking sentinels.
//!
//! # States
//! *Unknown* → ask → *Known*: one node, until a call fails as it does elsewhere, or the sentinels name another one →
//! ask again. While known, the sentinels are asked every [`STORE_LOOK_EVERY`] in the background: a primary that is
//! frozen or cut off is left before its calls time out, and what is pending on it is given up as in doubt.
//!
//! # Failures
//! | seen | done |
//! |---|---|
//! | a sentinel gives no answer within [`STORE_LOOK`] | the others decide |
//! | sentinels disagree | a known primary is left only for one that more than half of all sentinels name: one that is cut off from the others may still believe in an old one; the server's own `ROLE` has the last word |
//! | no sentinel knows the primary | `Away`; asked again with the next call, at most every [`STORE_LOOK_PAUSE`] |
//! | the named server is no primary (yet) | its connection is refused, `Away` |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::super::{Reply, StoreError};
use super::access::Access;
use super::epoch::Epoch;
use super::node::Node;
use super::target::Address;
use crate::limits::{STORE_LOOK, STORE_LOOK_EVERY, STORE_LOOK_PAUSE};

/// The sentinels of one primary.
pub(super) struct Sentinels {
    seeds: Vec<Address>,
    name: String,
    access: Arc<Access>,
    data: Arc<Access>,
    known: Mutex<Known>,
    /// Serializes looking; when the last look ended.
    look: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Known {
    node: Option<Arc<Node>>,
    looked: Option<Instant>,
}

impl Sentinels {
    pub(super) fn new(seeds: Vec<Address>, name: String, access: Arc<Access>, data: Arc<Access>) -> Self {
        Self { seeds, name, access, data, known: Mutex::default(), look: tokio::sync::Mutex::default() }
    }

    /// The primary, as known; looked for first when it is not known or under suspicion.
    pub(super) async fn primary(self: &Arc<Self>) -> Result<Arc<Node>, StoreError> {
        let (node, due) = {
            let mut known = self.lock();
            let due = known.looked.is_none_or(|at| at.elapsed() >= STORE_LOOK_EVERY);
            if due {
                known.looked = Some(Instant::now());
            }
            (known.node.clone(), due)
        };
        match node {
            Some(node) if !node.is_suspect() => {
                if due {
                    let own = Arc::clone(self);
                    tokio::spawn(async move { own.look().await });
                }
                Ok(node)
            }
            _ => {
                self.look().await;
                let nobody = || StoreError::Away(format!("no sentinel names a primary {:?}", self.name));
                self.lock().node.clone().ok_or_else(nobody)
            }
        }
    }

    /// Asks all sentinels, unless that was done a moment ago.
    async fn look(&self) {
        let mut looked = self.look.lock().await;
        if looked.is_some_and(|at| at.elapsed() < STORE_LOOK_PAUSE) {
            return;
        }
        let named = elect(&self.ask_all().await, self.seeds.len(), self.address().as_ref());
        *looked = Some(Instant::now());
        let mut known = self.lock();
        known.looked = Some(Instant::now());
        let Some(address) = named else { return };
        if known.node.as_ref().is_some_and(|node| node.address == address) {
            return;
        }
        tracing::info!(primary = %address, "sentinels name the store's primary");
        let node = Arc::new(Node::new(address, Arc::clone(&self.data)));
        if let Some(before) = known.node.replace(node) {
            metrics::counter!("voxgate_store_failovers_total").increment(1);
            before.end();
        }
    }

    fn address(&self) -> Option<Address> {
        self.lock().node.as_ref().map(|node| node.address.clone())
    }

    /// The addresses that sentinels name.
    async fn ask_all(&self) -> Vec<Address> {
        let answers = join_all(self.seeds.iter().map(|seed| timeout(STORE_LOOK, self.ask(seed)))).await;
        answers.into_iter().filter_map(|answer| answer.ok().flatten()).collect()
    }

    async fn ask(&self, seed: &Address) -> Option<Address> {
        let mut question = ::redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.name);
        let asked = async { Epoch::open(seed, &self.access).await?.send(&question).await };
        match asked.await {
            Ok(Reply::List(parts)) => match parts.as_slice() {
                [Reply::Bulk(host), Reply::Bulk(port)] => Some(Address {
                    host: String::from_utf8(host.clone()).ok()?,
                    port: std::str::from_utf8(port).ok()?.parse().ok()?,
                }),
                _ => None,
            },
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(sentinel = %seed, %error, "sentinel gives no answer");
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom to take for the primary: with none known yet, whoever has most votes; else another one only by a majority of
/// all `sentinels`, so that neither a tie nor a few that are cut off bring an old primary back.
fn elect(named: &[Address], sentinels: usize, known: Option<&Address>) -> Option<Address> {
    let votes = |address: &Address| named.iter().filter(|other| *other == address).count();
    let first = named.iter().max_by_key(|address| votes(address))?;
    let enough = known.is_none_or(|known| known == first || 2 * votes(first) > sentinels);
    enough.then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::{Address, elect};

    fn address(port: u16) -> Address {
        Address { host: "h".into(), port }
    }

    fn elected(ports: &[u16], known: Option<u16>) -> Option<u16> {
        let named: Vec<Address> = ports.iter().copied().map(address).collect();
        elect(&named, 3, known.map(address).as_ref()).map(|address| address.port)
    }

    #[test]
    fn a_known_primary_is_left_by_majority() {
        for (ports, known, expected) in [
            (&[][..], None, None),
            (&[1], None, Some(1)),
            (&[1, 2, 2], None, Some(2)),
            (&[1, 1, 1], Some(1), Some(1)),
            (&[2], Some(1), None),
            (&[2, 3], Some(1), None),
            (&[2, 2], Some(1), Some(2)),
            (&[2, 2, 1], Some(1), Some(2)),
            (&[], Some(1), None),
        ] {
            assert_eq!(elected(ports, known), expected, "{ports:?}, known {known:?}");
        }
    }
}
