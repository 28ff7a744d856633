//! A store's client of the other kind: one plain connection, one call at a time, outside of the gateway.

use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisError, Value};

use crate::harness::PATIENCE;
use crate::harness::redis_server::RedisServer;

/// One connection.
pub(super) struct Plain(Connection);

impl Plain {
    pub(super) fn to(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("a valid URL");
        Self(client.get_connection().unwrap_or_else(|error| panic!("{server}: {error}")))
    }

    /// An error reply by its first word.
    pub(super) fn try_call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        let mut call = redis::Cmd::new();
        for word in words {
            call.arg(*word);
        }
        let word = |error: RedisError| error.code().map_or_else(|| error.to_string(), str::to_owned);
        call.query(&mut self.0).map_err(word)
    }

    pub(super) fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_call(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends without waiting for the answer.
    pub(super) fn send(&mut self, words: &[&str]) {
        let mut call = redis::Cmd::new();
        for word in words {
            call.arg(*word);
        }
        self.0.send_packed_command(&call.get_packed_command()).expect("a live connection");
    }

    /// The next line of a connection that only listens, or the answer to what was sent.
    pub(super) fn receive(&mut self) -> Result<Value, RedisError> {
        self.0.recv_response()
    }

    /// One number of `INFO`.
    pub(super) fn info(&mut self, section: &str, name: &str) -> u64 {
        let text: String = self.call(&["INFO", section]);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    }

    /// The server's own time for the calls of one command since [`Plain::count_anew`], and how many there were.
    pub(super) fn own(&mut self, command: &str) -> (u64, Duration) {
        let text: String = self.call(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
        let field = |name: &str| {
            let found = line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        (field("calls"), Duration::from_micros(field("usec")))
    }

    pub(super) fn count_anew(&mut self) {
        let _: Value = self.call(&["CONFIG", "RESETSTAT"]);
    }
}

/// Calls until `done` holds, on the thread of the caller.
pub(super) fn until_true(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "not in {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Whether what came back is an error reply.
pub(super) fn is_error(answer: redis::RedisResult<Value>) -> bool {
    matches!(answer, Err(_) | Ok(Value::ServerError(_)))
}
