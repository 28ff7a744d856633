//! Worker to client: its words, made safe by the dialect, into the client's outbox. Never waits for the client: while
//! it does not read, the worker's words wait in their own connection, and audio goes on.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use super::session::Line;
use crate::ending::Ending;
use crate::limits;
use crate::wire::deepgram::{FromWorker as Words, RelayFacts, Results, relay};
use crate::worker::{FromWorker, Link};

/// Carries words until the worker is done or the stream's end runs out of time; gives the audio seconds that the
/// worker says it heard.
pub(super) async fn run(line: &Line, link: oneshot::Receiver<Link>) -> Option<f64> {
    let mut link = link.await.ok()?;
    let mut down = Downlink { line, heard: None, unreadable: 0, results: false };
    let ending = loop {
        let room = line.outbox.has_room();
        tokio::select! { biased;
            ending = line.stop.asked() => break ending,
            told = link.next(room) => { down.take(told, false); }
            () = line.outbox.room(), if !room => {}
        }
    };
    let patience = async {
        let left = async {
            line.left.cancelled().await;
            tokio::time::sleep(SHORT_FLUSH).await;
        };
        let _ = tokio::time::timeout(flush(ending), left).await;
    };
    let mut patience = pin!(patience);
    loop {
        let room = line.outbox.has_room();
        tokio::select! { biased;
            told = link.next(room) => if down.take(told, true) == After::Done {
                break;
            },
            () = line.outbox.room(), if !room => {}
            () = &mut patience => break,
        }
    }
    line.core.tasks.spawn(link.close(GOODBYE));
    down.heard
}

struct Downlink<'a> {
    line: &'a Line,
    heard: Option<f64>,
    unreadable: u32,
    /// Whether there were words yet.
    results: bool,
}

#[derive(PartialEq, Eq)]
enum After {
    More,
    Done,
}

impl Downlink<'_> {
    /// `closing`: the worker was told that no more audio comes, so its end is none of its faults.
    fn take(&mut self, told: FromWorker, closing: bool) -> After {
        match told {
            FromWorker::Text(text) => self.relay(&text, closing),
            FromWorker::Junk { .. } => {
                self.bad();
                After::More
            }
            FromWorker::Closed { code } if !closing => {
                tracing::warn!(code, "worker closed the stream");
                self.line.stop.ask(Ending::WorkerGone);
                After::Done
            }
            FromWorker::Lost if !closing => {
                self.line.stop.ask(Ending::WorkerGone);
                After::Done
            }
            FromWorker::Closed { .. } | FromWorker::Lost => After::Done,
        }
    }

    fn relay(&mut self, text: &str, closing: bool) -> After {
        let line = self.line;
        let facts = RelayFacts {
            request_id: &line.plan.request_id,
            model: &line.plan.model,
            quota_left_ms: Some(line.left_ms()),
        };
        match relay(text, &facts) {
            Ok(Words::Results(results)) => self.results(results),
            Ok(Words::SpeechStarted(json) | Words::UtteranceEnd(json) | Words::Configured(json)) => {
                self.say(json);
            }
            Ok(Words::Metadata { duration }) => {
                self.heard = duration;
                if closing {
                    return After::Done;
                }
            }
            Ok(Words::Error(complaint)) => tracing::warn!(complaint, "worker complained"),
            Ok(Words::Other) => line.core.meters.unknown_worker_messages.increment(1),
            Err(_) => self.bad(),
        }
        After::More
    }

    fn results(&mut self, results: Results) {
        let meters = &self.line.core.meters;
        if results.is_final { &meters.finals } else { &meters.partials }.increment(1);
        if !self.results
            && let Some(first) = self.line.first_audio.get()
        {
            self.results = true;
            meters.first_result_seconds.record(first.elapsed());
        }
        self.say(results.json);
    }

    fn say(&self, json: String) {
        self.line.outbox.say(json);
    }

    fn bad(&mut self) {
        self.line.core.meters.bad_worker_messages.increment(1);
        self.unreadable += 1;
        if self.unreadable >= UNREADABLE_MAX {
            tracing::warn!("worker sends messages that can't be read");
            self.line.stop.ask(Ending::WorkerGone);
        }
    }
}

/// How long the worker's last words may take.
fn flush(ending: Ending) -> Duration {
    match ending {
        Ending::ClientDone | Ending::Drained => limits::WORKER_FLUSH,
        Ending::ClientGone | Ending::ClientSlow | Ending::WorkerGone | Ending::Panicked => SHORT_FLUSH,
        Ending::ClientIdle
        | Ending::ClientFast
        | Ending::ClientFault
        | Ending::ChunkLarge
        | Ending::AudioFault
        | Ending::BudgetSpent
        | Ending::BudgetHeld
        | Ending::SessionSpent
        | Ending::LeaseLapsed
        | Ending::Revoked
        | Ending::StoreCorrupt
        | Ending::StoreBusy
        | Ending::StreamLong => limits::QUOTA_FLUSH,
    }
}

/// For a worker whose words nobody waits for: it is told the end, no more.
const SHORT_FLUSH: Duration = Duration::from_millis(500);
/// For the worker's half of the closing handshake, behind the stream's back.
const GOODBYE: Duration = Duration::from_secs(1);
/// Messages that can't be read before a worker counts as broken for this stream.
const UNREADABLE_MAX: u32 = 5;
