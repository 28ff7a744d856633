//! `load cycles`: whole reserve + settle cycles through the money room, and the books afterwards.
//!
//! First a closed loop of many clients finds the saturating rate; then an open loop at half of it measures each cycle
//! from the moment it was due, so that a queue shows (no coordinated omission). Every cycle hands over a number of units
//! that only it has; afterwards the ledger must hold exactly one row for each, with that number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use voxgate::ending::Ending;
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{Account, Admission, Key, Name, OpenError, Quota, Settings, Terms};
use voxgate::units::Units;

use super::latency::{histogram, record};
use super::report::Report;
use super::server::Private;
use super::{Failure, Target};

/// What `load cycles` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Cycles in the closed loop
    #[arg(long, default_value_t = 70_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    cycles: u32,
    /// Clients at once, each with an account of its own kind of session
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Seconds of the open loop
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

const PREFIX: &str = "load:";

/// Runs both loops and counts the ledger; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let server = Private::open(&options.target)?;
    let mut report = Report::new(
        "cycles",
        json!({ "cycles": options.cycles, "clients": options.clients, "seconds": options.seconds }),
    );
    report.tell_store(&server.store()?).await;
    let books = Arc::new(Books::open(server.store()?).await?);
    eprintln!("cycles: {} from {} clients, closed loop", options.cycles, options.clients);
    let closed = closed(&books, &options).await?;
    let rate = closed.per_second / 2.0;
    eprintln!("cycles: open loop at {rate:.0} a second for {} s", options.seconds);
    let open = open(&books, rate, options.seconds).await?;
    let mismatches = books.mismatches(&server.store()?).await?;
    report.data = json!({
        "clients": options.clients,
        "closed": closed.json(), "open": open.json(), "rows": books.done.load(Ordering::Relaxed),
        "ledger_mismatches": mismatches,
    });
    Ok(report)
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

struct Outcome {
    per_second: f64,
    times: Histogram<u64>,
}

impl Outcome {
    fn json(&self) -> Value {
        let ms = |quantile: f64| self.times.value_at_quantile(quantile) as f64 / 1_000_000.0;
        json!({
            "cycles": self.times.len(), "per_second": self.per_second, "p50_ms": ms(0.5), "p99_ms": ms(0.99),
            "max_ms": ms(1.0),
        })
    }
}

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

async fn closed(books: &Arc<Books>, options: &Options) -> Result<Outcome, Failure> {
    let (start, total) = (Instant::now(), u64::from(options.cycles));
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        let books = books.clone();
        clients.spawn(async move {
            let mut times = histogram();
            while books.begun.load(Ordering::Relaxed) < total {
                let sent = Instant::now();
                books.cycle().await?;
                record(&mut times, sent.elapsed());
            }
            Ok::<_, Failure>(times)
        });
    }
    gather(clients, start).await
}

async fn open(books: &Arc<Books>, rate: f64, seconds: u32) -> Result<Outcome, Failure> {
    let (start, gap) = (tokio::time::Instant::now(), Duration::from_secs_f64(1.0 / rate.max(1.0)));
    let total = (rate * f64::from(seconds)) as u32;
    let mut cycles = JoinSet::new();
    let mut times = histogram();
    for n in 0..total {
        let due = start + gap * n;
        tokio::time::sleep_until(due).await;
        let books = books.clone();
        cycles.spawn(async move {
            books.cycle().await?;
            Ok::<_, Failure>(due.elapsed())
        });
        while let Some(done) = cycles.try_join_next() {
            record(&mut times, done??);
        }
    }
    while let Some(done) = cycles.join_next().await {
        record(&mut times, done??);
    }
    let per_second = times.len() as f64 / start.elapsed().as_secs_f64();
    Ok(Outcome { per_second, times })
}

async fn gather(
    mut clients: JoinSet<Result<Histogram<u64>, Failure>>,
    start: Instant,
) -> Result<Outcome, Failure> {
    let mut times = histogram();
    while let Some(client) = clients.join_next().await {
        times += client??;
    }
    Ok(Outcome { per_second: times.len() as f64 / start.elapsed().as_secs_f64(), times })
}
