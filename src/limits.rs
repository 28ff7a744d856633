//! Every bound, its reason, and how the bounds hang together.
//!
//! Configuration may tighten a bound, never lift it.

use std::time::Duration;

/// How long an unpaid chunk may wait for the store before its stream is ended (1013).
pub const HOLD: Duration = Duration::from_secs(5);
/// How often a lease is renewed, and how fast a revoked key takes hold.
pub const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a lease lives without a heartbeat before the reaper settles it.
pub const DEADLINE: Duration = Duration::from_secs(45);
/// How long a connection to the store may owe answers without giving any before it is dropped.
pub const STALL: Duration = Duration::from_secs(2);
/// How long a connection to the store may take to open.
pub const STORE_CONNECT: Duration = Duration::from_secs(2);
/// First wait after a failed connect to the store; doubles with each failure.
pub const STORE_BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest wait between two connects to the store: shorter than `HOLD`, so that a held chunk sees several.
pub const STORE_BACKOFF_MAX: Duration = Duration::from_millis(1000);
const _: () = assert!(HOLD.as_secs() + 2 * HEARTBEAT.as_secs() < DEADLINE.as_secs());
const _: () = assert!(STALL.as_secs() < HOLD.as_secs());

/// Largest audio message, in bytes. 64 KiB is 2 s of 16 kHz linear16 and far more than SDKs send at once.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Largest text message from a client, in bytes; control messages need a few dozen.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Unpaid audio held per stream, in bytes, before the gateway stops reading that client.
pub const HOLD_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Header of an audio container that may be pending before it is refused, in bytes.
pub const AUDIO_HEADER_BYTES_MAX: usize = 64 * 1024;
/// Largest request target (path and query) of a handshake, in bytes.
pub const TARGET_BYTES_MAX: usize = 8 * 1024;
/// Largest message accepted from a worker, in bytes.
pub const WORKER_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Read and write buffer of a client socket, in bytes (the library's own default is 128 KiB each).
pub const SOCKET_BUFFER_BYTES: usize = 4 * 1024;
/// Transcripts waiting for a client that does not read, in bytes, before its stream is ended.
pub const CLIENT_BACKLOG_BYTES_MAX: usize = 256 * 1024;
/// Audio queued to a worker beyond what its socket takes, in bytes.
pub const LINK_BYTES_MAX: usize = 256 * 1024;

/// From accept to a complete request head.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// Silence (no audio, no `KeepAlive`) that ends a stream: close 1011 `NET-0001`.
pub const CLIENT_IDLE: Duration = Duration::from_secs(10);
/// Silence after which a stream gives its envelope back until it speaks again.
pub const LEASE_IDLE: Duration = Duration::from_secs(30);
/// How long a worker may take to accept a connection.
pub const WORKER_CONNECT: Duration = Duration::from_secs(5);
/// How long a worker may take for its last words after the end of the audio.
pub const WORKER_FLUSH: Duration = Duration::from_secs(10);
/// How long the final words may take when a budget ends in mid-stream.
pub const QUOTA_FLUSH: Duration = Duration::from_secs(2);
/// How long the gateway waits for the client's half of the closing handshake.
pub const CLIENT_CLOSE: Duration = Duration::from_secs(5);

/// Longest account, session or key name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Open leases of one session.
pub const SESSION_LEASES_MAX: u32 = 4;
/// Reserve calls that one chunk may cause.
pub const CHUNK_ASKS_MAX: u32 = 4;

/// Admits of one chunk that may be refused before its stream gives up looking for an envelope that holds it.
pub const ADMIT_TRIES_MAX: u32 = 8;
/// After a refusal, how long the same is not asked for again.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a stream waits for its settle before that goes on in the background.
pub const SETTLE_WAIT: Duration = Duration::from_secs(2);
/// How long a probe's private key lives, in milliseconds as the store takes it.
pub const ADMIT_PROBE_KEY_MS: &str = "10000";
/// How often an account is entered among the active ones at least, while it has streams.
pub const ACTIVE_REFRESH: Duration = Duration::from_secs(3600);
/// How long an account stays among the active ones without a stream.
pub const ACTIVE_KEEP: Duration = Duration::from_secs(2 * 24 * 3600);
const _: () = assert!(ACTIVE_REFRESH.as_secs() + DEADLINE.as_secs() < ACTIVE_KEEP.as_secs());
/// Pause between two rounds of a gateway's reaper.
pub const REAP_EVERY: Duration = Duration::from_secs(5);
/// Leases that a reaper closes per account and round.
pub const REAP_BATCH: u32 = 100;
