//! What a stream costs when there are many: memory idle and after traffic, CPU per chunk at one total rate.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::client::{Crowd, Outcome};
use super::super::worker::Worker;
use super::super::{Failure, Target, process};
use super::path::{Path, Proxy};
use super::round::{Round, Scale, spent};

/// One number of streams on one path, with a proxy of its own.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) path: Path,
    pub(super) streams: usize,
    /// Memory of the proxy without a stream, in KiB.
    pub(super) none_kib: u64,
    /// Per stream: open, no audio yet; only where all can be opened well before they count as idle.
    pub(super) opened_kib: Option<f64>,
    /// Per stream: one chunk carried, so that both sides are connected, then quiet.
    pub(super) idle_kib: f64,
    /// Per stream, after the traffic of the round.
    pub(super) after_kib: f64,
    /// To open one, in CPU of the proxy: handshake, reserve, worker connection, one chunk.
    pub(super) open_cpu_us: f64,
    pub(super) open_seconds: f64,
    pub(super) round: Round,
}

impl Serialize for Path {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

/// Starts a proxy, opens so many streams, lets them be quiet, then sends for `time`, and ends it all.
pub(super) async fn point(
    path: Path,
    streams: usize,
    worker: &Worker,
    target: &Target,
    time: Duration,
) -> Result<Point, Failure> {
    let proxy = Proxy::start(path, worker, target).await?;
    let memory = || -> u64 {
        proxy
            .pids()
            .iter()
            .filter(|(word, _)| *word == "gateway")
            .map(|(_, pid)| process::rss_kib(*pid))
            .sum()
    };
    tokio::time::sleep(CALM).await;
    let (none_kib, cpu, start) = (memory(), spent(&proxy, worker), Instant::now());
    let each = |kib: u64| kib.saturating_sub(none_kib) as f64 / streams.max(1) as f64;
    let mut crowd = Crowd::new()?;
    let mut opened_kib = None;
    if streams <= AT_ONCE {
        crowd.grow(&proxy.door, streams).await?;
        opened_kib = Some(each(memory()));
    }
    fill(&mut crowd, &proxy, streams).await?;
    let open_seconds = start.elapsed().as_secs_f64();
    let opening = spent(&proxy, worker)
        .iter()
        .zip(&cpu)
        .find(|((word, _), _)| *word == "gateway")
        .map_or(Duration::ZERO, |((_, after), (_, before))| after.saturating_sub(*before));
    tokio::time::sleep(CALM).await;
    let idle_kib = each(memory());
    crowd.keep_alive();
    let round = traffic(&crowd, (&proxy, worker), streams, time).await?;
    let after_kib = each(memory());
    crowd.close().await;
    proxy.stop().await?;
    let open_cpu_us = opening.as_secs_f64() * 1e6 / streams.max(1) as f64;
    Ok(Point { path, streams, none_kib, opened_kib, idle_kib, after_kib, open_cpu_us, open_seconds, round })
}

/// Opens what is missing; each stream speaks at once, because one that never spoke is soon ended as idle.
async fn fill(crowd: &mut Crowd, proxy: &Proxy, streams: usize) -> Result<(), Failure> {
    let mut kept = Instant::now();
    crowd.greet(BYTES);
    while crowd.live() < streams {
        let before = crowd.live();
        crowd.grow(&proxy.door, BATCH.min(streams - before)).await?;
        crowd.greet(BYTES);
        if kept.elapsed() > KEEP {
            crowd.answered().await;
            crowd.keep_alive();
            kept = Instant::now();
        }
        if crowd.live() <= before {
            break; // they end as fast as they are opened, which the check below tells
        }
    }
    match crowd.answered().await {
        0 if crowd.live() >= streams => Ok(()),
        owed => Err(Failure::peer(
            proxy.path.word(),
            format!("of {streams} streams {} live, {owed} first chunks are not answered", crowd.live()),
        )),
    }
}

/// All streams send at one total rate, for whole periods.
async fn traffic(
    crowd: &Crowd,
    (proxy, worker): (&Proxy, &Worker),
    streams: usize,
    time: Duration,
) -> Result<Round, Failure> {
    let scale = Scale { streams, bytes: BYTES, period_ms: (streams as u64 * 1000).div_ceil(RATE).max(1) };
    let periods = time.as_millis().div_ceil(u128::from(scale.period_ms)).max(1);
    let before = spent(proxy, worker);
    let outcome: Outcome = crowd.run(scale.plan(), u32::try_from(periods).unwrap_or(u32::MAX)).await?;
    Ok(Round::of(&outcome, (0.0, f64::MAX), &before, &spent(proxy, worker)))
}

/// Chunks a second of all streams together, whatever their number.
const RATE: u64 = 2_000;
/// Bytes of a chunk.
const BYTES: usize = 3200;
/// Streams that may be opened before the first of them speaks.
const AT_ONCE: usize = 1_000;
/// Streams between two looks at the clock.
const BATCH: usize = 100;
/// How often open streams are kept alive while others are opened.
const KEEP: Duration = Duration::from_secs(3);
/// For things to settle before memory is read.
const CALM: Duration = Duration::from_millis(1500);
