//! What `stream` shows: final words on stdout, all that changes on one line of stderr, a summary at the end.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;

use crate::cli::told::{self, at};

/// Longest provisional text on the bar, in characters.
const PARTIAL_CHARS: usize = 48;

/// How much audio was sent; shared with the sender.
#[derive(Clone)]
pub(super) struct Clock {
    sent_ms: Arc<AtomicU64>,
    bar: ProgressBar,
}

impl Clock {
    pub(super) fn sent(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.sent_ms.store(ms, Ordering::Relaxed);
        self.bar.set_position(ms);
    }
}

/// The screen of one run.
pub(super) struct Screen {
    json: bool,
    quiet: bool,
    clock: Clock,
    /// Time left as the gateway said last.
    left: Option<Duration>,
    metadata: Value,
    error: Value,
    words: usize,
}

impl Screen {
    pub(super) fn new(json: bool, quiet: bool, length: Option<Duration>) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let millis = length.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let bar = ProgressBar::with_draw_target(millis, target).with_style(style(millis.is_some()));
        let clock = Clock { sent_ms: Arc::default(), bar };
        Self { json, quiet, clock, left: None, metadata: Value::Null, error: Value::Null, words: 0 }
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Shows one message of the server.
    pub(super) fn show(&mut self, text: &str) {
        let Ok(message) = serde_json::from_str::<Value>(text) else {
            return;
        };
        if self.json {
            self.clock.bar.suspend(|| told::json(&message));
        }
        match at(&message, "/type").as_str() {
            Some("Results") => self.show_words(&message),
            Some("Metadata") => self.metadata = message,
            Some("Error") => self.error = message,
            Some(_) | None => {}
        }
    }

    fn show_words(&mut self, message: &Value) {
        if let Some(left) = at(message, "/voxgate/quota_left_ms").as_u64() {
            self.left = Some(Duration::from_millis(left));
        }
        let words = at(message, "/channel/alternatives/0/transcript").as_str().unwrap_or_default();
        if at(message, "/is_final").as_bool() != Some(true) {
            self.note(words);
            return;
        }
        if !words.is_empty() {
            self.words += words.split_whitespace().count();
            if !self.json {
                self.clock.bar.suspend(|| told::line(words));
            }
        }
        self.note("");
    }

    /// Provisional words and the quota left, on the bar.
    fn note(&self, words: &str) {
        let words = told::plain(words);
        let skip = words.chars().count().saturating_sub(PARTIAL_CHARS);
        let tail: String = words.chars().skip(skip).collect();
        let left = self.left.map_or(String::new(), |left| format!("quota left {:.1} s ", left.as_secs_f64()));
        self.clock.bar.set_message(format!("{left}{tail}"));
    }

    /// Clears the bar and tells how it went.
    pub(super) fn finish(&self, close: Option<&CloseFrame>) {
        self.clock.bar.finish_and_clear();
        let sent = self.clock.sent_ms.load(Ordering::Relaxed);
        let own = &at(&self.metadata, "/voxgate");
        if self.json {
            told::json(&json!({
                "type": "Summary",
                "sent_ms": sent,
                "duration": at(&self.metadata, "/duration"),
                "admitted_units": at(own, "/admitted_units"),
                "session_id": at(own, "/session_id"),
                "ending": at(own, "/ending"),
                "words": self.words,
                "close_code": close.map(|frame| u16::from(frame.code)),
                "close_reason": close.map(|frame| frame.reason.as_str()),
            }));
            return;
        }
        if let Some(description) = at(&self.error, "/description").as_str() {
            eprintln!("{}", told::plain(description));
        }
        if self.quiet {
            return;
        }
        eprintln!("{}", summary(sent, self.words, &self.metadata));
    }
}

fn summary(sent_ms: u64, words: usize, metadata: &Value) -> String {
    let sent = Duration::from_millis(sent_ms).as_secs_f64();
    let mut text = format!("sent {sent:.3} s, {words} words");
    if let Some(duration) = at(metadata, "/duration").as_f64() {
        text.push_str(&format!(", transcribed {duration:.3} s"));
    }
    let own = &at(metadata, "/voxgate");
    if let Some(units) = at(own, "/admitted_units").as_u64() {
        text.push_str(&format!(", charged {units} units"));
    }
    for (label, name) in [("session", "session_id"), ("ending", "ending")] {
        if let Some(value) = at(own, &format!("/{name}")).as_str() {
            text.push_str(&format!(", {label} {}", told::plain(value)));
        }
    }
    text
}

fn style(known_length: bool) -> ProgressStyle {
    let template = if known_length {
        "{bar:20} {percent:>3}% {elapsed_precise} {wide_msg}"
    } else {
        "{spinner} {elapsed_precise} {wide_msg}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::{Screen, summary};
    use serde_json::json;

    #[test]
    fn the_summary_tells_the_charge() {
        let metadata =
            json!({ "duration": 1.5, "voxgate": { "admitted_units": 1500, "ending": "client_done" } });
        let text = summary(1500, 4, &metadata);
        assert_eq!(
            text,
            "sent 1.500 s, 4 words, transcribed 1.500 s, charged 1500 units, ending client_done"
        );
    }

    #[test]
    fn odd_messages_are_passed_over() {
        let mut screen = Screen::new(false, true, None);
        for text in
            ["", "[]", "{}", r#"{"type":"Results"}"#, r#"{"type":"Results","channel":{"alternatives":[]}}"#]
        {
            screen.show(text);
        }
        assert_eq!(screen.words, 0);
    }
}
