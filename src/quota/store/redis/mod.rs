//! Redis and Valkey: one server, one watched by sentinels, or a cluster. Scripts go by EVALSHA to the primary of their
//! slot, on one multiplexed connection to each primary (two where replicas are waited for).
//!
//! # States
//! *Which server?* (`sentinel`, `cluster`; one server needs no asking) → its `node` → the node's `epoch`: one
//! connection, dialled anew with growing jittered pauses after it has ended.
//!
//! # What may be repeated
//! Only what certainly never ran: a failed connect, and EVALSHA answered by `NOSCRIPT`, `MOVED` or `ASK`. The client
//! library's own resending is not in use: its plain multiplexed connection has none, its cluster and sentinel
//! clients are not built in. A call that was sent stays pending as long as its connection gives any reply at all;
//! [`crate::limits::STALL`] without one drops the connection, and only then are its calls in doubt.
//!
//! # Failures
//! | seen | error | charge |
//! |---|---|---|
//! | connect refused, timed out, or backing off; no primary known | `Away` | none |
//! | connection broke with the call in flight | `Lost` | unknown |
//! | nothing came back for `STALL`, or the server was replaced | `Late` | unknown |
//! | written, but on fewer replicas than asked for | `Thin` | unknown |
//! | an error reply | by its first word, see [`super::code`] | none, unless it can't be read |

use std::sync::Arc;

use ::redis::Cmd;

use super::slot::slot;
use super::{Reply, Script, Shard, StoreError};

mod access;
mod cluster;
mod epoch;
mod node;
mod sentinel;
mod target;

use access::Access;
pub use access::Options;
use cluster::Cluster;
use node::{Manner, Node};
use sentinel::Sentinels;
pub use target::{Address, Form, Login, Target};

/// A Redis or Valkey store. Cheap to clone; all clones share the connections.
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

struct Shared {
    servers: Servers,
    replicas: u32,
}

enum Servers {
    Single(Arc<Node>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl RedisStore {
    /// A store at a URL, see [`Target`]; connects at the first call. `Denied` when the URL can't be read (the text does
    /// not repeat it, since it may hold a password).
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Self::with(url, &Options::default())
    }

    /// As [`RedisStore::new`], with certificates, a password apart from the URL, or replicas to wait for.
    pub fn with(url: &str, options: &Options) -> Result<Self, StoreError> {
        let target = Target::parse(url).map_err(|why| StoreError::Denied(format!("the store URL: {why}")))?;
        let tls = if target.tls { Some(access::tls(options).map_err(StoreError::Denied)?) } else { None };
        let mut login = target.login;
        if let Some(password) = &options.password {
            login.password = Some(password.clone());
        }
        let data = Arc::new(Access::new(login, target.database, tls.clone(), false));
        let mut seeds = target.seeds;
        let servers = match target.form {
            Form::Single => {
                let address =
                    seeds.pop().ok_or_else(|| StoreError::Denied("the store URL names no host".into()))?;
                Servers::Single(Arc::new(Node::new(address, data)))
            }
            Form::Sentinel { name } => {
                let access = Arc::new(Access::new(target.sentinel_login, 0, tls, true));
                Servers::Sentinel(Arc::new(Sentinels::new(seeds, name, access, data)))
            }
            Form::Cluster => Servers::Cluster(Arc::new(Cluster::new(seeds, data))),
        };
        Ok(Self(Arc::new(Shared { servers, replicas: options.wait_replicas })))
    }

    /// Runs a script where its keys are: EVALSHA, and SCRIPT LOAD when that server has lost it.
    pub async fn run(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        let mut call = ::redis::cmd("EVALSHA");
        call.arg(&script.sha).arg(keys.len()).arg(keys).arg(args);
        let slot = keys.first().map(|key| slot(key.as_bytes()));
        let replicas = if script.waits { self.0.replicas } else { 0 };
        self.call(slot, &call, Some(script), replicas).await
    }

    /// Runs one plain command, on the primary of its key; on any primary when it has none.
    pub async fn command(&self, words: &[&[u8]]) -> Result<Reply, StoreError> {
        let [name, rest @ ..] = words else { return Err(StoreError::Odd("an empty command".into())) };
        let keyless = KEYLESS.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
        let key = rest.first().filter(|_| !keyless);
        self.call(key.map(|key| slot(key)), &command(words), None, 0).await
    }

    /// The primaries, as known now.
    ///
    /// # Errors
    /// `Away`: nobody can be asked.
    pub async fn shards(&self) -> Result<Vec<Shard>, StoreError> {
        let shard = |(slot, node): (u16, Arc<Node>)| Shard { name: node.address.to_string(), slot };
        let primaries = match &self.0.servers {
            Servers::Single(node) => vec![(0, Arc::clone(node))],
            Servers::Sentinel(sentinels) => vec![(0, sentinels.primary().await?)],
            Servers::Cluster(cluster) => cluster.primaries().await?,
        };
        Ok(primaries.into_iter().map(shard).collect())
    }

    /// Runs one command that names no key on one primary.
    pub async fn command_on(&self, shard: &Shard, words: &[&str]) -> Result<Reply, StoreError> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let node = self.owner(Some(shard.slot)).await?;
        node.send(&command(&words), Manner::default()).await
    }

    /// Sends a call where it belongs, and follows what certainly refused it.
    async fn call(
        &self,
        slot: Option<u16>,
        call: &Cmd,
        script: Option<&Script>,
        replicas: u32,
    ) -> Result<Reply, StoreError> {
        let mut node = self.owner(slot).await?;
        let mut asking = false;
        for _ in 0..TURNS_MAX {
            let seen = node.loaded();
            let error = match node.send(call, Manner { asking, replicas }).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let StoreError::Away(text) = &error else { return Err(error) };
            if let Some(script) = script.filter(|_| text.starts_with("NOSCRIPT")) {
                note(script.name, &error);
                Box::pin(node.load(script, seen)).await?;
            } else if let Some(next) = self.redirected(text, &node) {
                note(script.map_or("command", |script| script.name), &error);
                asking = text.starts_with("ASK ");
                node = next;
            } else {
                return Err(error);
            }
        }
        Err(StoreError::Away("the store sends this call around in circles".into()))
    }

    async fn owner(&self, slot: Option<u16>) -> Result<Arc<Node>, StoreError> {
        match &self.0.servers {
            Servers::Single(node) => Ok(Arc::clone(node)),
            Servers::Sentinel(sentinels) => sentinels.primary().await,
            Servers::Cluster(cluster) => cluster.owner(slot).await,
        }
    }

    fn redirected(&self, text: &str, from: &Node) -> Option<Arc<Node>> {
        let Servers::Cluster(cluster) = &self.0.servers else { return None };
        let names_another = text.starts_with("MOVED ") || text.starts_with("ASK ");
        names_another.then(|| cluster.redirected(text, from)).flatten()
    }
}

/// Counts an answer that never leaves this room.
fn note(script: &'static str, error: &StoreError) {
    metrics::counter!("voxgate_script_errors_total", "script" => script, "kind" => error.word()).increment(1);
}

fn command(words: &[&[u8]]) -> Cmd {
    let mut call = Cmd::new();
    for word in words {
        call.arg(*word);
    }
    call
}

/// Commands whose second word is no key. All others of ours have their key there.
const KEYLESS: [&str; 8] = ["TIME", "INFO", "PING", "SCAN", "SLOWLOG", "SCRIPT", "CONFIG", "CLUSTER"];
/// How often one call may be turned away to load its script or to another server. A slot on its way costs three: `ASK`,
/// `NOSCRIPT`, and `MOVED` when it has arrived; a server that is flushed all the time the rest.
const TURNS_MAX: u32 = 16;
