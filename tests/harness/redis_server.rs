//! Real store servers for tests: Redis and Valkey, each with nothing on disk, killed with their handle.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use super::PATIENCE;

/// One store server on a loopback port of its own.
pub struct RedisServer {
    child: Child,
    /// Where it listens.
    pub port: u16,
    name: String,
    binary: PathBuf,
    extra: Vec<String>,
    folder: tempfile::TempDir,
}

impl RedisServer {
    /// Starts `binary` with `extra` arguments and waits until it answers; panics when it does not.
    pub fn start(binary: impl AsRef<Path>, extra: &[&str]) -> Self {
        let binary = binary.as_ref();
        // The port is free when asked and may be taken when used: then the next one is tried.
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            if let Some(server) = Self::attempt(binary, extra, free_port(), folder) {
                return server;
            }
        }
        panic!("{} does not start", binary.display());
    }

    /// Kills it on the spot and starts it again: same port, same folder, `more` arguments.
    pub fn restart(&mut self, more: &[&str]) {
        self.kill();
        self.revive(more);
    }

    /// Kills it on the spot; [`RedisServer::revive`] brings it back.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after a kill: same port, same folder, `more` arguments. Waits until it answers anything.
    pub fn revive(&mut self, more: &[&str]) {
        let arguments: Vec<&str> =
            self.extra.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.child = spawn(&self.binary, &arguments, self.port, self.folder.path());
        let deadline = Instant::now() + PATIENCE;
        while !answers(self.port).unwrap_or(false) {
            assert!(Instant::now() < deadline, "{self} does not come back");
            thread::sleep(Duration::from_millis(10)); // polling a foreign process, not hiding a race
        }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn attempt(binary: &Path, extra: &[&str], port: u16, folder: tempfile::TempDir) -> Option<Self> {
        let mut child = spawn(binary, extra, port, folder.path());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if child.try_wait().expect("our own child").is_some() {
                return None;
            }
            if answers(port).unwrap_or(false) {
                let name = format!("{} on {port}", binary.file_name().unwrap_or_default().display());
                let extra = extra.iter().map(|&word| word.to_owned()).collect();
                return Some(Self { child, port, name, binary: binary.to_owned(), extra, folder });
            }
            thread::sleep(Duration::from_millis(10)); // polling a foreign process, not hiding a race
        }
        let _ = child.kill();
        let _ = child.wait();
        None
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

fn spawn(binary: &Path, extra: &[&str], port: u16, folder: &Path) -> Child {
    Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(extra)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", binary.display()))
}

/// Whether a store answers a plain PING; one that wants a password, or still loads, is up too.
fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(answer == *b"+PONG\r\n" || answer.starts_with(b"-NOAUTH") || answer.starts_with(b"-LOADIN"))
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound address").port()
}
