//! Reads an account's whole books out of a store and holds them against the invariants.

use std::collections::BTreeMap;

use voxgate::quota::Name;
pub use voxgate::quota::keys::Keys;
use voxgate::quota::keys::Member;
use voxgate::quota::store::{Reply, Script, Store};

/// One period's books as they stand.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Period {
    pub taken: i64,
    pub held: i64,
    pub settled: i64,
    pub rows: i64,
    /// Sum of `charged` over the ledger.
    pub charged: i64,
    pub ledger_rows: i64,
    /// Sum of granted over open leases.
    pub open: i64,
    /// Sum of top-ups.
    pub credit: i64,
}

/// Everything an account has in the store.
#[derive(Debug, Default)]
pub struct Books {
    pub periods: BTreeMap<String, Period>,
    /// sid -> (used + held, open leases, its own cap)
    pub sessions: BTreeMap<String, (i64, i64, Option<i64>)>,
    pub leases: Vec<Member>,
    /// How many rows each `how` has.
    pub hows: BTreeMap<String, i64>,
    /// Sum of `excess` over all rows.
    pub excess: i64,
    pub quotas_negative: usize,
    pub keys_without_ttl: Vec<String>,
}

fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::List(all) => all,
        other => panic!("no list: {other:?}"),
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Status(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

fn int(reply: &Reply) -> i64 {
    match reply {
        Reply::Int(value) => *value,
        other => panic!("no integer: {other:?}"),
    }
}

pub async fn command(store: &Store, words: &[&str]) -> Reply {
    store.command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// A bulk answer; `None` when there is nothing.
pub async fn text_of(store: &Store, words: &[&str]) -> Option<String> {
    match command(store, words).await {
        Reply::Nil => None,
        reply => Some(text(&reply)),
    }
}

fn number(hash: &BTreeMap<String, String>, field: &str) -> i64 {
    hash.get(field).map_or(0, |value| value.parse().unwrap_or_else(|_| panic!("{field}={value}")))
}

/// One key as it stood: name, type, contents (as HGETALL, ZRANGE, GET or XRANGE give them), milliseconds to live.
type Entry = (String, String, Reply, i64);

/// Everything under `prefix` at one instant: inside a real server one script reads it all.
const SNAPSHOT: &str = "
local all = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+')
  else value = redis.call('GET', key) end
  all[#all + 1] = { key, kind, value, redis.call('PTTL', key) }
end
return all";

async fn snapshot(store: &Store, prefix: &str) -> Vec<Entry> {
    let pattern = format!("{prefix}*");
    if store.word() == "redis" {
        let all = store.run(&Script::new("snapshot", SNAPSHOT.to_owned()), &[], &[&pattern]).await;
        let entry = |entry: Vec<Reply>| (text(&entry[0]), text(&entry[1]), entry[2].clone(), int(&entry[3]));
        return list(all.unwrap()).into_iter().map(|reply| entry(list(reply))).collect();
    }
    // In process no call ever waits, so nobody else runs in between.
    let mut all = Vec::new();
    for key in list(command(store, &["KEYS", &pattern]).await).iter().map(text) {
        let kind = text(&command(store, &["TYPE", &key]).await);
        let value = match kind.as_str() {
            "hash" => command(store, &["HGETALL", &key]).await,
            "zset" => command(store, &["ZRANGE", &key, "0", "-1"]).await,
            "stream" => command(store, &["XRANGE", &key, "-", "+"]).await,
            _ => command(store, &["GET", &key]).await,
        };
        let ttl = int(&command(store, &["PTTL", &key]).await);
        all.push((key, kind, value, ttl));
    }
    all
}

fn pairs(reply: Reply) -> BTreeMap<String, String> {
    list(reply).chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// Reads the books of `account` under `prefix`, all at one instant.
pub async fn read(store: &Store, prefix: &str, account: &Name) -> Books {
    let mut books = Books::default();
    let leases = Keys::new(prefix).leases(account);
    for (key, kind, value, ttl) in snapshot(store, prefix).await {
        let rest = key.strip_prefix(prefix).unwrap();
        let (room, tail) = rest.split_once(':').unwrap_or((rest, ""));
        let last = tail.rsplit(':').next().unwrap_or_default().to_owned();
        match (room, kind.as_str()) {
            ("leases", "zset") if key == leases => {
                for member in list(value) {
                    let member = Member::parse(&text(&member)).expect("a member");
                    let granted: i64 = member.granted.parse().unwrap();
                    books.periods.entry(member.period.clone()).or_default().open += granted;
                    books.leases.push(member);
                }
            }
            ("budget", "hash") => {
                let (fields, period) = (pairs(value), books.periods.entry(last).or_default());
                (period.taken, period.held) = (number(&fields, "taken"), number(&fields, "held"));
                (period.settled, period.rows) = (number(&fields, "settled"), number(&fields, "rows"));
            }
            ("session", "hash") => {
                let fields = pairs(value);
                let used = number(&fields, "used") + number(&fields, "held");
                let cap = fields.get("cap").and_then(|cap| cap.parse().ok());
                books.sessions.insert(last, (used, number(&fields, "open"), cap));
            }
            ("credits", "hash") => {
                let amounts = pairs(value).into_values();
                let sum = amounts.map(|text| text.split(':').next().unwrap().parse::<i64>().unwrap()).sum();
                books.periods.entry(last).or_default().credit = sum;
            }
            ("quota", "string") => {
                let left: i64 = text(&value).parse().expect("plain digits");
                books.quotas_negative += usize::from(left < 0);
            }
            ("ledger", "stream") => read_ledger(list(value), &last, &mut books),
            _ => {}
        }
        let permanent = matches!(room, "account" | "key" | "leases" | "streams" | "active" | "schema");
        if !permanent && ttl == -1 {
            books.keys_without_ttl.push(key);
        }
    }
    books
}

fn read_ledger(rows: Vec<Reply>, period: &str, books: &mut Books) {
    for row in rows {
        let fields = pairs(list(row)[1].clone());
        let entry = books.periods.entry(period.to_owned()).or_default();
        entry.charged += number(&fields, "charged");
        entry.ledger_rows += 1;
        *books.hows.entry(fields["how"].clone()).or_default() += 1;
        books.excess += number(&fields, "excess");
    }
}

impl Books {
    /// The invariants that hold after every script (numbers 1, 2 and 4 of the money contract), or what is wrong.
    pub fn check(&self, cap: i64) -> Result<(), String> {
        self.check_but(cap, &[])?;
        if self.excess != 0 {
            return Err(format!("excess {}", self.excess));
        }
        Ok(())
    }

    /// The same, but for periods whose budget was taken away on purpose, and for excess.
    pub fn check_but(&self, cap: i64, lost: &[String]) -> Result<(), String> {
        for (id, p) in self.periods.iter().filter(|(id, _)| !lost.contains(id)) {
            let says = |what: &str| Err(format!("period {id}: {what}: {p:?}"));
            if p.taken > cap + p.credit {
                return says("taken above the cap");
            }
            if p.taken != p.charged + p.open {
                return says("taken is not ledger rows + open leases");
            }
            if p.held != p.open || p.settled != p.charged || p.rows != p.ledger_rows {
                return says("held, settled or rows do not match");
            }
            if p.taken - p.held - p.settled != 0 {
                return says("drift");
            }
        }
        for (sid, (used, open, session_cap)) in &self.sessions {
            if session_cap.is_some_and(|cap| *used > cap) {
                return Err(format!("session {sid} used and holds {used}"));
            }
            let leases = self.leases.iter().filter(|member| member.sid == *sid).count() as i64;
            if leases != *open || *open > 4 {
                return Err(format!("session {sid} says {open} open leases, there are {leases}"));
            }
        }
        if self.quotas_negative > 0 || !self.keys_without_ttl.is_empty() {
            return Err(format!("negative quota or eternal key: {self:?}"));
        }
        Ok(())
    }

    /// Drift over all periods, as the budgets say it.
    pub fn drift(&self) -> i64 {
        self.periods.values().map(|p| p.taken - p.held - p.settled).sum()
    }

    /// Charged in all periods.
    pub fn charged(&self) -> i64 {
        self.periods.values().map(|p| p.charged).sum()
    }
}

/// A key as it can be made again: name, the command that makes it (more for a stream), unix ms when it ends or -1.
type Kept = (String, Vec<Vec<String>>, i64);

/// Everything in a store at one instant; for the in-process store, where nobody runs in between.
pub struct Backup(Vec<Kept>);

impl Backup {
    pub async fn take(store: &Store) -> Self {
        let mut all = Vec::new();
        for key in list(command(store, &["KEYS", "*"]).await).iter().map(text) {
            let kind = text(&command(store, &["TYPE", &key]).await);
            let texts = |reply: Reply| list(reply).iter().map(text).collect::<Vec<_>>();
            let words = |name: &str, rest: Vec<String>| {
                let head = [name.to_owned(), key.clone()];
                vec![head.into_iter().chain(rest).collect::<Vec<_>>()]
            };
            let make = match kind.as_str() {
                "hash" => words("HSET", texts(command(store, &["HGETALL", &key]).await)),
                "zset" => {
                    let mut pairs = texts(command(store, &["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await);
                    pairs.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
                    words("ZADD", pairs)
                }
                "stream" => {
                    let rows = list(command(store, &["XRANGE", &key, "-", "+"]).await).into_iter().map(list);
                    let add = |row: Vec<Reply>| {
                        let fields = list(row[1].clone()).iter().map(text).collect::<Vec<_>>();
                        let head = ["XADD".to_owned(), key.clone(), text(&row[0])];
                        head.into_iter().chain(fields).collect()
                    };
                    rows.map(add).collect()
                }
                _ => words("SET", vec![text(&command(store, &["GET", &key]).await)]),
            };
            all.push((key.clone(), make, int(&command(store, &["PEXPIRETIME", &key]).await)));
        }
        Self(all)
    }

    pub async fn restore(&self, store: &Store) {
        command(store, &["FLUSHALL"]).await;
        for (key, make, end) in &self.0 {
            for words in make {
                command(store, &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
            }
            if *end >= 0 {
                command(store, &["PEXPIREAT", key, &end.to_string()]).await;
            }
        }
    }
}
