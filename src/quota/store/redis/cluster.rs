//! Which primary serves a hash slot.
//!
//! Our own map instead of the client library's: its cluster connection sends a call again when a connection breaks,
//! also one whose answer was lost, and so would charge twice. Here nothing is repeated but what a server has
//! certainly refused.
//!
//! # States
//! *No map* → ask any node for `CLUSTER SLOTS` → *Map*: ranges and their primaries. A `MOVED` mends one slot at once
//! and has the map read again in the background; a call that failed as it does elsewhere has it read before the next
//! call to the same slots. Other slots go on with the map as it is.
//!
//! # Failures
//! | seen | done |
//! |---|---|
//! | a node gives no answer within [`STORE_LOOK`] | the next one is asked; those that answered last come first |
//! | no node answers | the old map stays; asked again at most every [`STORE_LOOK_PAUSE`] |
//! | no primary serves the slot | `Away("CLUSTERDOWN …")` |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::select_ok;
use tokio::time::{Instant, timeout};

use super::super::{Reply, StoreError};
use super::access::Access;
use super::node::{Manner, Node};
use super::target::Address;
use crate::limits::{STORE_LOOK, STORE_LOOK_PAUSE};

/// The nodes of one cluster.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    access: Arc<Access>,
    /// Held for a look-up only, never across an await.
    map: Mutex<Map>,
    /// Serializes reading the map; when the last reading ended.
    look: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Map {
    /// By first slot, not overlapping.
    ranges: Vec<Range>,
    /// Slots that moved since the ranges were read.
    moved: HashMap<u16, Arc<Node>>,
    nodes: HashMap<Address, Arc<Node>>,
}

struct Range {
    from: u16,
    to: u16,
    node: Arc<Node>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        if let Some(node) = self.moved.get(&slot) {
            return Some(Arc::clone(node));
        }
        let behind = self.ranges.partition_point(|range| range.from <= slot);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        (slot <= range.to).then(|| Arc::clone(&range.node))
    }

    fn node(&mut self, address: &Address, access: &Arc<Access>) -> Arc<Node> {
        let made = || Arc::new(Node::new(address.clone(), Arc::clone(access)));
        Arc::clone(self.nodes.entry(address.clone()).or_insert_with(made))
    }

    /// Takes over what a node said. Nodes that serve nothing any more are forgotten; what is pending there goes on.
    fn renew(&mut self, said: &[(u16, u16, Address)], access: &Arc<Access>) {
        let mut ranges: Vec<Range> = Vec::with_capacity(said.len());
        for (from, to, address) in said {
            ranges.push(Range { from: *from, to: *to, node: self.node(address, access) });
        }
        ranges.sort_by_key(|range| range.from);
        let before = std::mem::replace(&mut self.ranges, ranges);
        self.moved.clear();
        self.nodes.retain(|address, node| {
            let serves = said.iter().any(|(.., served)| served == address);
            // One that is being dialled must not be reached any more: frozen, it would take itself for a primary still.
            if !serves && before.iter().any(|range| Arc::ptr_eq(&range.node, node)) {
                node.retire();
            }
            serves
        });
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, access: Arc<Access>) -> Self {
        Self { seeds, access, map: Mutex::default(), look: tokio::sync::Mutex::default() }
    }

    /// The primary of a slot, or any primary for a call without keys.
    pub(super) async fn owner(&self, slot: Option<u16>) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.known(slot).filter(|node| !node.is_suspect()) {
            return Ok(node);
        }
        self.look().await;
        let nobody =
            || StoreError::Away("CLUSTERDOWN no node of the cluster says who serves this slot".into());
        self.known(slot).ok_or_else(nobody)
    }

    /// The node that a `MOVED slot host:port` or `ASK slot host:port` names. A move is remembered, and the map is read
    /// again in the background.
    pub(super) fn redirected(self: &Arc<Self>, text: &str, from: &Node) -> Option<Arc<Node>> {
        let mut words = text.split_whitespace();
        let (word, slot, address) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        let address = read_address(address, &from.address)?;
        let mut map = self.lock();
        let node = map.node(&address, &self.access);
        if word == "MOVED" {
            map.moved.insert(slot, Arc::clone(&node));
            drop(map);
            let own = Arc::clone(self);
            tokio::spawn(async move { own.look().await });
        }
        Some(node)
    }

    /// Every primary with its lowest slot.
    pub(super) async fn primaries(&self) -> Result<Vec<(u16, Arc<Node>)>, StoreError> {
        self.owner(None).await?;
        let map = self.lock();
        let mut primaries: Vec<(u16, Arc<Node>)> = Vec::new();
        for range in &map.ranges {
            if !primaries.iter().any(|(_, node)| Arc::ptr_eq(node, &range.node)) {
                primaries.push((range.from, Arc::clone(&range.node)));
            }
        }
        Ok(primaries)
    }

    fn known(&self, slot: Option<u16>) -> Option<Arc<Node>> {
        let map = self.lock();
        match slot {
            Some(slot) => map.owner(slot),
            None => {
                let well = map.ranges.iter().find(|range| !range.node.is_suspect());
                well.or_else(|| map.ranges.first()).map(|range| Arc::clone(&range.node))
            }
        }
    }

    /// Reads the map anew, unless that was done a moment ago.
    async fn look(&self) {
        let mut looked = self.look.lock().await;
        if looked.is_some_and(|at| at.elapsed() < STORE_LOOK_PAUSE) {
            return;
        }
        let (well, doubtful) = self.informants();
        for some in well.chunks(ASKED_AT_ONCE).chain(doubtful.chunks(ASKED_AT_ONCE)) {
            let asked = some.iter().map(|node| {
                let told = timeout(STORE_LOOK, ask(node));
                Box::pin(async { told.await.ok().flatten().ok_or(()) })
            });
            if let Ok((said, _)) = select_ok(asked).await {
                self.lock().renew(&said, &self.access);
                break;
            }
        }
        *looked = Some(Instant::now());
    }

    /// Whom to ask: nodes that work first; then the seeds, and nodes under suspicion, whose map may be old.
    fn informants(&self) -> (Vec<Arc<Node>>, Vec<Arc<Node>>) {
        let map = self.lock();
        let mut nodes: Vec<Arc<Node>> = map.nodes.values().cloned().collect();
        fastrand::shuffle(&mut nodes);
        let (suspects, well): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.is_suspect());
        let news = self.seeds.iter().filter(|seed| !map.nodes.contains_key(*seed));
        // A seed may be a replica: it tells the slots all the same.
        let seed = |seed: &Address| Arc::new(Node::new(seed.clone(), Arc::new(self.access.for_any_role())));
        (well, news.map(seed).chain(suspects).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nodes that are asked for the slots at the same time; the first answer counts.
const ASKED_AT_ONCE: usize = 3;

/// What one node says of all slots.
async fn ask(node: &Node) -> Option<Vec<(u16, u16, Address)>> {
    let mut question = ::redis::cmd("CLUSTER");
    question.arg("SLOTS");
    match node.send(&question, Manner::default()).await {
        Ok(reply) => read_slots(&reply, &node.address).filter(|said| !said.is_empty()),
        Err(error) => {
            tracing::debug!(node = %node.address, %error, "node does not tell its slots");
            None
        }
    }
}

/// `host:port`, where the host may be left out: then it is the one that was asked.
fn read_address(text: &str, asked: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some(Address { host: host_or(host, asked), port: port.parse().ok()? })
}

fn host_or(host: &str, asked: &Address) -> String {
    if matches!(host, "" | "?") { asked.host.clone() } else { host.to_owned() }
}

/// `CLUSTER SLOTS`: of each range, the first and last slot and the primary; `None` if it can't be read.
fn read_slots(reply: &Reply, asked: &Address) -> Option<Vec<(u16, u16, Address)>> {
    let Reply::List(ranges) = reply else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Reply, asked: &Address) -> Option<(u16, u16, Address)> {
    let Reply::List(parts) = range else { return None };
    let [Reply::Int(from), Reply::Int(to), Reply::List(primary), ..] = parts.as_slice() else { return None };
    let [host, Reply::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Reply::Bulk(host) => std::str::from_utf8(host).ok()?,
        _ => "",
    };
    let address = Address { host: host_or(host, asked), port: u16::try_from(*port).ok()? };
    Some((u16::try_from(*from).ok()?, u16::try_from(*to).ok()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::store::redis::target::Login;

    fn access() -> Arc<Access> {
        Arc::new(Access::new(Login::default(), 0, None, false))
    }

    fn address(port: u16) -> Address {
        Address { host: "h".into(), port }
    }

    fn port(map: &Map, slot: u16) -> Option<u16> {
        map.owner(slot).map(|node| node.address.port)
    }

    #[test]
    fn every_slot_finds_its_primary() {
        let mut map = Map::default();
        assert_eq!(port(&map, 0), None);
        map.renew(&[(8000, 16_383, address(2)), (0, 5000, address(1))], &access());
        for (slot, expected) in
            [(0, Some(1)), (5000, Some(1)), (5001, None), (7999, None), (8000, Some(2)), (16_383, Some(2))]
        {
            assert_eq!(port(&map, slot), expected, "slot {slot}");
        }
    }

    #[test]
    fn a_move_counts_until_the_map_is_read() {
        let access = access();
        let mut map = Map::default();
        map.renew(&[(0, 16_383, address(1))], &access);
        let node = map.node(&address(2), &access);
        map.moved.insert(7, node);
        assert_eq!((port(&map, 7), port(&map, 8)), (Some(2), Some(1)));
        let first = map.owner(8).unwrap();
        map.renew(&[(0, 9, address(2)), (10, 16_383, address(1))], &access);
        assert_eq!((port(&map, 8), port(&map, 10)), (Some(2), Some(1)));
        assert!(Arc::ptr_eq(&first, &map.owner(10).unwrap()), "its connection stays");
        map.renew(&[(0, 16_383, address(2))], &access);
        assert_eq!(map.nodes.len(), 1, "who serves nothing is forgotten");
    }

    #[test]
    fn unknown_hosts_are_the_one_asked() {
        assert_eq!(read_address("10.0.0.1:7", &address(1)).unwrap().host, "10.0.0.1");
        assert_eq!(read_address(":7", &address(1)), Some(address(7)));
        assert_eq!(read_address("?:7", &address(1)), Some(address(7)));
        assert_eq!(read_address("::1:7", &address(1)).unwrap().host, "::1");
        assert_eq!(read_address("h", &address(1)), None);
        let range = Reply::List(vec![
            Reply::Int(0),
            Reply::Int(9),
            Reply::List(vec![Reply::Nil, Reply::Int(7), Reply::Bulk(b"id".to_vec())]),
        ]);
        assert_eq!(read_slots(&Reply::List(vec![range]), &address(1)), Some(vec![(0, 9, address(7))]));
        assert_eq!(read_slots(&Reply::List(vec![Reply::Int(1)]), &address(1)), None);
    }
}
