//! Client to hold: reads whatever the client sends, at once, and decides what it means for the stream.
//!
//! Reading never waits for money or workers; it stops only when there is no room to hold more. Nothing here is paid
//! for or forwarded, see [`super::purse`].

use std::convert::Infallible;
use std::future::pending;

use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::clocks::{Alarm, Clocks, Due};
use super::hold::Held;
use super::meters;
use super::session::Line;
use super::socket::{ClientSocket, Frame, Lag};
use crate::ending::Ending;
use crate::limits;
use crate::wire::FromClient;
use crate::wire::deepgram::{ClientCodec, ToWorker, schema_error};

/// Drives the client's socket, both ways, for as long as it is polled; the stream's end is asked for through
/// [`Line::stop`].
pub(super) async fn run(socket: &mut ClientSocket, line: &Line) -> Infallible {
    let mut reader = Reader::new(line);
    let mut alarm = Alarm::new();
    while !reader.gone {
        let ending = line.stop.ending().is_some();
        let reading = reader.look(socket);
        let (at, due) = reader.clocks.next(ending);
        tokio::select! { biased;
            frame = socket.next(&line.outbox, reading || ending) => reader.take(frame),
            () = alarm.until(at) => if Instant::now() >= at { reader.due(due) },
        }
    }
    pending().await
}

struct Reader<'a> {
    line: &'a Line,
    codec: ClientCodec,
    clocks: Clocks,
    flood: Flood,
    faults: u32,
    /// What the hold had given away when it was last seen full.
    taken: u64,
    /// The client said that no more audio comes.
    finished: bool,
    /// Nobody is left to read from or write to.
    gone: bool,
}

impl<'a> Reader<'a> {
    fn new(line: &'a Line) -> Self {
        let settings = &line.core.settings;
        let now = Instant::now();
        Self {
            line,
            codec: ClientCodec::default(),
            clocks: Clocks::new(now, settings.client_idle, settings.stream_longest),
            flood: Flood { since: now, messages: 0 },
            faults: 0,
            taken: 0,
            finished: false,
            gone: false,
        }
    }

    /// Brings the clocks of both directions up to date; gives whether there is room to read on.
    fn look(&mut self, socket: &mut ClientSocket) -> bool {
        let now = Instant::now();
        let (lag, moved) = (socket.lag(&self.line.outbox), socket.moved());
        let behind = lag > Lag::None;
        self.clocks.crowded = lag == Lag::Full;
        self.clocks.stuck = match self.clocks.stuck {
            Some(since) if behind && !moved => Some(since),
            _ => behind.then_some(now),
        };
        let room = self.line.hold.has_room();
        if room {
            if self.clocks.full.take().is_some() {
                self.clocks.spoke = now;
                self.clocks.hears(now);
            }
        } else {
            let taken = self.line.hold.taken();
            if self.clocks.full.is_none() || taken != self.taken {
                self.clocks.full = Some(now);
            }
            self.taken = taken;
        }
        room
    }

    fn take(&mut self, frame: Frame) {
        let now = Instant::now();
        if frame != Frame::Behind {
            self.clocks.hears(now);
        }
        match frame {
            Frame::Binary(audio) => {
                let event = self.codec.binary(audio);
                self.event(event, now, None);
            }
            Frame::Text(text) if text.len() > limits::TEXT_BYTES_MAX => self.end(Ending::ChunkLarge, "large"),
            Frame::Text(text) => {
                let event = self.codec.text(&text);
                self.event(event, now, Some(&text));
            }
            Frame::Sign => self.flooded(now),
            Frame::Large => self.end(Ending::ChunkLarge, "large"),
            Frame::Broken { code } => {
                let _ = self.line.close_code.set(code);
                self.end(Ending::ClientFault, "protocol");
            }
            Frame::Behind => {}
            Frame::Ended if self.finished => {}
            Frame::Ended | Frame::Gone => self.left(),
        }
    }

    fn event(&mut self, event: FromClient, now: Instant, text: Option<&Utf8Bytes>) {
        match event {
            FromClient::Audio(chunk) => {
                self.clocks.speaks(now, true);
                self.hold(Held::Audio(chunk));
            }
            FromClient::KeepAlive => {
                self.clocks.speaks(now, false);
                self.flooded(now);
            }
            FromClient::Finalize { channel } => {
                self.clocks.speaks(now, false);
                self.flooded(now);
                self.hold(Held::Say(ToWorker::Finalize { channel }));
            }
            FromClient::Configure(text) => {
                self.clocks.speaks(now, false);
                self.flooded(now);
                self.hold(Held::Say(ToWorker::Configure(text)));
            }
            FromClient::Finish => {
                self.hold(Held::Finish);
                self.finished = true;
            }
            FromClient::Empty => {
                self.line.core.meters.empty_frames.increment(1);
                self.flooded(now);
            }
            FromClient::Fault(why) => self.fault(&why, text.map_or("", Utf8Bytes::as_str)),
        }
    }

    /// Holds a message; what comes behind the end of the audio is ignored.
    fn hold(&self, message: Held) {
        if !self.finished {
            self.line.hold.push(message);
        }
    }

    fn fault(&mut self, why: &str, offending: &str) {
        meters::fault("schema");
        self.line.outbox.say(schema_error(why, offending));
        self.faults += 1;
        if self.faults >= limits::CLIENT_FAULTS_MAX {
            self.line.stop.ask(Ending::ClientFault);
        }
    }

    fn flooded(&mut self, now: Instant) {
        if self.flood.counts(now) {
            self.end(Ending::ClientFault, "flood");
        }
    }

    fn end(&self, ending: Ending, kind: &'static str) {
        meters::fault(kind);
        self.line.stop.ask(ending);
    }

    fn left(&mut self) {
        self.gone = true;
        self.line.stop.ask(Ending::ClientGone);
        self.line.left.cancel();
    }

    fn due(&mut self, due: Due) {
        match due {
            Due::Idle => self.line.stop.ask(Ending::ClientIdle),
            Due::Fast => self.line.stop.ask(Ending::ClientFast),
            Due::Long => self.line.stop.ask(Ending::StreamLong),
            Due::Dead => self.left(),
            Due::Slow => {
                self.line.stop.ask(Ending::ClientSlow);
                self.clocks.stuck = None;
            }
            Due::Ping => {
                self.clocks.pinged = Some(Instant::now());
                self.line.outbox.ping();
            }
            Due::Look => {}
        }
    }
}

/// Counts messages that carry no audio, in windows.
struct Flood {
    since: Instant,
    messages: u32,
}

impl Flood {
    /// Counts one more; gives whether that is too many.
    fn counts(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= limits::FLOOD_WINDOW {
            *self = Self { since: now, messages: 0 };
        }
        self.messages += 1;
        self.messages > limits::FLOOD_MESSAGES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::Flood;
    use crate::limits;
    use tokio::time::Instant;

    #[test]
    fn floods_are_told_from_habits() {
        let start = Instant::now();
        let mut flood = Flood { since: start, messages: 0 };
        let most = limits::FLOOD_MESSAGES_MAX;
        assert!(!(0..most).any(|_| flood.counts(start)));
        assert!(flood.counts(start), "one more in the same window");
        assert!(!flood.counts(start + limits::FLOOD_WINDOW));
    }
}
