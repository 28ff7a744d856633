//! Talks to the admin API of a running server. The token comes from the option, the environment, or the file
//! that the server wrote; it is sent to that server only.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use voxgate::admin;
use voxgate::config::Secret;

use super::Failure;
use super::told::{at, plain};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an answer may take that counts rows; the server ends connections soon after.
const PATIENCE_LONG: Duration = Duration::from_secs(290);

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct AdminArgs {
    /// Where the server's admin API answers.
    #[arg(long, env = "VOXGATE_ADMIN", value_name = "URL", default_value = "http://127.0.0.1:9090")]
    admin: String,
    /// Its bearer token; without it, the file that the server on this machine
    /// wrote is read.
    #[arg(long, env = "VOXGATE_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
    /// Print JSON instead of text.
    #[arg(long, env = "VOXGATE_JSON")]
    pub(super) json: bool,
}

/// One server's admin API.
pub(super) struct Api {
    agent: ureq::Agent,
    base: String,
    token: Option<Secret>,
}

impl Api {
    pub(super) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        Self::with_patience(args, PATIENCE)
    }

    /// For what may take long: counting all rows of an account.
    pub(super) fn patient(args: &AdminArgs) -> Result<Self, Failure> {
        Self::with_patience(args, PATIENCE_LONG)
    }

    fn with_patience(args: &AdminArgs, patience: Duration) -> Result<Self, Failure> {
        let base = args.admin.trim_end_matches('/').to_owned();
        let uri: http::Uri =
            base.parse().map_err(|_| Failure::new(2, format!("--admin {base:?} is not a URL")))?;
        if uri.scheme_str() != Some("http") {
            return Err(Failure::new(2, "--admin must begin with http://"));
        }
        let token = match &args.admin_token {
            Some(token) => Some(Secret::new(token.trim())),
            None => admin::read_token(&admin::token_path(uri.port_u16().unwrap_or(80))),
        };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(patience))
            .max_redirects(0)
            .http_status_as_error(false)
            .build();
        Ok(Self { agent: config.into(), base, token })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.get(format!("{}{path}", self.base));
        self.finish(self.signed(request).call())
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.post(format!("{}{path}", self.base));
        self.finish(self.signed(request).send_json(body))
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.patch(format!("{}{path}", self.base));
        self.finish(self.signed(request).send_json(body))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.delete(format!("{}{path}", self.base));
        self.finish(self.signed(request).call())
    }

    /// A page of text with its headers.
    pub(super) fn text(&self, path: &str) -> Result<(String, http::HeaderMap), Failure> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let mut response = self.answered(self.signed(request).call())?;
        if !response.status().is_success() {
            return Err(self.refused(&mut response));
        }
        let headers = response.headers().clone();
        let text = response.body_mut().with_config().limit(TEXT_BYTES_MAX).read_to_string();
        text.map(|text| (text, headers))
            .map_err(|error| Failure::unavailable(format!("{} broke off: {error}; try again", self.base)))
    }

    fn signed<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {}", token.expose())),
            None => request,
        }
    }

    fn finish(&self, answer: Result<http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let mut response = self.answered(answer)?;
        if response.status().is_success() {
            return Ok(response.body_mut().read_json().unwrap_or(Value::Null));
        }
        Err(self.refused(&mut response))
    }

    fn answered(
        &self,
        answer: Result<http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<http::Response<ureq::Body>, Failure> {
        answer.map_err(|error| {
            Failure::unavailable(format!(
                "{} does not answer: {error}; is `voxgate serve` running?",
                self.base
            ))
        })
    }

    /// What a refusal says, and what to mend.
    fn refused(&self, response: &mut http::Response<ureq::Body>) -> Failure {
        let status = response.status();
        let body: Value = response.body_mut().read_json().unwrap_or(Value::Null);
        let mut text =
            format!("{status}: {}", plain(at(&body, "/detail").as_str().unwrap_or("no reason was given")));
        for fault in at(&body, "/errors").as_array().into_iter().flatten() {
            let (field, detail) = (at(fault, "/field").as_str(), at(fault, "/detail").as_str());
            text.push_str(&format!(
                "\n{} {}",
                plain(field.unwrap_or_default()),
                plain(detail.unwrap_or_default())
            ));
        }
        if status.as_u16() == 401 && self.token.is_none() {
            text.push_str(
                "\nno token was given and the server's own file was not found; set VOXGATE_ADMIN_TOKEN",
            );
        }
        let unavailable = status.is_server_error();
        if unavailable { Failure::unavailable(text) } else { Failure::failed(text) }
    }
}

/// Largest page of text: 500 rows of the ledger, each with the longest tags, many times over.
const TEXT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The path of something of an account. Names outside the alphabet are refused by the server; here they only must
/// not leave their place.
pub(super) fn path(account: &str, rest: &[&str]) -> String {
    let mut path = format!("/v1/accounts/{}", escaped(account));
    for step in rest {
        path.push('/');
        path.push_str(&escaped(step));
    }
    path
}

/// A text that stays in its place in a path or query.
pub(super) fn escaped(text: &str) -> String {
    let step = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
        other => format!("%{other:02X}"),
    };
    match text {
        // Clients take these for steps, escaped or not; nothing has such a name.
        "." | ".." => "%00".to_owned(),
        _ => text.bytes().map(step).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn ids_stay_in_their_place() {
        assert_eq!(path("a/../b?c", &["keys"]), "/v1/accounts/a%2F..%2Fb%3Fc/keys");
        assert_eq!(path("..", &["."]), "/v1/accounts/%00/%00");
    }
}
