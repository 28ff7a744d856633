//! Signals to processes that a test started; only ever by their own id.

use std::process::Command;

/// Sends a signal (`TERM`, `KILL`, `STOP`, `CONT`) to one process.
pub fn send(name: &str, pid: u32) {
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid.to_string()])
        .status()
        .expect("a shell runs");
    assert!(status.success(), "signal {name} to {pid}");
}
