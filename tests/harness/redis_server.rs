//! A redis-server or valkey-server of our own: on a free loopback port, nothing on disk, killed on drop.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A running server; dropping it kills the process that was started, nothing else.
pub(crate) struct RedisServer {
    /// Where it listens, on 127.0.0.1.
    pub(crate) port: u16,
    process: Child,
}

impl RedisServer {
    /// Starts `binary` with our options and then `extra` (so that those win), and waits until it answers.
    ///
    /// # Panics
    /// When it can't be started, or no try answers within [`PATIENCE`].
    pub(crate) fn start(binary: &str, extra: &[&str]) -> Self {
        for _ in 0..TRIES {
            let mut server = Self::spawn(binary, extra);
            if server.answers() {
                return server;
            }
        }
        panic!("{binary} did not answer PING, {TRIES} times");
    }

    /// The address in the form that clients take.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn spawn(binary: &str, extra: &[&str]) -> Self {
        let port = free_port();
        let process = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(extra)
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{binary}: {error}"));
        Self { port, process }
    }

    /// Whether it answers before it ends (its port was taken meanwhile) or patience does.
    fn answers(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return false;
            }
            if self.ping().is_ok_and(|answered| answered) {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    fn ping(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(answer == *b"+PONG\r\n" || answer.starts_with(b"-NOAUTH"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// How long one start may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
const TRIES: usize = 5;
