//! Tokens: what opens, and everything that must not.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::{Fault, Grant, Ring, TokenSecrets, looks_signed};
use crate::limits;
use crate::quota::Name;
use crate::units::Units;

const NOW_MS: u64 = 1_800_000_000_500;
const NOW: u64 = NOW_MS / 1000;
const OLD: &str = "the-old-secret-of-more-than-32-bytes";
const NEW: &str = "the-new-secret-of-more-than-32-bytes";

fn ring(secrets: &[&str]) -> Ring {
    let secrets = TokenSecrets::new(secrets.iter().map(|secret| (*secret).to_owned()).collect());
    Ring::new(&secrets.expect("sound secrets")).expect("a ring")
}

fn grant() -> Grant {
    Grant {
        account: Name::parse("acme").expect("a name"),
        fingerprint: "00112233aabbccdd".into(),
        session: Name::parse("call-7"),
        cap: Units::new(5_000),
        models: vec!["nova-3".into()],
    }
}

fn claims() -> Value {
    json!({"iss": "voxgate", "sub": "acme", "kid": "00112233aabbccdd", "iat": NOW, "exp": NOW + 30, "jti": "1"})
}

/// A token as a backend would sign it itself.
fn signed(header: &Header, claims: &Value, secret: &str) -> String {
    encode(header, claims, &EncodingKey::from_secret(secret.as_bytes()).expect("a key")).expect("a token")
}

fn hs256() -> Header {
    Header::new(Algorithm::HS256)
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

#[test]
fn signed_grant_reads_back() {
    let ring = ring(&[NEW]);
    let token = ring.sign(&grant(), "id", NOW_MS, 30).expect("short enough");
    assert!(looks_signed(&token) && token.len() < limits::TOKEN_BYTES_MAX, "{}", token.len());
    assert_eq!(ring.read(&token, NOW_MS), Ok(grant()));
    let plain = Grant { session: None, cap: None, models: Vec::new(), ..grant() };
    let token = ring.sign(&plain, "id", NOW_MS, 30).expect("short enough");
    assert_eq!(ring.read(&token, NOW_MS), Ok(plain));
}

#[test]
fn token_lives_its_time_and_ends() {
    let ring = ring(&[NEW]);
    for seconds in [1, 30, limits::TOKEN_SECONDS_MAX] {
        let token = ring.sign(&grant(), "id", NOW_MS, seconds).expect("short enough");
        let life = u64::from(seconds) * 1000;
        assert_eq!(ring.read(&token, NOW_MS + life), Ok(grant()), "{seconds}");
        assert_eq!(ring.read(&token, NOW_MS + life + 1000), Err(Fault::Expired), "{seconds}");
        let ahead = super::super::milliseconds(limits::TOKEN_AHEAD);
        assert!(ring.read(&token, NOW_MS - ahead).is_ok(), "a store that went back a little");
        assert_eq!(ring.read(&token, NOW_MS - ahead - 1000), Err(Fault::Claims), "{seconds}");
    }
}

#[test]
fn rotation_cuts_nobody_off() {
    let (before, both, after) = (ring(&[OLD]), ring(&[NEW, OLD]), ring(&[NEW]));
    let old = before.sign(&grant(), "id", NOW_MS, 30).expect("short enough");
    let new = both.sign(&grant(), "id", NOW_MS, 30).expect("short enough");
    assert!(both.read(&old, NOW_MS).is_ok() && both.read(&new, NOW_MS).is_ok());
    assert!(after.read(&new, NOW_MS).is_ok());
    assert_eq!(after.read(&old, NOW_MS), Err(Fault::Forged));
    assert_eq!(before.read(&new, NOW_MS), Err(Fault::Forged));
}

#[test]
fn backends_may_sign_themselves() {
    let ring = ring(&[NEW, OLD]);
    for secret in [NEW, OLD] {
        let token = signed(&hs256(), &claims(), secret);
        assert_eq!(ring.read(&token, NOW_MS).map(|grant| grant.session), Ok(None));
    }
    let named = Header { kid: Some("another".into()), ..hs256() };
    assert_eq!(ring.read(&signed(&named, &claims(), NEW), NOW_MS), Err(Fault::Forged));
}

#[test]
fn other_algorithms_are_forged() {
    let ring = ring(&[NEW]);
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let token = signed(&Header::new(algorithm), &claims(), NEW);
        assert_eq!(ring.read(&token, NOW_MS), Err(Fault::Forged), "{algorithm:?}");
    }
    let body = signed(&hs256(), &claims(), NEW).split('.').nth(1).expect("a body").to_owned();
    // {"alg":"none"} and {"alg":"None","typ":"JWT"}
    for header in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIiwidHlwIjoiSldUIn0"] {
        for token in
            [format!("{header}.{body}."), format!("{header}.{body}.AAAA"), format!("{header}.{body}")]
        {
            assert_eq!(ring.read(&token, NOW_MS), Err(Fault::Forged), "{token}");
        }
    }
}

#[test]
fn odd_claims_open_nothing() {
    let ring = ring(&[NEW]);
    for (name, value) in [
        ("iss", json!("somebody")),
        ("sub", json!("a{b}c")),
        ("sub", json!("")),
        ("sub", json!(7)),
        ("kid", json!("a:b")),
        ("sid", json!("a b")),
        ("cap", json!(5)),
        ("cap", json!(-1)),
        ("exp", json!(NOW + 2 + u64::from(limits::TOKEN_SECONDS_MAX))),
        ("exp", json!(u64::MAX)),
        ("exp", json!(-1)),
        ("exp", json!(NOW as f64 + 0.5)),
        ("iat", json!(NOW + 31)),
        ("iat", json!(u64::MAX)),
        ("nbf", json!(NOW + 20)),
        ("aud", json!("x")),
        ("modles", json!(["m"])),
        ("models", json!("m")),
        ("models", json!(vec!["m"; limits::TOKEN_MODELS_MAX + 1])),
    ] {
        let token = signed(&hs256(), &with(name, value.clone()), NEW);
        assert_eq!(ring.read(&token, NOW_MS), Err(Fault::Claims), "{name} {value}");
    }
    for name in ["iss", "sub", "kid", "iat", "exp", "jti"] {
        let mut claims = claims();
        claims.as_object_mut().expect("an object").remove(name);
        assert_eq!(ring.read(&signed(&hs256(), &claims, NEW), NOW_MS), Err(Fault::Claims), "{name}");
    }
    let late = with("exp", json!(NOW));
    assert_eq!(ring.read(&signed(&hs256(), &late, NEW), NOW_MS), Err(Fault::Expired));
}

/// Whatever is cut off, changed or made up: never a grant, never a panic.
#[test]
fn damaged_tokens_never_open() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let (ring, mut random) = (ring(&[NEW, OLD]), fastrand::Rng::with_seed(seed));
    let token = ring.sign(&grant(), "id", NOW_MS, 30).expect("short enough");
    for cut in 0..token.len() {
        assert_eq!(ring.read(&token[..cut], NOW_MS), Err(Fault::Forged), "{cut}");
    }
    for _ in 0..5_000 {
        let mut bytes = token.clone().into_bytes();
        let at = random.usize(..bytes.len());
        let byte = random.u8(33..127);
        // The last character of base64 carries bits that mean nothing; the library refuses or ignores them.
        if bytes[at] == byte || at + 1 == bytes.len() {
            continue;
        }
        bytes[at] = byte;
        let text = String::from_utf8(bytes).expect("ASCII");
        assert!(ring.read(&text, NOW_MS).is_err(), "{text}");
    }
    for _ in 0..5_000 {
        let length = random.usize(..3 * limits::TOKEN_BYTES_MAX / 2);
        let text: String =
            (0..length).map(|_| *random.choice(b"eyJ.{}\"abcAZ-_09").unwrap_or(&b'.') as char).collect();
        assert!(ring.read(&text, NOW_MS).is_err(), "{text}");
    }
    assert_eq!(ring.read(&"eyJ.".repeat(100_000), NOW_MS), Err(Fault::Forged));
}

#[test]
fn long_grants_get_no_token() {
    let models = (0..limits::TOKEN_MODELS_MAX).map(|n| format!("{n:0>128}")).collect();
    assert_eq!(ring(&[NEW]).sign(&Grant { models, ..grant() }, "id", NOW_MS, 30), None);
}

#[test]
fn secrets_are_bounded_and_hidden() {
    let of = |length: usize, count: usize| TokenSecrets::new(vec!["s".repeat(length); count]);
    assert_eq!((of(31, 1), of(513, 1), of(32, 9)), (None, None, None));
    assert_eq!(format!("{:?}", of(32, 8).expect("sound")), "TokenSecrets(8)");
    assert!(Ring::new(&TokenSecrets::default()).is_none());
}
