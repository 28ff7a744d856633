//! `session` and `lease`: what is being spent right now, for people.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::Failure;
use super::api::{AdminArgs, Api, path};
use super::told::{self, at};

const SESSION: [&str; 8] = ["id", "session", "key", "cap", "used", "held", "open_leases", "ended"];
const LEASE: [&str; 6] = ["id", "session", "period", "held", "deadline", "quarantined"];

/// What can be done with sessions.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// Lists the sessions that are remembered.
    #[command(after_help = "Example:\n  voxgate session list acme")]
    List {
        /// Whose sessions.
        account: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Makes a session before its first stream, so that it has a cap of its own.
    #[command(after_help = "Example:\n  voxgate session create acme --key 8f14e45fceea167a \
                            --session call-7 --cap 600000")]
    Create {
        /// Whose session.
        account: String,
        /// Fingerprint of the key that will open its streams.
        #[arg(long, env = "VOXGATE_KEY_FINGERPRINT", value_name = "KEY")]
        key: String,
        /// Its name, the session_id of its streams.
        #[arg(long, env = "VOXGATE_SESSION", value_name = "NAME")]
        session: String,
        /// Units over all its streams [default: no cap of its own].
        #[arg(long, env = "VOXGATE_SESSION_CAP", value_name = "UNITS")]
        cap: Option<u64>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Shows one session.
    #[command(after_help = "Example:\n  voxgate session show acme 8f14e45fceea167a.call-7")]
    Show {
        /// Whose session.
        account: String,
        /// Its id, as `session list` shows it.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Ends a session now: its streams end with their next chunk.
    #[command(after_help = "Example:\n  voxgate session end acme 8f14e45fceea167a.call-7")]
    End {
        /// Whose session.
        account: String,
        /// Its id, as `session list` shows it.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Gives a session another cap; what is reserved stays.
    #[command(after_help = "Examples:\n  voxgate session cap acme 8f14e45fceea167a.call-7 900000\n  \
                            voxgate session cap acme 8f14e45fceea167a.call-7 none")]
    Cap {
        /// Whose session.
        account: String,
        /// Its id, as `session list` shows it.
        id: String,
        /// Units over all its streams, or none.
        #[arg(value_parser = cap_or_none)]
        cap: Cap,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// A cap, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cap(Option<u64>);

fn cap_or_none(text: &str) -> Result<Cap, String> {
    match text {
        "none" => Ok(Cap(None)),
        _ => {
            text.parse().map(|cap| Cap(Some(cap))).map_err(|_| "a whole number of units, or none".to_owned())
        }
    }
}

/// What can be done with open leases.
#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// Lists open leases, the one due first in front.
    #[command(after_help = "Example:\n  voxgate lease list acme")]
    List {
        /// Whose leases.
        account: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Closes one lease now, by what it is known to have used; its streams end
    /// with their next chunk.
    #[command(
        after_help = "Example:\n  voxgate lease settle acme 8f14e45fceea167a.call-7:1:d1764460800:10000"
    )]
    Settle {
        /// Whose lease.
        account: String,
        /// Its id, as `lease list` shows it.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Runs a `session` command.
pub(super) fn session(command: &SessionCommand) -> Result<(), Failure> {
    match command {
        SessionCommand::List { account, admin } => {
            let answer = Api::new(admin)?.get(&path(account, &["sessions"]))?;
            if admin.json { told::json(&answer) } else { told::list(at(&answer, "/sessions"), &SESSION) }
        }
        SessionCommand::Create { account, key, session, cap, admin } => {
            let mut body = Map::new();
            body.insert("key".to_owned(), json!(key));
            body.insert("session".to_owned(), json!(session));
            if let Some(cap) = cap {
                body.insert("cap".to_owned(), json!(cap));
            }
            let answer = Api::new(admin)?.post(&path(account, &["sessions"]), &Value::Object(body))?;
            tell(admin, &answer, &SESSION);
        }
        SessionCommand::Show { account, id, admin } => {
            tell(admin, &Api::new(admin)?.get(&path(account, &["sessions", id]))?, &SESSION);
        }
        SessionCommand::End { account, id, admin } => {
            let place = path(account, &["sessions", id, "end"]);
            let answer = Api::new(admin)?.post(&place, &json!({}))?;
            tell(admin, &answer, &["closed", "charged", "stuck"]);
        }
        SessionCommand::Cap { account, id, cap, admin } => {
            let body = json!({ "cap": cap.0 });
            tell(admin, &Api::new(admin)?.patch(&path(account, &["sessions", id]), &body)?, &SESSION);
        }
    }
    Ok(())
}

/// Runs a `lease` command.
pub(super) fn lease(command: &LeaseCommand) -> Result<(), Failure> {
    match command {
        LeaseCommand::List { account, admin } => {
            let answer = Api::new(admin)?.get(&path(account, &["leases"]))?;
            if admin.json { told::json(&answer) } else { told::list(at(&answer, "/leases"), &LEASE) }
        }
        LeaseCommand::Settle { account, id, admin } => {
            let place = path(account, &["leases", id, "settle"]);
            let answer = Api::new(admin)?.post(&place, &json!({}))?;
            tell(admin, &answer, &["how", "charged", "returned", "excess"]);
        }
    }
    Ok(())
}

fn tell(admin: &AdminArgs, answer: &Value, names: &[&str]) {
    if admin.json { told::json(answer) } else { told::pairs(answer, names) }
}
