//! Who may use the admin API: a bearer token, compared in constant time, with few wrong tries per address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use crate::config::Secret;

use super::problem::Problem;

/// Wrong tries that one address has per [`WINDOW`]; after them even the right token must wait.
const FAILURES_MAX: u32 = 10;
/// How long wrong tries are remembered.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses remembered at once; when there are more, all others share the last place.
const ADDRESSES_MAX: usize = 4096;

/// The token and the wrong tries of late.
#[derive(Debug)]
pub(super) struct Access {
    token: Secret,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

impl Access {
    pub(super) fn new(token: Secret) -> Self {
        Self { token, failures: Mutex::new(HashMap::new()) }
    }

    /// Lets a request in, or says why not. `now` comes from the caller.
    pub(super) fn check(&self, headers: &HeaderMap, from: IpAddr, now: Instant) -> Result<(), Problem> {
        let place = network(from);
        if let Some(wait) = self.wait(place, now) {
            denied("limited");
            return Err(Problem::too_many_failures(u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1)));
        }
        match bearer(headers) {
            Some(token) if same(token, self.token.expose()) => Ok(()),
            Some(_) => {
                denied("wrong");
                self.count(place, now);
                Err(Problem::unauthorized())
            }
            None => {
                denied("missing");
                Err(Problem::unauthorized())
            }
        }
    }

    fn wait(&self, place: IpAddr, now: Instant) -> Option<Duration> {
        let failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = failures.get(&place).or_else(|| failures.get(&crowd()))?;
        let passed = now.saturating_duration_since(found.since);
        (found.count >= FAILURES_MAX && passed < WINDOW).then(|| WINDOW.saturating_sub(passed))
    }

    fn count(&self, place: IpAddr, now: Instant) {
        let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if failures.len() >= ADDRESSES_MAX {
            failures.retain(|_, entry| now.saturating_duration_since(entry.since) < WINDOW);
        }
        let full = failures.len() >= ADDRESSES_MAX && !failures.contains_key(&place);
        let entry = failures.entry(if full { crowd() } else { place });
        let entry = entry.or_insert(Failures { count: 0, since: now });
        if now.saturating_duration_since(entry.since) >= WINDOW {
            *entry = Failures { count: 0, since: now };
        }
        entry.count = entry.count.saturating_add(1);
    }
}

/// The place of all addresses for which there was no room.
const fn crowd() -> IpAddr {
    IpAddr::V6(Ipv6Addr::UNSPECIFIED)
}

/// One machine has many IPv6 addresses, so those count by their /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Compares digests, so that not even the length shows in the time taken.
fn same(left: &str, right: &str) -> bool {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(left).ct_eq(&Sha256::digest(right)).into()
}

fn denied(reason: &'static str) {
    metrics::counter!("voxgate_admin_denials_total", "reason" => reason).increment(1);
}

#[cfg(test)]
mod tests {
    use super::{ADDRESSES_MAX, Access, FAILURES_MAX, WINDOW};
    use crate::config::Secret;
    use axum::http::HeaderMap;
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Instant;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().unwrap());
        headers
    }

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn only_the_token_opens() {
        let (access, now) = (Access::new(Secret::new("0123456789abcdef")), Instant::now());
        assert!(access.check(&headers("bearer 0123456789abcdef"), HERE, now).is_ok());
        for wrong in
            ["Bearer", "Bearer ", "Bearer 0123456789abcde", "Token 0123456789abcdef", "0123456789abcdef"]
        {
            assert!(access.check(&headers(wrong), HERE, now).is_err(), "{wrong:?}");
        }
        assert!(access.check(&HeaderMap::new(), HERE, now).is_err());
    }

    #[test]
    fn wrong_tokens_run_out() {
        let (access, now) = (Access::new(Secret::new("0123456789abcdef")), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert!(access.check(&headers("Bearer wrong"), HERE, now).is_err());
        }
        let right = headers("Bearer 0123456789abcdef");
        assert!(format!("{:?}", access.check(&right, HERE, now)).contains("status: 429"));
        let elsewhere = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert!(access.check(&right, elsewhere, now).is_ok());
        assert!(access.check(&right, HERE, now + WINDOW).is_ok());
    }

    #[test]
    fn many_addresses_stay_bounded() {
        let (access, now) = (Access::new(Secret::new("0123456789abcdef")), Instant::now());
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).unwrap() {
            _ = access.check(&headers("Bearer wrong"), IpAddr::V4(Ipv4Addr::from_bits(number)), now);
        }
        assert!(access.failures.lock().unwrap().len() <= ADDRESSES_MAX + 1);
    }
}
