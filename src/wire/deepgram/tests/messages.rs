//! Messages of an open stream, in all four directions.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{babble, random};
use crate::ending::Ending;
use crate::limits;
use crate::units::Units;
use crate::wire::FromClient;
use crate::wire::deepgram::{
    ClientCodec, FromWorker, MetadataFacts, Model, RelayFacts, Results, ToWorker, WorkerFault, error,
    farewell, metadata, relay, schema_error,
};

#[test]
fn control_messages_are_parsed_not_compared() {
    let configure = r#"{"type":"Configure","keyterms":["a"],"features":{"numerals":true}}"#;
    for (text, wanted) in [
        (r#"{"type": "KeepAlive"}"#, FromClient::KeepAlive),
        (r#" { "type":"KeepAlive", "later":[1] }"#, FromClient::KeepAlive),
        (r#"{"type":"Finalize"}"#, FromClient::Finalize { channel: None }),
        (r#"{"type":"Finalize","channel":1}"#, FromClient::Finalize { channel: Some(1) }),
        (r#"{"type": "CloseStream"}"#, FromClient::Finish),
        (configure, FromClient::Configure(configure.to_owned())),
    ] {
        assert_eq!(ClientCodec::default().text(text), wanted, "{text}");
    }
}

#[test]
fn text_without_sense_is_a_fault() {
    for text in [
        "",
        "UklGRiQAAABXQVZF",
        "null",
        r#"["KeepAlive",null]"#,
        r#"{"kind":"KeepAlive"}"#,
        r#"{"type":7}"#,
        r#"{"type":"keepalive"}"#,
        r#"{"type":"KeepAlive","type":"CloseStream"}"#,
        r#"{"type":"Finalize","channel":-1}"#,
        r#"{"type":"Finalize","channel":"1"}"#,
        &"[".repeat(10_000),
        &format!(r#"{{"type":"KeepAlive","x":{}1"#, "[".repeat(5_000)),
    ] {
        let FromClient::Fault(why) = ClientCodec::default().text(text) else { panic!("{text} passed") };
        assert!(why.contains("binary messages") && why.len() < 300, "{why}");
    }
}

#[test]
fn empty_frame_ends_only_silent_clients() {
    let mut old = ClientCodec::default();
    assert_eq!(old.binary(Bytes::from_static(b"ab")), FromClient::Audio(Bytes::from_static(b"ab")));
    assert_eq!(old.binary(Bytes::new()), FromClient::Finish);

    let mut confused = ClientCodec::default();
    assert!(matches!(confused.text("not JSON"), FromClient::Fault(_)));
    assert_eq!(confused.binary(Bytes::new()), FromClient::Finish, "that was no JSON");

    for text in [r#"{"type":"KeepAlive"}"#, r#"{"type":"Strange"}"#, "[1]"] {
        let mut new = ClientCodec::default();
        new.text(text);
        assert_eq!(new.binary(Bytes::new()), FromClient::Empty, "{text}");
    }
}

#[test]
fn metadata_has_every_field() {
    let sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let facts = MetadataFacts {
        request_id: "r-1",
        sha256,
        created: "2026-01-02T03:04:05.678Z",
        duration: 1.25,
        channels: 2,
        model: &model(),
        admitted: Units::from(1250),
        session_id: "s-1",
        ending: Ending::BudgetSpent,
        worker_duration: Some(6.25),
    };
    let wanted = json!({
        "type": "Metadata", "transaction_key": "deprecated", "request_id": "r-1", "sha256": sha256,
        "created": "2026-01-02T03:04:05.678Z", "duration": 1.25, "channels": 2, "models": ["u-1"],
        "model_info": { "u-1": { "name": "tiny", "version": "1", "arch": "moon" } },
        "voxgate": { "admitted_units": 1250, "session_id": "s-1", "ending": "budget_spent", "worker_duration": 6.25 },
    });
    assert_eq!(parsed(&metadata(&facts)), wanted);

    let odd = MetadataFacts { duration: f64::NAN, worker_duration: None, ..facts };
    let odd = parsed(&metadata(&odd));
    assert_eq!(odd["duration"], 0.0);
    assert_eq!(odd["voxgate"].get("worker_duration"), None);
}

#[test]
fn errors_keep_their_own_fields() {
    let mut extras = Map::new();
    extras.insert("admitted_ms".to_owned(), json!(1250));
    extras.insert("type".to_owned(), json!("Mine"));
    assert_eq!(
        parsed(&error("QUOTA_EXCEEDED", "spent", "top up", extras)),
        json!({ "type": "Error", "variant": "QUOTA_EXCEEDED", "description": "spent", "message": "top up",
                "admitted_ms": 1250 })
    );
    let schema = parsed(&schema_error("no JSON", &"\u{1b}ä".repeat(10_000)));
    assert_eq!(schema["variant"], "SchemaError");
    assert!(schema["message"].as_str().is_some_and(|m| m.len() < 800 && !m.contains('\u{1b}')));
}

#[test]
fn every_ending_closes_legally() {
    let mut tokens = Vec::new();
    for ending in Ending::ALL {
        let Some(farewell) = farewell(ending) else {
            assert_eq!(ending, Ending::ClientGone, "only those who are gone are told nothing");
            continue;
        };
        let close = farewell.close;
        assert!(matches!(close.code, 1000 | 1008 | 1009 | 1011 | 1012 | 1013), "{ending:?}");
        assert!(close.reason.len() <= 123 && close.reason.is_ascii(), "{ending:?}");
        assert_eq!(farewell.error.is_none(), ending == Ending::ClientDone, "{ending:?}");
        assert_eq!(close.code == 1000, ending == Ending::ClientDone, "{ending:?}");
        tokens.push(close.reason);
    }
    let told = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), told, "each reason names one ending");
}

#[test]
fn published_close_codes_hold() {
    for (ending, code, reason) in [
        (Ending::ClientDone, 1000, ""),
        (Ending::ClientIdle, 1011, "NET-0001"),
        (Ending::ClientFast, 1008, "RATE-0000"),
        (Ending::AudioFault, 1008, "DATA-0000"),
        (Ending::BudgetSpent, 1008, "QUOTA-0000"),
        (Ending::SessionSpent, 1008, "QUOTA-0001"),
        (Ending::WorkerGone, 1011, "NET-0002"),
    ] {
        let close = farewell(ending).expect("told").close;
        assert_eq!((close.code, close.reason), (code, reason), "{ending:?}");
    }
    for (ending, code) in [(Ending::ChunkLarge, 1009), (Ending::Drained, 1012), (Ending::StoreBusy, 1013)] {
        assert_eq!(farewell(ending).expect("told").close.code, code, "{ending:?}");
    }
}

/// What the reference worker sends: no `metadata`, no word times.
#[test]
fn missing_fields_are_filled() {
    let sent = json!({ "type": "Results", "channel_index": [0, 1], "start": 0.5, "duration": 1.5, "is_final": true,
        "speech_final": true, "channel": { "alternatives": [{ "transcript": "the worst of times" }] } });
    let got = results(&sent);
    let wanted = json!({ "type": "Results", "channel_index": [0, 1], "start": 0.5, "duration": 1.5,
        "is_final": true, "speech_final": true,
        "channel": { "alternatives": [{ "transcript": "the worst of times", "confidence": 0.0, "words": [] }] },
        "metadata": { "request_id": "r-1", "model_uuid": "u-1",
                      "model_info": { "name": "tiny", "version": "1", "arch": "moon" } } });
    assert_eq!(parsed(&got.json), wanted);
    assert_eq!(
        (got.is_final, got.from_finalize, got.transcript.as_str()),
        (true, false, "the worst of times")
    );
    assert_eq!((got.start, got.duration), (0.5, 1.5));
}

#[test]
fn wrong_types_are_replaced() {
    for sent in [
        json!({ "type": "Results" }),
        json!({ "type": "Results", "channel_index": null, "start": "x", "duration": -1, "channel": [],
                "metadata": 7 }),
        json!({ "type": "Results", "channel_index": [0], "channel": { "alternatives": ["x"] },
                "metadata": { "model_info": [], "model_uuid": 3 } }),
        json!({ "type": "Results", "channel": { "alternatives": [{ "transcript": 1, "words": {}, "confidence": "y" }] } }),
    ] {
        let got = results(&sent);
        let json = parsed(&got.json);
        assert_eq!(json["channel_index"], json!([0, 1]), "{sent}");
        assert_eq!((&json["start"], &json["duration"]), (&json!(0.0), &json!(0.0)), "{sent}");
        let silence = json!([{ "transcript": "", "confidence": 0.0, "words": [] }]);
        assert_eq!(json["channel"]["alternatives"], silence, "{sent}");
        assert_eq!(json["metadata"]["model_info"]["name"], "tiny", "{sent}");
        assert_eq!((got.is_final, got.transcript.as_str()), (false, ""), "{sent}");
    }
}

#[test]
fn what_the_worker_knows_is_kept() {
    let word = json!({ "word": "hi", "start": 0.1, "end": 0.4, "confidence": 0.9, "speaker": 1 });
    let sent = json!({ "type": "Results", "channel_index": [1, 2], "start": 0, "duration": 2, "from_finalize": true,
        "entities": [{ "label": "X" }], "voxgate": { "quota_left_ms": 9 },
        "channel": { "alternatives": [{ "transcript": "hi", "confidence": 0.9, "words": [word,
            { "word": "timeless" }, { "word": "late", "start": 1, "end": 2 }, 5], "languages": ["en"] }] },
        "metadata": { "request_id": "theirs", "model_uuid": "w-1", "extra": { "a": "b" },
            "model_info": { "name": "nova", "version": "v", "arch": "a" } } });
    let got = results(&sent);
    let json = parsed(&got.json);
    assert!(got.from_finalize);
    assert_eq!(json["metadata"]["request_id"], "r-1", "identity is ours");
    assert_eq!(json.get("voxgate"), None, "money is ours");
    assert_eq!(
        (&json["metadata"]["model_uuid"], &json["metadata"]["extra"]["a"]),
        (&json!("w-1"), &json!("b"))
    );
    assert_eq!((&json["channel_index"], &json["entities"]), (&json!([1, 2]), &json!([{ "label": "X" }])));
    let late = json!({ "word": "late", "start": 1, "end": 2, "confidence": 0.0 });
    assert_eq!(json["channel"]["alternatives"][0]["words"], json!([word, late]), "no times are invented");
    assert_eq!(json["channel"]["alternatives"][0]["languages"], json!(["en"]));
}

#[test]
fn low_quota_rides_on_results() {
    let model = model();
    let facts = RelayFacts { request_id: "r-1", model: &model, quota_left_ms: Some(4200) };
    let Ok(FromWorker::Results(got)) = relay(r#"{"type":"Results"}"#, &facts) else { panic!("no results") };
    assert_eq!(parsed(&got.json)["voxgate"], json!({ "quota_left_ms": 4200 }));
}

#[test]
fn other_worker_messages_are_sorted() {
    let got = |text: &str| relay(text, &facts(&model())).expect(text);
    let FromWorker::SpeechStarted(json) = got(r#"{"type":"SpeechStarted"}"#) else { panic!("speech") };
    assert_eq!(parsed(&json), json!({ "type": "SpeechStarted", "channel": [0, 1], "timestamp": 0.0 }));
    let FromWorker::UtteranceEnd(json) = got(r#"{"type":"UtteranceEnd","last_word_end":2.5}"#) else {
        panic!("utterance")
    };
    assert_eq!(parsed(&json), json!({ "type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 2.5 }));
    let FromWorker::Configured(json) = got(r#"{"type":"ConfigureFailure","request_id":"x"}"#) else {
        panic!("configure")
    };
    let wanted = json!({ "type": "ConfigureFailure", "request_id": "r-1", "code": "CONFIGURE_INTERNAL_ERROR",
        "description": "" });
    assert_eq!(parsed(&json), wanted);
    assert_eq!(got(r#"{"type":"Metadata","duration":3.5}"#), FromWorker::Metadata { duration: Some(3.5) });
    assert_eq!(got(r#"{"type":"Metadata"}"#), FromWorker::Metadata { duration: None });
    assert!(
        matches!(got(r#"{"type":"Error","description":"boom"}"#), FromWorker::Error(text) if text.contains("boom"))
    );
    assert_eq!(got(r#"{"type":"Welcome"}"#), FromWorker::Other);
}

#[test]
fn broken_worker_messages_are_faults() {
    let model = model();
    let facts = facts(&model);
    for text in ["", "Done!", "[]", "null", r#"{"type":"Results","start":NaN}"#, r#"{"start":1e999}"#] {
        assert!(matches!(relay(text, &facts), Err(WorkerFault::NotJson(_))), "{text}");
    }
    assert_eq!(relay(r#"{"type":1}"#, &facts), Err(WorkerFault::NoType));
    let deep = format!(r#"{{"type":"Results","x":{}"#, "[".repeat(100_000));
    assert!(matches!(relay(&deep, &facts), Err(WorkerFault::NotJson(_))));
    let large = format!(r#"{{"type":"Other","x":"{}"}}"#, "x".repeat(limits::WORKER_TEXT_BYTES_MAX));
    assert_eq!(relay(&large, &facts), Err(WorkerFault::Large));
    let grown = format!(r#"{{"type":"Results","x":"{}"}}"#, "x".repeat(limits::WORKER_TEXT_BYTES_MAX - 40));
    assert_eq!(relay(&grown, &facts), Err(WorkerFault::Large), "SDKs take 1 MiB and no more");
}

#[test]
fn worker_is_told_in_json() {
    let configure = r#"{"type":"Configure","keyterms":[]}"#.to_owned();
    for (told, wanted) in [
        (ToWorker::Finalize { channel: None }, json!({ "type": "Finalize" })),
        (ToWorker::Finalize { channel: Some(1) }, json!({ "type": "Finalize", "channel": 1 })),
        (ToWorker::KeepAlive, json!({ "type": "KeepAlive" })),
        (ToWorker::CloseStream, json!({ "type": "CloseStream" })),
        (ToWorker::Configure(configure), json!({ "type": "Configure", "keyterms": [] })),
    ] {
        assert_eq!(parsed(&told.text()), wanted);
    }
}

/// Whatever a worker or a client says, nothing panics, and what goes on is legal.
#[test]
fn no_message_panics() {
    let words = [
        r#"{"type":"Results","#,
        r#"{"type":"KeepAlive""#,
        r#""channel":"#,
        r#""alternatives":"#,
        r#""words":"#,
        r#""metadata":"#,
        r#""model_info":"#,
        r#""start":"#,
        r#""word":"#,
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "1e308",
        "-0",
        "\"a\"",
        "true",
        "\\u0000",
        "{}}",
        "[{}]",
        "}]}",
    ];
    let mut random = random("no_message_panics");
    let model = model();
    for _ in 0..20_000 {
        let text = babble(&mut random, &words);
        let mut codec = ClientCodec::default();
        let _ = (codec.text(&text), codec.binary(Bytes::new()));
        if let Ok(FromWorker::Results(got)) = relay(&text, &facts(&model)) {
            complete(&got);
        }
    }
    for _ in 0..5_000 {
        let mut sent = value(&mut random, 4);
        if let Some(fields) = sent.as_object_mut() {
            fields.insert("type".to_owned(), json!("Results"));
            complete(&results(&sent));
        }
    }
}

/// A random value made of the names that `Results` uses.
fn value(random: &mut fastrand::Rng, depth: usize) -> Value {
    let names = [
        "channel",
        "alternatives",
        "transcript",
        "confidence",
        "words",
        "word",
        "start",
        "end",
        "metadata",
        "model_info",
        "name",
        "channel_index",
        "duration",
        "is_final",
        "model_uuid",
        "request_id",
    ];
    match random.usize(0..if depth == 0 { 5 } else { 9 }) {
        0 => Value::Null,
        1 => json!(random.bool()),
        2 => json!(random.f64() * 100.0 - 10.0),
        3 => json!(random.u8(..)),
        4 => json!("text"),
        5 | 6 => (0..random.usize(0..4)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let count = random.usize(0..12);
            let fields =
                (0..count).map(|_| (names[random.usize(..names.len())].to_owned(), value(random, depth - 1)));
            Value::Object(fields.collect())
        }
    }
}

/// Every field that an SDK may touch is there with its type.
fn complete(results: &Results) {
    let json = parsed(&results.json);
    assert_eq!(json["type"], "Results");
    assert!(json["channel_index"].as_array().is_some_and(|pair| pair.len() == 2), "{json}");
    assert!(json["start"].is_number() && json["duration"].is_number(), "{json}");
    let alternatives = json["channel"]["alternatives"].as_array().expect("alternatives");
    assert!(!alternatives.is_empty(), "{json}");
    for alternative in alternatives {
        assert!(alternative["transcript"].is_string() && alternative["confidence"].is_number(), "{json}");
        for word in alternative["words"].as_array().expect("words") {
            let times = [&word["start"], &word["end"], &word["confidence"]];
            assert!(word["word"].is_string() && times.iter().all(|time| time.is_number()), "{json}");
        }
    }
    let info = &json["metadata"]["model_info"];
    assert!(json["metadata"]["request_id"] == "r-1" && json["metadata"]["model_uuid"].is_string(), "{json}");
    assert!(["name", "version", "arch"].iter().all(|field| info[field].is_string()), "{json}");
}

fn results(sent: &Value) -> Results {
    match relay(&sent.to_string(), &facts(&model())) {
        Ok(FromWorker::Results(results)) => results,
        other => panic!("{sent}: {other:?}"),
    }
}

fn facts(model: &Model) -> RelayFacts<'_> {
    RelayFacts { request_id: "r-1", model, quota_left_ms: None }
}

fn model() -> Model {
    let text = |text: &str| text.to_owned();
    Model { uuid: text("u-1"), name: text("tiny"), version: text("1"), arch: text("moon") }
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("JSON")
}
