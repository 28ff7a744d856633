//! A private store for one run: a redis-server on loopback with nothing on disk, stopped by its own process id.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use voxgate::quota::store::Store;

use super::{Failure, Target};

/// The store of a run, and the server behind it if it is ours.
pub(super) struct Private {
    child: Option<Child>,
    /// Where callers connect.
    pub(super) url: String,
}

impl Private {
    /// Uses the store that was named, or starts one.
    pub(super) fn open(target: &Target) -> Result<Self, Failure> {
        if let Some(url) = &target.store {
            return Ok(Self { child: None, url: url.clone() });
        }
        let fail = |why: String| Failure::Server { program: target.server.clone(), why };
        let port = free_port().map_err(|error| fail(error.to_string()))?;
        let mut child = Command::new(&target.server)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
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

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// How long a private server may take to listen.
const START: Duration = Duration::from_secs(10);
/// Between two looks at it.
const POLL: Duration = Duration::from_millis(10);
