//! Who is well, who has room, who is next: the pool's decisions as values. Never opens a socket or reads a clock.

use std::time::Duration;

use tokio::time::Instant;

use super::{NoWorker, Settings, WorkerSpec};

/// What the pool knows of each worker, in the order of the configuration.
#[derive(Debug)]
pub(super) struct Roster {
    seats: Vec<Seat>,
    /// Where the next look starts, so that equals take turns.
    turn: usize,
    eject_first: Duration,
    eject_max: Duration,
}

impl Roster {
    pub(super) fn new(workers: &[WorkerSpec], settings: &Settings) -> Self {
        let seats = workers.iter().map(Seat::new).collect();
        Self { seats, turn: 0, eject_first: settings.eject_first, eject_max: settings.eject_max }
    }

    /// Takes a place at the least loaded worker for `model` that is well, has room and was not tried yet.
    pub(super) fn pick(&mut self, model: &str, tried: &[usize], now: Instant) -> Result<usize, NoWorker> {
        let mut none = NoWorker::Unknown;
        let mut best: Option<usize> = None;
        for step in 0..self.seats.len() {
            let index = (self.turn + step) % self.seats.len();
            let Some(seat) = self.seats.get(index).filter(|seat| seat.serves(model)) else { continue };
            if tried.contains(&index) || !seat.open(now) {
                none = none.max_with(NoWorker::Down);
            } else if seat.streams >= seat.streams_max {
                none = none.max_with(NoWorker::Full);
            } else if best.and_then(|best| self.seats.get(best)).is_none_or(|best| seat.lighter(best)) {
                best = Some(index);
            }
        }
        let index = best.ok_or(none)?;
        self.turn = index + 1;
        if let Some(seat) = self.seats.get_mut(index) {
            seat.streams += 1;
            seat.probing = seat.out_until.is_some();
        }
        Ok(index)
    }

    /// A stream left this worker.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(seat) = self.seats.get_mut(index) {
            seat.streams = seat.streams.saturating_sub(1);
            seat.probing = false;
        }
    }

    /// The worker took a stream: it is well.
    pub(super) fn works(&mut self, index: usize) {
        if let Some(seat) = self.seats.get_mut(index) {
            seat.heal();
        }
    }

    /// The worker refused or lost a stream: it is left out for a while.
    pub(super) fn failed(&mut self, index: usize, now: Instant) {
        let last = !self.seats.iter().enumerate().any(|(other, seat)| other != index && seat.open(now));
        let (first, most) = (self.eject_first, if last { LAST_OUT } else { self.eject_max });
        if let Some(seat) = self.seats.get_mut(index) {
            let doubled = first.saturating_mul(1 << seat.failures.min(16));
            seat.out_until = Some(now + doubled.min(most));
            seat.failures = seat.failures.saturating_add(1);
            seat.probing = false;
        }
    }

    /// The worker was asked whether it is alive. Gives whether that changed anything.
    pub(super) fn asked(&mut self, index: usize, alive: bool, now: Instant) -> bool {
        let Some(seat) = self.seats.get_mut(index) else { return false };
        let was_silent = seat.silent;
        seat.silent = !alive;
        match (was_silent, alive) {
            (true, true) => seat.heal(),
            (_, false) => self.failed(index, now),
            (false, true) => {}
        }
        was_silent == alive
    }

    pub(super) fn ready(&self, now: Instant) -> bool {
        self.seats.iter().any(|seat| seat.open(now))
    }

    pub(super) fn serves(&self, model: &str) -> bool {
        self.seats.iter().any(|seat| seat.serves(model))
    }

    /// Whether a worker that serves this model is well and has room now.
    pub(super) fn takes(&self, model: &str, now: Instant) -> bool {
        self.seats.iter().any(|seat| seat.serves(model) && seat.open(now) && seat.streams < seat.streams_max)
    }

    pub(super) fn up(&self, index: usize, now: Instant) -> bool {
        self.seats.get(index).is_some_and(|seat| seat.open(now) || seat.probing)
    }

    pub(super) fn streams(&self, index: usize) -> u32 {
        self.seats.get(index).map_or(0, |seat| seat.streams)
    }
}

#[derive(Debug)]
struct Seat {
    models: Vec<String>,
    streams_max: u32,
    weight: u32,
    streams: u32,
    /// Failures since it last worked.
    failures: u32,
    /// Not picked before this moment; after it by one stream at a time until it works.
    out_until: Option<Instant>,
    /// That one stream is under way.
    probing: bool,
    /// It did not answer when it was last asked.
    silent: bool,
}

impl Seat {
    fn new(spec: &WorkerSpec) -> Self {
        Self {
            models: spec.models.clone(),
            streams_max: spec.streams_max,
            weight: spec.weight.max(1),
            streams: 0,
            failures: 0,
            out_until: None,
            probing: false,
            silent: false,
        }
    }

    fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|served| served == model)
    }

    fn open(&self, now: Instant) -> bool {
        self.out_until.is_none_or(|until| now >= until && !self.probing)
    }

    fn lighter(&self, other: &Self) -> bool {
        let ours = u64::from(self.streams) * u64::from(other.weight);
        ours < u64::from(other.streams) * u64::from(self.weight)
    }

    fn heal(&mut self) {
        self.failures = 0;
        self.out_until = None;
        self.probing = false;
        self.silent = false;
    }
}

impl NoWorker {
    /// The better news of two: somebody busy beats nobody there, and both beat nobody at all.
    fn max_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Full, _) | (_, Self::Full) => Self::Full,
            (Self::Down, _) | (_, Self::Down) => Self::Down,
            (Self::Unknown, Self::Unknown) => Self::Unknown,
        }
    }
}

/// The only worker left is out for no longer than this: a wrong guess about it costs every stream.
const LAST_OUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::{NoWorker, Settings, WorkerSpec, WorkerUrl};
    use super::{LAST_OUT, Roster};
    use std::time::Duration;
    use tokio::time::Instant;

    fn spec(streams_max: u32, weight: u32, models: &[&str]) -> WorkerSpec {
        WorkerSpec {
            name: "w".into(),
            url: WorkerUrl::parse("ws://127.0.0.1:1").expect("an address"),
            models: models.iter().map(ToString::to_string).collect(),
            streams_max,
            weight,
            token: None,
        }
    }

    fn roster(specs: &[WorkerSpec]) -> Roster {
        Roster::new(specs, &Settings::default())
    }

    #[test]
    fn streams_spread_by_weight() {
        let mut roster = roster(&[spec(100, 1, &[]), spec(100, 3, &[])]);
        let now = Instant::now();
        for _ in 0..40 {
            roster.pick("m", &[], now).expect("a worker");
        }
        assert_eq!((roster.streams(0), roster.streams(1)), (10, 30));
    }

    #[test]
    fn full_workers_are_passed_over() {
        let mut roster = roster(&[spec(1, 1, &[]), spec(1, 1, &["other"])]);
        let now = Instant::now();
        assert_eq!(roster.pick("m", &[], now), Ok(0));
        assert_eq!(roster.pick("m", &[], now), Err(NoWorker::Full));
        roster.leave(0);
        assert_eq!(roster.pick("m", &[], now), Ok(0));
        assert_eq!(roster.pick("other", &[], now), Ok(1));
    }

    #[test]
    fn unknown_model_is_told_apart() {
        let mut roster = roster(&[spec(1, 1, &["a"])]);
        assert_eq!(roster.pick("b", &[], Instant::now()), Err(NoWorker::Unknown));
        assert_eq!(roster.pick("a", &[0], Instant::now()), Err(NoWorker::Down));
    }

    #[test]
    fn failed_worker_is_probed_by_one() {
        let mut roster = roster(&[spec(9, 1, &[]), spec(9, 1, &[])]);
        let now = Instant::now();
        let failed = roster.pick("m", &[], now).expect("a worker");
        roster.failed(failed, now);
        roster.leave(failed);
        let other = 1 - failed;
        for _ in 0..4 {
            assert_eq!(roster.pick("m", &[], now), Ok(other));
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(roster.pick("m", &[], later), Ok(failed), "half open");
        assert_eq!(roster.pick("m", &[], later), Ok(other), "only one probe");
        roster.works(failed);
        assert_eq!(roster.pick("m", &[], later), Ok(failed));
    }

    #[test]
    fn time_out_grows_within_bounds() {
        let mut roster = roster(&[spec(9, 1, &[]), spec(9, 1, &[])]);
        let now = Instant::now();
        for _ in 0..40 {
            roster.failed(0, now);
        }
        assert!(!roster.up(0, now + Duration::from_secs(29)));
        assert!(roster.up(0, now + Duration::from_secs(30)));
    }

    #[test]
    fn last_worker_returns_within_a_second() {
        let mut roster = roster(&[spec(9, 1, &[]), spec(9, 1, &[])]);
        let now = Instant::now();
        for _ in 0..5 {
            roster.failed(0, now);
            roster.failed(1, now);
        }
        assert!(!roster.ready(now));
        assert!(roster.up(1, now + LAST_OUT));
    }

    #[test]
    fn answering_heals_only_silence() {
        let mut roster = roster(&[spec(9, 1, &[]), spec(9, 1, &[])]);
        let now = Instant::now();
        roster.failed(0, now);
        assert!(!roster.asked(0, true, now), "it was never silent");
        assert!(!roster.up(0, now));
        assert!(roster.asked(1, false, now));
        assert!(roster.asked(1, true, now));
        assert!(roster.up(1, now));
    }
}
