//! What the store is, and whether money is safe in it. Asks with plain commands; changes nothing.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use voxgate::config::StoreUrl;
use voxgate::quota::Quota;
use voxgate::quota::store::{Reply, Shard, StoreError};
use voxgate::quota::watch::{Slow, Vitals};

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
    let shards = quota.shards().await?;
    let mut findings = Vec::new();
    for shard in &shards {
        let found = primary(quota, shard).await?;
        // Several primaries: each finding says of which.
        let named = |finding: Finding| match shards.len() {
            0 | 1 => finding,
            _ => Finding { reason: format!("{}: {}", shard.name, finding.reason), ..finding },
        };
        findings.extend(found.into_iter().map(named));
        findings.extend(cluster(quota, shard, shards.len()).await.map(named));
    }
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

/// Looks at one primary.
async fn primary(quota: &Quota, shard: &Shard) -> Result<Vec<Finding>, StoreError> {
    let mut findings = match quota.command_on(shard, &["INFO", "all"]).await {
        Ok(reply) => judge(&text(&reply).unwrap_or_default()),
        Err(StoreError::Denied(text)) if text.starts_with("NOPERM") => {
            let reason = "INFO is not allowed: version, role, eviction and persistence are not known";
            vec![Finding::warn("store INFO", reason, "allow it in the ACL: +info")]
        }
        Err(error) => return Err(error),
    };
    match quota.slow_scripts(shard).await {
        Ok(log) => findings.push(slow(&log)),
        Err(StoreError::Denied(text)) if text.starts_with("NOPERM") => {
            let reason = "SLOWLOG is not allowed: slow scripts do not show";
            findings.push(Finding::warn("store slow log", reason, "allow it in the ACL: +slowlog|get"));
        }
        Err(error) => return Err(error),
    }
    let sent = now();
    match quota.command_on(shard, &["TIME"]).await {
        Ok(time) => findings.push(clock(&time, sent, now())),
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// Scripts in the slow log: each held up every chunk of audio on that primary.
fn slow(log: &[Slow]) -> Finding {
    let Some(most) = log.iter().max_by_key(|slow| slow.took) else {
        return Finding::pass("store slow log", "no script in it");
    };
    let foreign = log.iter().filter(|slow| slow.script.is_none()).count();
    let reason = format!(
        "{} scripts in it, {foreign} of them not ours; the slowest, {}, took {:?}",
        log.len(),
        most.script.unwrap_or("not ours"),
        most.took,
    );
    let fix = "move who runs long scripts to another server: nothing else is served meanwhile";
    Finding::warn("store slow log", reason, fix)
}

/// How the cluster is that this primary belongs to; `None` where it belongs to none.
async fn cluster(quota: &Quota, shard: &Shard, known: usize) -> Option<Finding> {
    let reply = quota.command_on(shard, &["CLUSTER", "INFO"]).await.ok()?;
    Some(judge_cluster(&facts(&text(&reply).unwrap_or_default()), known))
}

fn judge_cluster(facts: &HashMap<&str, &str>, known: usize) -> Finding {
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
    let size: usize = fact("cluster_size").parse().unwrap_or(0);
    let served = fact("cluster_slots_ok");
    match fact("cluster_state") {
        "ok" if size > known => {
            let reason = format!("{size} primaries share the slots, {known} of them is asked");
            Finding::fail("store cluster", reason, "use a redis+cluster:// address")
        }
        "ok" => Finding::pass("store cluster", format!("ok, {size} primaries, {served} slots served")),
        state => {
            let reason = format!("state {state:?}, {served} of 16384 slots served");
            Finding::fail("store cluster", reason, "see CLUSTER NODES, and bring back what is missing")
        }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// `INFO` as names and values.
fn facts(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Reply::Status(text) => Some(text.clone()),
        Reply::Nil | Reply::Int(_) | Reply::List(_) => None,
    }
}

fn judge(info: &str) -> Vec<Finding> {
    let facts = facts(info);
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
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
        match fact("loading") {
            "1" => Finding::fail("store state", "is still loading", "wait until it has loaded"),
            _ => Finding::pass("store state", "serving"),
        },
        pressure(&Vitals::read(info)),
    ]
}

/// What the server had to refuse or throw away since its start, and how full it is.
fn pressure(vitals: &Vitals) -> Finding {
    let name = "store pressure";
    let busy = vitals.errors.get("busy").copied().unwrap_or(0);
    if vitals.evicted_keys > 0 {
        let reason = format!("{} keys thrown away for lack of memory", vitals.evicted_keys);
        return Finding::warn(name, reason, "run `voxgate audit`; give it memory and noeviction");
    }
    if vitals.memory_max > 0 && vitals.memory.saturating_mul(10) > vitals.memory_max.saturating_mul(9) {
        let reason = format!("{} of {} bytes in use", vitals.memory, vitals.memory_max);
        return Finding::warn(name, reason, "raise maxmemory: a full store opens no stream");
    }
    if busy > 0 {
        let reason = format!("{busy} calls refused because a script held the server");
        return Finding::warn(name, reason, "move who runs long scripts to another server");
    }
    if vitals.evicted_scripts > 0 {
        let reason = format!("{} scripts thrown away: somebody sends ever new ones", vitals.evicted_scripts);
        return Finding::warn(name, reason, "pass values to scripts as arguments, not in their text");
    }
    Finding::pass(name, "nothing refused, nothing thrown away")
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
    use super::{Grade, Slow, Vitals, clock, facts, judge, judge_cluster, pressure, slow, version};
    use std::time::Duration;
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
        let findings = judge(info);
        let grade =
            |name: &str| findings.iter().find(|finding| finding.name == name).map(|finding| finding.grade);
        assert_eq!(grade("store role"), Some(Grade::Fail));
        assert_eq!(grade("store eviction"), Some(Grade::Fail));
        assert_eq!(grade("store persistence"), Some(Grade::Warn));
        assert!(findings.iter().all(|finding| finding.grade == Grade::Pass || !finding.fix.is_empty()));
    }

    #[test]
    fn pressure_shows_in_its_order() {
        let told = |info: &str| pressure(&Vitals::read(info));
        assert_eq!(told("").grade, Grade::Pass);
        assert!(told("errorstat_BUSY:count=3\r\nevicted_scripts:4").reason.starts_with("3 calls"));
        assert!(told("evicted_scripts:4").reason.starts_with("4 scripts"));
        assert!(told("used_memory:95\r\nmaxmemory:100").reason.contains("95 of 100"));
        assert!(told("evicted_keys:1\r\nused_memory:95\r\nmaxmemory:100").reason.starts_with("1 keys"));
        assert_eq!(told("used_memory:80\r\nmaxmemory:100").grade, Grade::Pass);
    }

    #[test]
    fn broken_clusters_fail() {
        let told = |info: &str, known: usize| judge_cluster(&facts(info), known);
        let good = "cluster_state:ok\r\ncluster_slots_ok:16384\r\ncluster_size:3\r\n";
        assert_eq!(told(good, 3).grade, Grade::Pass);
        assert_eq!(told(good, 1).grade, Grade::Fail);
        assert!(told("cluster_state:fail\r\ncluster_slots_ok:5461\r\n", 3).reason.contains("5461 of 16384"));
    }

    #[test]
    fn slow_log_names_the_slowest() {
        assert_eq!(slow(&[]).grade, Grade::Pass);
        let entry = |ms, script| Slow { id: 1, took: Duration::from_millis(ms), script };
        let finding = slow(&[entry(12, Some("admit")), entry(400, None)]);
        assert!(finding.reason.contains("2 scripts in it, 1 of them not ours"), "{}", finding.reason);
        assert!(finding.reason.contains("400ms"), "{}", finding.reason);
    }

    #[test]
    fn clocks_may_differ_by_the_way() {
        let reply = |s: &str| Reply::List(vec![Reply::Bulk(s.into()), Reply::Bulk(b"500000".to_vec())]);
        assert_eq!(clock(&reply("100"), 100.0, 101.0).grade, Grade::Pass);
        assert_eq!(clock(&reply("103"), 100.0, 101.0).grade, Grade::Warn);
        assert_eq!(clock(&reply("103"), 100.0, 106.0).grade, Grade::Pass);
    }
}
