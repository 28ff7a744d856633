//! A stream's own clocks: what is due, as values. Never sleeps by itself; [`Alarm`] is the one timer of a stream.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::limits;

/// Everything that can come due for the client's side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No audio and no `KeepAlive` in time.
    Idle,
    /// Nothing at all, not even pongs.
    Dead,
    /// The client does not read.
    Slow,
    /// There was no room for its audio for too long.
    Fast,
    /// The stream lasted as long as it may.
    Long,
    /// A ping is to be sent.
    Ping,
    /// Time to see whether there is room again.
    Look,
}

/// When what happened.
#[derive(Debug)]
pub(super) struct Clocks {
    /// The last audio or text, the only things that count as activity; at first the opening.
    pub(super) spoke: Instant,
    /// Whether there was audio: without it `KeepAlive` counts for nothing.
    pub(super) audio: bool,
    /// The last frame of any kind.
    pub(super) heard: Instant,
    /// The last ping sent since then.
    pub(super) pinged: Option<Instant>,
    /// Since when there is no room for more audio, and nothing moves.
    pub(super) full: Option<Instant>,
    /// Since when what is to be sent does not move.
    pub(super) stuck: Option<Instant>,
    /// As much waits to be sent as may.
    pub(super) crowded: bool,
    opened: Instant,
    idle: Duration,
    longest: Duration,
}

impl Clocks {
    pub(super) fn new(now: Instant, idle: Duration, longest: Duration) -> Self {
        Self {
            spoke: now,
            audio: false,
            heard: now,
            pinged: None,
            full: None,
            stuck: None,
            crowded: false,
            opened: now,
            idle,
            longest,
        }
    }

    /// A message came that counts as activity.
    pub(super) fn speaks(&mut self, now: Instant, audio: bool) {
        self.audio |= audio;
        if self.audio {
            self.spoke = now;
        }
    }

    /// Any frame came.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    /// What comes due next, and when. `ending`: the end was asked for, so only a client that does not read matters.
    pub(super) fn next(&self, ending: bool) -> (Instant, Due) {
        let mut next = self.next_of_socket();
        let mut consider = |at: Instant, due| {
            if at < next.0 {
                next = (at, due);
            }
        };
        if let Some(since) = self.stuck {
            let most = if self.crowded { limits::CLIENT_CROWDED } else { limits::CLIENT_STUCK };
            consider(since + most, Due::Slow);
        }
        if ending {
            return next;
        }
        consider(self.opened + self.longest, Due::Long);
        match self.full {
            // Who is not read can't be heard.
            Some(since) => consider(since + limits::HOLD_STUCK, Due::Fast),
            None => consider(self.spoke + self.idle, Due::Idle),
        }
        next
    }

    fn next_of_socket(&self) -> (Instant, Due) {
        if self.full.is_some() {
            return (Instant::now() + LOOK, Due::Look);
        }
        match self.pinged {
            None => (self.heard + limits::CLIENT_PING, Due::Ping),
            Some(_) => (self.heard + 2 * limits::CLIENT_PING, Due::Dead),
        }
    }
}

/// One timer, moved only when it has to fire earlier or has fired: a deadline that keeps moving away costs nothing.
#[derive(Debug)]
pub(super) struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    pub(super) fn new() -> Self {
        Self(Box::pin(tokio::time::sleep(Duration::from_secs(3600))))
    }

    /// Waits until `at` or a little while before it; the caller looks at its clocks and comes again. Cancel safe.
    pub(super) async fn until(&mut self, at: Instant) {
        if at < self.0.deadline() || self.0.is_elapsed() {
            self.0.as_mut().reset(at);
        }
        self.0.as_mut().await;
    }
}

/// How often a stream that may not be read on is looked at.
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::{Clocks, Due};
    use crate::limits;
    use std::time::Duration;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(10);
    const LONGEST: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn keep_alive_saves_only_after_audio() {
        let start = Instant::now();
        let mut clocks = Clocks::new(start, IDLE, LONGEST);
        clocks.speaks(start + 5 * SECOND, false);
        assert_eq!(clocks.next(false), (start + IDLE, Due::Idle));
        clocks.speaks(start + 6 * SECOND, true);
        clocks.speaks(start + 9 * SECOND, false);
        assert_eq!(clocks.next(false), (start + 19 * SECOND, Due::Idle));
    }

    #[test]
    fn held_back_client_is_not_idle() {
        let start = Instant::now();
        let mut clocks = Clocks::new(start, IDLE, LONGEST);
        clocks.full = Some(start);
        clocks.stuck = Some(start);
        assert_ne!(clocks.next(false).1, Due::Idle);
        assert_ne!(clocks.next(false).1, Due::Dead);
    }

    #[test]
    fn dead_peer_is_pinged_first() {
        let start = Instant::now();
        let mut clocks = Clocks::new(start, LONGEST, LONGEST);
        assert_eq!(clocks.next(false), (start + limits::CLIENT_PING, Due::Ping));
        clocks.pinged = Some(start + limits::CLIENT_PING);
        assert_eq!(clocks.next(false), (start + 2 * limits::CLIENT_PING, Due::Dead));
        clocks.hears(start + 30 * SECOND);
        assert_eq!(clocks.next(false), (start + 50 * SECOND, Due::Ping));
    }

    #[test]
    fn ending_stream_is_not_idle() {
        let start = Instant::now();
        let mut clocks = Clocks::new(start, IDLE, SECOND);
        clocks.stuck = Some(start);
        assert_eq!(clocks.next(false), (start + SECOND, Due::Long));
        assert_eq!(clocks.next(true), (start + limits::CLIENT_STUCK, Due::Slow));
        clocks.crowded = true;
        assert_eq!(clocks.next(true), (start + limits::CLIENT_CROWDED, Due::Slow));
    }
}
