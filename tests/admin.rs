//! The admin API and the commands over it, asked of the real program on both stores: what is done, what is refused.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use voxgate::quota::store::Store;
use voxgate::quota::{Quota, Settings};

use crate::harness::PATIENCE;
use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

const TOKEN: &str = "test-admin-token-0123456789";
const MOST: u64 = 9_007_199_254_740_991;

struct House {
    gateway: Gateway,
    _worker: ScriptedWorker,
    store: Option<RedisServer>,
}

impl House {
    async fn embedded() -> Self {
        let worker = ScriptedWorker::start(Script::default()).await;
        let gateway = Gateway::start(&Setup::embedded(&[worker.url()])).await;
        Self { gateway, _worker: worker, store: None }
    }

    async fn on_redis() -> Self {
        let (store, worker) =
            (RedisServer::start(redis(), &[]), ScriptedWorker::start(Script::default()).await);
        let gateway = Gateway::start(&Setup::on(&store.url(), &[worker.url()])).await;
        Self { gateway, _worker: worker, store: Some(store) }
    }

    async fn both() -> [Self; 2] {
        [Self::embedded().await, Self::on_redis().await]
    }

    /// The store itself, to damage it.
    fn quota(&self) -> Quota {
        let url = self.store.as_ref().expect("a house on a store of its own").url();
        Quota::new(Store::open(&url).expect("a store"), Settings::default())
    }

    async fn ask(&self, method: &'static str, path: &str, body: impl Into<String>) -> Answer {
        ask(&self.gateway.admin, method, path, body.into(), &[]).await
    }

    /// As [`House::ask`]; panics unless the answer has this status.
    async fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    async fn fingerprint(&self, account: &str) -> String {
        let keys = self.get(&format!("/v1/accounts/{account}/keys")).await;
        keys["keys"][0]["fingerprint"].as_str().expect("a key").to_owned()
    }

    /// A live stream of session `s` that was paid for 300 ms.
    async fn live(&self, key: &str) -> Client {
        let target = format!("{LINEAR16}&session_id=s");
        let mut client = self.gateway.open(&target, key).await.expect("accepted");
        assert!(client.audio(&noise_ms(1, 300)).await);
        client.until("results", |heard| !heard.of("Results").is_empty()).await;
        client
    }
}

struct Answer {
    status: u16,
    headers: http::HeaderMap,
    body: Value,
}

impl Answer {
    fn kind(&self) -> &str {
        let kind = self.body["type"].as_str().unwrap_or_default();
        kind.strip_prefix("urn:voxgate:problem:").unwrap_or(kind)
    }
}

async fn ask(
    admin: &str,
    method: &'static str,
    path: &str,
    body: String,
    headers: &[(&'static str, &str)],
) -> Answer {
    let url = format!("http://{admin}{path}");
    let mut request = http::Request::builder().method(method).uri(url);
    if !headers.iter().any(|(name, _)| *name == "authorization") {
        request = request.header("authorization", format!("Bearer {TOKEN}"));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body).expect("a valid request");
    let call = move || {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let mut answer = agent.run(request).expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.body_mut().read_to_string().expect("a text body");
        if status >= 400 {
            assert_eq!(headers["content-type"], "application/problem+json", "{text}");
        }
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    };
    tokio::task::spawn_blocking(call).await.expect("no panic inside")
}

/// Runs a command against a gateway; gives exit code, stdout, stderr.
async fn run(gateway: &Gateway, line: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_voxgate"))
        .args(line.split(' '))
        .env("VOXGATE_ADMIN", format!("http://{}", gateway.admin))
        .env("VOXGATE_ADMIN_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("an end in time").expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

async fn run_json(gateway: &Gateway, line: &str) -> Value {
    let (code, out, err) = run(gateway, &format!("{line} --json")).await;
    assert_eq!(code, 0, "{line}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{line}: {out}"))
}

/// Every refusal has its own type and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_named() {
    for house in House::both().await {
        house.gateway.account("a", 60_000).await;
        let fingerprint = house.fingerprint("a").await;
        let session = json!({"key": fingerprint, "session": "s", "cap": 5}).to_string();
        assert_eq!(house.ask("POST", "/v1/accounts/a/sessions", session.as_str()).await.status, 201);
        assert_eq!(house.ask("POST", "/v1/accounts/a/sessions", session.as_str()).await.status, 200);
        let other_cap = json!({"key": fingerprint, "session": "s", "cap": 6}).to_string();
        let topup = r#"{"id":"t","amount":5}"#;
        assert_eq!(house.ask("POST", "/v1/accounts/a/topups", topup).await.status, 201);
        let lease = format!("/v1/accounts/a/leases/{fingerprint}.s:1:d1:5/settle");
        let sid = format!("/v1/accounts/a/sessions/{fingerprint}.s");
        for (method, path, body, status, kind) in [
            ("POST", "/v1/accounts", r#"{"id":"a","cap":1}"#, 409, "already-exists"),
            ("POST", "/v1/accounts", r#"{"id":"..","cap":1}"#, 422, "invalid-fields"),
            ("POST", "/v1/accounts", r#"{"id":"b","cap":1,"cap":2}"#, 400, "malformed-body"),
            ("POST", "/v1/accounts", r#"["b",1]"#, 400, "malformed-body"),
            ("POST", "/v1/accounts", r#"{"id":"b","cap":1,"color":2}"#, 422, "invalid-fields"),
            ("PATCH", "/v1/accounts/a", "{}", 400, "nothing-to-change"),
            ("PATCH", "/v1/accounts/nobody", r#"{"cap":1}"#, 404, "not-found"),
            ("PATCH", "/v1/accounts/%2e%2e", r#"{"cap":1}"#, 404, "not-found"),
            ("GET", "/v1/accounts/%ff", "", 400, "malformed-address"),
            ("DELETE", "/v1/accounts/nobody", "", 404, "not-found"),
            ("DELETE", "/v1/accounts", "", 405, "method-not-allowed"),
            ("POST", "/v1/accounts/a/keys", "{\"label\":\"a\u{202e}b\"}", 422, "invalid-fields"),
            ("DELETE", "/v1/accounts/a/keys/0123456789abcdef", "", 404, "not-found"),
            ("POST", "/v1/accounts/a/keys/a%7Bb%7D/revoke", "", 404, "not-found"),
            ("POST", "/v1/accounts/a/topups", r#"{"id":"t","amount":6}"#, 409, "topup-conflict"),
            (
                "POST",
                "/v1/accounts/a/topups",
                r#"{"id":"u","amount":9007199254740991}"#,
                422,
                "amount-too-large",
            ),
            ("POST", "/v1/accounts/a/topups", r#"{"id":"u","amount":1,"period":"d1"}"#, 422, "wrong-period"),
            ("POST", "/v1/accounts/a/topups", r#"{"amount":1}"#, 422, "invalid-fields"),
            ("POST", "/v1/accounts/nobody/topups", topup, 404, "not-found"),
            ("POST", "/v1/accounts/a/sessions", other_cap.as_str(), 409, "already-exists"),
            ("POST", "/v1/accounts/a/sessions", r#"{"key":"nokey","session":"s"}"#, 404, "not-found"),
            ("PATCH", sid.as_str(), "{}", 400, "nothing-to-change"),
            ("POST", "/v1/accounts/a/sessions/nokey.s/end", "", 404, "not-found"),
            ("GET", "/v1/accounts/a/sessions/s", "", 404, "not-found"),
            ("POST", lease.as_str(), "", 404, "not-found"),
            ("POST", "/v1/accounts/a/leases/x/settle", "", 404, "not-found"),
            ("GET", "/v1/accounts/a/ledger?cursor=x", "", 422, "invalid-fields"),
            ("GET", "/v1/accounts/a/ledger?limit=501", "", 422, "invalid-fields"),
            ("GET", "/v1/accounts/a/ledger?format=xml", "", 422, "invalid-fields"),
            ("GET", "/v1/accounts/a/ledger?limt=5", "", 422, "invalid-fields"),
            ("GET", "/v1/accounts/nobody/ledger", "", 404, "not-found"),
            ("GET", "/v1/accounts/nobody/audit", "", 404, "not-found"),
            ("GET", "/v1/accounts/a/audit?deep=2", "", 422, "invalid-fields"),
            ("POST", "/v1/accounts/a/audit/rebuild", r#"{"period":"d1"}"#, 409, "nothing-to-count"),
            ("POST", "/v1/accounts/a/audit/rebuild", "{}", 422, "invalid-fields"),
        ] {
            let answer = house.ask(method, path, body).await;
            assert_eq!(
                (answer.status, answer.kind()),
                (status, kind),
                "{method} {path} {body}: {}",
                answer.body
            );
            assert!(answer.body["detail"].as_str().is_some_and(|text| text.len() > 15), "{}", answer.body);
        }
    }
}

/// Each field that takes an amount, each wrong amount: refused by name, and nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn odd_amounts_are_refused_everywhere() {
    for house in House::both().await {
        house.gateway.account("a", 60_000).await;
        let fingerprint = house.fingerprint("a").await;
        let body = json!({"key": fingerprint, "session": "s"}).to_string();
        assert_eq!(house.ask("POST", "/v1/accounts/a/sessions", body).await.status, 201);
        let before = house.get("/v1/accounts/a/balance").await;
        let sid = format!("/v1/accounts/a/sessions/{fingerprint}.s");
        let new_session = format!(r#"{{"key":"{fingerprint}","session":"t","cap":?}}"#);
        let places = [
            ("POST", "/v1/accounts", r#"{"id":"b","cap":?}"#, "cap"),
            ("PATCH", "/v1/accounts/a", r#"{"cap":?}"#, "cap"),
            ("POST", "/v1/accounts/a/topups", r#"{"id":"t","amount":?}"#, "amount"),
            ("POST", "/v1/accounts/a/keys", r#"{"cap":?}"#, "cap"),
            ("POST", "/v1/accounts/a/keys", r#"{"session_cap":?}"#, "session_cap"),
            ("POST", "/v1/accounts/a/sessions", new_session.as_str(), "cap"),
            ("PATCH", sid.as_str(), r#"{"cap":?}"#, "cap"),
        ];
        let wrong = [
            "9007199254740992",
            "9223372036854775808",
            "18446744073709551616",
            "-1",
            "1.5",
            "\"0x10\"",
            "\" 7\"",
            "1e3",
            "\"5\"",
            "true",
        ];
        for (method, path, body, field) in places {
            for amount in wrong {
                let answer = house.ask(method, path, body.replace('?', amount)).await;
                let what = format!("{method} {path} {amount}: {}", answer.body);
                assert_eq!((answer.status, answer.kind()), (422, "invalid-fields"), "{what}");
                assert_eq!(answer.body["errors"][0]["field"], field, "{what}");
            }
        }
        assert_eq!(house.get("/v1/accounts/a/balance").await, before);
        assert_eq!(house.get("/v1/accounts").await["accounts"].as_array().map(Vec::len), Some(1));
        for amount in [0, 1, MOST] {
            let answer = house.ask("PATCH", "/v1/accounts/a", json!({"cap": amount}).to_string()).await;
            assert_eq!((answer.status, &answer.body["cap"]), (200, &json!(amount)));
            let answer = house.ask("PATCH", &sid, json!({"cap": amount}).to_string()).await;
            assert_eq!((answer.status, &answer.body["cap"]), (200, &json!(amount)));
        }
        let answer = house.ask("POST", "/v1/accounts/a/topups", r#"{"id":"z","amount":0}"#).await;
        assert_eq!((answer.status, answer.kind()), (422, "invalid-fields"), "a top-up of nothing");
    }
}

/// What belongs to somebody else is not there: nothing is shown, nothing is changed.
#[tokio::test(flavor = "multi_thread")]
async fn others_things_are_not_there() {
    let house = House::on_redis().await;
    let key = house.gateway.account("mine", 600_000).await;
    house.gateway.account("yours", 600_000).await;
    let client = house.live(&key).await;
    let fingerprint = house.fingerprint("mine").await;
    let leases = house.get("/v1/accounts/mine/leases").await;
    let lease = leases["leases"][0]["id"].as_str().expect("an open lease").to_owned();
    let sid = format!("{fingerprint}.s");
    for (method, path, body) in [
        ("GET", format!("/v1/accounts/yours/keys/{fingerprint}"), "{}".to_owned()),
        ("DELETE", format!("/v1/accounts/yours/keys/{fingerprint}"), String::new()),
        ("GET", format!("/v1/accounts/yours/sessions/{sid}"), String::new()),
        ("PATCH", format!("/v1/accounts/yours/sessions/{sid}"), r#"{"cap":1}"#.to_owned()),
        ("POST", format!("/v1/accounts/yours/sessions/{sid}/end"), String::new()),
        ("POST", format!("/v1/accounts/yours/leases/{lease}/settle"), String::new()),
        (
            "POST",
            "/v1/accounts/yours/sessions".to_owned(),
            json!({"key": fingerprint, "session": "s"}).to_string(),
        ),
        ("GET", format!("/v1/accounts/yours/sessions/{sid}%7D:x"), String::new()),
        ("POST", format!("/v1/accounts/yours/sessions/..%2f..%2fmine%2f{sid}/end"), String::new()),
    ] {
        let answer = house.ask(method, &path, body).await;
        assert_eq!((answer.status, answer.kind()), (404, "not-found"), "{method} {path}: {}", answer.body);
    }
    let yours = house.get("/v1/accounts/yours/sessions").await;
    assert_eq!(yours["sessions"], json!([]), "nothing was made on the way");
    let heard = client.finish().await;
    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 300), "undisturbed");
    assert_eq!(house.gateway.balance("mine").await.settled, 300);
}

/// Sent again, by body, by header or by command: counted once, answered the same.
#[tokio::test(flavor = "multi_thread")]
async fn topup_counts_once() {
    for house in House::both().await {
        house.gateway.account("a", 1_000).await;
        let (place, body) = ("/v1/accounts/a/topups", r#"{"id":"t1","amount":500}"#);
        let first = house.ask("POST", place, body).await;
        assert_eq!(
            (first.status, &first.headers["idempotent-replayed"]),
            (201, &"false".parse().expect("text"))
        );
        for n in 0..3 {
            let headers: &[_] = if n == 0 { &[] } else { &[("idempotency-key", "t1")] };
            let body = if n == 0 { body } else { r#"{"amount":500}"# };
            let again = ask(&house.gateway.admin, "POST", place, body.to_owned(), headers).await;
            assert_eq!((again.status, &again.body), (201, &first.body), "{n}");
            assert_eq!(again.headers["idempotent-replayed"], "true");
        }
        let both =
            ask(&house.gateway.admin, "POST", place, body.to_owned(), &[("idempotency-key", "t2")]).await;
        assert_eq!((both.status, both.kind()), (422, "invalid-fields"), "two ids");
        for _ in 0..2 {
            let told = run_json(&house.gateway, "account topup a 70 --id t3").await;
            assert_eq!((&told["sum"], &told["amount"]), (&json!(570), &json!(70)));
        }
        assert_eq!(house.gateway.balance("a").await.cap, 1_570);
        let (code, _, err) = run(&house.gateway, "account topup a 71 --id t3").await;
        assert!(code == 1 && err.contains("another amount"), "{code} {err}");
    }
}

/// An answer lost at the edge of a period and asked for behind it does not count a second time.
#[tokio::test(flavor = "multi_thread")]
async fn topup_replays_behind_the_edge() {
    let house = House::embedded().await;
    house.gateway.account_with("a", 1_000, json!({"period": "1s"})).await;
    let body = r#"{"id":"t1","amount":500}"#;
    let first = house.ask("POST", "/v1/accounts/a/topups", body).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while house.get("/v1/accounts/a/balance").await["period"] == first.body["period"] {
        ticks.tick().await;
    }
    let again = house.ask("POST", "/v1/accounts/a/topups", body).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.headers["idempotent-replayed"], "true");
}

/// A freeze and a new cap that meet both take hold, however often.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_meet_all_hold() {
    for house in House::both().await {
        house.gateway.account("a", 1_000).await;
        for round in 1..=20_u64 {
            let (cap, frozen, share) = (1_000 + round, round % 2 == 0, 1 + round);
            let zone = if frozen { "Asia/Kolkata" } else { "UTC" };
            let change = |body: Value| house.ask("PATCH", "/v1/accounts/a", body.to_string());
            let answers = tokio::join!(
                change(json!({"cap": cap})),
                change(json!({"frozen": frozen})),
                change(json!({"share": share})),
                change(json!({"zone": zone})),
            );
            for answer in [&answers.0, &answers.1, &answers.2, &answers.3] {
                assert_eq!(answer.status, 200, "{}", answer.body);
            }
            let now = house.get("/v1/accounts/a").await;
            let is = (&now["cap"], &now["frozen"], &now["share"], &now["zone"]);
            assert_eq!(is, (&json!(cap), &json!(frozen), &json!(share), &json!(zone)), "round {round}");
            assert_eq!(house.gateway.balance("a").await.cap, cap, "round {round}");
        }
        let made = (0..8).map(|n| house.ask("POST", "/v1/accounts", format!(r#"{{"id":"new","cap":{n}}}"#)));
        let made = futures_util::future::join_all(made).await;
        assert_eq!(made.iter().filter(|answer| answer.status == 201).count(), 1, "made once");
        let winner = made.iter().find(|answer| answer.status == 201).expect("one");
        assert_eq!(house.get("/v1/accounts/new").await["cap"], winner.body["cap"], "never written over");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_key_ends_its_stream() {
    let house = House::on_redis().await;
    let key = house.gateway.account("a", 600_000).await;
    let mut client = house.live(&key).await;
    let fingerprint = house.fingerprint("a").await;
    let told = run_json(&house.gateway, &format!("key revoke a {fingerprint}")).await;
    assert_eq!(told["takes_hold"], "within 10 s, live streams included");
    // The client goes on talking, so that nothing but the revocation can end it.
    let talk = async { while client.stream(&noise_ms(2, 100), 3200, Duration::from_millis(100)).await {} };
    tokio::time::timeout(PATIENCE, talk).await.expect("an end within two heartbeats");
    let heard = client.end().await;
    assert_eq!((heard.code(), heard.reason().split(' ').next()), (1008, Some("AUTH-0000")), "{heard:?}");
    assert_eq!(house.gateway.open(LINEAR16, &key).await.err().expect("refused").status, 401);
    assert_eq!(house.get("/v1/accounts/a/keys").await["keys"][0]["revoked"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_account_ends_its_streams() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 600_000).await;
    let mut client = house.live(&key).await;
    assert_eq!(run_json(&house.gateway, "account freeze a").await["frozen"], true);
    let talk = async { while client.stream(&noise_ms(2, 100), 3200, Duration::from_millis(100)).await {} };
    tokio::time::timeout(PATIENCE, talk).await.expect("an end within two heartbeats");
    let heard = client.end().await;
    assert_eq!((heard.code(), heard.reason().split(' ').next()), (1008, Some("AUTH-0000")), "{heard:?}");
    assert_eq!(run_json(&house.gateway, "account unfreeze a").await["frozen"], false);
    let balance = house.gateway.balance("a").await;
    assert_eq!((balance.settled, balance.held), (heard.metadata_ms(), 0));
}

/// Ended, settled by force, deleted: the next chunk lapses, and what was forwarded is what is charged.
#[tokio::test(flavor = "multi_thread")]
async fn forced_ends_lapse_at_once() {
    for house in House::both().await {
        for how in ["session", "lease", "account"] {
            let key = house.gateway.account(how, 600_000).await;
            let mut client = house.live(&key).await;
            let fingerprint = house.fingerprint(how).await;
            let leases = run_json(&house.gateway, &format!("lease list {how}")).await;
            let lease = leases["leases"][0]["id"].as_str().expect("an open lease").to_owned();
            let line = match how {
                "session" => format!("session end {how} {fingerprint}.s"),
                "lease" => format!("lease settle {how} {lease}"),
                _ => format!("account delete {how} --yes"),
            };
            let told = run_json(&house.gateway, &line).await;
            assert_eq!(told["charged"], 300, "{line}: {told}");
            if how == "lease" {
                // Only this lease: the stream itself may go on in the next one.
                let heard = client.finish().await;
                assert!([1000, 1008].contains(&heard.code()), "{heard:?}");
                continue;
            }
            assert!(client.audio(&noise_ms(2, 100)).await);
            let heard = client.end().await;
            assert_eq!((heard.code(), heard.metadata_ms()), (1008, 300), "{how}: {heard:?}");
            let ledger = house.get(&format!("/v1/accounts/{how}/ledger")).await;
            let charged: u64 = ledger["rows"]
                .as_array()
                .expect("rows")
                .iter()
                .filter_map(|row| row["charged"].as_u64())
                .sum();
            assert_eq!((charged, &ledger["rows"][0]["how"]), (300, &json!("forced")), "{how}: {ledger}");
        }
        assert_eq!(house.ask("GET", "/v1/accounts/account", "").await.status, 404);
        assert_eq!(run(&house.gateway, "account delete session").await.0, 2, "not without --yes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_cap_is_made_and_raised() {
    for house in House::both().await {
        let key = house.gateway.account("a", 600_000).await;
        let fingerprint = house.fingerprint("a").await;
        let made =
            run_json(&house.gateway, &format!("session create a --key {fingerprint} --session s --cap 400"))
                .await;
        assert_eq!((&made["cap"], &made["used"]), (&json!(400), &json!(0)), "{made}");
        let target = format!("{LINEAR16}&session_id=s");
        for (line, sent, paid) in
            [("", 600, 400), ("session cap a ID 700", 600, 300), ("session cap a ID none", 250, 250)]
        {
            if !line.is_empty() {
                run_json(&house.gateway, &line.replace("ID", &format!("{fingerprint}.s"))).await;
            }
            let mut client = house.gateway.open(&target, &key).await.expect("accepted");
            client.stream(&noise_ms(1, sent), 3200, Duration::ZERO).await;
            let heard = if sent == paid { client.finish().await } else { client.end().await };
            assert_eq!(heard.metadata_ms(), paid as u64, "{heard:?}");
        }
        let shown = run_json(&house.gateway, &format!("session show a {fingerprint}.s")).await;
        assert_eq!((&shown["used"], &shown["cap"], &shown["held"]), (&json!(950), &Value::Null, &json!(0)));
        let listed = house.get("/v1/accounts/a/sessions").await;
        assert_eq!(listed["sessions"][0], shown);
        assert_eq!(run_json(&house.gateway, "audit deep a").await["agrees"], true);
        let totals = run_json(&house.gateway, "ledger totals a").await;
        assert_eq!(totals["settled"], 950, "{totals}");
        assert_eq!(run_json(&house.gateway, "audit show").await["drift"], 0);
    }
}

/// A budget that is lost or wrong is seen, refused without force, and brought back.
#[tokio::test(flavor = "multi_thread")]
async fn lost_budget_is_rebuilt() {
    let house = House::on_redis().await;
    let key = house.gateway.account("a", 600_000).await;
    let heard = house.live(&key).await.finish().await;
    assert_eq!(heard.code(), 1000);
    let period = house.get("/v1/accounts/a/balance").await["period"].as_str().expect("a period").to_owned();
    let (quota, budget) = (house.quota(), format!("vox:budget:{{a}}:{period}"));
    quota.command(&["HINCRBY", &budget, "taken", "7"]).await.expect("damaged");
    assert_eq!(house.get("/v1/accounts/a/audit").await["drift"], 7);
    let (code, _, err) = run(&house.gateway, "audit deep a").await;
    assert!(code == 1 && err.contains("taken says 307, counted 300"), "{code} {err}");
    let rebuild = json!({"period": period}).to_string();
    let answer = house.ask("POST", "/v1/accounts/a/audit/rebuild", rebuild.as_str()).await;
    assert_eq!((answer.status, answer.kind()), (409, "budget-differs"));
    assert_eq!(answer.body["mismatches"][0], json!({"field": "taken", "says": 307, "counted": 300}));
    let told = run_json(&house.gateway, &format!("audit rebuild a {period} --force")).await;
    assert_eq!((&told["now"]["taken"], &told["written"]), (&json!(300), &json!(true)), "{told}");

    quota.command(&["DEL", &budget]).await.expect("lost");
    assert_eq!(house.get("/v1/accounts/a/audit").await["periods"][0]["lost"], true);
    let told = run_json(&house.gateway, &format!("audit rebuild a {period}")).await;
    assert_eq!(
        (&told["now"]["settled"], &told["was"][0]["field"]),
        (&json!(300), &json!("budget")),
        "{told}"
    );
    assert_eq!(run_json(&house.gateway, "audit deep a").await["agrees"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_account_is_listed() {
    let house = House::on_redis().await;
    house.gateway.account("a", 1).await;
    let quota = house.quota();
    quota.command(&["SET", "vox:account:{b}", "x"]).await.expect("damaged");
    quota.command(&["HSET", "vox:account:{c}", "cap", "-5"]).await.expect("damaged");
    quota.command(&["HSET", "vox:account:{d}", "frozen", "1"]).await.expect("damaged");
    let list = house.get("/v1/accounts").await;
    assert_eq!(list["accounts"][0]["cap"], 1);
    for (n, id) in [(1, "b"), (2, "c"), (3, "d")] {
        assert_eq!(list["accounts"][n], json!({"id": id, "damaged": true}), "{list}");
    }
    let answer = house.ask("GET", "/v1/accounts/c", "").await;
    assert_eq!((answer.status, answer.kind()), (500, "record-damaged"));
    let (code, out, err) = run(&house.gateway, "account list").await;
    assert!(code == 0 && out.contains("\nb ") && err.contains("b: its record"), "{out} {err}");
}

/// Ten wrong tokens, then even the right one waits; none of ten thousand more gets an answer that helps.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_are_limited() {
    let house = House::embedded().await;
    let mut seen = std::collections::BTreeMap::new();
    for n in 0..300 {
        let wrong = format!("Bearer {n:026}");
        let headers = [("authorization", wrong.as_str())];
        let answer = ask(&house.gateway.admin, "GET", "/v1/accounts", String::new(), &headers).await;
        *seen.entry(answer.status).or_insert(0) += 1;
        assert_eq!(answer.status == 429, answer.headers.contains_key("retry-after"));
    }
    assert_eq!(seen, [(401, 10), (429, 290)].into());
    let right = house.ask("POST", "/v1/accounts", r#"{"id":"a","cap":1}"#).await;
    assert_eq!(right.status, 429);
    assert!(house.gateway.metric("voxgate_admin_denials_total", &[]).await >= 300.0);
    assert_eq!(house.gateway.status("/healthz").await, 200);
}

/// A body that does not come in time is given up, and its connection with it.
#[tokio::test(flavor = "multi_thread")]
async fn slow_admin_body_is_given_up() {
    let house = House::embedded().await;
    let mut stream = tokio::net::TcpStream::connect(&house.gateway.admin).await.expect("it listens");
    let head = format!(
        "POST /v1/accounts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 20\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("an end in time").expect("a readable answer");
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body-too-slow"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_layout_is_not_served() {
    let store = RedisServer::start(redis(), &[]);
    let quota = Quota::new(Store::open(&store.url()).expect("a store"), Settings::default());
    for (layout, word) in [("99", "newer version"), ("hello", "no layout version")] {
        quota.command(&["SET", "vox:schema", layout]).await.expect("written");
        let output = Command::new(env!("CARGO_BIN_EXE_voxgate"))
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
                "--store",
                &store.url(),
            ])
            .kill_on_drop(true)
            .output();
        let output =
            tokio::time::timeout(PATIENCE, output).await.expect("an end in time").expect("it starts");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(78) && err.contains(word), "{layout}: {err}");
    }
}
