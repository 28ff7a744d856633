//! How far a run is, on stderr: a bar on a terminal, plain lines otherwise. And whether it should stop.

use std::io::IsTerminal as _;
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

/// Cancelled by the first ctrl-c: a run then ends soon and reports what it has.
pub(super) fn stop() -> &'static CancellationToken {
    static STOP: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);
    &STOP
}

/// The steps of one run.
pub(super) struct Progress {
    run: &'static str,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins a run of so many steps.
    pub(super) fn start(run: &'static str, steps: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed} {msg}");
            let bar = ProgressBar::new(steps).with_prefix(run);
            bar.enable_steady_tick(Duration::from_millis(250));
            style.map_or(bar.clone(), |style| bar.with_style(style))
        });
        Self { run, bar }
    }

    /// Says what is being done now.
    pub(super) fn say(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{}: {what}", self.run),
        }
    }

    /// One step is done.
    pub(super) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
