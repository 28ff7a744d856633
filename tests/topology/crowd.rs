//! Many live streams through the real gateway at a microphone's pace, and what became of them and of the money.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, Heard, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::polled;
use crate::harness::scripted_worker::{Results, Script, ScriptedWorker, Visit};
use crate::money::books::Books;

/// Each stream sends so much at a time, as often.
pub const CHUNK_MS: u64 = 100;

/// A gateway over a store, and its worker.
pub struct Stage {
    /// The real program.
    pub gateway: Gateway,
    /// Takes every stream.
    pub worker: ScriptedWorker,
}

impl Stage {
    /// A gateway over the store at `url`, with more settings.
    pub async fn on(url: &str, more: &str) -> Self {
        Self::with(url, "", more).await
    }

    /// The same with more lines in `[store]`.
    pub async fn with(url: &str, store_more: &str, more: &str) -> Self {
        let worker =
            ScriptedWorker::start(Script { results: Results::PerMs(1000), ..Script::default() }).await;
        let workers = format!("[[workers]]\nurl = \"{}/v1/listen\"\nstreams_max = 200\n", worker.url());
        let gateway =
            Gateway::start(&Setup::on(url, &[]).store_more(store_more).more(more).more(&workers)).await;
        Self { gateway, worker }
    }

    /// An account of a million seconds, and a key for as many streams as there are.
    pub async fn account(&self, account: &str) -> String {
        self.gateway.account(account, 1_000_000_000).await;
        self.gateway.key(account, json!({"streams_max": 200})).await
    }

    /// Opens `count` streams that send `audio_ms` each.
    pub async fn crowd(&self, key: &str, count: usize, audio_ms: usize) -> Crowd {
        self.crowd_at(LINEAR16, key, count, audio_ms).await
    }

    /// The same on another target.
    pub async fn crowd_at(&self, target: &str, key: &str, count: usize, audio_ms: usize) -> Crowd {
        let audio = Arc::new(noise_ms(1, audio_ms));
        let mut streams = JoinSet::new();
        for _ in 0..count {
            let client = self.gateway.open(target, key).await.expect("budget");
            streams.spawn(speak(client, audio.clone()));
        }
        Crowd { streams, audio_ms: audio_ms as u64 }
    }

    /// Milliseconds of audio that the worker got.
    pub fn forwarded(&self) -> u64 {
        self.worker.audio_bytes() as u64 / 32
    }

    /// The longest time without a frame at the worker since `since`, and how long after `since` it ended; of the visits
    /// that `wanted` chooses.
    pub fn longest_gap(&self, since: Instant, wanted: impl Fn(&Visit) -> bool) -> (Duration, Duration) {
        let visits = self.worker.visits();
        let frames = visits.iter().filter(|visit| wanted(visit)).flat_map(|visit| &visit.frames);
        let audio = frames.filter(|got| matches!(got.message, Message::Binary(_)) && got.at > since);
        let mut times: Vec<Instant> = audio.map(|got| got.at).collect();
        times.push(since);
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0], pair[1] - since));
        gaps.max().expect("frames")
    }

    /// Waits until nobody holds anything of an account any more.
    pub async fn settled(&self, account: &str) {
        polled("settled leases", async || {
            let path = format!("/v1/accounts/{account}/balance");
            let (_, body) = self.gateway.call("GET", &path, None).await;
            body.contains("\"leases\":0").then_some(())
        })
        .await;
    }

    /// Units whose fate the store lost, as the gateway tells.
    pub async fn unrecoverable(&self) -> u64 {
        self.gateway.metric("voxgate_unrecoverable_units_total", &[]).await as u64
    }

    /// Script calls that ended in this kind of error.
    pub async fn errors(&self, kind: &str) -> f64 {
        self.gateway.metric("voxgate_script_errors_total", &[&format!("kind=\"{kind}\"")]).await
    }

    /// Nothing was forwarded unpaid, and the accounts' books say what was: all of it, but for what is told as
    /// unrecoverable.
    pub async fn check(&self, admitted: u64, books: &[Books]) {
        assert_eq!(self.untold(admitted, books).await, 0, "{books:?}");
    }

    /// Nothing was forwarded unpaid; gives the units that are neither in the accounts' books nor told as unrecoverable.
    pub async fn untold(&self, admitted: u64, books: &[Books]) -> i64 {
        let (forwarded, lost) = (self.forwarded(), self.unrecoverable().await);
        let billed: i64 = books.iter().map(|books| books.charged() + books.excess).sum();
        println!("  forwarded {forwarded}, admitted {admitted}, billed {billed}, unrecoverable {lost}");
        for books in books {
            books.check_but(1_000_000_000, &[]).unwrap();
        }
        assert_eq!(forwarded, admitted, "forwarded is what was admitted");
        assert_eq!(self.gateway.metric("voxgate_panics_total", &[]).await, 0.0);
        forwarded as i64 - billed - lost as i64
    }
}

async fn speak(mut client: Client, audio: Arc<Vec<u8>>) -> Heard {
    client.stream(&audio, CHUNK_MS as usize * 32, Duration::from_millis(CHUNK_MS)).await;
    client.finish().await
}

/// Streams that speak by themselves.
pub struct Crowd {
    streams: JoinSet<Heard>,
    audio_ms: u64,
}

/// What became of a crowd.
pub struct Aftermath {
    /// How many streams ended with which code and reason.
    pub ends: BTreeMap<(u16, String), usize>,
    /// Milliseconds of audio that all were told was admitted.
    pub admitted: u64,
    /// Whether every stream brought all its audio through.
    pub whole: bool,
}

impl Crowd {
    /// Waits for all.
    pub async fn over(self) -> Aftermath {
        let mut after = Aftermath { ends: BTreeMap::new(), admitted: 0, whole: true };
        for heard in self.streams.join_all().await {
            after.admitted += heard.metadata_ms();
            after.whole &= heard.code() == 1000 && heard.metadata_ms() == self.audio_ms;
            *after.ends.entry((heard.code(), heard.reason().to_owned())).or_default() += 1;
        }
        after
    }
}

impl Aftermath {
    /// Every stream went on to its end, or was told that the store is busy.
    pub fn check(&self) {
        self.check_but_for(&[]);
    }

    /// The same, where these reasons to close with 1008 are fair as well.
    pub fn check_but_for(&self, reasons: &[&str]) {
        let fair = |(code, reason): &(u16, String)| {
            *code == 1000
                || (*code, reason.as_str()) == (1013, "STORE-0000")
                || (*code == 1008 && reasons.contains(&reason.as_str()))
        };
        assert!(self.ends.keys().all(fair), "{:?}", self.ends);
    }
}
