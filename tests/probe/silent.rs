//! No audio ever reaches the store: what a live stream costs there are names and numbers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

/// Everything that the gateway sends to its store, in the order in which it went.
struct Recorder {
    url: String,
    sent: Arc<Mutex<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Recorder {
    async fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("a bound address"));
        let (sent, target) = (Arc::new(Mutex::new(Vec::new())), ("127.0.0.1", server.port));
        let mut tasks = JoinSet::new();
        let all = sent.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(record(
                    client,
                    TcpStream::connect(target).await.expect("a server"),
                    all.clone(),
                ));
            }
        });
        Self { url, sent, _tasks: tasks }
    }

    fn sent(&self) -> Vec<u8> {
        self.sent.lock().expect("no panic inside").clone()
    }
}

async fn record(client: TcpStream, server: TcpStream, sent: Arc<Mutex<Vec<u8>>>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let up = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            sent.lock().expect("no panic inside").extend_from_slice(&buffer[..count]);
            if to_server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(up, tokio::io::copy(&mut from_server, &mut to_client)).1.ok();
}

/// Whether any 8 bytes in a row of `audio` (taken at every 4th place) stand in `sent`.
fn leaks(audio: &[u8], sent: &[u8]) -> bool {
    let seen: std::collections::HashSet<&[u8]> = sent.windows(8).collect();
    audio.windows(8).step_by(4).any(|part| seen.contains(part))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_audio_reaches_the_store() {
    let server = RedisServer::start(redis(), &[]);
    let recorder = Recorder::before(&server).await;
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&recorder.url, &[worker.url()])).await;
    let key = gateway.account("a", 600_000).await;
    let audio = noise_ms(1, 20_000);
    let before = recorder.sent().len();
    let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
    assert!(client.stream(&audio, 3200, Duration::ZERO).await);
    assert_eq!(client.finish().await.metadata_ms(), 20_000);

    let sent = recorder.sent();
    let cost = sent.len() - before;
    println!("{} bytes of audio, {cost} bytes to the store", audio.len());
    assert_eq!(worker.audio_bytes(), audio.len(), "the audio went to the worker");
    let evalsha = sent.windows(7).filter(|part| part == b"EVALSHA").count();
    assert!(evalsha > 3, "the recorder stood in between: {evalsha} calls");
    assert!(!leaks(&audio, &sent), "audio in what was sent to the store");
    assert!(!String::from_utf8_lossy(&sent).contains('\u{FFFD}'), "all of it is text");

    let mut leaking = sent;
    leaking.extend_from_slice(&audio[1000..1020]);
    assert!(leaks(&audio, &leaking), "20 bytes of audio would have been found");
}
