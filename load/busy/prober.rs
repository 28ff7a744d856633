//! What an unrelated key feels: a GET every two milliseconds on a connection of its own, whatever came of the last one.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::super::Failure;
use super::slow;

/// One GET.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// When it was sent, in seconds from the given start.
    pub(super) sent: f64,
    /// Until its answer, good or bad, in seconds.
    pub(super) took: f64,
    /// Whether it was refused with BUSY.
    pub(super) busy: bool,
}

/// The prober at work; it ends with this handle.
pub(super) struct Prober {
    stop: CancellationToken,
    task: JoinHandle<Vec<Probe>>,
}

impl Prober {
    /// Begins; times count from `start`.
    pub(super) async fn start(url: &str, start: Instant) -> Result<Self, Failure> {
        let connection = slow::connection(url).await?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            let (mut open, mut done) = (JoinSet::new(), Vec::new());
            while stopped.run_until_cancelled(ticks.tick()).await.is_some() {
                open.spawn(probe(connection.clone(), start));
                while let Some(probe) = open.try_join_next() {
                    done.extend(probe);
                }
            }
            while let Some(probe) = open.join_next().await {
                done.extend(probe);
            }
            done
        });
        Ok(Self { stop, task })
    }

    /// Ends, and gives all probes in the order they were sent.
    pub(super) async fn end(self) -> Result<Vec<Probe>, Failure> {
        self.stop.cancel();
        let mut probes = self.task.await?;
        probes.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        Ok(probes)
    }
}

async fn probe(mut connection: MultiplexedConnection, start: Instant) -> Probe {
    let sent = Instant::now();
    let answer: Result<Value, RedisError> =
        redis::cmd("GET").arg("load:unrelated").query_async(&mut connection).await;
    Probe {
        sent: sent.saturating_duration_since(start).as_secs_f64(),
        took: sent.elapsed().as_secs_f64(),
        busy: answer.is_err_and(|error| slow::word(&error) == "BUSY"),
    }
}

const EVERY: Duration = Duration::from_millis(2);
