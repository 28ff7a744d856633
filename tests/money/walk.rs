//! The random walk: sockets of a few sessions on two gateways open, draw, rest, leave and crash; answers are lost
//! before, after or long after their call ran; leases fall due; periods end; operators top up, freeze, revoke, end
//! and change plans; the store's clock jumps; a budget is lost and rebuilt; a failover forgets the latest writes. The
//! books are held against the invariants after every step, and at the end against what was really handed over.
//!
//! Every step carries dice of its own, so that a step left out changes no other: see `walks.rs`, which shrinks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use voxgate::ending::Ending;
use voxgate::quota::keys::Member;
use voxgate::quota::rebuild::{RebuildError, Rebuilt};
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::faults::{Faults, Rates};
use voxgate::quota::store::{Script, Store};
use voxgate::quota::{Account, Admission, Key, Lease, Name, OpenError, PeriodRule, Quota, Refusal, Terms};
use voxgate::units::Units;

use super::books::{self, Backup, Books};
use super::house::{deliver_slowly, walk_settings as settings};

const SOCKETS: usize = 8;
/// Most plan changes of a walk: as many as are remembered, so that every period can be looked up at the end.
const RECUTS_MAX: usize = 8;
const SESSIONS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Where the walk goes.
pub struct Ground {
    pub store: Store,
    /// Set for the in-process store: time moves only when the walk says so.
    pub clock: Option<Arc<AtomicU64>>,
    pub prefix: String,
    /// Set for a store on disk: now and then it is closed and opened again.
    pub folder: Option<tempfile::TempDir>,
}

/// One step: what to do, and the dice to do it with.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub roll: u32,
    pub dice: u64,
}

/// The steps of one seed. Even seeds have neither operators nor clock steps nor failovers: what was charged is known
/// most exactly there.
pub fn steps(seed: u64, count: u32) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let roll = |rng: &mut fastrand::Rng| match rng.u32(0..1000) {
        roll @ OPERATORS_FIRST..OPERATORS_END if seed.is_multiple_of(2) => {
            roll - OPERATORS_FIRST + DRAW_FIRST
        }
        roll => roll,
    };
    (0..count).map(|_| Step { roll: roll(&mut rng), dice: rng.u64(..) }).collect()
}

/// Rolls that draw begin here.
const DRAW_FIRST: u32 = 140;
/// Rolls of operators and disasters.
const OPERATORS_FIRST: u32 = 922;
const OPERATORS_END: u32 = 983;

/// What a walk came to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub books: Books,
    pub failovers: u64,
    pub rebuilt: u64,
    pub recuts: usize,
}

struct Socket {
    lease: Lease,
    units: i64,
    /// A failover may have forgotten where it stands.
    torn: bool,
}

pub struct Walk {
    rng: fastrand::Rng,
    ground: Ground,
    rates: Rates,
    gateways: Vec<Quota>,
    faults: Vec<Arc<Faults>>,
    account: Arc<Account>,
    key: Arc<Key>,
    sockets: Vec<Option<Socket>>,
    /// Units handed to workers, over all streams.
    handed: i64,
    /// Units that count as waste, over all streams.
    wasted: i64,
    /// Whether a lease may have been closed under a stream that still counted in it.
    rough: bool,
    /// Without lost answers or operators: what every client must get through.
    plain: Quota,
    /// Periods whose budget was taken away and not yet rebuilt.
    lost: Vec<String>,
    /// The whole store as it was, with what had been admitted by then.
    backup: Option<(Backup, i64)>,
    /// Units that failovers may have forgotten.
    forgotten: i64,
    failovers: u64,
    rebuilt: u64,
    recuts: usize,
    /// Whether the store's clock ever stepped back: then two plans may have cut the same hour.
    stepped_back: bool,
    /// Latest time that was ever seen, unix microseconds.
    latest: u64,
    minted: u32,
}

impl Walk {
    pub async fn new(seed: u64, ground: Ground, damaged: Option<Script>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let calm = rng.bool();
        let most = if calm { 0 } else { 40 };
        let rates = Rates { before: rng.u32(0..=most), after: rng.u32(0..=most), later: rng.u32(0..=most) };
        let mut damaged = damaged.map(|script| (script.name, script.text));
        let mut gateways = Vec::new();
        let mut faults = Vec::new();
        for gateway in 0..2 {
            let mut line = Faults::new(seed * 2 + gateway, rates);
            if let Some((name, text)) = damaged.as_mut() {
                line = line.with_damaged(Script::new(name, text.clone()));
            }
            let line = Arc::new(line);
            gateways
                .push(Quota::new(ground.store.clone().with_faults(line.clone()), settings(&ground.prefix)));
            faults.push(line);
        }
        let mut account = Account::new(Name::parse("acme").unwrap(), Units::from(rng.u32(500..6000)));
        account.period = PeriodRule::Fixed(1);
        account.share = *rng.choice([1, 2, 8].iter()).unwrap();
        let session_cap = rng.bool().then(|| Units::from(rng.u32(300..3000)));
        let plain = Quota::new(ground.store.clone(), settings(&ground.prefix));
        plain.put_account(&account).await.unwrap();
        let key = plain.add_key(key(&account.id, session_cap)).await.unwrap().1;
        let sockets = (0..SOCKETS).map(|_| None).collect();
        let (account, key) = (Arc::new(account), Arc::new(key));
        let latest = ground.clock.as_ref().map_or(0, |clock| clock.load(Ordering::SeqCst));
        Self {
            rng,
            ground,
            rates,
            gateways,
            faults,
            account,
            key,
            sockets,
            handed: 0,
            wasted: 0,
            rough: false,
            plain,
            lost: Vec::new(),
            backup: None,
            forgotten: 0,
            failovers: 0,
            rebuilt: 0,
            recuts: 0,
            stepped_back: false,
            latest,
            minted: 0,
        }
    }

    /// Walks; `trail` gets what each step did.
    pub async fn run(mut self, steps: &[Step], trail: &mut Vec<&'static str>) -> Result<Outcome, String> {
        for (number, step) in steps.iter().enumerate() {
            self.rng = fastrand::Rng::with_seed(step.dice);
            let what = self.step(step.roll).await?;
            trail.push(what);
            let books = self.books().await;
            self.check(&books).map_err(|wrong| format!("step {number} ({what}): {wrong}"))?;
        }
        trail.push("end");
        self.end().await
    }

    fn check(&self, books: &Books) -> Result<(), String> {
        books.check_but(self.account.cap.get() as i64, &self.lost)?;
        if self.failovers == 0 && books.excess != 0 {
            return Err(format!("excess {} without loss of data", books.excess));
        }
        Ok(())
    }

    async fn books(&self) -> Books {
        books::read(&self.ground.store, &self.ground.prefix, &self.account.id).await
    }

    async fn step(&mut self, roll: u32) -> Result<&'static str, String> {
        let slot = self.rng.usize(0..SOCKETS);
        Ok(match roll {
            0..140 => self.open(slot).await,
            140..720 => self.draw(slot).await,
            720..760 => self.beat(slot),
            760..790 => self.rest(slot),
            790..840 => self.leave(slot).await,
            840..860 => self.crash(slot),
            860..890 => self.late().await,
            890..915 => self.reap().await?,
            915..922 => self.force().await,
            983..992 if self.ground.folder.is_some() => self.reopen(),
            922..930 => self.topup().await,
            930..938 => self.freeze().await,
            938..942 => self.revoke().await,
            942..945 => self.end_session().await,
            945..948 => self.cap_session().await,
            948..952 => self.recut().await,
            952..955 => self.step_clock(),
            955..958 => self.lose_budget().await,
            958..972 => self.rebuild().await?,
            972..977 => self.back_up().await,
            977..980 => self.fail_over().await,
            980..983 => self.audit().await?,
            _ => self.wait().await,
        })
    }

    async fn open(&mut self, slot: usize) -> &'static str {
        if self.sockets[slot].is_some() {
            return "slot taken";
        }
        let session = self.rng.choice(SESSIONS.iter()).and_then(|name| Name::parse(name));
        let session = session.filter(|_| self.rng.u32(0..5) > 0);
        let terms = Terms {
            account: self.account.clone(),
            key: self.key.clone(),
            session,
            model: "m".into(),
            units_per_second: 1000,
            tags: String::new(),
        };
        let gateway = self.rng.usize(0..self.gateways.len());
        match self.gateways[gateway].open(terms).await {
            Ok(lease) => {
                self.sockets[slot] = Some(Socket { lease, units: 0, torn: false });
                "opened"
            }
            Err(OpenError::Refused(Refusal::Lost)) if self.lost.is_empty() => panic!("books lost"),
            Err(OpenError::Refused(Refusal::NotYours | Refusal::Conflict)) => panic!("not ours"),
            Err(OpenError::Refused(_)) => "open refused",
            Err(OpenError::Store(_)) => "open failed",
        }
    }

    async fn draw(&mut self, slot: usize) -> &'static str {
        let cost = self.rng.u32(1..=60);
        let keep = self.rng.u32(0..20) > 0;
        let slow = self.rng.u32(0..4) == 0;
        let Some(socket) = &mut self.sockets[slot] else { return "slot empty" };
        let mut cost = Units::from(cost);
        let what = loop {
            match socket.lease.admit(cost).await {
                Ok(Admission::Grant) if keep => {
                    if slow {
                        deliver_slowly(&mut socket.lease).await;
                    }
                    socket.lease.tally(cost);
                    socket.units += cost.get() as i64;
                    break "granted";
                }
                Ok(Admission::Grant) => {
                    socket.lease.waste(cost);
                    break "granted, not handed over";
                }
                Ok(Admission::Refuse { left, .. }) if !left.is_zero() => cost = left,
                Ok(Admission::Refuse { .. }) => break "refused",
                Ok(Admission::Lapse) => break "lapsed",
                Err(_) => break "no answer",
            }
        };
        if matches!(what, "refused" | "lapsed" | "no answer") {
            self.leave(slot).await;
        }
        what
    }

    fn beat(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = &mut self.sockets[slot] {
            socket.lease.beat();
        }
        "beat"
    }

    fn rest(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = &mut self.sockets[slot] {
            socket.lease.rest();
        }
        "rested"
    }

    async fn leave(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = self.sockets[slot].take() {
            let settlement = socket.lease.settle(Ending::ClientDone, "w1").await;
            assert_eq!(settlement.tally.get() as i64, socket.units, "the lease counts what was handed over");
            self.handed += socket.units;
            self.forgotten += if socket.torn { socket.units } else { 0 };
            self.wasted += settlement.waste.get() as i64;
        }
        "left"
    }

    /// A gateway that dies: its memory is gone, nothing is settled.
    fn crash(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = self.sockets[slot].take() {
            self.handed += socket.units;
            self.forgotten += if socket.torn { socket.units } else { 0 };
            self.wasted += socket.lease.wasted().get() as i64;
            self.rough = true;
        }
        "crashed"
    }

    async fn late(&mut self) -> &'static str {
        for gateway in &self.gateways {
            gateway.deliver_late().await;
        }
        "late calls arrived"
    }

    async fn reap(&mut self) -> Result<&'static str, String> {
        let now_ms = self.ground.clock.as_ref().map(|clock| clock.load(Ordering::SeqCst) / 1000);
        let alive = self.plain.open_leases(&self.account.id).await.unwrap();
        // A lost answer may end the round early; that is one of the things to try.
        let _ = self.gateways[0].reap_round().await;
        self.rough = true;
        let Some(now_ms) = now_ms else { return Ok("reaped") };
        let after = self.plain.open_leases(&self.account.id).await.unwrap();
        let early = alive.iter().find(|l| l.deadline_ms > Some(now_ms) && !after.contains(l));
        early.map_or(Ok("reaped"), |lease| Err(format!("reaped before its deadline: {lease:?}")))
    }

    async fn force(&mut self) -> &'static str {
        let books = self.books().await;
        if let Some(member) = self.rng.choice(books.leases.iter()) {
            let member: Member = member.clone();
            let _ = self.gateways[1].reap(&self.account.id, &member, true).await;
            self.rough = true;
        }
        "forced"
    }

    /// Everything dies and comes back over what is on disk; calls still on their way are lost.
    fn reopen(&mut self) -> &'static str {
        for slot in 0..SOCKETS {
            self.crash(slot);
        }
        let (Some(folder), Some(clock)) = (&self.ground.folder, &self.ground.clock) else { return "no disk" };
        self.rough = true;
        self.ground.store.close().expect("the disk takes it");
        self.ground.store = Embedded::open(folder.path(), Clock::Manual(clock.clone())).unwrap().into();
        for (gateway, line) in self.gateways.iter_mut().zip(&mut self.faults) {
            *line = Arc::new(Faults::new(self.rng.u64(..), self.rates));
            let store = self.ground.store.clone().with_faults(line.clone());
            *gateway = Quota::new(store, settings(&self.ground.prefix));
        }
        self.plain = Quota::new(self.ground.store.clone(), settings(&self.ground.prefix));
        "reopened"
    }

    /// Lets time pass: now and then more than a lease lives.
    async fn wait(&mut self) -> &'static str {
        let ms = self.rng.u64(1..150);
        match &self.ground.clock {
            Some(clock) => _ = clock.fetch_add(ms * 1000, Ordering::SeqCst),
            None => tokio::time::sleep(Duration::from_millis(ms / 10)).await,
        }
        "time passed"
    }

    async fn topup(&mut self) -> &'static str {
        // Few ids, so that some come again: with the same amount, or with another one.
        let id = Name::parse(&format!("t{}", self.rng.u32(0..6))).unwrap();
        let amount = Units::from(self.rng.choice([50, 300]).unwrap());
        let gateway = self.rng.usize(0..self.gateways.len());
        let _ = self.gateways[gateway].topup(&self.account.id, &id, amount, None).await;
        "topped up"
    }

    async fn freeze(&mut self) -> &'static str {
        let frozen = self.rng.u32(0..6) == 0;
        self.plain.set_frozen(&self.account.id, frozen).await.unwrap();
        if frozen { "frozen" } else { "thawed" }
    }

    /// The key goes, another one comes; its sessions are other ones.
    async fn revoke(&mut self) -> &'static str {
        let fingerprint = Name::parse(&self.key.fingerprint).unwrap();
        self.plain.revoke_key(&self.account.id, &fingerprint).await.unwrap();
        let fresh = key(&self.account.id, self.key.session_cap);
        self.minted += 1;
        let secret = format!("vox_{}", self.minted);
        self.key = Arc::new(self.plain.add_key_as(&secret, fresh).await.unwrap());
        "revoked"
    }

    async fn end_session(&mut self) -> &'static str {
        let leases = self.plain.open_leases(&self.account.id).await.unwrap();
        let Some(lease) = self.rng.choice(leases.iter()) else { return "no session to end" };
        let sid = lease.member.sid.clone();
        // A session that a failover forgot has left its leases as well.
        let ended = self.plain.end_session(&self.account.id, &sid).await.unwrap();
        assert!(ended.is_some_and(|ended| ended.stuck == 0), "{ended:?}");
        self.rough = true;
        "session ended"
    }

    async fn cap_session(&mut self) -> &'static str {
        let sessions = self.plain.sessions(&self.account.id).await.unwrap();
        let Some(session) = self.rng.choice(sessions.iter()) else { return "no session to cap" };
        let cap = session.cap.map(|cap| cap.saturating_add(Units::from(100)));
        assert!(self.plain.raise_session_cap(&self.account.id, &session.sid, cap).await.unwrap());
        "session capped"
    }

    /// Another way of cutting time; half of the walk's new streams still know the old one.
    async fn recut(&mut self) -> &'static str {
        if self.recuts == RECUTS_MAX {
            return "plan stays";
        }
        self.recuts += 1;
        let rules = [PeriodRule::Fixed(1), PeriodRule::Fixed(2), PeriodRule::Fixed(3), PeriodRule::Hour];
        let mut account = Account::clone(&self.account);
        (account.period, account.zone) =
            (self.rng.choice(rules).unwrap(), self.rng.choice(["UTC", "Asia/Kolkata"]).unwrap().into());
        self.plain.put_account(&account).await.unwrap();
        if self.rng.bool() {
            self.account = Arc::new(self.plain.account(&account.id).await.unwrap().unwrap());
        }
        "plan changed"
    }

    /// Up to an hour forward or back.
    fn step_clock(&mut self) -> &'static str {
        let Some(clock) = &self.ground.clock else { return "clock stays" };
        let us = self.rng.u64(1..3_600_000_000);
        if self.rng.bool() {
            clock.fetch_add(us, Ordering::SeqCst);
            return "clock jumped";
        }
        if !self.lost.is_empty() {
            return "clock stays"; // only the period that was opened last is known to have had a budget
        }
        self.latest = self.latest.max(clock.fetch_sub(us, Ordering::SeqCst));
        self.stepped_back = true;
        "clock stepped back"
    }

    async fn lose_budget(&mut self) -> &'static str {
        let audit = self.plain.audit(&self.account.id).await.unwrap();
        let account = books::Keys::new(&self.ground.prefix);
        let last =
            books::text_of(&self.ground.store, &["HGET", &account.account(&self.account.id), "last"]).await;
        let Some(last) = last.filter(|last| audit.periods.iter().any(|p| p.period == *last)) else {
            return "no budget to lose";
        };
        books::command(&self.ground.store, &["DEL", &account.budget(&self.account.id, &last)]).await;
        if !self.lost.contains(&last) {
            self.lost.push(last);
        }
        "budget lost"
    }

    async fn rebuild(&mut self) -> Result<&'static str, String> {
        let Some(period) = self.lost.pop() else { return Ok("nothing lost") };
        match self.plain.rebuild(&self.account.id, &period, false).await {
            Ok(Rebuilt::Written { .. } | Rebuilt::Agreed) | Err(RebuildError::Nothing) => {}
            Err(other) => return Err(format!("rebuild of {period}: {other}")),
        }
        self.rebuilt += 1;
        Ok("rebuilt")
    }

    async fn back_up(&mut self) -> &'static str {
        if self.ground.clock.is_none() || !self.lost.is_empty() {
            return "no replica";
        }
        self.backup = Some((Backup::take(&self.ground.store).await, self.admitted()));
        "replica caught up"
    }

    /// The primary dies, a replica that lags behind takes over.
    async fn fail_over(&mut self) -> &'static str {
        let Some((backup, admitted)) = self.backup.take() else { return "no replica" };
        if !self.lost.is_empty() {
            return "no replica"; // the replica may have the budget: that would be another walk
        }
        backup.restore(&self.ground.store).await;
        self.forgotten += self.admitted() - admitted;
        self.sockets.iter_mut().flatten().for_each(|socket| socket.torn = true);
        self.failovers += 1;
        self.rough = true;
        "failed over"
    }

    /// Units that streams were granted, handed over or not.
    fn admitted(&self) -> i64 {
        let open =
            self.sockets.iter().flatten().map(|s| s.units + s.lease.wasted().get() as i64).sum::<i64>();
        self.handed + self.wasted + open
    }

    async fn audit(&mut self) -> Result<&'static str, String> {
        for period in self.plain.audit_deep(&self.account.id).await.map_err(|error| error.to_string())? {
            if !period.mismatches.is_empty() && !self.lost.contains(&period.period) {
                return Err(format!("deep audit: {period:?}"));
            }
        }
        Ok("audited")
    }

    /// No second belongs to two periods that both have money, whatever was changed on the way.
    async fn check_tiling(&self, books: &Books) -> Result<(), String> {
        let account = self.plain.account(&self.account.id).await.unwrap().unwrap();
        for period in books.periods.keys() {
            let digits = period.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
            let window = account.window(digits.parse().unwrap());
            if window.id != *period {
                return Err(format!("{period} lies in {window:?} of {:?}", account.past));
            }
        }
        Ok(())
    }

    /// Everybody leaves, what was late arrives, what is left falls due: then the ledger must say what was handed over.
    async fn end(mut self) -> Result<Outcome, String> {
        while !self.lost.is_empty() {
            self.rebuild().await?;
        }
        for slot in 0..SOCKETS {
            self.leave(slot).await;
        }
        for line in &self.faults {
            line.set(Rates::default());
        }
        for gateway in &self.gateways {
            assert_eq!(gateway.drain(Duration::from_secs(20)).await, 0, "settles in flight end");
        }
        self.late().await;
        for gateway in &self.gateways {
            assert_eq!(gateway.drain(Duration::from_secs(20)).await, 0, "settles in flight end");
        }
        match &self.ground.clock {
            Some(clock) => {
                let latest = self.latest.max(clock.load(Ordering::SeqCst));
                clock.store(latest + 2_000_000, Ordering::SeqCst);
            }
            None => tokio::time::sleep(Duration::from_millis(450)).await,
        }
        let rough = self.rough;
        self.reap().await?;
        self.audit().await?;
        let books = self.books().await;
        self.check(&books)?;
        if !books.leases.is_empty() {
            return Err(format!("leases beyond their deadline: {:?}", books.leases));
        }
        let (charged, slack) = (books.charged(), if rough { self.wasted } else { 0 });
        // A lease that was settled by everybody charges what was handed over, to the unit. One that was reaped can't
        // know whether a doubtful take landed: it is off by that doubt at most.
        let orderly = books.hows.keys().all(|how| how == "settled");
        let slack = if orderly { 0 } else { slack };
        let (over, under) = (charged - self.handed, self.handed - charged);
        // What a failover forgot may be missing, up to what was admitted since the replica was caught up.
        if over > slack || under > slack + self.forgotten {
            let (handed, wasted, forgotten) = (self.handed, self.wasted, self.forgotten);
            return Err(format!(
                "charged {charged}, handed over {handed}, wasted {wasted}, forgotten {forgotten}, {:?}",
                books.hows
            ));
        }
        if books.drift() != 0 {
            return Err(format!("drift {}", books.drift()));
        }
        if !self.stepped_back && self.failovers == 0 {
            self.check_tiling(&books).await?;
        }
        let Self { failovers, rebuilt, recuts, .. } = self;
        Ok(Outcome { books, failovers, rebuilt, recuts })
    }
}

fn key(account: &Name, session_cap: Option<Units>) -> Key {
    Key {
        fingerprint: String::new(),
        account: account.clone(),
        label: "walk".into(),
        cap: None,
        session_cap,
        streams_max: 6,
        models: Vec::new(),
        revoked: false,
    }
}
