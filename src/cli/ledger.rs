//! `ledger`: rows of closed leases to a file or to stdout. Killed at any point and run again, the file has every row
//! exactly once.
//!
//! # How
//! The cursor file says: the first so many bytes of the output are whole, and this is where to go on. It is replaced
//! (written beside, brought to disk, renamed) only after the rows in front of it are on disk. A start cuts the output
//! to that many bytes, so that a page which was written in part, or whole without its cursor, is written again.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Failure;
use super::api::{AdminArgs, Api, escaped, path};
use super::told::{self, at};

/// What can be done with the ledger.
#[derive(Debug, Subcommand)]
pub(super) enum LedgerCommand {
    Export(ExportArgs),
    /// Shows what every period comes to.
    #[command(after_help = "Example:\n  voxgate ledger totals acme")]
    Totals {
        /// Whose ledger.
        account: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

const EXAMPLES: &str = "\
Examples:
  voxgate ledger export acme --format csv > acme.csv
  voxgate ledger export acme --out acme.jsonl --cursor acme.cursor

With --cursor it can be stopped or killed at any time and run again: it goes on
where it was, and every row is in the file exactly once. Run it every night and
it adds what is new.";

/// Writes one row per closed lease, oldest period first.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// Whose ledger.
    account: String,
    /// jsonl or csv.
    #[arg(long, env = "VOXGATE_EXPORT_FORMAT", value_name = "FORMAT", default_value = "jsonl")]
    format: Format,
    /// File to write [default: stdout].
    #[arg(long, env = "VOXGATE_EXPORT_OUT", value_name = "FILE")]
    out: Option<PathBuf>,
    /// File that remembers how far the output is; needs --out.
    #[arg(long, env = "VOXGATE_EXPORT_CURSOR", value_name = "FILE", requires = "out")]
    cursor: Option<PathBuf>,
    /// Rows per request, 1 to 500.
    #[arg(long, env = "VOXGATE_EXPORT_PAGE", value_name = "ROWS", default_value = "500",
          value_parser = clap::value_parser!(u16).range(1..=500))]
    page: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Format {
    Jsonl,
    Csv,
}

impl Format {
    const fn word(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
        }
    }
}

/// What the cursor file holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    account: String,
    format: Format,
    /// Where to go on; `None`: from the first row.
    cursor: Option<String>,
    /// Bytes of the output in front of it.
    bytes: u64,
    /// Rows in them.
    rows: u64,
}

/// Runs a `ledger` command.
pub(super) fn run(command: &LedgerCommand) -> Result<(), Failure> {
    match command {
        LedgerCommand::Export(args) => export(args),
        LedgerCommand::Totals { account, admin } => {
            let answer = Api::patient(admin)?.get(&path(account, &["ledger", "totals"]))?;
            if admin.json {
                told::json(&answer);
            } else {
                told::pairs(&answer, &["account", "rows", "settled"]);
                told::list(at(&answer, "/periods"), &["period", "rows", "settled", "held", "open_leases"]);
            }
            Ok(())
        }
    }
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let api = Api::patient(&args.admin)?;
    let mut sink = Sink::open(args)?;
    let mut progress = Progress::new(sink.state.rows);
    loop {
        let mut query = format!("?format={}&limit={}", args.format.word(), args.page);
        if let Some(cursor) = &sink.state.cursor {
            query.push_str(&format!("&cursor={}", escaped(cursor)));
        }
        let place = format!("{}{query}", path(&args.account, &["ledger"]));
        let (text, headers) = api.text(&place)?;
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let head = args.format == Format::Csv && sink.state.cursor.is_none();
        let rows = lines(args.format, &text).saturating_sub(u64::from(head));
        if rows == 0 {
            // The header line alone says nothing yet, and would come again with the first row.
            if head && args.cursor.is_none() {
                sink.write(&text)?;
            }
            break;
        }
        let Some(cursor) = header("voxgate-cursor") else {
            return Err(Failure::failed("the server gave rows without a cursor; is it of this version?"));
        };
        sink.write(&text)?;
        sink.keep(cursor, rows)?;
        progress.tell(sink.state.rows);
        // What is closed from now on is for the next run, so that this one ends.
        if header("voxgate-more").is_some_and(|more| more == "false") {
            break;
        }
    }
    eprintln!("{} rows", sink.state.rows);
    Ok(())
}

/// Lines of a page; in CSV a quoted cell may hold line ends.
fn lines(format: Format, text: &str) -> u64 {
    let (mut count, mut quoted) = (0, false);
    for b in text.bytes() {
        match b {
            b'"' if format == Format::Csv => quoted = !quoted,
            b'\n' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// Where rows go, and how far they are.
struct Sink {
    file: Option<(File, PathBuf)>,
    kept: Option<PathBuf>,
    state: State,
}

impl Sink {
    fn open(args: &ExportArgs) -> Result<Self, Failure> {
        let fresh =
            State { account: args.account.clone(), format: args.format, cursor: None, bytes: 0, rows: 0 };
        let Some(out) = &args.out else { return Ok(Self { file: None, kept: None, state: fresh }) };
        let Some(kept) = &args.cursor else {
            let file = OpenOptions::new().write(true).create_new(true).open(out);
            let file =
                file.map_err(|error| trouble(out, &error, "name another file, or give --cursor to go on"))?;
            return Ok(Self { file: Some((file, out.clone())), kept: None, state: fresh });
        };
        let state = match read_state(kept)? {
            Some(state) => resumable(state, &fresh, (out, kept))?,
            None if out.exists() => {
                return Err(Failure::failed(format!(
                    "{} is there and {} is not, so how far it goes is unknown\nname another --out, or remove it",
                    out.display(),
                    kept.display()
                )));
            }
            // Before the output: whoever finds output finds a cursor too.
            None => {
                write_state(kept, &fresh)?;
                fresh
            }
        };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(out);
        let mut file = file.map_err(|error| trouble(out, &error, "may it be written?"))?;
        cut(&mut file, &state, out)?;
        Ok(Self { file: Some((file, out.clone())), kept: Some(kept.clone()), state })
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.file {
            Some((file, out)) => file
                .write_all(text.as_bytes())
                .map_err(|error| trouble(out, &error, "is the disk full? run it again to go on"))?,
            None => {
                let mut stdout = std::io::stdout().lock();
                let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
                written
                    .map_err(|error| Failure::failed(format!("stdout: {error}; the export is not whole")))?;
            }
        }
        self.state.bytes += text.len() as u64;
        Ok(())
    }

    /// The rows so far are safe: from here on it goes on behind them.
    fn keep(&mut self, cursor: String, rows: u64) -> Result<(), Failure> {
        self.state.cursor = Some(cursor);
        self.state.rows += rows;
        let (Some(kept), Some((file, out))) = (&self.kept, &self.file) else { return Ok(()) };
        file.sync_data().map_err(|error| trouble(out, &error, "run it again to go on"))?;
        write_state(kept, &self.state)
    }
}

/// Cuts off what came behind the last cursor.
fn cut(file: &mut File, state: &State, out: &Path) -> Result<(), Failure> {
    let told = |error: std::io::Error| trouble(out, &error, "is it a plain file?");
    if file.metadata().map_err(told)?.len() < state.bytes {
        return Err(Failure::failed(format!(
            "{} is shorter than its cursor file says, so rows are missing\nremove both and export again",
            out.display()
        )));
    }
    file.set_len(state.bytes).map_err(told)?;
    file.seek(SeekFrom::Start(state.bytes)).map(drop).map_err(told)
}

fn read_state(kept: &Path) -> Result<Option<State>, Failure> {
    let text = match std::fs::read_to_string(kept) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(trouble(kept, &error, "may it be read?")),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Failure::failed(format!("{} is no cursor file: {error}\nname another --cursor", kept.display()))
    })
}

/// The state, if it is of the same export.
fn resumable(state: State, wanted: &State, (out, kept): (&Path, &Path)) -> Result<State, Failure> {
    if (&state.account, state.format) == (&wanted.account, wanted.format) {
        return Ok(state);
    }
    Err(Failure::failed(format!(
        "{} belongs to an export of {} as {}, not to {}\nname another --cursor and --out",
        kept.display(),
        told::plain(&state.account),
        state.format.word(),
        out.display()
    )))
}

/// Replaces the cursor file: after a crash it is the old one or the new one, whole.
fn write_state(kept: &Path, state: &State) -> Result<(), Failure> {
    let mut beside = kept.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let text =
        serde_json::to_string(state).map_err(|error| Failure::failed(format!("no cursor: {error}")))?;
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(format!("{text}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, kept)?;
        let folder = kept.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    };
    write().map_err(|error: std::io::Error| trouble(kept, &error, "run it again to go on"))
}

fn trouble(path: &Path, error: &std::io::Error, fix: &str) -> Failure {
    Failure::failed(format!("{}: {error}\n{fix}", path.display()))
}

/// How far it is, on stderr: one line that is written over on a terminal, else a line now and then.
struct Progress {
    terminal: bool,
    told: u64,
}

impl Progress {
    /// Rows between two lines that are kept.
    const STEP: u64 = 50_000;

    fn new(rows: u64) -> Self {
        if rows > 0 {
            eprintln!("{rows} rows are there already");
        }
        Self { terminal: std::io::stderr().is_terminal(), told: rows }
    }

    fn tell(&mut self, rows: u64) {
        if self.terminal {
            eprint!("\r{rows} rows\r");
        } else if rows >= self.told + Self::STEP {
            eprintln!("{rows} rows");
            self.told = rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Format, State, lines, read_state, write_state};

    #[test]
    fn quoted_line_ends_are_no_rows() {
        assert_eq!(lines(Format::Csv, "a,b\n1,\"x\ny\"\"\n\"\n"), 2);
        assert_eq!(lines(Format::Jsonl, "{\"a\":\"\\\"\"}\n{}\n"), 2);
        assert_eq!(lines(Format::Csv, ""), 0);
    }

    #[test]
    fn cursor_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("a.cursor");
        assert!(read_state(&kept).unwrap().is_none());
        for (cursor, bytes) in [(None, 0), (Some("d1@5-0".to_owned()), 77)] {
            let state = State { account: "a".into(), format: Format::Csv, cursor, bytes, rows: 1 };
            write_state(&kept, &state).unwrap();
            assert_eq!(read_state(&kept).unwrap(), Some(state));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::write(&kept, "{").unwrap();
        assert!(read_state(&kept).is_err());
    }
}
