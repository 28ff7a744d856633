//! What the admin listener answers, asked through the router itself.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{BODY_BYTES_MAX, Parts, Readiness, router};
use crate::config::Secret;
use crate::quota::store::Store;
use crate::quota::{Quota, Settings};
use crate::telemetry::Metrics;

const TOKEN: &str = "0123456789abcdef";

fn rig() -> (Router, Readiness) {
    let readiness = Readiness::new(|| 1);
    let parts = Parts {
        quota: quota(),
        readiness: readiness.clone(),
        metrics: Metrics::local().1,
        token: Secret::new(TOKEN),
        share: 8,
    };
    (router(parts), readiness)
}

fn quota() -> Quota {
    Quota::new(Store::open("embedded").unwrap(), Settings::default())
}

async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, kind) = (response.status(), response.headers()["content-type"].clone());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    if status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE && kind != "application/json" {
        assert_eq!(kind, "application/problem+json");
    }
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn call(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request =
        Request::builder().method(method).uri(path).header("authorization", format!("Bearer {TOKEN}"));
    request.body(body.into()).unwrap()
}

fn bare(path: &str) -> Request<Body> {
    Request::builder().uri(path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn health_needs_no_token() {
    let (router, readiness) = rig();
    for path in ["/healthz", "/metrics", "/version"] {
        assert_eq!(ask(&router, bare(path)).await.0, StatusCode::OK, "{path}");
    }
    let (status, body) = ask(&router, bare("/readyz")).await;
    assert_eq!((status, &body["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(false)));
    readiness.note_probe(None);
    readiness.note_scripts(None);
    assert_eq!(ask(&router, bare("/readyz")).await.0, StatusCode::OK);
    readiness.drain();
    let (status, body) = ask(&router, bare("/readyz")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["parts"][0], json!({ "name": "gateway", "ready": false, "reason": "draining" }));
}

#[tokio::test]
async fn accounts_need_the_token() {
    let (router, _) = rig();
    for path in ["/v1/accounts", "/v1/accounts/a", "/v1/accounts/a/balance", "/v1/accounts/a/keys"] {
        let (status, body) = ask(&router, bare(path)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(body["type"], "urn:voxgate:problem:unauthorized");
    }
    for path in ["//v1/accounts", "/V1/accounts", "/v1%2faccounts", "/debug", "/"] {
        assert_eq!(ask(&router, bare(path)).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn an_account_is_made_changed_and_read() {
    let (router, _) = rig();
    let made = json!({ "id": "acme", "cap": 60_000, "period": "hour", "zone": "UTC" });
    let (status, body) = ask(&router, call("POST", "/v1/accounts", made.to_string())).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    assert_eq!(body["share"], 8);
    let (status, body) = ask(&router, call("POST", "/v1/accounts", made.to_string())).await;
    assert_eq!(
        (status, body["type"].as_str()),
        (StatusCode::CONFLICT, Some("urn:voxgate:problem:already-exists"))
    );

    let change = json!({ "cap": 9_007_199_254_740_991_u64, "frozen": true });
    let (status, body) = ask(&router, call("PATCH", "/v1/accounts/acme", change.to_string())).await;
    assert_eq!((status, &body["frozen"], &body["period"]), (StatusCode::OK, &json!(true), &json!("hour")));
    let (_, body) = ask(&router, call("GET", "/v1/accounts/acme", "")).await;
    assert_eq!(body["cap"], 9_007_199_254_740_991_u64);
    let (_, body) = ask(&router, call("GET", "/v1/accounts", "")).await;
    assert_eq!(body["accounts"].as_array().unwrap().len(), 1);
    let (status, body) = ask(&router, call("GET", "/v1/accounts/acme/balance", "")).await;
    assert_eq!((status, &body["taken"]), (StatusCode::OK, &json!(0)), "{body}");
    for path in ["/v1/accounts/nobody", "/v1/accounts/a%7Db", "/v1/accounts/nobody/balance"] {
        assert_eq!(ask(&router, call("GET", path, "")).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_key_is_shown_once() {
    let (router, _) = rig();
    ask(&router, call("POST", "/v1/accounts", json!({ "id": "acme", "cap": 1 }).to_string())).await;
    let wanted =
        json!({ "label": "web", "session_cap": 500, "cap": null, "streams_max": 3, "models": ["nova-3"] });
    let (status, body) = ask(&router, call("POST", "/v1/accounts/acme/keys", wanted.to_string())).await;
    assert_eq!((status, &body["session_cap"]), (StatusCode::CREATED, &json!(500)), "{body}");
    let secret = body["secret"].as_str().unwrap();
    let (_, listed) = ask(&router, call("GET", "/v1/accounts/acme/keys", "")).await;
    assert_eq!(listed["keys"][0]["fingerprint"], body["fingerprint"]);
    assert!(!listed.to_string().contains(secret));
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let (router, _) = rig();
    let body = r#"{"id":"a b","cap":-1,"period":"year","zone":"Mars/One","share":0,"frozen":1,"colour":2}"#;
    let (status, answer) = ask(&router, call("POST", "/v1/accounts", body)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let fields: Vec<_> =
        answer["errors"].as_array().unwrap().iter().map(|fault| fault["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["id", "cap", "period", "zone", "share", "frozen", "colour"]);
}

#[tokio::test]
async fn amounts_are_whole_and_bounded() {
    let (router, _) = rig();
    for cap in ["-1", "1.5", "1e3", "9007199254740992", "18446744073709551616", "\"5\"", "null", "[]"] {
        let body = format!(r#"{{"id":"a","cap":{cap}}}"#);
        let (status, answer) = ask(&router, call("POST", "/v1/accounts", body)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{cap}");
        assert_eq!(answer["errors"][0]["field"], "cap", "{cap}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_json() {
    let (router, _) = rig();
    for body in ["", "{", "[]", "\u{0}"] {
        assert_eq!(
            ask(&router, call("POST", "/v1/accounts", body)).await.0,
            StatusCode::BAD_REQUEST,
            "{body:?}"
        );
    }
    let large = " ".repeat(BODY_BYTES_MAX + 1);
    let (status, _) = ask(&router, call("POST", "/v1/accounts", large)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(ask(&router, call("PUT", "/v1/accounts", "")).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn ten_wrong_tokens_are_enough() {
    let (router, _) = rig();
    let wrong = |n: u32| {
        Request::builder()
            .uri("/v1/accounts")
            .header("authorization", format!("Bearer {n:016}"))
            .body(Body::empty())
            .unwrap()
    };
    for n in 0..10 {
        assert_eq!(ask(&router, wrong(n)).await.0, StatusCode::UNAUTHORIZED);
    }
    for n in 10..10_000 {
        assert_eq!(ask(&router, wrong(n)).await.0, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(ask(&router, call("GET", "/v1/accounts", "")).await.0, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_are_given_up() {
    let (router, _) = rig();
    for (method, path) in
        [("POST", "/v1/accounts"), ("PATCH", "/v1/accounts/a"), ("POST", "/v1/accounts/a/topups")]
    {
        let start = futures_util::stream::iter([Ok::<_, std::io::Error>(b"{".to_vec())]);
        let body = Body::from_stream(start.chain(futures_util::stream::pending()));
        let (status, answer) = ask(&router, call(method, path, body)).await;
        assert_eq!(
            (status, &answer["type"]),
            (StatusCode::REQUEST_TIMEOUT, &json!("urn:voxgate:problem:body-too-slow"))
        );
    }
}

/// Fields that stand twice, of whatever kind, are refused before anything is written.
#[tokio::test]
async fn doubled_fields_are_refused() {
    let (router, _) = rig();
    ask(&router, call("POST", "/v1/accounts", json!({ "id": "a", "cap": 1 }).to_string())).await;
    for (method, path, body) in [
        ("POST", "/v1/accounts", r#"{"id":"b","id":"c","cap":1}"#),
        ("PATCH", "/v1/accounts/a", r#"{"cap":5,"cap":5}"#),
        ("POST", "/v1/accounts/a/topups", r#"{"id":"t","amount":1,"amount":900}"#),
        ("POST", "/v1/accounts/a/keys", r#"{"label":"x","label":"y"}"#),
        ("POST", "/v1/accounts/a/sessions", r#"{"key":"x","key":"y"}"#),
        ("POST", "/v1/accounts/a/audit/rebuild", r#"{"force":false,"force":true}"#),
    ] {
        let (status, answer) = ask(&router, call(method, path, body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains("stands twice"), "{answer}");
    }
    assert_eq!(ask(&router, call("GET", "/v1/accounts/a", "")).await.1["cap"], 1);
}
