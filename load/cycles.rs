//! `load cycles`: whole reserve + settle cycles through the money room, and the books afterwards.
//!
//! First a closed loop of many clients finds the saturating rate; then an open loop at half of it measures each cycle
//! from the moment it was due, so that a queue shows (no coordinated omission). Every cycle hands over a number of units
//! that only it has; afterwards the ledger must hold exactly one row for each, with that number.

mod told;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use voxgate::ending::Ending;
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{Account, Admission, Key, Name, OpenError, Quota, Settings, Terms};
use voxgate::units::Units;

use super::latency::{histogram, record};
use super::pace::{self, Outcome, Pace};
use super::progress::{Progress, stop};
use super::report::Report;
use super::server::{Private, Spent};
use super::{Failure, Target};

/// What `load cycles` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Cycles in the closed loops of all rounds [default: 100000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    cycles: Option<u32>,
    /// Clients at once
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Seconds of the open loops of all rounds [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Rounds of a closed and an open loop [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// A few seconds: 2000 cycles, one round, an open loop of one second
    #[arg(long)]
    quick: bool,
}

const PREFIX: &str = "load:";

/// Runs both loops, round by round, and counts the ledger; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let usual = if options.quick { (2000, 1, 1) } else { (100_000, 20, 5) };
    let (cycles, seconds) = (options.cycles.unwrap_or(usual.0), options.seconds.unwrap_or(usual.1));
    let (count, clients) = (options.rounds.unwrap_or(usual.2), options.clients);
    let server = Private::open(&options.target)?;
    let told = json!({ "cycles": cycles, "clients": clients, "seconds": seconds, "rounds": count });
    let mut report = Report::new("cycles", told);
    let store = server.store()?;
    report.tell_store(&store).await;
    let books = Arc::new(Books::open(server.store()?).await?);
    let progress = Progress::start("cycles", u64::from(count) * 2 + 1);
    let (mut rounds, mut rate) = (Vec::new(), 0.0);
    for n in 1..=count {
        progress.say(&format!("round {n} of {count}: {clients} clients, closed loop"));
        let before = Spent::so_far(&store).await?;
        let closed = closed(&books, cycles.div_ceil(count), clients).await?;
        let spent = Spent::so_far(&store).await?.since(before);
        progress.step();
        rate = if stop().is_cancelled() { rate } else { closed.per_second / 2.0 };
        progress.say(&format!("round {n} of {count}: open loop at {rate:.0} a second"));
        let open = open(&books, rate, f64::from(seconds) / f64::from(count)).await?;
        progress.step();
        if stop().is_cancelled() {
            break;
        }
        let server_us = spent.cpu_us / closed.times.len().max(1) as f64;
        rounds.push(Round { closed, open, server_us });
    }
    progress.say("holding the ledger against what was handed over");
    let mismatches = books.mismatches(&store).await?;
    let rows = books.done.load(Ordering::Relaxed);
    told::tell(&mut report, &rounds, rows, mismatches);
    report.data = json!({
        "rounds": rounds.iter().map(|round| json!({ "closed": round.closed.json(), "open": round.open.json(), "server_cpu_us": round.server_us }))
            .collect::<Vec<Value>>(),
        "rows": rows, "ledger_mismatches": mismatches,
    });
    Ok(report)
}

/// A closed loop, and an open loop at half of its rate.
struct Round {
    closed: Outcome,
    open: Outcome,
    /// Microseconds of the server's processor time per cycle of the closed loop.
    server_us: f64,
}

/// One account, and what was handed over under it.
struct Books {
    quota: Quota,
    terms: Terms,
    /// Cycles begun; also the number of units that the next one hands over, modulo [`UNITS`].
    begun: AtomicU64,
    done: AtomicU64,
}

/// A cycle hands over 1 to so many units.
const UNITS: u64 = 900;

impl Books {
    async fn open(store: Store) -> Result<Self, Failure> {
        let quota = Quota::new(store, Settings { prefix: PREFIX.into(), ..Settings::default() });
        let id = Name::parse("cycles").ok_or(Failure::Odd(Reply::Nil))?;
        let mut account = Account::new(id.clone(), Units::MAX);
        account.share = u32::MAX;
        quota.put_account(&account).await?;
        let key = Key {
            fingerprint: String::new(),
            account: id,
            label: "load".into(),
            cap: None,
            session_cap: None,
            streams_max: 100_000,
            models: Vec::new(),
            revoked: false,
        };
        let (_, key) = quota.add_key(key).await?;
        let terms = Terms {
            account: Arc::new(account),
            key: Arc::new(key),
            session: None,
            model: "load".into(),
            units_per_second: 1000,
            tags: String::new(),
        };
        Ok(Self { quota, terms, begun: AtomicU64::new(0), done: AtomicU64::new(0) })
    }

    /// One session's life: reserve, one admitted chunk, settle.
    async fn cycle(&self) -> Result<(), Failure> {
        let n = self.begun.fetch_add(1, Ordering::Relaxed);
        let units = Units::saturating(n % UNITS + 1);
        let session = Name::parse(&format!("n{n}.{units}"));
        let mut lease = match self.quota.open(Terms { session, ..self.terms.clone() }).await {
            Ok(lease) => lease,
            Err(OpenError::Store(error)) => return Err(error.into()),
            Err(OpenError::Refused(why)) => return Err(Failure::Refused(format!("{why:?}"))),
        };
        match lease.admit(units).await? {
            Admission::Grant => lease.tally(units),
            other => return Err(Failure::Refused(format!("{other:?}"))),
        }
        lease.settle(Ending::ClientDone, "load").await;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Cycles without exactly one row of their own number, and rows without a cycle.
    async fn mismatches(&self, store: &Store) -> Result<u64, Failure> {
        self.quota.drain(Duration::from_secs(30)).await;
        let mut rows: HashMap<u64, Vec<u64>> = HashMap::new();
        let Reply::List(keys) = store.command(&["KEYS", &format!("{PREFIX}ledger:*")]).await? else {
            return Ok(u64::MAX);
        };
        for key in keys.iter().filter_map(text) {
            let mut from = "-".to_owned();
            while let Reply::List(page) =
                store.command(&["XRANGE", &key, &from, "+", "COUNT", "1000"]).await?
            {
                let Some(Reply::List(last)) = page.last() else { break };
                from = format!("({}", last.first().and_then(text).unwrap_or_default());
                for row in &page {
                    let (n, charged) = read(row).ok_or_else(|| Failure::Odd(row.clone()))?;
                    rows.entry(n).or_default().push(charged);
                }
            }
        }
        let begun = self.begun.load(Ordering::Relaxed);
        let right =
            (0..begun).filter(|n| rows.get(n).is_some_and(|charged| *charged == [n % UNITS + 1])).count();
        let all: usize = rows.values().map(Vec::len).sum();
        Ok(begun.abs_diff(right as u64) + (all as u64).abs_diff(begun))
    }
}

/// Which cycle a ledger row is of, and what it charged.
fn read(row: &Reply) -> Option<(u64, u64)> {
    let Reply::List(parts) = row else { return None };
    let Some(Reply::List(fields)) = parts.get(1) else { return None };
    let field = |name: &str| {
        fields
            .chunks_exact(2)
            .find(|pair| pair.first().and_then(text).as_deref() == Some(name))
            .and_then(|pair| text(pair.last()?))
    };
    let sid = field("sid")?;
    let n = sid.split_once(".n")?.1.split_once('.')?.0.parse().ok()?;
    Some((n, field("charged")?.parse().ok()?))
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).ok(),
        Reply::Nil | Reply::Int(_) | Reply::Status(_) | Reply::List(_) => None,
    }
}

async fn closed(books: &Arc<Books>, cycles: u32, clients: u32) -> Result<Outcome, Failure> {
    let (start, left) = (Instant::now(), Arc::new(AtomicU32::new(cycles)));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (books, left) = (books.clone(), left.clone());
        tasks.spawn(async move {
            let mut times = histogram();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
                && !stop().is_cancelled()
            {
                let sent = Instant::now();
                books.cycle().await?;
                record(&mut times, sent.elapsed());
            }
            Ok::<_, Failure>(times)
        });
    }
    let mut times = histogram();
    while let Some(client) = tasks.join_next().await {
        times += client??;
    }
    Ok(Outcome { per_second: times.len() as f64 / start.elapsed().as_secs_f64(), times, late: histogram() })
}

async fn open(books: &Arc<Books>, rate: f64, seconds: f64) -> Result<Outcome, Failure> {
    pace::open(Pace { rate, seconds, together: 1 }, || {
        let books = books.clone();
        async move { books.cycle().await }
    })
    .await
}
