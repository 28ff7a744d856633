//! Real store servers for tests: Redis and Valkey, each in a folder of its own, killed with their handle.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use redis::{FromRedisValue, RedisResult};

use super::{PATIENCE, signal};

/// One store server on a loopback port of its own.
pub struct RedisServer {
    child: Child,
    /// Where it listens.
    pub port: u16,
    /// A second port: of the cluster bus, or of TLS. Nothing listens there unless the server was told to.
    pub second_port: u16,
    /// What [`RedisServer::ask`] logs in with, as `user:password`.
    pub login: Option<String>,
    name: String,
    binary: PathBuf,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
}

/// Where a server that is about to start will live.
pub struct Place<'a> {
    /// Its port.
    pub port: u16,
    /// Its second port, see [`RedisServer::second_port`].
    pub second_port: u16,
    /// Its working directory.
    pub folder: &'a Path,
}

impl RedisServer {
    /// Starts `binary` with `extra` arguments and waits until it answers; panics when it does not.
    pub fn start(binary: impl AsRef<Path>, extra: &[&str]) -> Self {
        Self::start_at(binary, |_| extra.iter().map(|word| (*word).to_owned()).collect())
    }

    /// The same with arguments that depend on where it will live.
    pub fn start_at(binary: impl AsRef<Path>, extra: impl Fn(&Place) -> Vec<String>) -> Self {
        Self::launch(binary, |place| {
            let fixed = [
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ];
            let mut words = vec!["--port".to_owned(), place.port.to_string()];
            words.extend(fixed.map(str::to_owned));
            words.extend(extra(place));
            words
        })
    }

    /// Starts `binary` with exactly these arguments.
    pub fn launch(binary: impl AsRef<Path>, arguments: impl Fn(&Place) -> Vec<String>) -> Self {
        let binary = binary.as_ref();
        // The ports are free when asked and may be taken when used: then the next ones are tried.
        for _ in 0..5 {
            if let Some(server) = Self::attempt(binary, &arguments) {
                return server;
            }
        }
        panic!("{} does not start", binary.display());
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it on the spot; its folder stays.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for an end that it was asked for.
    pub fn await_end(&mut self) {
        let _ = self.child.wait();
    }

    /// Stops it in its tracks, until [`RedisServer::sigcont`].
    pub fn sigstop(&self) {
        signal::send("STOP", self.pid());
    }

    /// Lets it go on.
    pub fn sigcont(&self) {
        signal::send("CONT", self.pid());
    }

    /// Kills it on the spot and starts it again: same port, same folder, `more` arguments.
    pub fn restart(&mut self, more: &[&str]) {
        self.kill();
        self.revive(more);
    }

    /// Starts it again after a kill: same port, same folder, `more` arguments. Waits until it answers anything.
    pub fn revive(&mut self, more: &[&str]) {
        let more = more.iter().map(|word| (*word).to_owned());
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        self.child = spawn(&self.binary, &arguments, self.folder.path());
        assert!(up(&mut self.child, self.port), "{self} does not come back");
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its answer to one command on a connection of its own.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let login = self.login.as_ref().map(|login| format!("{login}@")).unwrap_or_default();
        let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))?;
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE / 4))
            .set_response_timeout(Some(PATIENCE / 4));
        let mut link = client.get_multiplexed_async_connection_with_config(&patient).await?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut link).await
    }

    /// Its answer to a command that must succeed.
    pub async fn tell<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.ask(words).await.unwrap_or_else(|error| panic!("{words:?} on {self}: {error}"))
    }

    /// A line of `INFO section`.
    pub async fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = self.ask(&["INFO", section]).await.ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
    }

    /// How often a command has run, in scripts or without, since the last `CONFIG RESETSTAT`.
    pub async fn calls(&self, command: &str) -> u64 {
        let line = self.info("commandstats", &format!("cmdstat_{command}")).await.unwrap_or_default();
        let calls = line.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    fn attempt(binary: &Path, arguments: impl Fn(&Place) -> Vec<String>) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (port, second_port) = free_ports();
        let arguments = arguments(&Place { port, second_port, folder: folder.path() });
        let mut child = spawn(binary, &arguments, folder.path());
        if !up(&mut child, port) {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        let name = format!("{} on {port}", binary.file_name().unwrap_or_default().display());
        let binary = binary.to_owned();
        Some(Self { child, port, second_port, login: None, name, binary, arguments, folder })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The store programs that this run can use: Redis 7.0 always, Redis 7.4 and Valkey where the environment names
/// them (`VOXGATE_REDIS74`, `VOXGATE_VALKEY`). Panics when one that must be there is not.
pub fn store_binaries() -> Vec<PathBuf> {
    let mut found = vec![redis()];
    for name in ["VOXGATE_REDIS74", "VOXGATE_VALKEY"] {
        match std::env::var_os(name).map(PathBuf::from) {
            Some(path) if path.is_file() => found.push(path),
            Some(path) => panic!("{name} names {}, which is not there", path.display()),
            None => assert!(!super::all_tools_required(), "{name} is not set; run ./test"),
        }
    }
    found
}

/// The machine's own `redis-server`; panics when there is none.
pub fn redis() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|file| file.is_file())
        .expect("redis-server is not installed; run ./test, which installs it")
}

/// One fresh server of every kind that this run can use.
pub fn stores() -> Vec<RedisServer> {
    store_binaries().iter().map(|binary| RedisServer::start(binary, &[])).collect()
}

fn spawn(binary: &Path, arguments: &[String], folder: &Path) -> Child {
    Command::new(binary)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", binary.display()))
}

/// Whether a server answers in time; `false` as soon as it has ended.
fn up(child: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.try_wait().expect("our own child").is_some() {
            return false;
        }
        if answers(port).unwrap_or(false) {
            return true;
        }
        thread::sleep(Duration::from_millis(10)); // polling a foreign process, not hiding a race
    }
    false
}

/// Whether a store answers a plain PING; one that wants a password or still loads is up too.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(answer == *b"+PONG\r\n" || answer.starts_with(b"-NOAUTH") || answer.starts_with(b"-LOADIN"))
}

/// Two ports that were free a moment ago.
fn free_ports() -> (u16, u16) {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (one, two) = (free(), free());
    let port = |listener: &TcpListener| listener.local_addr().expect("a bound address").port();
    (port(&one), port(&two))
}
