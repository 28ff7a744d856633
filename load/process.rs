//! What the kernel says about a process: CPU it used, memory it holds, descriptors and ports there are; and the end
//! of a process, asked for by its own id.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use tokio::signal::unix::{SignalKind, signal};

use super::Failure;

/// CPU time of all threads of a process; zero when it is gone.
pub(super) fn cpu(pid: u32) -> Duration {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(Result::ok).filter_map(spent).sum::<u64>())
}

/// Memory of a process that is in RAM, in KiB; 0 when it is gone.
pub(super) fn rss_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Asks a process to end (SIGTERM).
pub(super) fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Resolves when this program is asked to end (SIGTERM).
pub(super) async fn interrupted() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    terminate.recv().await;
}

/// Raises the limit of descriptors to the hard one, for this process and those it starts, and makes sure that it and
/// the ports do for so many streams.
pub(super) fn room_for(streams: usize) -> Result<(), Failure> {
    let short = |what: String| Failure::peer(&format!("{streams} streams"), what);
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // A proxy holds two sockets per stream.
    let wanted = 2 * streams as u64 + DESCRIPTORS_BESIDE;
    if open < wanted {
        return Err(short(format!(
            "need {wanted} descriptors in one process, the hard limit is {open} (ulimit -Hn)"
        )));
    }
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    if let (Some(low), Some(high)) = (ends.next(), ends.next())
        && high.saturating_sub(low) < streams as u64
    {
        let ports = high.saturating_sub(low);
        return Err(short(format!("need as many ports, net.ipv4.ip_local_port_range has {ports}")));
    }
    Ok(())
}

/// Listeners, pipes, connections to the store, files.
const DESCRIPTORS_BESIDE: u64 = 100;
