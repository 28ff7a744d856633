//! What holds the store up: slow scripts that read, that write, that are one slow command; and what SCRIPT KILL does
//! about each.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Value};

use super::super::Failure;

/// A kind of slow script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Loops over GET.
    Reading,
    /// Writes once, then loops over GET: can't be killed.
    Writing,
    /// One slow command: nobody is told BUSY, nobody can interrupt it.
    Command,
}

impl Kind {
    /// Its name in reports.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Writing => "writing",
            Self::Command => "one command",
        }
    }

    fn text(self) -> String {
        match self {
            Self::Reading => format!("{CLOCK} {SPIN}"),
            Self::Writing => format!("redis.call('SET', KEYS[1], '1', 'PX', 60000) {CLOCK} {SPIN}"),
            Self::Command => "redis.call('SORT', KEYS[1], 'ALPHA', 'LIMIT', 0, 1) return 'done'".to_owned(),
        }
    }
}

/// Where a script has no clock of the processor's time it asks for the time; where it has one, the time stands still.
const CLOCK: &str = "local timed, clock = pcall(function() return os.clock end) \
    if not timed then clock = function() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end end";
/// Loops over short commands for so many milliseconds at least.
const SPIN: &str = "local till = clock() + ARGV[1] / 1000 \
    while clock() < till do redis.call('GET', KEYS[1]) end return 'done'";

/// Connections of somebody who shares the store: one runs scripts, one kills them.
pub(super) struct Neighbour {
    runs: MultiplexedConnection,
    kills: MultiplexedConnection,
    /// Elements that SORT takes a millisecond for.
    sorts_per_ms: f64,
}

/// How one slow script went.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) lasted: Duration,
    /// What its caller got: `done`, or the error's first words.
    pub(super) answer: String,
    pub(super) kill: Option<Kill>,
}

/// How a SCRIPT KILL went.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    /// OK, UNKILLABLE or NOTBUSY.
    pub(super) answer: String,
    /// How long its answer took.
    pub(super) took: Duration,
}

impl Neighbour {
    /// Connects, and finds out how fast this store is; done before anything is live.
    pub(super) async fn connect(url: &str) -> Result<Self, Failure> {
        let mut it = Self { runs: connection(url).await?, kills: connection(url).await?, sorts_per_ms: 1.0 };
        it.fill(SORTED, TRIAL_SORT).await?;
        let start = Instant::now();
        it.script(Kind::Command, Duration::ZERO).await.map_err(fault)?;
        it.sorts_per_ms = f64::from(TRIAL_SORT) / ms(start.elapsed());
        Ok(it)
    }

    /// Makes ready for one: the list of a slow command has to be as long as that shall take.
    pub(super) async fn prepare(&mut self, kind: Kind, length: Duration) -> Result<(), Failure> {
        if kind == Kind::Command {
            let elements = (self.sorts_per_ms * ms(length)).clamp(100.0, f64::from(SORT_MAX));
            self.fill(SORTED, elements as u32).await?;
        }
        Ok(())
    }

    /// Runs one to its end; after `kill` somebody tries to kill it.
    pub(super) async fn hold(
        &mut self,
        kind: Kind,
        length: Duration,
        kill: Option<Duration>,
    ) -> Result<Hold, Failure> {
        let mut kills = self.kills.clone();
        let killing = async {
            tokio::time::sleep(kill?).await;
            let start = Instant::now();
            let answer: Result<Value, RedisError> =
                redis::cmd("SCRIPT").arg("KILL").query_async(&mut kills).await;
            let answer = match answer {
                Ok(_) => "OK".to_owned(),
                Err(error) => word(&error),
            };
            Some(Kill { answer, took: start.elapsed() })
        };
        let running = async {
            let start = Instant::now();
            (self.script(kind, length).await, start.elapsed())
        };
        let ((done, lasted), kill) = tokio::join!(running, killing);
        let answer = match done {
            Ok(()) => "done".to_owned(),
            Err(error) if kill.is_some() => error.to_string().chars().take(60).collect(),
            Err(error) => return Err(fault(error)),
        };
        Ok(Hold { lasted, answer, kill })
    }

    async fn script(&mut self, kind: Kind, length: Duration) -> Result<(), RedisError> {
        let key = if kind == Kind::Command { SORTED } else { SPUN };
        let mut call = redis::cmd("EVAL");
        call.arg(kind.text()).arg(1).arg(key).arg(ms(length)).query_async(&mut self.runs).await
    }

    /// Makes a list of so many numbers in no order, a piece at a time.
    pub(super) async fn fill(&mut self, key: &str, elements: u32) -> Result<(), Failure> {
        () = redis::cmd("DEL").arg(key).query_async(&mut self.runs).await.map_err(fault)?;
        let mut left = elements;
        while left > 0 {
            let piece = left.min(PIECE);
            let mut push = redis::cmd("RPUSH");
            push.arg(key);
            for _ in 0..piece {
                push.arg(fastrand::u32(1..1000));
            }
            () = push.query_async(&mut self.runs).await.map_err(fault)?;
            left -= piece;
        }
        () = redis::cmd("PEXPIRE").arg(key).arg(600_000).query_async(&mut self.runs).await.map_err(fault)?;
        Ok(())
    }

    /// Sets the busy threshold and gives what it was.
    pub(super) async fn threshold(&mut self, ms: &str) -> Result<String, Failure> {
        let (_, before): (String, String) = redis::cmd("CONFIG")
            .arg("GET")
            .arg(THRESHOLD)
            .query_async(&mut self.kills)
            .await
            .map_err(fault)?;
        () = redis::cmd("CONFIG")
            .arg("SET")
            .arg(THRESHOLD)
            .arg(ms)
            .query_async(&mut self.kills)
            .await
            .map_err(fault)?;
        Ok(before)
    }

    /// Takes its keys away.
    pub(super) async fn leave(&mut self) -> Result<(), Failure> {
        redis::cmd("DEL").arg(&[SORTED, SPUN]).query_async(&mut self.runs).await.map_err(fault)
    }

    /// What scripts of one's own run on.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.runs.clone()
    }
}

/// A connection of its own, which waits for an answer as long as it takes.
pub(super) async fn connection(url: &str) -> Result<MultiplexedConnection, Failure> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(None);
    let client = redis::Client::open(url).map_err(fault)?;
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(fault)
}

/// The error's first word, such as BUSY.
pub(super) fn word(error: &RedisError) -> String {
    error.code().map_or_else(|| error.to_string(), str::to_owned)
}

/// In milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(super) fn fault(why: impl std::fmt::Display) -> Failure {
    Failure::peer("neighbour on the store", why)
}

const SPUN: &str = "load:busy:spun";
const SORTED: &str = "load:busy:sorted";
const THRESHOLD: &str = "busy-reply-threshold";
/// Elements of the trial of SORT.
const TRIAL_SORT: u32 = 20_000;
/// Most elements that are sorted.
const SORT_MAX: u32 = 2_000_000;
/// Elements pushed by one command.
const PIECE: u32 = 10_000;
