//! A private store for one run: a redis-server on loopback with nothing on disk, stopped by its own process id.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use voxgate::quota::store::{Reply, Store};

use super::{Failure, Target};

/// The store of a run, and the server behind it if it is ours.
pub(super) struct Private {
    child: Option<Child>,
    /// Where callers connect.
    pub(super) url: String,
}

impl Private {
    /// As [`Private::open`], for a run that connects many times to one server and asks it about itself.
    pub(super) fn open_server(target: &Target) -> Result<Self, Failure> {
        match &target.store {
            Some(url) if !url.starts_with("redis://") && !url.starts_with("rediss://") => {
                Err(Failure::Refused("this run needs one server: --store redis://host:port".into()))
            }
            Some(_) | None => Self::open(target),
        }
    }

    /// Uses the store that was named, or starts one.
    pub(super) fn open(target: &Target) -> Result<Self, Failure> {
        Self::open_with(target, &[])
    }

    /// As [`Private::open`]; a private server gets more options.
    pub(super) fn open_with(target: &Target, more: &[&str]) -> Result<Self, Failure> {
        if let Some(url) = &target.store {
            return Ok(Self { child: None, url: url.clone() });
        }
        let fail = |why: String| Failure::Server { program: target.server.clone(), why };
        let port = free_port().map_err(|error| fail(error.to_string()))?;
        let mut child = Command::new(&target.server)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(more)
            // A ctrl-c on the terminal is ours: it must not end the server under a run that still has to report.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| fail(error.to_string()))?;
        let until = Instant::now() + START;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if child.try_wait().is_ok_and(|status| status.is_some()) || Instant::now() > until {
                let _ = child.kill();
                return Err(fail("it does not listen".into()));
            }
            std::thread::sleep(POLL);
        }
        Ok(Self { child: Some(child), url: format!("redis://127.0.0.1:{port}") })
    }

    /// Its process, if it is ours.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A connection of its own.
    pub(super) fn store(&self) -> Result<Store, Failure> {
        Ok(Store::open(&self.url)?)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the server says that it has spent, since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Script calls answered.
    pub calls: u64,
    /// Microseconds inside of these.
    pub usec: u64,
    /// Microseconds of processor time, network and all.
    pub cpu_us: f64,
}

impl Spent {
    /// As of now. A store that does not say has spent nothing.
    pub(super) async fn so_far(store: &Store) -> Result<Self, Failure> {
        let info = async |section: &str| -> Result<String, Failure> {
            match store.command(&["INFO", section]).await? {
                Reply::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
                other => Err(Failure::Odd(other)),
            }
        };
        let (stats, cpu) = (info("commandstats").await?, info("cpu").await?);
        let scripts =
            stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let count = |name: &str| {
            scripts.split(',').find_map(|part| part.strip_prefix(name)?.parse().ok()).unwrap_or_default()
        };
        let seconds = |name: &str| -> f64 {
            cpu.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
        };
        Ok(Self {
            calls: count("calls="),
            usec: count("usec="),
            cpu_us: (seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6,
        })
    }

    /// What was spent after `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            usec: self.usec.saturating_sub(before.usec),
            cpu_us: self.cpu_us - before.cpu_us,
        }
    }

    /// Microseconds inside the script, per call.
    pub(super) fn usec_per_call(self) -> f64 {
        self.usec as f64 / self.calls.max(1) as f64
    }

    /// Microseconds of processor time, per call.
    pub(super) fn cpu_us_per_call(self) -> f64 {
        self.cpu_us / self.calls.max(1) as f64
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// How long a private server may take to listen.
const START: Duration = Duration::from_secs(10);
/// Between two looks at it.
const POLL: Duration = Duration::from_millis(10);
