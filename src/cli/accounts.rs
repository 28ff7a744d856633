//! `account` and `key`: the admin API's verbs for people.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use voxgate::config::show_time;

use super::Failure;
use super::api::{AdminArgs, Api};
use super::told::{self, at};

/// What can be done with accounts.
#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Makes an account.
    #[command(
        after_help = "Example:\n  voxgate account add acme --cap 3600000 --period day --zone Europe/Berlin"
    )]
    Add {
        /// Its name: 1 to 64 of A-Z a-z 0-9 - _ .
        id: String,
        #[command(flatten)]
        terms: TermsArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lists all accounts.
    #[command(after_help = "Example:\n  voxgate account list --json")]
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Shows one account and where its budget stands.
    #[command(after_help = "Example:\n  voxgate account show acme")]
    Show {
        /// Its name.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Changes an account; what is not named stays.
    #[command(after_help = "Examples:\n  voxgate account set acme --cap 7200000\n  \
                            voxgate account set acme --frozen true")]
    Set {
        /// Its name.
        id: String,
        #[command(flatten)]
        terms: TermsArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// What an account may use.
#[derive(Debug, Args)]
pub(super) struct TermsArgs {
    /// Units per period; one is a millisecond of audio at the usual tariff.
    #[arg(long, env = "VOXGATE_ACCOUNT_CAP", value_name = "UNITS")]
    cap: Option<u64>,
    /// hour, day, month, or a fixed length such as 3600s.
    #[arg(long, env = "VOXGATE_ACCOUNT_PERIOD", value_name = "PERIOD")]
    period: Option<String>,
    /// Time zone of calendar periods.
    #[arg(long, env = "VOXGATE_ACCOUNT_ZONE", value_name = "ZONE")]
    zone: Option<String>,
    /// One session reserves at most 1/share of what is free.
    #[arg(long, env = "VOXGATE_ACCOUNT_SHARE", value_name = "N")]
    share: Option<u32>,
    /// Whether new streams are refused.
    #[arg(long, env = "VOXGATE_ACCOUNT_FROZEN", value_name = "BOOL")]
    frozen: Option<bool>,
}

impl TermsArgs {
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        add("cap", self.cap.map(Value::from));
        add("period", self.period.clone().map(Value::from));
        add("zone", self.zone.clone().map(Value::from));
        add("share", self.share.map(Value::from));
        add("frozen", self.frozen.map(Value::from));
        fields
    }
}

/// What can be done with keys.
#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Makes a key and prints its secret, the only time it is seen.
    #[command(after_help = "Example:\n  voxgate key add acme --label web --session-cap 600000")]
    Add {
        /// Whose key.
        account: String,
        /// A word for people.
        #[arg(long, env = "VOXGATE_KEY_LABEL", default_value = "")]
        label: String,
        /// Units per period through this key.
        #[arg(long, env = "VOXGATE_KEY_CAP", value_name = "UNITS")]
        cap: Option<u64>,
        /// Units per session.
        #[arg(long, env = "VOXGATE_KEY_SESSION_CAP", value_name = "UNITS")]
        session_cap: Option<u64>,
        /// Live streams at once.
        #[arg(long, env = "VOXGATE_KEY_STREAMS_MAX", value_name = "N")]
        streams_max: Option<u32>,
        /// A model it may use; may be repeated. None named: all.
        #[arg(long = "model", env = "VOXGATE_KEY_MODELS", value_name = "MODEL", value_delimiter = ',')]
        models: Vec<String>,
        /// The public address, for the snippet that is printed.
        #[arg(long, env = "VOXGATE_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
        url: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lists an account's keys.
    #[command(after_help = "Example:\n  voxgate key list acme")]
    List {
        /// Whose keys.
        account: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Runs an `account` command.
pub(super) fn account(command: &AccountCommand) -> Result<(), Failure> {
    match command {
        AccountCommand::Add { id, terms, admin } => {
            let mut fields = terms.fields();
            fields.insert("id".to_owned(), json!(id));
            tell_account(admin, &Api::new(admin)?.post("/v1/accounts", &Value::Object(fields))?);
        }
        AccountCommand::List { admin } => {
            let answer = Api::new(admin)?.get("/v1/accounts")?;
            if admin.json {
                told::json(&answer);
            } else {
                let names = ["id", "cap", "period", "zone", "share", "frozen"];
                told::out(&told::table(&names, &rows(at(&answer, "/accounts"), &names)));
            }
        }
        AccountCommand::Show { id, admin } => {
            let api = Api::new(admin)?;
            let account = api.get(&path(id, ""))?;
            let balance = api.get(&path(id, "/balance"))?;
            if admin.json {
                told::json(&json!({ "account": account, "balance": balance }));
            } else {
                tell_account(admin, &account);
                tell_pairs(&balance, &["ends_at", "cap", "taken", "held", "settled", "left", "drift"]);
            }
        }
        AccountCommand::Set { id, terms, admin } => {
            let fields = terms.fields();
            if fields.is_empty() {
                return Err(Failure::new(
                    2,
                    "nothing to change; name --cap, --period, --zone, --share or --frozen",
                ));
            }
            tell_account(admin, &Api::new(admin)?.patch(&path(id, ""), &Value::Object(fields))?);
        }
    }
    Ok(())
}

/// Runs a `key` command.
pub(super) fn key(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::Add { account, label, cap, session_cap, streams_max, models, url, admin } => {
            let mut fields = Map::new();
            fields.insert("label".to_owned(), json!(label));
            fields.insert("models".to_owned(), json!(models));
            let numbers =
                [("cap", *cap), ("session_cap", *session_cap), ("streams_max", streams_max.map(u64::from))];
            for (name, number) in numbers {
                if let Some(number) = number {
                    fields.insert(name.to_owned(), json!(number));
                }
            }
            let answer = Api::new(admin)?.post(&path(account, "/keys"), &Value::Object(fields))?;
            if admin.json {
                told::json(&answer);
            } else {
                tell_secret(at(&answer, "/secret").as_str().unwrap_or_default(), url);
            }
        }
        KeyCommand::List { account, admin } => {
            let answer = Api::new(admin)?.get(&path(account, "/keys"))?;
            if admin.json {
                told::json(&answer);
            } else {
                let names =
                    ["fingerprint", "label", "cap", "session_cap", "streams_max", "models", "revoked"];
                told::out(&told::table(&names, &rows(at(&answer, "/keys"), &names)));
            }
        }
    }
    Ok(())
}

/// The secret alone on stdout, so that `$(voxgate key add …)` is the key; the rest is talk.
fn tell_secret(secret: &str, url: &str) {
    eprintln!("This secret is shown once; keep it:");
    told::line(secret);
    eprint!("{}", snippet(url));
}

/// What to type next, with the key left to the environment.
fn snippet(url: &str) -> String {
    format!(
        "\nTry it:\n  VOXGATE_KEY=<the secret> voxgate stream speech.wav --url {url}\n\nDeepgram SDK (Python):\n  \
         from deepgram import DeepgramClient\n  from deepgram.environment import DeepgramClientEnvironment\n  here = \
         DeepgramClientEnvironment(\n      base=\"{url}\", production=\"{ws}\", agent=\"{ws}\")\n  client = \
         DeepgramClient(api_key=<the secret>, environment=here)\n  with client.listen.v1.connect(\n          \
         model=\"nova-3\", encoding=\"linear16\", sample_rate=16000) as stream:\n      \
         stream.send_media(audio)\n",
        ws = url.replacen("http", "ws", 1),
    )
}

fn path(id: &str, rest: &str) -> String {
    // Ids outside the alphabet are refused by the server; here they only must not leave their place.
    let id: String = id
        .bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    format!("/v1/accounts/{id}{rest}")
}

fn tell_account(admin: &AdminArgs, account: &Value) {
    if admin.json {
        told::json(account);
        return;
    }
    tell_pairs(account, &["id", "cap", "period", "zone", "share", "frozen"]);
    let cap = std::time::Duration::from_millis(at(account, "/cap").as_u64().unwrap_or(0));
    eprintln!("At 1000 units per second the cap is {} of audio.", show_time(cap));
}

fn tell_pairs(object: &Value, names: &[&str]) {
    for name in names {
        told::line(&format!("{name:<10} {}", cell(at(object, &format!("/{name}")))));
    }
}

fn rows(list: &Value, names: &[&str]) -> Vec<Vec<String>> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| names.iter().map(|name| cell(at(item, &format!("/{name}")))).collect()).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{path, snippet};

    #[test]
    fn ids_stay_in_their_place() {
        assert_eq!(path("a/../b?c", "/keys"), "/v1/accounts/a%2F..%2Fb%3Fc/keys");
    }

    #[test]
    fn the_snippet_names_the_server() {
        let text = snippet("http://host:1");
        assert!(text.contains("base=\"http://host:1\"") && text.contains("\"ws://host:1\""), "{text}");
    }
}
