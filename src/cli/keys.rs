//! `key`: API keys, for people: made, listed by fingerprint, revoked.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::Failure;
use super::api::{AdminArgs, Api, path};
use super::told::{self, at};

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
    /// Revokes a key for good; takes hold within 10 s, live streams included.
    #[command(after_help = "Example:\n  voxgate key revoke acme 8f14e45fceea167a")]
    Revoke {
        /// Whose key.
        account: String,
        /// Its fingerprint, as `key list` shows it.
        fingerprint: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
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
            let answer = Api::new(admin)?.post(&path(account, &["keys"]), &Value::Object(fields))?;
            if admin.json {
                told::json(&answer);
            } else {
                tell_secret(at(&answer, "/secret").as_str().unwrap_or_default(), url);
            }
        }
        KeyCommand::List { account, admin } => {
            let answer = Api::new(admin)?.get(&path(account, &["keys"]))?;
            if admin.json {
                told::json(&answer);
            } else {
                let names =
                    ["fingerprint", "label", "cap", "session_cap", "streams_max", "models", "revoked"];
                told::list(at(&answer, "/keys"), &names);
            }
        }
        KeyCommand::Revoke { account, fingerprint, admin } => {
            let answer = Api::new(admin)?.delete(&path(account, &["keys", fingerprint]))?;
            if admin.json {
                told::json(&answer);
            } else {
                told::pairs(&answer, &["fingerprint", "revoked", "takes_hold"]);
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
        "\nTry it:\n  export VOXGATE_KEY=<the secret>\n  voxgate stream speech.wav --url {url}\n\nDeepgram SDK (Python):\n  \
         import os\n  from deepgram import DeepgramClient\n  from deepgram.environment import \
         DeepgramClientEnvironment\n  here = DeepgramClientEnvironment(\n      base=\"{url}\", production=\"{ws}\", \
         agent=\"{ws}\", agent_rest=\"{url}\")\n  client = DeepgramClient(api_key=os.environ[\"VOXGATE_KEY\"], \
         environment=here)\n  with client.listen.v1.connect(\n          model=\"nova-3\", encoding=\"linear16\", \
         sample_rate=16000) as stream:\n      stream.send_media(bytes(32000))\n",
        ws = url.replacen("http", "ws", 1),
    )
}

#[cfg(test)]
mod tests {
    use super::snippet;

    #[test]
    fn the_snippet_names_the_server() {
        let text = snippet("http://host:1");
        assert!(text.contains("base=\"http://host:1\"") && text.contains("\"ws://host:1\""), "{text}");
    }
}
