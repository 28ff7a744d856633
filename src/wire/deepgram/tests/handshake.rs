//! Query, credentials, origins and refusals.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{babble, random};
use crate::audio::{Encoding, Format};
use crate::limits;
use crate::wire::deepgram::{Credential, Listen, Refusal, Secret, check_origin, correlation, worker_request};

const DG_PY: &str = "channels=1&encoding=linear16&interim_results=true&keyterm=alpha&keyterm=two+words\
                     &model=nova-3&sample_rate=16000";

#[test]
fn recorded_request_of_dg_py_is_read() {
    let listen = Listen::parse(DG_PY).expect("a real request");
    assert_eq!(listen.format, Format::Raw { encoding: Encoding::Linear16, rate: 16_000, channels: 1 });
    assert_eq!((listen.model.as_str(), listen.billed_channels()), ("nova-3", 1));
    assert_eq!(listen.worker_query, DG_PY);
    assert_eq!((listen.session_id, listen.language), (None, None));

    let headers = headers(&[
        ("sec-websocket-version", "13"),
        ("sec-websocket-extensions", "permessage-deflate; client_max_window_bits"),
        ("user-agent", "deepgram-sdk/7.17.0"),
        ("x-deepgram-session-id", "0b8ae2b5-6f4f-4a5e-9d5b-3a3f7c1d2e10"),
        ("authorization", "Token vox_k3y"),
    ]);
    assert_eq!(Credential::from_headers(&headers), Ok((key("vox_k3y"), None)));
    assert_eq!(correlation(&headers).as_deref(), Some("0b8ae2b5-6f4f-4a5e-9d5b-3a3f7c1d2e10"));
}

#[test]
fn empty_query_means_defaults() {
    let listen = Listen::parse("").expect("nothing is required");
    assert_eq!((listen.format, listen.model.as_str()), (Format::Sniffed, "general"));
    assert_eq!((listen.multichannel, listen.worker_query.as_str()), (false, ""));
}

#[test]
fn plus_and_percent_are_the_same() {
    for query in ["keyterm=two+words&tag=a%26b", "keyterm=two%20words&tag=a%26b"] {
        let listen = Listen::parse(query).expect("legal");
        assert_eq!(listen.worker_query, "keyterm=two+words&tag=a%26b");
        assert_eq!(listen.tags, ["a&b"]);
    }
}

#[test]
fn money_is_read_in_one_spelling() {
    let listen =
        Listen::parse("encoding=LINEAR16&sample_rate=8000&channels=2&multichannel=True&punctuate=True")
            .expect("capitals are fine");
    assert_eq!(listen.format, Format::Raw { encoding: Encoding::Linear16, rate: 8000, channels: 2 });
    assert_eq!((listen.multichannel, listen.billed_channels()), (true, 2));
    assert_eq!(
        listen.worker_query,
        "encoding=linear16&sample_rate=8000&channels=2&multichannel=true&punctuate=True"
    );
}

#[test]
fn own_parameters_stay_here() {
    let listen = Listen::parse("session_id=call-7.b&model=base&unknown=kept&extra=a:b").expect("legal");
    assert_eq!(listen.session_id.as_deref(), Some("call-7.b"));
    assert_eq!(
        (listen.worker_query.as_str(), listen.extra.len()),
        ("model=base&unknown=kept&extra=a%3Ab", 1)
    );
}

#[test]
fn impossible_numbers_are_refused() {
    let rates =
        ["0", "-1", "+8000", "1e9", "16000.5", "", "0x3e80", "016000", "999", "384001", "99999999999"];
    for rate in rates {
        let refusal = refused(&format!("encoding=linear16&sample_rate={rate}"));
        assert!(refusal.err_msg.contains("from 1000 to 384000"), "{rate}: {}", refusal.err_msg);
    }
    for channels in ["0", "21", "-1", "two"] {
        let refusal = refused(&format!("encoding=linear16&sample_rate=8000&channels={channels}"));
        assert!(refusal.err_msg.contains("from 1 to 20"), "{channels}: {}", refusal.err_msg);
    }
    for kept in ["1000", "384000"] {
        assert!(Listen::parse(&format!("encoding=mulaw&channels=20&sample_rate={kept}")).is_ok(), "{kept}");
    }
}

#[test]
fn encodings_we_cannot_count_are_refused() {
    for encoding in ["flac", "amr-nb", "amr-wb", "opus", "ogg-opus", "speex", "g729"] {
        let refusal = refused(&format!("encoding={encoding}&sample_rate=16000"));
        assert!(refusal.err_msg.contains("not supported yet; supported: linear16, linear32, mulaw, alaw"));
    }
    assert!(refused("encoding=mp3&sample_rate=16000").err_msg.contains("is unknown"));
    assert!(refused("encoding=&sample_rate=16000").err_msg.contains("is unknown"));
    assert!(refused("encoding=linear16").err_msg.contains("needs `sample_rate`"));
}

#[test]
fn ambiguous_parameters_are_refused() {
    for name in ["encoding", "sample_rate", "channels", "multichannel", "model", "session_id"] {
        let refusal = refused(&format!("encoding=mulaw&sample_rate=8000&{name}=1&{name}=1"));
        assert!(refusal.err_msg.contains("once"), "{name}: {}", refusal.err_msg);
    }
}

#[test]
fn what_is_not_served_is_refused() {
    for query in [
        "callback=http://169.254.169.254/",
        "callback_method=put",
        "model=nova-3&keywords=a:1",
        "model=NOVA-3-general&keywords=a",
        "multichannel=yes",
        "model=",
        "model=a%0Ab",
        "language=%22",
        "session_id=",
        "session_id=a%7Db",
        "session_id=a:b",
        "keyterm=%FF",
        "tag=a%00b",
    ] {
        refused(query);
    }
    assert!(Listen::parse("model=nova-2&keywords=a:1&model_x=1&no_delay=true").is_ok());
}

#[test]
fn bounds_on_the_query_hold() {
    let many = |name: &str, count: usize| vec![format!("{name}=a"); count].join("&");
    assert!(Listen::parse(&many("keyterm", limits::KEYTERMS_MAX)).is_ok());
    refused(&many("keyterm", limits::KEYTERMS_MAX + 1));
    refused(&many("tag", limits::TAGS_MAX + 1));
    refused(&many("x", limits::QUERY_PARAMETERS_MAX + 1));
    assert!(Listen::parse(&format!("tag={}", "%C3%A4".repeat(limits::TAG_CHARS_MAX))).is_ok());
    refused(&format!("tag={}", "a".repeat(limits::TAG_CHARS_MAX + 1)));
    refused(&format!("extra={}", "a".repeat(limits::EXTRA_CHARS_MAX + 1)));
    refused(&format!("session_id={}", "a".repeat(limits::NAME_BYTES_MAX + 1)));
    refused(&"a".repeat(limits::TARGET_BYTES_MAX + 1));
}

#[test]
fn scheme_is_read_without_case() {
    for (value, wanted) in [
        ("Token K", key("K")),
        ("token K", key("K")),
        ("TOKEN  K", key("K")),
        ("Bearer a.b.c", token("a.b.c")),
        ("bearer a.b.c", token("a.b.c")),
    ] {
        assert_eq!(Credential::from_headers(&headers(&[("authorization", value)])), Ok((wanted, None)));
    }
}

#[test]
fn subprotocol_lists_are_split_everyhow() {
    let forms: [&[&str]; 6] =
        [&["token, K"], &["token,K"], &["token", "K"], &["token ,\tK ,"], &[",token,,K"], &["foo, token, K"]];
    for form in forms {
        let lines: Vec<_> = form.iter().map(|line| ("sec-websocket-protocol", *line)).collect();
        let read = Credential::from_headers(&headers(&lines));
        assert_eq!(read, Ok((key("K"), Some("token".to_owned()))), "{form:?}");
    }
}

#[test]
fn answer_is_the_scheme_as_offered() {
    for (offer, wanted, answer) in [
        ("bearer, a.b.c", token("a.b.c"), "bearer"),
        ("Token, K", key("K"), "Token"),
        ("token, bearer", key("bearer"), "token"),
        ("realtime, openai-insecure-api-key.K", key("K"), "realtime"),
        ("token, K, x-deepgram-session-id, 12-34", key("K"), "token"),
        ("x-deepgram-session-id, token, bearer, T", token("T"), "bearer"),
    ] {
        let headers = headers(&[("sec-websocket-protocol", offer)]);
        assert_eq!(Credential::from_headers(&headers), Ok((wanted, Some(answer.to_owned()))), "{offer}");
    }
}

#[test]
fn session_header_of_the_sdk_is_found() {
    let find = |list: &[(&str, &str)]| correlation(&headers(list));
    let offer = ("sec-websocket-protocol", "token, K, x-deepgram-session-id, 12-34");
    assert_eq!(find(&[offer]).as_deref(), Some("12-34"));
    assert_eq!(find(&[("x-deepgram-session-id", "56"), offer]).as_deref(), Some("56"));
    assert_eq!(find(&[("x-deepgram-session-id", "a b")]), None);
    assert_eq!(find(&[]), None);
}

#[test]
fn header_wins_over_subprotocol() {
    let offer = ("sec-websocket-protocol", "token, other");
    let both = headers(&[("authorization", "Bearer T"), offer]);
    assert_eq!(Credential::from_headers(&both), Ok((token("T"), Some("token".to_owned()))));
    let broken = headers(&[("authorization", "Basic eDp5"), offer]);
    assert_eq!(Credential::from_headers(&broken).map_err(|r| r.status), Err(401));
}

#[test]
fn unusable_credentials_are_refused() {
    let long = format!("Token {}", "k".repeat(limits::KEY_BYTES_MAX + 1));
    for (name, value, status) in [
        ("x-nothing", "", 401),
        ("authorization", "", 401),
        ("authorization", "Token", 401),
        ("authorization", "Token ", 401),
        ("authorization", "Basic K", 401),
        ("authorization", "Token a b", 401),
        ("authorization", "Token a/b=", 401),
        ("authorization", "Token {k}", 401),
        ("authorization", &long, 401),
        ("sec-websocket-protocol", "token", 401),
        ("sec-websocket-protocol", "realtime", 401),
        ("sec-websocket-protocol", "K, token", 401),
        ("sec-websocket-protocol", "K", 400),
        ("sec-websocket-protocol", ",", 400),
    ] {
        let refusal = Credential::from_headers(&headers(&[(name, value)])).expect_err(value);
        assert_eq!(refusal.status, status, "{name}: {value}");
        assert!(!refusal.err_msg.contains("a/b"), "no secret in an error");
    }
    let twice = headers(&[("authorization", "Token a"), ("authorization", "Token b")]);
    assert_eq!(Credential::from_headers(&twice).map_err(|r| r.status), Err(400));
}

#[test]
fn secrets_never_show() {
    let shown = format!("{:?} {:?}", key("s3cret"), token("s3cret"));
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn only_listed_origins_pass() {
    let allowed = ["https://app.example:8443".to_owned()];
    let check = |list: &[(&str, &str)]| check_origin(&headers(list), &allowed).map_err(|r| r.status);
    assert_eq!(check(&[]), Ok(()), "not a browser");
    assert_eq!(check(&[("origin", "https://app.example:8443")]), Ok(()));
    for origin in [
        "https://other.example:8443",
        "http://app.example:8443",
        "https://app.example",
        "https://app.example.:8443",
        "https://APP.example:8443",
        "https://app.example:8443/",
        "null",
        "",
    ] {
        assert_eq!(check(&[("origin", origin)]), Err(403), "{origin}");
    }
    let two = [("origin", "https://app.example:8443"), ("origin", "https://app.example:8443")];
    assert_eq!(check(&two), Err(403));
    assert_eq!(check_origin(&headers(&[("origin", "null")]), &["*".to_owned()]), Ok(()));
}

#[test]
fn refusals_follow_the_table() {
    let rows = [
        (Refusal::bad_request("x"), 400, "Bad Request", None),
        (Refusal::bad_query("x"), 400, "INVALID_QUERY_PARAMETER", None),
        (Refusal::invalid_auth(), 401, "INVALID_AUTH", None),
        (Refusal::unreadable_auth(), 401, "INVALID_AUTH", None),
        (Refusal::insufficient_scope(), 401, "INSUFFICIENT_PERMISSIONS", None),
        (Refusal::no_budget(Some(60)), 402, "ASR_PAYMENT_REQUIRED", Some(60)),
        (Refusal::no_budget(None), 402, "ASR_PAYMENT_REQUIRED", None),
        (Refusal::budget_held(Some(45)), 402, "ASR_PAYMENT_REQUIRED", Some(45)),
        (Refusal::session_spent(), 402, "ASR_PAYMENT_REQUIRED", None),
        (Refusal::forbidden_model(), 403, "INSUFFICIENT_PERMISSIONS", None),
        (Refusal::forbidden("x"), 403, "FORBIDDEN", None),
        (Refusal::origin(), 403, "FORBIDDEN", None),
        (Refusal::not_found(), 404, "NOT_FOUND", None),
        (Refusal::too_many_streams(5), 429, "TOO_MANY_REQUESTS", Some(5)),
        (Refusal::unavailable("x", 2), 503, "SERVICE_UNAVAILABLE", Some(2)),
        (Refusal::internal(), 500, "INTERNAL_SERVER_ERROR", None),
    ];
    for (refusal, status, code, retry) in rows {
        assert_eq!((refusal.status, refusal.err_code, refusal.retry_after), (status, code, retry));
        let body: serde_json::Value = serde_json::from_str(&refusal.body("id-1")).expect("JSON");
        let fields = [&body["err_code"], &body["err_msg"], &body["request_id"]];
        assert_eq!(fields, [code, refusal.err_msg.as_str(), "id-1"]);
    }
    assert!(Refusal::no_budget(Some(60)).err_msg.contains("renews in 60 s"));
    assert_ne!(Refusal::no_budget(None).err_msg, Refusal::budget_held(None).err_msg);
}

#[test]
fn refusal_text_is_header_safe() {
    let refusal = refused("encoding=%0D%0ASet-Cookie:%20%C3%A9%1B[31m&sample_rate=8000");
    assert!(HeaderValue::from_str(&refusal.err_msg).is_ok());
    assert!(refusal.err_msg.bytes().all(|b| (b' '..=b'~').contains(&b)), "{}", refusal.err_msg);
    assert!(refused(&format!("encoding={}", "a".repeat(4000))).err_msg.len() <= 512);
    assert_eq!(Refusal::bad_request("a\r\nb\0\u{7f}\u{e9}").err_msg, "a??b???");
}

#[test]
fn worker_address_and_query_are_joined() {
    for (address, query, wanted) in [
        ("ws://127.0.0.1:9001", "model=a", "ws://127.0.0.1:9001/v1/listen?model=a"),
        ("ws://w/", "", "ws://w/v1/listen"),
        ("wss://w/asr/live", "keyterm=a+b", "wss://w/asr/live?keyterm=a+b"),
        ("ws://w/?model=mine&k=v", "model=theirs&tag=x", "ws://w/v1/listen?model=mine&k=v&tag=x"),
    ] {
        assert_eq!(worker_request(address, query).map(|uri| uri.to_string()), Ok(wanted.to_owned()));
    }
    for address in ["http://w", "w:9001", "", "ws://", "ws://user:pa55@/x?key=pa55"] {
        let fault = worker_request(address, "").expect_err(address).to_string();
        assert!(!fault.contains("pa55"), "{fault}");
    }
}

#[test]
fn no_query_panics() {
    let words = [
        "encoding",
        "=",
        "&",
        "linear16",
        "sample_rate",
        "16000",
        "channels",
        "multichannel",
        "true",
        "%",
        "%zz",
        "%FF",
        "+",
        "model",
        "nova-3",
        "tag",
        "extra",
        "session_id",
        "callback",
        ";",
        "?",
        "#",
        "\0",
    ];
    let mut random = random("no_query_panics");
    for _ in 0..5000 {
        let query = babble(&mut random, &words);
        match Listen::parse(&query) {
            Ok(listen) => {
                let again = Listen::parse(&listen.worker_query).expect("what a worker gets is legal");
                assert_eq!((again.format, again.model), (listen.format, listen.model), "{query:?}");
                assert_eq!(again.worker_query, listen.worker_query, "{query:?}");
                assert!(worker_request("ws://w", &listen.worker_query).is_ok(), "{query:?}");
            }
            Err(refusal) => assert_eq!(refusal.status, 400, "{query:?}"),
        }
    }
}

#[test]
fn no_headers_panic() {
    let words =
        ["token", "bearer", "realtime", ",", " ", "K", "x-deepgram-session-id", "Token ", "\t", "\u{e9}"];
    let names = ["authorization", "sec-websocket-protocol", "x-deepgram-session-id", "origin"];
    let mut random = random("no_headers_panic");
    for _ in 0..5000 {
        let mut headers = HeaderMap::new();
        for name in names {
            for _ in 0..random.usize(0..3) {
                if let Ok(value) = HeaderValue::from_bytes(babble(&mut random, &words).as_bytes()) {
                    headers.append(name, value);
                }
            }
        }
        let _ = (correlation(&headers), check_origin(&headers, &[]));
        if let Ok((_, Some(answer))) = Credential::from_headers(&headers) {
            assert!(
                ["token", "bearer", "realtime"].contains(&answer.to_ascii_lowercase().as_str()),
                "{answer}"
            );
        }
    }
}

fn refused(query: &str) -> Refusal {
    let refusal = Listen::parse(query).expect_err(query);
    assert_eq!((refusal.status, refusal.err_code), (400, "INVALID_QUERY_PARAMETER"), "{query}");
    refusal
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in list.iter().map(pair) {
        headers.append(name, value);
    }
    headers
}

fn key(text: &str) -> Credential {
    Credential::Key(Secret::new(text.to_owned()))
}

fn token(text: &str) -> Credential {
    Credential::Token(Secret::new(text.to_owned()))
}
