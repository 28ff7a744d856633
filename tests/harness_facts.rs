//! The harness itself: a fault that does not happen would let every other test pass for nothing.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::audio::{Header, noise, noise_ms, wav, wav_file, word_error_rate};
use crate::harness::client::{Client, Credential, LINEAR16};
use crate::harness::proxy::{Cut, Mode, Proxy};
use crate::harness::redis_server::{RedisServer, redis, stores};
use crate::harness::scripted_worker::{Fault, Results, Script, ScriptedWorker};
use crate::harness::sdk::Sdk;

const NO_WAIT: Duration = Duration::ZERO;

async fn ask(stream: &mut TcpStream, words: &str) -> std::io::Result<String> {
    stream.write_all(format!("{words}\r\n").as_bytes()).await?;
    reply(stream).await
}

async fn reply(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned())
}

async fn redis_behind_proxy() -> (RedisServer, Proxy, TcpStream) {
    let server = RedisServer::start(redis(), &[]);
    let proxy = Proxy::to(([127, 0, 0, 1], server.port).into()).await;
    let stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    (server, proxy, stream)
}

async fn value_of(server: &RedisServer, key: &str) -> String {
    let mut direct = TcpStream::connect(("127.0.0.1", server.port)).await.expect("the server listens");
    ask(&mut direct, &format!("INCRBY {key} 0")).await.expect("an answer")
}

#[tokio::test]
async fn every_store_answers() {
    for server in stores() {
        let mut direct = TcpStream::connect(("127.0.0.1", server.port)).await.expect("the server listens");
        assert_eq!(ask(&mut direct, "PING").await.expect("an answer"), "+PONG", "on {server}");
    }
}

#[tokio::test]
async fn cut_before_keeps_server_untouched() {
    let (server, proxy, mut stream) = redis_behind_proxy().await;
    proxy.cut_next(Cut::Before, 1, b"INCRBY n 7");

    assert_eq!(ask(&mut stream, "INCRBY n 1").await.expect("no match, no cut"), ":1");
    assert!(ask(&mut stream, "INCRBY n 7").await.is_err());

    assert_eq!(value_of(&server, "n").await, ":1");
    let mut again = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(ask(&mut again, "INCRBY n 7").await.expect("one shot only"), ":8");
    assert_eq!((proxy.cuts(), proxy.connections()), (1, 2));
}

#[tokio::test]
async fn cut_after_runs_and_hides() {
    let (server, proxy, mut stream) = redis_behind_proxy().await;
    proxy.cut_next(Cut::After, 1, b"INCRBY");

    assert!(ask(&mut stream, "INCRBY n 7").await.is_err());

    assert_eq!(value_of(&server, "n").await, ":7");
}

#[tokio::test]
async fn held_request_lands_late() {
    let (server, proxy, mut stream) = redis_behind_proxy().await;
    proxy.set(Mode::HoldRequests);
    stream.write_all(b"INCRBY n 7\r\n").await.expect("the proxy reads");
    assert_eq!(value_of(&server, "n").await, ":0");

    proxy.set(Mode::Pass);

    assert_eq!(reply(&mut stream).await.expect("late, not lost"), ":7");
}

#[tokio::test]
async fn held_reply_comes_late() {
    let (server, proxy, mut stream) = redis_behind_proxy().await;
    proxy.set(Mode::HoldReplies);
    stream.write_all(b"INCRBY n 7\r\n").await.expect("the proxy reads");
    while value_of(&server, "n").await != ":7" {}
    let early = tokio::time::timeout(Duration::from_millis(50), reply(&mut stream)).await;
    assert!(early.is_err(), "a reply came through");

    proxy.set(Mode::Delay(Duration::from_millis(1)));

    assert_eq!(reply(&mut stream).await.expect("late, not lost"), ":7");
}

#[tokio::test]
async fn refused_and_reset_connections_end() {
    let (_server, proxy, mut stream) = redis_behind_proxy().await;
    assert_eq!(ask(&mut stream, "PING").await.expect("an answer"), "+PONG");
    proxy.set(Mode::Refuse);
    let mut other = TcpStream::connect(proxy.address()).await.expect("the port is open");
    assert!(ask(&mut other, "PING").await.is_err());
    assert_eq!(ask(&mut stream, "PING").await.expect("live ones go on"), "+PONG");

    proxy.reset_all();

    let error = reply(&mut stream).await.expect_err("the connection is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn scripted_worker_records_and_answers() {
    let worker = ScriptedWorker::start(Script::default()).await;
    let audio = noise_ms(1, 300);
    let address = worker.address().to_string();
    let mut client = Client::open(&address, LINEAR16, Credential::Token("k")).await.expect("accepted");

    assert!(client.stream(&audio, 1323, NO_WAIT).await);
    let heard = client.finish().await;

    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 300));
    assert_eq!(heard.of("Results").len(), audio.len().div_ceil(1323) + 1);
    let visit = &worker.until("end of the visit", |visits| visits.iter().any(|v| v.over)).await[0];
    assert_eq!(visit.audio, audio);
    assert_eq!(visit.texts, ["CloseStream"]);
    assert_eq!(visit.authorization.as_deref(), Some("Token k"));
    assert_eq!(visit.target, LINEAR16);
}

#[tokio::test]
async fn scripted_worker_fails_as_told() {
    for (fault, code) in [(Fault::Close(1011, "NET-0000"), Some(1011)), (Fault::Reset, None)] {
        let script = Script { fault: Some((3200, fault)), results: Results::Never, ..Script::default() };
        let worker = ScriptedWorker::start(script).await;
        let address = worker.address().to_string();
        let mut client = Client::open(&address, LINEAR16, Credential::Nothing).await.expect("accepted");
        client.stream(&noise_ms(2, 100), 3200, NO_WAIT).await;

        let heard = client.end().await;

        assert_eq!(heard.close.as_ref().map(|(code, _)| *code), code, "{heard:?}");
        assert!(heard.messages.is_empty());
    }
}

#[tokio::test]
async fn scripted_worker_refuses_handshakes() {
    let worker = ScriptedWorker::start(Script { refuse: Some(429), ..Script::default() }).await;
    let opened = Client::open(&worker.address().to_string(), LINEAR16, Credential::Nothing).await;
    assert_eq!(opened.err().map(|refusal| refusal.status), Some(429));
    assert!(worker.visits().is_empty());
}

/// The vendor programs themselves, against a server that is known: every option, every way to cut.
#[tokio::test(flavor = "multi_thread")]
async fn sdk_programs_tell_what_happened() {
    let worker = ScriptedWorker::start(Script::default()).await;
    let refusing = ScriptedWorker::start(Script { refuse: Some(402), ..Script::default() }).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let audio = noise_ms(4, 300);
    let wav = wav_file(folder.path(), "speech.wav", 16_000, &audio);
    for sdk in Sdk::ALL {
        let address = worker.address().to_string();
        let Some(run) = sdk.stream(&address, &wav, &["--speed", "0", "--split", "odd"]).await else {
            continue;
        };
        assert_eq!((run.status, run.strangers()), (0, 0), "{sdk:?}: {run:#?}");
        assert_eq!(run.messages("Results").len(), audio.len().div_ceil(1323) + 1, "{sdk:?}");
        assert!(worker.visits().last().is_some_and(|visit| visit.audio == audio), "{sdk:?}");

        let refused = sdk.stream(&refusing.address().to_string(), &wav, &[]).await.expect("installed");
        assert_eq!(refused.status, 3, "{sdk:?}: {refused:#?}");
    }
}

#[test]
fn wav_headers_have_their_sizes() {
    let pcm = noise(3, 100);
    for (header, bytes) in [(Header::Plain, 44), (Header::List, 66), (Header::Streamed, 44)] {
        let file = wav(header, 16_000, 1, &pcm);
        assert_eq!(file.len(), bytes + 200, "{header:?}");
        assert_eq!(&file[bytes..], pcm);
        assert_eq!(&file[bytes - 8..bytes - 4], b"data");
    }
}

#[test]
fn word_errors_are_counted() {
    assert!(word_error_rate("It was the best.", "it was THE best") < 1e-9);
    assert!((word_error_rate("a b c d", "a x c") - 0.5).abs() < 1e-9);
    assert!((word_error_rate("a b", "a b c") - 0.5).abs() < 1e-9);
}
