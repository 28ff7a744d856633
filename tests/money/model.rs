//! A plain model of the five verbs of money, written from the headers of `lua/{reserve,admit,settle,reap,topup}.lua`:
//! maps and integers, and the answer that each call must get. It never asks a store.

use std::collections::BTreeMap;

use voxgate::quota::script::{Reserve, Settle};
use voxgate::quota::store::Reply;
use voxgate::units::Units;

/// The largest amount.
pub const LIMIT: i64 = 9_007_199_254_740_991;
/// Open leases allowed in a session.
const LEASES_MAX: usize = 4;

/// One field of an answer.
pub struct Field(pub Reply);

impl From<&str> for Field {
    fn from(word: &str) -> Self {
        Self(Reply::Bulk(word.into()))
    }
}

impl From<&String> for Field {
    fn from(word: &String) -> Self {
        Self::from(word.as_str())
    }
}

impl From<i64> for Field {
    fn from(number: i64) -> Self {
        Self(Reply::Int(number))
    }
}

macro_rules! answer {
    ($($field:expr),* $(,)?) => { Reply::List(vec![$(Field::from($field).0),*]) };
}

/// Sid and n.
pub type At = (String, u64);
/// Sid, n, period and granted.
pub type Member = (String, u64, String, i64);

/// Amount and sum after it, by id.
pub type Topups = BTreeMap<String, (i64, i64)>;

#[derive(Clone, Debug, PartialEq)]
pub enum Seat {
    In { want: i64 },
    Left { tally: i64, waste: i64 },
    Closer { tally: i64, waste: i64 },
}

#[derive(Debug)]
pub struct Lease {
    /// Charged and excess, once closed.
    pub closed: Option<(i64, i64)>,
    pub granted: i64,
    pub period: String,
    pub owner: String,
    pub deadline: i64,
    pub tally: i64,
    pub waste: i64,
    pub seats: BTreeMap<String, Seat>,
    pub expires: i64,
}

#[derive(Debug)]
pub struct Session {
    pub owner: String,
    pub terms: String,
    pub n: u64,
    pub cap: Option<i64>,
    pub used: i64,
    pub held: i64,
    pub open: usize,
    pub ended: bool,
    pub expires: i64,
}

#[derive(Debug)]
pub struct Budget {
    pub taken: i64,
    pub held: i64,
    pub settled: i64,
    pub rows: i64,
    pub keys: BTreeMap<String, i64>,
    pub expires: i64,
}

/// One account and all that hangs on it.
#[derive(Debug, Default)]
pub struct Model {
    /// Unix milliseconds.
    pub now: i64,
    pub cap: Option<i64>,
    pub frozen: bool,
    /// The period opened last.
    pub last: Option<String>,
    /// Sum of top-ups by period.
    pub credit: BTreeMap<String, i64>,
    /// Top-ups by period, with when they are forgotten.
    pub topups: BTreeMap<String, (Topups, i64)>,
    pub budgets: BTreeMap<String, Budget>,
    pub sessions: BTreeMap<String, Session>,
    pub leases: BTreeMap<At, Lease>,
    /// What is left, and when it is forgotten.
    pub quotas: BTreeMap<At, (i64, i64)>,
    /// Deadlines.
    pub queue: BTreeMap<Member, i64>,
    /// Deadlines of live streams, by owner.
    pub streams: BTreeMap<String, BTreeMap<String, i64>>,
}

fn whole(units: Units) -> i64 {
    i64::try_from(units.get()).unwrap()
}

fn span(ms: u64) -> i64 {
    i64::try_from(ms).unwrap()
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap()
}

impl Model {
    /// Time moves on; what had its time is gone.
    pub fn move_to(&mut self, now: i64) {
        self.now = now;
        self.topups.retain(|_, (_, expires)| now <= *expires);
        self.budgets.retain(|_, budget| now <= budget.expires);
        self.sessions.retain(|_, session| now <= session.expires);
        self.leases.retain(|_, lease| now <= lease.expires);
        self.quotas.retain(|_, (_, expires)| now <= *expires);
    }

    fn in_force(&self, period: &str) -> Option<i64> {
        Some((self.cap? + self.credit.get(period).unwrap_or(&0)).min(LIMIT))
    }

    fn free(&self, period: &str) -> i64 {
        let taken = self.budgets.get(period).map_or(0, |budget| budget.taken);
        (self.in_force(period).unwrap_or(0) - taken).max(0)
    }

    /// Whether a stream is one too many for its key.
    fn crowded(&self, ask: &Reserve) -> bool {
        let Some(streams) = self.streams.get(&ask.owner) else { return ask.streams_max == 0 };
        let live = |deadline: &i64| *deadline > self.now;
        !streams.get(&ask.stream).is_some_and(live)
            && streams.values().filter(|deadline| live(deadline)).count() >= ask.streams_max as usize
    }

    pub fn reserve(&mut self, ask: &Reserve) -> Reply {
        let now = self.now;
        if ask.n < 1 {
            return answer!["bad argument", 2];
        }
        if ask.share < 1 {
            return answer!["bad argument", 14];
        }
        if ask.least.is_zero() || ask.least > ask.floor || ask.least > ask.want {
            return answer!["bad argument", 12];
        }
        let current = match self.sessions.get(&ask.sid) {
            None if ask.n > 1 => return answer!["lost", now],
            None => 0,
            Some(session) if session.owner != ask.owner => return answer!["not yours", now],
            Some(session) if session.ended => return answer!["ended", now],
            Some(session) if session.terms != ask.terms => return answer!["conflict", now],
            Some(session) => session.n,
        };
        if ask.n <= current {
            self.again(ask, current)
        } else if ask.n == current + 1 {
            self.create(ask)
        } else {
            answer!["moved", number(current), now]
        }
    }

    /// Replay, renewal or join of a lease that was made before.
    fn again(&mut self, ask: &Reserve, current: u64) -> Reply {
        let (now, n, at) = (self.now, number(ask.n), (ask.sid.clone(), ask.n));
        let left = self.quotas.get(&at).map(|(left, _)| *left);
        let in_force = self.in_force(&ask.period);
        let open = self.leases.get(&at).filter(|lease| lease.closed.is_none());
        let seat = open.and_then(|lease| lease.seats.get(&ask.attachment)).cloned();
        if let Some(Seat::In { want }) = seat {
            if want != whole(ask.want) {
                return answer!["conflict", now];
            }
            self.renew(ask);
            if ask.n < current {
                return answer!["moved", number(current), now];
            }
            return self.told("kept", ask, left.unwrap_or(0));
        }
        if ask.n < current {
            return answer!["moved", number(current), now];
        }
        let (Some(_), None, Some(left)) = (open, seat, left) else { return answer!["closed", n, now] };
        if in_force.is_none() {
            return answer!["refuse", "account", 0, 0, now];
        }
        if self.frozen {
            return answer!["refuse", "frozen", 0, 0, now];
        }
        if self.crowded(ask) {
            return answer!["refuse", "streams", i64::from(ask.streams_max), 0, now];
        }
        self.renew(ask);
        let lease = self.leases.get_mut(&at).unwrap();
        lease.seats.insert(ask.attachment.clone(), Seat::In { want: whole(ask.want) });
        self.told("joined", ask, left)
    }

    /// The good answer of a lease that was made before.
    fn told(&self, word: &str, ask: &Reserve, left: i64) -> Reply {
        let lease = &self.leases[&(ask.sid.clone(), ask.n)];
        let in_force = self.in_force(&ask.period);
        let same = in_force.is_some() && lease.period == ask.period;
        let free = if same { self.free(&ask.period) } else { -1 };
        let cap = in_force.unwrap_or(0);
        answer![word, number(ask.n), lease.granted, left, free, &lease.period, self.now, cap]
    }

    fn renew(&mut self, ask: &Reserve) {
        let at = (ask.sid.clone(), ask.n);
        let lease = self.leases.get_mut(&at).unwrap();
        lease.deadline = lease.deadline.max(self.now + span(ask.lifetime_ms));
        lease.expires = lease.deadline + span(ask.lease_keep_ms);
        let member = (ask.sid.clone(), ask.n, lease.period.clone(), lease.granted);
        self.queue.insert(member, lease.deadline);
        if let Some((_, expires)) = self.quotas.get_mut(&at) {
            *expires = lease.expires;
        }
        self.sessions.get_mut(&ask.sid).unwrap().expires = self.now + span(ask.session_keep_ms);
        let streams = self.streams.entry(ask.owner.clone()).or_default();
        streams.insert(ask.stream.clone(), lease.deadline);
    }

    fn create(&mut self, ask: &Reserve) -> Reply {
        let (now, period) = (self.now, &ask.period);
        let Some(in_force) = self.in_force(period) else {
            return answer!["refuse", "account", 0, 0, now];
        };
        if self.frozen {
            return answer!["refuse", "frozen", 0, 0, now];
        }
        if !(ask.start * 1000..ask.end * 1000).contains(&now) {
            return answer!["stale period", now];
        }
        if !self.budgets.contains_key(period) && self.last.as_ref() == Some(period) {
            return answer!["lost", now];
        }
        let session = self.sessions.get(&ask.sid);
        if session.is_some_and(|session| session.open >= LEASES_MAX) {
            return answer!["refuse", "leases", 4, 0, now];
        }
        if self.crowded(ask) {
            return answer!["refuse", "streams", i64::from(ask.streams_max), 0, now];
        }
        let session_cap = session.map_or(ask.session_cap.map(whole), |session| session.cap);
        let (used, own) = session.map_or((0, 0), |session| (session.used, session.held));
        let session_room = (session_cap.unwrap_or(LIMIT) - used - own).max(0);
        let budget = self.budgets.get(period);
        let key_taken = budget.and_then(|budget| budget.keys.get(&ask.owner)).copied().unwrap_or(0);
        let key_cap = ask.key_cap.map_or(LIMIT, whole);
        let key_room = (key_cap - key_taken).max(0);
        let free = self.free(period);
        let room = free.min(session_room).min(key_room);
        let least = whole(ask.least);
        if session_room < least {
            return answer!["refuse", "session", session_room, 0, now];
        }
        if room < least {
            // Held units of others may come back; those of this session would not help it.
            let (held, settled) = budget.map_or((0, 0), |budget| (budget.held, budget.settled));
            let others = (held - own).max(0);
            let (why, back) = if key_room < least {
                ("key", others > 0 && key_taken - others.min(key_taken) + least <= key_cap)
            } else {
                ("budget", settled + own + least <= in_force)
            };
            if back {
                let first = self.queue.values().min().copied().unwrap_or(0);
                return answer!["refuse", "held", room, first, now];
            }
            return answer!["refuse", why, room, ask.end * 1000, now];
        }
        let shared = free.min(key_room) / i64::from(ask.share);
        let grant = whole(ask.want).min(shared.max(whole(ask.floor))).min(room);
        self.open(ask, grant, session_cap);
        answer!["opened", number(ask.n), grant, grant, free - grant, period, now, in_force]
    }

    fn open(&mut self, ask: &Reserve, granted: i64, cap: Option<i64>) {
        if self.last.as_ref() != Some(&ask.period) {
            let before = self.last.replace(ask.period.clone());
            before.and_then(|before| self.credit.remove(&before));
        }
        let expires = ask.end * 1000 + span(ask.budget_keep_ms);
        let none = Budget { taken: 0, held: 0, settled: 0, rows: 0, keys: BTreeMap::new(), expires };
        let budget = self.budgets.entry(ask.period.clone()).or_insert(none);
        budget.taken += granted;
        budget.held += granted;
        *budget.keys.entry(ask.owner.clone()).or_default() += granted;
        let (owner, terms) = (ask.owner.clone(), ask.terms.clone());
        let none = Session { owner, terms, n: 0, cap, used: 0, held: 0, open: 0, ended: false, expires: 0 };
        let session = self.sessions.entry(ask.sid.clone()).or_insert(none);
        session.n = ask.n;
        session.held += granted;
        session.open += 1;
        let lease = Lease {
            closed: None,
            granted,
            period: ask.period.clone(),
            owner: ask.owner.clone(),
            deadline: 0,
            tally: 0,
            waste: 0,
            seats: BTreeMap::from([(ask.attachment.clone(), Seat::In { want: whole(ask.want) })]),
            expires: 0,
        };
        let at = (ask.sid.clone(), ask.n);
        self.quotas.insert(at.clone(), (granted, 0));
        self.leases.insert(at, lease);
        self.renew(ask);
    }

    pub fn admit(&mut self, at: &At, cost: &str) -> Reply {
        let Some((left, _)) = self.quotas.get_mut(at) else { return answer!["lapse", 0] };
        let plain = cost.starts_with(|first| ('1'..='9').contains(&first));
        let paid = cost.parse::<i64>().ok().filter(|cost| plain && *cost <= LIMIT);
        let Some(paid) = paid else { return answer!["bad cost", 0] };
        if *left < paid {
            return answer!["refuse", *left];
        }
        *left -= paid;
        Reply::Int(*left)
    }

    pub fn settle(&mut self, ask: &Settle) -> Reply {
        if let (Some(stream), Some(streams)) = (&ask.stream, self.streams.get_mut(&ask.owner)) {
            streams.remove(stream);
        }
        let at = (ask.sid.clone(), ask.n);
        let Some(lease) = self.leases.get_mut(&at) else { return answer!["unknown"] };
        let Some(seat) = lease.seats.get(&ask.attachment).cloned() else { return answer!["unknown"] };
        if lease.owner != ask.owner {
            return answer!["not yours"];
        }
        if lease.period != ask.period {
            return answer!["wrong period", &lease.period];
        }
        let (tally, waste, most) = (whole(ask.tally), whole(ask.waste), lease.granted + whole(ask.epsilon));
        let verdict = |lease: &Lease, word: &str, replay: i64| {
            let (charged, excess) = lease.closed.unwrap();
            answer![word, charged, (lease.granted - charged).max(0), excess, replay]
        };
        if seat == (Seat::Left { tally, waste }) {
            return answer!["left", 0, 0, 0, 1];
        }
        if seat == (Seat::Closer { tally, waste }) {
            return verdict(lease, "closed", 1);
        }
        if !matches!(seat, Seat::In { .. }) {
            return answer!["conflict"];
        }
        if lease.closed.is_some() {
            return verdict(lease, "reaped", 0);
        }
        if tally > most {
            lease.tally = lease.tally.max(lease.granted);
            return answer!["overrun"];
        }
        lease.tally = (lease.tally + tally).min(LIMIT);
        lease.waste = (lease.waste + waste).min(LIMIT);
        lease.seats.insert(ask.attachment.clone(), Seat::Left { tally, waste });
        if lease.seats.values().any(|seat| matches!(seat, Seat::In { .. })) {
            return answer!["left", 0, 0, 0, 0];
        }
        lease.seats.insert(ask.attachment.clone(), Seat::Closer { tally, waste });
        let (charged, tallies) = (lease.tally.min(most), lease.tally);
        let member = (ask.sid.clone(), ask.n, ask.period.clone(), lease.granted);
        self.close(&member, charged, tallies - charged, span(ask.tombstone_ms));
        verdict(&self.leases[&at], "closed", 0)
    }

    pub fn reap(&mut self, member: &Member, force: bool, keep_ms: i64) -> Reply {
        let Some(deadline) = self.queue.get(member).copied() else { return answer!["unknown"] };
        if deadline > self.now && !force {
            return answer!["not due", deadline];
        }
        let (sid, n, _, granted) = member.clone();
        let at = (sid, n);
        let usual = if force { "forced" } else { "reaped" };
        let (how, used) = match (self.leases.get(&at), self.quotas.get(&at)) {
            (None, _) => ("lost", 0),
            (Some(lease), None) => ("blind", lease.tally),
            (Some(lease), Some((left, _))) => (usual, lease.tally.max(granted - left - lease.waste)),
        };
        let charged = used.min(granted);
        self.close(member, charged, used - charged, keep_ms);
        answer!["closed", how, charged, granted - charged, used - charged]
    }

    fn close(&mut self, member: &Member, charged: i64, excess: i64, keep_ms: i64) {
        let (sid, n, period, granted) = member.clone();
        let at = (sid, n);
        let session = self.sessions.get_mut(&at.0);
        let of_session = session.as_ref().map(|session| session.owner.clone());
        let owner = self.leases.get(&at).map(|lease| lease.owner.clone()).or(of_session);
        if let Some(budget) = self.budgets.get_mut(&period) {
            budget.taken += charged - granted;
            budget.held -= granted;
            budget.settled += charged;
            budget.rows += 1;
            if let Some(owner) = owner {
                *budget.keys.entry(owner).or_default() += charged - granted;
            }
        }
        if let Some(session) = session {
            session.held -= granted;
            session.used += charged;
            session.open -= 1;
        }
        self.quotas.remove(&at);
        self.queue.remove(member);
        if let Some(lease) = self.leases.get_mut(&at) {
            lease.closed = Some((charged, excess));
            lease.expires = self.now + keep_ms;
        }
    }

    pub fn topup(&mut self, id: &str, amount: i64, period: &str, keep_ms: i64) -> Reply {
        if amount < 1 {
            return answer!["bad argument", 2];
        }
        let Some(cap) = self.cap else { return answer!["unknown"] };
        let earlier = self.topups.get(period).and_then(|(ids, _)| ids.get(id));
        if let Some((first, sum)) = earlier {
            return if *first == amount { answer!["raised", *sum, 1] } else { answer!["conflict"] };
        }
        let credit = self.credit.get(period).copied().unwrap_or(0);
        if cap + credit + amount > LIMIT {
            return answer!["too much", credit];
        }
        let sum = credit + amount;
        self.credit.insert(period.to_owned(), sum);
        let (ids, expires) = self.topups.entry(period.to_owned()).or_default();
        ids.insert(id.to_owned(), (amount, sum));
        *expires = self.now + keep_ms;
        answer!["raised", sum, 0]
    }
}
