//! Arguments and commands. Data goes to stdout, talk to stderr; nothing ever waits for a key press.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use voxgate::config::{Config, Sources};

mod accounts;
mod api;
mod audit;
mod check;
mod demo;
mod failure;
mod files;
mod fit;
mod keys;
mod latency;
mod ledger;
mod python;
mod serve;
mod sessions;
mod sound;
mod store;
mod stream;
mod token;
mod told;

pub(crate) use failure::Failure;

const EXITS: &str = "\
Exit codes: 0 fine, 1 failed, 2 usage, 69 something can't be reached,
78 configuration; `stream` also 3 refused, 4 ended by quota, 5 ended otherwise.";

/// WebSocket gateway that pays for every audio chunk before it reaches a
/// transcription worker.
#[derive(Debug, Parser)]
#[command(name = "voxgate", version, max_term_width = 80, after_help = EXITS, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Demo(demo::DemoArgs),
    Stream(stream::StreamArgs),
    Token(token::TokenArgs),
    Check(check::CheckArgs),
    /// Makes, changes, freezes, tops up and deletes accounts of a running server.
    #[command(subcommand)]
    Account(accounts::AccountCommand),
    /// Makes, lists and revokes API keys of a running server.
    #[command(subcommand)]
    Key(keys::KeyCommand),
    /// Makes, lists, caps and ends sessions of a running server.
    #[command(subcommand)]
    Session(sessions::SessionCommand),
    /// Lists open leases of a running server, and closes them by force.
    #[command(subcommand)]
    Lease(sessions::LeaseCommand),
    /// Exports the ledger of a running server.
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    /// Tells whether the books of a running server agree.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Shows the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints a completion script for your shell.
    #[command(
        after_help = "Example:\n  voxgate completions bash > ~/.local/share/bash-completion/completions/voxgate"
    )]
    Completions {
        /// bash, elvish, fish, powershell or zsh.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints every setting, its value and where it came from; secrets masked.
    #[command(after_help = "Example:\n  voxgate config show --config voxgate.toml")]
    Show(ConfigArgs),
}

impl Cli {
    /// Runs the command that was asked for.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(args) => serve::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Stream(args) => stream::run(&args),
            Command::Token(args) => token::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Account(command) => accounts::account(&command),
            Command::Key(command) => keys::key(&command),
            Command::Session(command) => sessions::session(&command),
            Command::Lease(command) => sessions::lease(&command),
            Command::Ledger(command) => ledger::run(&command),
            Command::Audit(command) => audit::run(&command),
            Command::Config(ConfigCommand::Show(args)) => {
                told::out(&args.load()?.show());
                Ok(())
            }
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut Self::command(), "voxgate", &mut std::io::stdout());
                Ok(())
            }
        }
    }
}

/// Where the configuration comes from; options win over the environment, that
/// over the file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Configuration")]
struct ConfigArgs {
    /// Settings file; see deploy/voxgate.toml for all there is.
    #[arg(long, env = "VOXGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8080].
    #[arg(long, env = "VOXGATE_LISTEN__ADDRESS", value_name = "IP:PORT")]
    listen: Option<String>,
    /// Where health, metrics and the admin API answer [default: 127.0.0.1:9090].
    #[arg(long, env = "VOXGATE_ADMIN__ADDRESS", value_name = "IP:PORT")]
    admin_listen: Option<String>,
    /// Where the books are kept: embedded, embedded:DIR, or redis://... [default: embedded].
    #[arg(long, env = "VOXGATE_STORE__URL", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// A transcription worker, such as ws://127.0.0.1:7000; may be repeated, and
    /// stands in place of the file's [[workers]].
    #[arg(long = "worker", env = "VOXGATE_WORKER", value_name = "URL", value_delimiter = ',')]
    workers: Vec<String>,
    /// How long live streams may go on after SIGTERM [default: 30s].
    #[arg(long, env = "VOXGATE_LIMITS__DRAIN", value_name = "TIME")]
    drain: Option<String>,
    /// auto, json or pretty [default: auto].
    #[arg(long, env = "VOXGATE_LOG__FORMAT", value_name = "FORMAT")]
    log_format: Option<String>,
    /// error, warn, info, debug, trace, or filters [default: info].
    #[arg(long, env = "VOXGATE_LOG__LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
}

impl ConfigArgs {
    /// The checked configuration, or every fault.
    fn load(&self) -> Result<Config, Failure> {
        Ok(Config::load(&self.sources(std::env::vars_os()))?)
    }

    fn sources(&self, environment: impl Iterator<Item = (OsString, OsString)>) -> Sources {
        let text = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("VOXGATE_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        };
        let flags = [
            ("listen.address", &self.listen),
            ("admin.address", &self.admin_listen),
            ("store.url", &self.store),
            ("limits.drain", &self.drain),
            ("log.format", &self.log_format),
            ("log.level", &self.log_level),
        ];
        Sources {
            file: self.config.clone(),
            environment: environment.filter_map(text).collect(),
            flags: flags.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect(),
            workers: self.workers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_eighty_columns() {
        fn walk(command: &mut clap::Command) {
            command.build();
            for (kind, text) in [("long", command.render_long_help()), ("short", command.render_help())] {
                for line in text.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{} {kind}: {line}", command.get_name());
                }
            }
            for sub in command.get_subcommands_mut() {
                walk(sub);
            }
        }
        walk(&mut Cli::command().term_width(80));
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let leaves: Vec<_> = command.get_subcommands().collect();
            for leaf in if leaves.is_empty() { vec![command] } else { leaves } {
                let after = leaf.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(after.contains("Example"), "{} {}", command.get_name(), leaf.get_name());
            }
        }
    }

    #[test]
    fn usual_lines_parse() {
        for line in [
            "voxgate serve --config a.toml --worker ws://a --worker ws://b",
            "voxgate demo --worker-python /usr/bin/python3",
            "voxgate stream a.wav --key k --speed 0 --json",
            "voxgate stream - --key k --encoding mulaw --rate 8000 --channels 1",
            "voxgate token --key k --ttl 60s --session s --cap 5 --model a --model b",
            "voxgate check --json",
            "voxgate account add acme --cap 60000",
            "voxgate account set acme --frozen true",
            "voxgate key add acme --label web",
            "voxgate account topup acme 5 --id a",
            "voxgate account delete acme --yes",
            "voxgate key revoke acme 8f14e45fceea167a",
            "voxgate session create acme --key k --session s --cap 5",
            "voxgate session cap acme k.s none",
            "voxgate lease settle acme k.s:1:d1:5",
            "voxgate ledger export acme --format csv --out a --cursor b",
            "voxgate audit show",
            "voxgate audit rebuild acme d1 --force",
            "voxgate completions zsh",
            "voxgate config show",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "voxgate",
            "voxgate stream",
            "voxgate serve --nope",
            "voxgate stream a.wav --chunk-ms 0",
            "voxgate ledger export acme --cursor b",
            "voxgate account topup acme -5",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
