//! `stream`: sends a file or a pipe to a gateway and prints the words that come back.
//!
//! Speaks the Deepgram live protocol as any client does, so it shows what an app would see. It always reads while
//! it sends. The key goes into the `Authorization` header, never into the URL.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::{self, ClientRequestBuilder, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::sync::CancellationToken;

use super::failure::{ENDED, QUOTA, REFUSED};
use super::sound::{ENCODINGS, Shape, read_wav};
use super::told::at;
use super::{Failure, told};

mod screen;

use screen::Screen;

const EXAMPLES: &str = "\
Examples:
  VOXGATE_KEY=... voxgate stream speech.wav
  arecord -q -f S16_LE -r 16000 -c 1 -t raw | \\
    voxgate stream - --encoding linear16 --rate 16000
  voxgate stream speech.wav --speed 0 --json | tail -n 1

Ctrl-c sends no more audio and waits for the last words; a second one leaves.

Exit codes: 0 ended in order, 3 refused at the handshake, 4 ended by quota,
5 ended otherwise, 69 not reachable.";

/// Streams a file, or - for a pipe, and prints the words.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StreamArgs {
    /// WAV file, or raw audio with --encoding and --rate; - reads stdin.
    file: PathBuf,
    /// The gateway.
    #[arg(long, env = "VOXGATE_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key; rather put it into the environment.
    #[arg(long, env = "VOXGATE_KEY", hide_env_values = true)]
    key: String,
    /// Model to ask for.
    #[arg(long, env = "VOXGATE_MODEL", default_value = "nova-3")]
    model: String,
    /// Session to join or come back to: its cap and its units are shared.
    #[arg(long, env = "VOXGATE_SESSION", value_name = "ID")]
    session: Option<String>,
    /// Audio in one message, in milliseconds.
    #[arg(long, env = "VOXGATE_CHUNK_MS", value_name = "MS", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    chunk_ms: u64,
    /// Times real time; 0 is as fast as possible.
    #[arg(long, env = "VOXGATE_SPEED", value_name = "N", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Raw audio: linear16, linear32, mulaw or alaw.
    #[arg(long, env = "VOXGATE_ENCODING", requires = "rate", value_parser = encoding_names())]
    encoding: Option<String>,
    /// Raw audio: samples per second.
    #[arg(long, env = "VOXGATE_RATE", value_parser = clap::value_parser!(u32).range(1000..=384_000))]
    rate: Option<u32>,
    /// Raw audio: interleaved channels.
    #[arg(long, env = "VOXGATE_CHANNELS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    channels: u32,
    /// Print every message as a line of JSON, and a summary as the last one.
    #[arg(long, env = "VOXGATE_JSON")]
    json: bool,
    /// No progress bar.
    #[arg(long, short, env = "VOXGATE_QUIET")]
    quiet: bool,
}

fn encoding_names() -> [&'static str; ENCODINGS.len()] {
    ENCODINGS.map(|(name, _)| name)
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1000.0).contains(&speed) { Ok(speed) } else { Err("must be from 0 to 1000".to_owned()) }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;
type Source = Box<dyn AsyncRead + Send + Unpin>;
/// Audio until its end, or until somebody has had enough.
type Audio = (Source, CancellationToken);

/// Runs the command.
pub(super) fn run(args: &StreamArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("no runtime: {error}")))?;
    let outcome = runtime.block_on(stream(args));
    // A pipe that never ends must not keep the process: stdin is read on a thread that can't be stopped.
    runtime.shutdown_background();
    outcome
}

async fn stream(args: &StreamArgs) -> Result<(), Failure> {
    let (source, shape, length) = open(args).await?;
    let socket = connect(args, shape).await?;
    let mut screen = Screen::new(args.json, args.quiet, length.map(|bytes| shape.time(bytes)));
    let (mut sink, mut messages) = socket.split();
    let enough = CancellationToken::new();
    let sending = send(&mut sink, (source, enough.clone()), args, shape, screen.clock());
    let close = {
        tokio::pin!(sending);
        let mut sent = false;
        loop {
            tokio::select! {
                outcome = &mut sending, if !sent => {
                    outcome?;
                    sent = true;
                }
                _ = tokio::signal::ctrl_c() => {
                    if enough.is_cancelled() {
                        return Err(Failure::new(ENDED, "interrupted before the last words came"));
                    }
                    enough.cancel();
                }
                message = messages.next() => match read(message, &mut screen) {
                    Next::More => {}
                    Next::Closed(close) => break close,
                },
            }
        }
    };
    // The answer to the server's Close goes out with the next use of the socket.
    finish_close(&mut messages).await;
    screen.finish(close.as_ref());
    judge(close)
}

async fn open(args: &StreamArgs) -> Result<(Source, Shape, Option<u64>), Failure> {
    let named = args.file.display();
    let (mut source, size): (Source, _) = if args.file.as_os_str() == "-" {
        (Box::new(tokio::io::stdin()), None)
    } else {
        let file = tokio::fs::File::open(&args.file).await;
        let file = file.map_err(|error| Failure::failed(format!("can't open {named}: {error}")))?;
        let size = file.metadata().await.ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        (Box::new(tokio::io::BufReader::new(file)), size)
    };
    if let (Some(name), Some(rate)) = (&args.encoding, args.rate) {
        let known = ENCODINGS.into_iter().find(|(known, _)| known == name);
        let (encoding, width) = known.ok_or_else(|| Failure::new(2, "unknown --encoding"))?;
        return Ok((source, Shape { encoding, width, rate, channels: args.channels }, size));
    }
    let wav = read_wav(&mut source).await?;
    // A data chunk may be followed by other chunks, which are no audio.
    let source: Source = match wav.length {
        Some(length) => Box::new(source.take(length)),
        None => source,
    };
    Ok((source, wav.shape, wav.length))
}

async fn connect(args: &StreamArgs, shape: Shape) -> Result<Socket, Failure> {
    let uri = address(args, shape)?;
    let request =
        ClientRequestBuilder::new(uri).with_header("Authorization", format!("Token {}", args.key.trim()));
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(refused(&response, args.json)),
        Err(tungstenite::Error::Io(error)) => Err(Failure::unavailable(format!(
            "{} does not answer: {error}\nis `voxgate serve` (or `voxgate demo`) running there? --url names another",
            args.url
        ))),
        Err(error) => Err(Failure::unavailable(format!("{}: {error}", args.url))),
    }
}

fn address(args: &StreamArgs, shape: Shape) -> Result<http::Uri, Failure> {
    let base = args.url.trim_end_matches('/');
    let rest = base.strip_prefix("http://").or_else(|| base.strip_prefix("ws://")).ok_or_else(|| {
        Failure::new(2, format!("--url {base:?} must begin with http:// or ws:// (TLS is not built in)"))
    })?;
    let mut query = format!(
        "model={}&encoding={}&sample_rate={}&channels={}&interim_results=true",
        escape(&args.model),
        shape.encoding,
        shape.rate,
        shape.channels
    );
    if let Some(session) = &args.session {
        query.push_str("&session_id=");
        query.push_str(&escape(session));
    }
    let uri = format!("ws://{rest}/v1/listen?{query}");
    uri.parse().map_err(|_| Failure::new(2, format!("--url {base:?} is not a URL")))
}

fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Tells a refused handshake in the server's words, and what can be done about it.
fn refused(response: &http::Response<Option<Vec<u8>>>, as_json: bool) -> Failure {
    let status = response.status();
    let body: Value =
        serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap_or(Value::Null);
    if as_json {
        told::json(&json!({ "type": "Refused", "status": status.as_u16(), "body": body }));
    }
    let message = at(&body, "/err_msg").as_str().unwrap_or("no reason was given");
    let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let hint = match status.as_u16() {
        400 => "a parameter is not served; compare --model, --encoding, --rate and --channels",
        401 => "the key is unknown; make one with `voxgate key add ACCOUNT`",
        402 => "the budget is used up; `voxgate account show ACCOUNT` tells when it renews",
        403 => "this key may not do that; `voxgate key list ACCOUNT` shows what it may",
        404 => "is --url the public address, without a path?",
        429 => "too many streams at once; end others, or raise the key's streams_max",
        503 => "no worker or store just now; `voxgate check` and /readyz tell which",
        _ => "`voxgate check` may tell more",
    };
    let again = wait.map_or(String::new(), |seconds| format!("; try again in {seconds} s"));
    let (message, again) = (told::plain(message), told::plain(&again));
    Failure::new(REFUSED, format!("refused with {status}: {message}\n{hint}{again}"))
}

/// Sends all audio at the speed asked for, then says that no more comes.
async fn send(
    sink: &mut SplitSink<Socket, Message>,
    (mut source, enough): Audio,
    args: &StreamArgs,
    shape: Shape,
    clock: screen::Clock,
) -> Result<(), Failure> {
    let size = shape.bytes(Duration::from_millis(args.chunk_ms));
    let (started, mut total) = (Instant::now(), 0_u64);
    loop {
        let mut chunk = Vec::with_capacity(size);
        let limit = u64::try_from(size).unwrap_or(u64::MAX);
        let mut part = (&mut source).take(limit);
        let read = tokio::select! { biased;
            () = enough.cancelled() => break,
            read = part.read_to_end(&mut chunk) => read,
        };
        if read.map_err(|error| Failure::failed(format!("can't read the audio: {error}")))? == 0 {
            break;
        }
        if args.speed > 0.0 {
            let due = started + shape.time(total).div_f64(args.speed);
            _ = enough.run_until_cancelled(tokio::time::sleep_until(due)).await;
        }
        total += u64::try_from(chunk.len()).unwrap_or(0);
        if sink.send(Message::binary(chunk)).await.is_err() {
            // The reading side knows why the server went away.
            return Ok(());
        }
        clock.sent(shape.time(total));
    }
    _ = sink.send(Message::text(r#"{"type":"CloseStream"}"#)).await;
    Ok(())
}

enum Next {
    More,
    Closed(Option<CloseFrame>),
}

fn read(message: Option<Result<Message, tungstenite::Error>>, screen: &mut Screen) -> Next {
    match message {
        Some(Ok(Message::Text(text))) => {
            screen.show(&text);
            Next::More
        }
        Some(Ok(Message::Close(frame))) => Next::Closed(frame),
        Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Next::More,
        Some(Err(_)) | None => Next::Closed(None),
    }
}

async fn finish_close(messages: &mut SplitStream<Socket>) {
    let rest = async { while let Some(Ok(_)) = messages.next().await {} };
    _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
}

/// The exit code that a Close frame means.
fn judge(close: Option<CloseFrame>) -> Result<(), Failure> {
    let Some(frame) = close else {
        return Err(Failure::new(ENDED, "the connection was lost before the server closed it"));
    };
    let (code, reason) = (u16::from(frame.code), told::plain(&frame.reason));
    match (code, reason.as_str()) {
        (1000, _) => Ok(()),
        (1008, reason) if reason.starts_with("QUOTA-") => {
            Err(Failure::new(QUOTA, format!("ended by quota: close {code} {reason}")))
        }
        (code, reason) => Err(Failure::new(ENDED, format!("ended by the server: close {code} {reason}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{escape, judge, refused, speed};
    use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;

    #[test]
    fn endings_have_their_codes() {
        let close = |code: u16, reason: &'static str| {
            judge(Some(CloseFrame { code: code.into(), reason: reason.into() }))
                .err()
                .map(|failure| failure.code)
        };
        assert_eq!(close(1000, ""), None);
        assert_eq!(close(1008, "QUOTA-0000"), Some(4));
        assert_eq!(close(1008, "RATE-0000"), Some(5));
        assert_eq!(close(1011, "NET-0002"), Some(5));
        assert_eq!(judge(None).err().map(|failure| failure.code), Some(5));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let body = br#"{"err_code":"X","err_msg":"Spent\u001b[2J."}"#.to_vec();
        let response =
            http::Response::builder().status(402).header("retry-after", "60").body(Some(body)).unwrap();
        let failure = refused(&response, false);
        assert_eq!(failure.code, 3);
        let text = format!("{failure:?}");
        assert!(
            text.contains("Spent") && text.contains("try again in 60 s") && !text.contains("\\u{1b}"),
            "{text}"
        );
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }

    #[test]
    fn speeds_are_bounded() {
        assert!(speed("0").is_ok() && speed("1.5").is_ok());
        for text in ["-1", "NaN", "inf", "1001", "x"] {
            assert!(speed(text).is_err(), "{text}");
        }
    }
}
