//! A gateway on a real store with people who speak in real time, and what must agree when they are done.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use voxgate::quota::Name;
use voxgate::quota::store::Store;

use crate::harness::PATIENCE;
use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, Heard, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::RedisServer;
use crate::harness::scripted_worker::{Results, Script, ScriptedWorker};
use crate::money::books::{self, Books};

/// A day's units of the one account: far more than any test speaks.
pub const CAP: u64 = 36_000_000;
/// Audio in one message.
pub const CHUNK_MS: u64 = 100;

/// One store, one worker, one gateway, one account.
pub struct House {
    pub store: RedisServer,
    pub worker: ScriptedWorker,
    pub gateway: Gateway,
    pub key: String,
}

impl House {
    /// On this store.
    pub async fn on(store: RedisServer) -> Self {
        let url = store.url();
        Self::behind(store, &url).await
    }

    /// On this store, reached at `url`.
    pub async fn behind(store: RedisServer, url: &str) -> Self {
        Self::with(store, url, "").await
    }

    /// On this store, with envelopes so short that every second brings a reserve.
    pub async fn hungry(store: RedisServer, url: &str) -> Self {
        let more = "[quota]\nenvelope_first = \"1s\"\nenvelope_longest = \"1s\"\n";
        Self::with(store, url, more).await
    }

    async fn with(store: RedisServer, url: &str, more: &str) -> Self {
        let worker = listener().await;
        // Each time that it is named a worker has room for 64 streams.
        let urls = vec![worker.url(); 4];
        let gateway = Gateway::start(&Setup::on(url, &urls).more(more)).await;
        gateway.account_with("a", CAP, json!({"share": 64})).await;
        let key = gateway.key("a", json!({"streams_max": 1000})).await;
        Self { store, worker, gateway, key }
    }

    /// Opens a stream, of a store that is well.
    pub async fn open(&self) -> Client {
        self.reopened().await.0
    }

    /// So many people who speak until they are asked to stop.
    pub async fn crowd(&self, count: usize) -> Crowd {
        let mut crowd = Crowd::new();
        for _ in 0..count {
            crowd.add(self.open().await);
        }
        crowd
    }

    /// A metric's value, as [`Gateway::metric`].
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.gateway.metric(name, labels).await
    }

    /// Calls that failed for this reason.
    pub async fn errors(&self, kind: &str) -> f64 {
        self.metric("voxgate_script_errors_total", &[&format!("kind=\"{kind}\"")]).await
    }

    /// The account's whole books.
    pub async fn books(&self) -> Books {
        books_of(&self.store).await
    }

    /// Waits until nothing is held, then: clients, worker, gateway and ledger tell the same sum, to the millisecond.
    /// Gives it.
    pub async fn agrees(&self, ends: &[End]) -> u64 {
        let told: u64 = ends.iter().map(|end| end.heard.metadata_ms()).sum();
        self.unheld().await;
        let handed = self.metric("voxgate_units_total", &["fate=\"handed_over\""]).await as u64;
        poll("all audio at the worker", async || {
            (self.worker.audio_bytes() as u64 / 32 >= handed).then_some(())
        })
        .await;
        let books = self.books().await;
        books.check(CAP as i64).unwrap();
        let admitted = self.metric("voxgate_units_total", &["fate=\"admitted\""]).await as u64;
        assert_eq!(
            (told, self.worker.audio_bytes() as u64 / 32, admitted, books.charged()),
            (handed, handed, handed, handed as i64),
            "told, forwarded, admitted and charged are what was handed over"
        );
        handed
    }

    /// Waits until no lease is open and no settle is on its way.
    pub async fn unheld(&self) {
        poll("everything settled", async || {
            let pending = self.metric("voxgate_settles_pending", &[]).await;
            (pending == 0.0 && self.gateway.balance("a").await.leases == 0).then_some(())
        })
        .await;
    }

    /// Waits until a new stream is accepted; gives it, and how long that took.
    pub async fn reopened(&self) -> (Client, Duration) {
        let start = Instant::now();
        let client = poll("a new stream", async || self.gateway.open(LINEAR16, &self.key).await.ok()).await;
        (client, start.elapsed())
    }

    /// A new stream is refused for want of the store; gives how long that took.
    pub async fn refused(&self) -> Duration {
        let start = Instant::now();
        let refusal = self.gateway.open(LINEAR16, &self.key).await.err().expect("no stream without a store");
        assert_eq!(refusal.status, 503, "{refusal:?}");
        assert!(refusal.headers.contains_key("retry-after"), "{refusal:?}");
        start.elapsed()
    }
}

/// A worker that answers once a second.
pub async fn listener() -> ScriptedWorker {
    ScriptedWorker::start(Script { results: Results::PerMs(1000), ..Script::default() }).await
}

/// The books of the one account.
pub async fn books_of(store: &RedisServer) -> Books {
    let direct = Store::open(&store.url()).expect("a valid URL");
    books::read(&direct, "vox:", &Name::parse("a").expect("a name")).await
}

/// Looks again and again until there is a value; panics after [`PATIENCE`].
pub async fn poll<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let (mut ticks, until) = (interval(Duration::from_millis(20)), Instant::now() + PATIENCE);
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < until, "no {what} in {PATIENCE:?}");
        ticks.tick().await;
    }
}

/// People who speak in real time.
pub struct Crowd {
    stop: watch::Sender<bool>,
    speakers: JoinSet<End>,
}

/// How one of them fared.
#[derive(Debug)]
pub struct End {
    /// What was heard.
    pub heard: Heard,
    /// Milliseconds of audio that were sent.
    pub sent: u64,
    /// Pings that were sent.
    pub pings: usize,
}

impl Crowd {
    pub fn new() -> Self {
        Self { stop: watch::Sender::new(false), speakers: JoinSet::new() }
    }

    /// One more speaker.
    pub fn add(&mut self, client: Client) {
        let seed = self.speakers.len() as u64;
        self.speakers.spawn(speak(client, seed, self.stop.subscribe()));
    }

    /// Asks everybody to stop, and hears how they ended.
    pub async fn stop(self) -> Vec<End> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Waits until everybody's stream has ended by itself.
    pub async fn ended(self) -> Vec<End> {
        let ended = tokio::time::timeout(2 * PATIENCE, self.speakers.join_all()).await;
        ended.unwrap_or_else(|_| panic!("streams that do not end in {:?}", 2 * PATIENCE))
    }

    /// As [`Crowd::stop`]; every stream went on to its orderly end, with all that was said and every ping answered.
    pub async fn went_on(self) -> Vec<End> {
        let ends = self.stop().await;
        for end in &ends {
            assert_eq!((end.heard.code(), end.heard.metadata_ms()), (1000, end.sent), "{:?}", end.heard);
            assert_eq!(end.heard.pongs, end.pings, "{:?}", end.heard.order());
        }
        ends
    }
}

async fn speak(mut client: Client, seed: u64, stop: watch::Receiver<bool>) -> End {
    let (audio, mut sent, mut pings) = (noise_ms(seed, CHUNK_MS as usize), 0, 0);
    let mut ticks = interval(Duration::from_millis(CHUNK_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if *stop.borrow() {
            return End { heard: client.finish().await, sent, pings };
        }
        if client.is_over() || !client.audio(&audio).await {
            return End { heard: client.end().await, sent, pings };
        }
        sent += CHUNK_MS;
        if sent % 1000 == 0 && client.ping().await {
            pings += 1;
        }
    }
}

/// One plain connection to a store, which waits for its answers as long as they take.
pub struct Wire(TcpStream);

impl Wire {
    pub async fn to(store: &RedisServer) -> Self {
        Self(TcpStream::connect(("127.0.0.1", store.port)).await.expect("the store listens"))
    }

    /// Sends a command and waits for nothing.
    pub async fn send(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.write_all(text.as_bytes()).await.expect("the store reads");
    }

    /// The next answer: a line as it is, or a bulk's text.
    pub async fn answer(&mut self) -> String {
        let line = self.line().await;
        match line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
            Some(length) => {
                let mut bulk = vec![0; length + 2];
                self.0.read_exact(&mut bulk).await.expect("a whole bulk");
                String::from_utf8_lossy(&bulk[..length]).into_owned()
            }
            None => line,
        }
    }

    pub async fn ask(&mut self, words: &[&str]) -> String {
        self.send(words).await;
        self.answer().await
    }

    async fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await.expect("an answer"));
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }
}

/// Asks a store one thing.
pub async fn ask(store: &RedisServer, words: &[&str]) -> String {
    Wire::to(store).await.ask(words).await
}

/// A count out of `INFO commandstats`, such as `calls` of `script|kill`; 0 if there never was one.
pub async fn commandstat(store: &RedisServer, command: &str, field: &str) -> u64 {
    let text = ask(store, &["INFO", "commandstats"]).await;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let field = format!("{field}=");
    let value = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix(&field)));
    value.map_or(0, |value| value.parse().expect("a count"))
}
