//! `token`: swaps an API key for a short-lived token at a running gateway. The key goes to that gateway only.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use voxgate::config::parse_time;

use super::Failure;
use super::told::{self, at, plain};

const EXAMPLES: &str = "\
Examples:
  VOXGATE_KEY=... voxgate token --ttl 60s
  VOXGATE_KEY=... voxgate token --session call-7 --cap 600000 --model nova-3

Hand it to a browser: it opens streams until it expires, and nothing else.";

/// Prints a short-lived token for a browser, made with an API key.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TokenArgs {
    /// The gateway.
    #[arg(long, env = "VOXGATE_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key; rather put it into the environment.
    #[arg(long, env = "VOXGATE_KEY", hide_env_values = true)]
    key: String,
    /// How long it may open streams, at most 1h.
    #[arg(long, env = "VOXGATE_TOKEN_TTL", value_name = "TIME", default_value = "30s")]
    ttl: String,
    /// The session that it opens.
    #[arg(long, env = "VOXGATE_TOKEN_SESSION", value_name = "NAME")]
    session: Option<String>,
    /// Units that its session may use.
    #[arg(long, env = "VOXGATE_TOKEN_CAP", value_name = "UNITS")]
    cap: Option<u64>,
    /// A model it may use; may be repeated. None named: all of the key's.
    #[arg(long = "model", env = "VOXGATE_TOKEN_MODELS", value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,
    /// Print the gateway's whole answer as JSON.
    #[arg(long, env = "VOXGATE_JSON")]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &TokenArgs) -> Result<(), Failure> {
    let base = args.url.trim_end_matches('/');
    if !base.starts_with("http://") {
        return Err(Failure::new(2, format!("--url {base:?} must begin with http:// (TLS is not built in)")));
    }
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(15)))
        .max_redirects(0)
        .http_status_as_error(false)
        .build();
    let request = ureq::Agent::from(config)
        .post(format!("{base}/v1/auth/grant"))
        .header("Authorization", format!("Token {}", args.key.trim()));
    let mut answer = request.send_json(args.body()?).map_err(|error| {
        Failure::unavailable(format!(
            "{base} does not answer: {error}\nis `voxgate serve` running there? --url names another"
        ))
    })?;
    let status = answer.status();
    let body: Value = answer.body_mut().read_json().unwrap_or(Value::Null);
    if !status.is_success() {
        let why =
            plain(at(&body, "/err_msg").as_str().unwrap_or("is --url the public address, without a path?"));
        let text = format!("{status}: {why}");
        return Err(if status.is_server_error() {
            Failure::unavailable(text)
        } else {
            Failure::failed(text)
        });
    }
    match at(&body, "/access_token").as_str() {
        _ if args.json => told::json(&body),
        Some(token) => told::line(token),
        None => return Err(Failure::failed(format!("{base} answered without a token"))),
    }
    Ok(())
}

impl TokenArgs {
    fn body(&self) -> Result<Value, Failure> {
        let ttl = parse_time(&self.ttl)
            .map_err(|why| Failure::new(2, format!("--ttl {:?}: {why}; such as 30s or 5m", self.ttl)))?;
        let mut body = Map::new();
        body.insert("ttl_seconds".to_owned(), json!(ttl.as_secs()));
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        add("session_id", self.session.clone().map(Value::from));
        add("session_cap_units", self.cap.map(Value::from));
        add("models", (!self.models.is_empty()).then(|| json!(self.models)));
        Ok(Value::Object(body))
    }
}
