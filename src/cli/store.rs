//! What the store is, and whether money is safe in it. Asks with plain commands; changes nothing.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use voxgate::config::StoreUrl;
use voxgate::quota::Quota;
use voxgate::quota::store::{Reply, StoreError};

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// As it should be.
    Pass,
    /// Works, but somebody should know.
    Warn,
    /// Does not work, or loses money.
    Fail,
}

impl Grade {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) grade: Grade,
    pub(super) reason: String,
    /// What to do about it; empty when all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) fix: &'static str,
}

impl Finding {
    pub(super) fn pass(name: &str, reason: impl Into<String>) -> Self {
        Self { name: name.to_owned(), grade: Grade::Pass, reason: reason.into(), fix: "" }
    }

    pub(super) fn warn(name: &str, reason: impl Into<String>, fix: &'static str) -> Self {
        Self { name: name.to_owned(), grade: Grade::Warn, reason: reason.into(), fix }
    }

    pub(super) fn fail(name: &str, reason: impl Into<String>, fix: &'static str) -> Self {
        Self { name: name.to_owned(), grade: Grade::Fail, reason: reason.into(), fix }
    }
}

/// Looks at the store. Errors only when it does not answer at all.
pub(super) async fn inspect(quota: &Quota, url: &StoreUrl) -> Result<Vec<Finding>, StoreError> {
    if *url == StoreUrl::Embedded {
        let reason = "embedded, in memory: books end with the process";
        return Ok(vec![Finding::warn(
            "store",
            reason,
            "use embedded:DIR or redis:// where budgets must last",
        )]);
    }
    if let StoreUrl::Disk(_) = url {
        let reason = "embedded, on disk: checked and read; a crash loses at most the last second";
        return Ok(vec![Finding::pass("store", reason)]);
    }
    let facts = facts(&quota.command(&["INFO"]).await?);
    let mut findings = judge(&facts);
    let sent = now();
    let time = quota.command(&["TIME"]).await?;
    findings.push(clock(&time, sent, now()));
    findings.push(permissions(&quota.missing_permissions().await?));
    Ok(findings)
}

/// Without one of them a script would stop half way, and leave torn books.
fn permissions(missing: &[String]) -> Finding {
    if missing.is_empty() {
        return Finding::pass("store permissions", "our user may run all that is needed");
    }
    let reason = format!("our user may not run {}", missing.join(", "));
    Finding::fail("store permissions", reason, "give it the rules of deploy/voxgate.acl")
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// `INFO` as names and values.
fn facts(reply: &Reply) -> HashMap<String, String> {
    let text = text(reply).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Reply::Status(text) => Some(text.clone()),
        Reply::Nil | Reply::Int(_) | Reply::List(_) => None,
    }
}

fn judge(facts: &HashMap<String, String>) -> Vec<Finding> {
    let fact = |name: &str| facts.get(name).map_or("", String::as_str);
    vec![
        version(fact("valkey_version"), fact("redis_version")),
        match fact("role") {
            "master" => Finding::pass("store role", "primary"),
            role => {
                Finding::fail("store role", format!("{role:?}"), "name the primary: a replica can't decide")
            }
        },
        match fact("maxmemory_policy") {
            "noeviction" => Finding::pass("store eviction", "noeviction"),
            policy => Finding::fail(
                "store eviction",
                format!("{policy:?}: the store would throw budgets away when it is full"),
                "set maxmemory-policy noeviction",
            ),
        },
        if fact("aof_enabled") == "1" {
            Finding::pass("store persistence", "append-only file is on")
        } else {
            let reason = "append-only file is off: a restart gives spent money back";
            Finding::warn("store persistence", reason, "set appendonly yes")
        },
        match fact("connected_slaves") {
            "" | "0" => {
                Finding::warn("store replicas", "none", "add a replica where the store must not be missed")
            }
            count => Finding::pass("store replicas", count),
        },
        match (fact("loading"), fact("cluster_enabled")) {
            ("1", _) => Finding::fail("store state", "is still loading", "wait until it has loaded"),
            (_, "1") => {
                Finding::warn("store state", "cluster mode", "cluster redirects are not followed yet")
            }
            (_, _) => Finding::pass("store state", "serving"),
        },
    ]
}

/// Valkey tells a Redis version too, for old clients; its own one counts.
fn version(valkey: &str, redis: &str) -> Finding {
    let (kind, version, least) =
        if valkey.is_empty() { ("Redis", redis, (7, 0)) } else { ("Valkey", valkey, (7, 2)) };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= least {
        Finding::pass("store version", format!("{kind} {version}"))
    } else {
        let reason =
            format!("{kind} {version:?}; scripts that begin with #!lua need {}.{}", least.0, least.1);
        Finding::fail("store version", reason, "use Redis 7.0 or Valkey 7.2 or later")
    }
}

/// The store's clock against ours, with the time on the way as the error.
fn clock(reply: &Reply, sent: f64, back: f64) -> Finding {
    let Reply::List(parts) = reply else {
        return Finding::warn("store clock", "TIME gave no time", "look at the store's ACL");
    };
    let seconds = parts.first().and_then(text).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let micros = parts.get(1).and_then(text).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let skew = (seconds + micros / 1e6 - f64::midpoint(sent, back)).abs() - (back - sent) / 2.0;
    if skew > 1.0 {
        let reason = format!("{skew:.1} s away from this machine's");
        Finding::warn("store clock", reason, "run a time service (chrony, systemd-timesyncd) on both")
    } else {
        Finding::pass("store clock", "within 1 s of this machine's")
    }
}

#[cfg(test)]
mod tests {
    use super::{Grade, clock, facts, judge, version};
    use voxgate::quota::store::Reply;

    #[test]
    fn old_versions_fail() {
        assert_eq!(version("", "7.0.15").grade, Grade::Pass);
        assert_eq!(version("", "6.2.14").grade, Grade::Fail);
        assert_eq!(version("7.2.4", "7.2.4").grade, Grade::Pass);
        assert_eq!(version("9.1.0", "7.2.4").grade, Grade::Pass);
        assert_eq!(version("", "").grade, Grade::Fail);
    }

    #[test]
    fn what_loses_money_fails() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrole:slave\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
        let findings = judge(&facts(&Reply::Bulk(info.as_bytes().to_vec())));
        let grade =
            |name: &str| findings.iter().find(|finding| finding.name == name).map(|finding| finding.grade);
        assert_eq!(grade("store role"), Some(Grade::Fail));
        assert_eq!(grade("store eviction"), Some(Grade::Fail));
        assert_eq!(grade("store persistence"), Some(Grade::Warn));
        assert!(findings.iter().all(|finding| finding.grade == Grade::Pass || !finding.fix.is_empty()));
    }

    #[test]
    fn clocks_may_differ_by_the_way() {
        let reply = |s: &str| Reply::List(vec![Reply::Bulk(s.into()), Reply::Bulk(b"500000".to_vec())]);
        assert_eq!(clock(&reply("100"), 100.0, 101.0).grade, Grade::Pass);
        assert_eq!(clock(&reply("103"), 100.0, 101.0).grade, Grade::Warn);
        assert_eq!(clock(&reply("103"), 100.0, 106.0).grade, Grade::Pass);
    }
}
