//! Real words: the bundled recording, the real model and a real browser, as a newcomer meets them.
//!
//! The model takes most of a small machine, so these tests take turns.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::harness::audio::word_error_rate;
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::sdk::python;
use crate::harness::worker_process::{WorkerProcess, root};
use crate::harness::{PATIENCE, all_tools_required};

/// Word errors per word that the model may make on the sample; it makes about half of these.
const WORD_ERRORS_MAX: f64 = 0.15;
const FRAME_BYTES: usize = 3200; // 100 ms of 16 kHz linear16

static TURN: Mutex<()> = Mutex::const_new(());

async fn gateway_with(worker: &WorkerProcess) -> Gateway {
    let host = worker.url.split("/v1").next().expect("a URL").trim_end_matches('/').to_owned();
    Gateway::start(&Setup::embedded(&[host])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_comes_back_as_words() {
    let _turn = TURN.lock().await;
    let Some(worker) = WorkerProcess::start().await else { return };
    let gateway = gateway_with(&worker).await;
    let key = gateway.account("a", 600_000).await;
    let sample = root().join("clients/sample");
    let wav = std::fs::read(sample.join("two_cities.wav")).expect("the bundled sample");
    let text = std::fs::read_to_string(sample.join("two_cities.txt")).expect("its text");
    let pcm = &wav[44..];
    let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");

    // Twice as fast as speech: the model keeps up on one core, and the test is short.
    assert!(client.stream(pcm, FRAME_BYTES, Duration::from_millis(50)).await);
    let heard = client.finish().await;

    let ms = (pcm.len() as u64).div_ceil(32);
    assert_eq!(heard.code(), 1000, "{heard:?}");
    assert!(heard.metadata_ms().abs_diff(ms) <= 1, "{} of {ms}", heard.metadata_ms());
    let balance = gateway.balance("a").await;
    assert_eq!((balance.settled, balance.held), (ms, 0));
    let errors = word_error_rate(&text, &heard.transcript());
    println!("word error rate {errors:.3}");
    assert!(errors <= WORD_ERRORS_MAX, "{errors:.3}: {}", heard.transcript());
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_passes_its_checks() {
    let _turn = TURN.lock().await;
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command.arg(root().join("tests/worker_check.py"));
    passes(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_passes_its_checks() {
    let _turn = TURN.lock().await;
    let browser = root().join("tests/browser");
    if !browser.join("node_modules").is_dir() {
        assert!(!all_tools_required(), "the browser driver is missing; run ./test");
        return;
    }
    let Some(worker) = WorkerProcess::start().await else { return };
    let gateway = gateway_with(&worker).await;
    let key = gateway.account("rich", 3_600_000).await;
    let poor = gateway.account_with("poor", 6_000, json!({"share": 1})).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new("node");
    command.arg(browser.join("page_check.mjs")).arg(format!("http://{}", gateway.public));
    command.arg(key).arg(folder.path().join("page.png")).arg(poor);
    passes(command).await;
}

/// Runs a check program to its end; its own words are the message when it fails.
async fn passes(mut command: Command) {
    let running =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = running.spawn().expect("the program starts").wait_with_output();
    let output =
        tokio::time::timeout(12 * PATIENCE, output).await.expect("an end in time").expect("readable output");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    println!("{}", said.lines().last().unwrap_or_default());
}
