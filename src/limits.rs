//! Every bound, its reason, and how the bounds hang together.
//!
//! Configuration may tighten a bound, never lift it.

use std::time::Duration;

use crate::units::Units;

/// How long an unpaid chunk may wait for the store before its stream is ended (1013).
pub const HOLD: Duration = Duration::from_secs(5);
/// How often a lease is renewed, and how fast a revoked key takes hold.
pub const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a lease lives without a heartbeat before the reaper settles it.
pub const DEADLINE: Duration = Duration::from_secs(45);
/// How long a connection to the store may owe answers without giving any before it is dropped.
pub const STALL: Duration = Duration::from_secs(2);
/// How long a connection to the store may take to open: shorter than [`STALL`], so that a held chunk sees several tries.
pub const STORE_CONNECT: Duration = Duration::from_secs(1);
/// First wait after a failed connect to the store; doubles with each failure.
pub const STORE_BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest wait between two connects to the store: the first call after an outage comes through within a second.
pub const STORE_BACKOFF_MAX: Duration = Duration::from_millis(700);
/// Calls that wait for a connection's task before more callers wait for room: a thousand streams are one batch.
pub const STORE_CALLS_WAITING: usize = 1024;
/// Calls of all streams that wait go out in one write of at most so many bytes; an `admit` takes about 200.
pub const STORE_WRITE_BYTES: usize = 64 * 1024;
/// How long a sentinel, or a node of a cluster, may take to say who the primaries are.
pub const STORE_LOOK: Duration = Duration::from_millis(500);
/// Shortest pause between two such questions.
pub const STORE_LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How often sentinels are asked while all is well.
pub const STORE_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long replicas are waited for; a connection that waits answers nobody else meanwhile. So reserves and settles of one
/// gateway go one after the other to a primary, a round trip to the replica each, and 5 a second while none answers.
pub const STORE_WAIT: Duration = Duration::from_millis(200);
const _: () = assert!(STORE_WAIT.as_millis() * 10 <= STALL.as_millis());
const _: () = assert!(STORE_CONNECT.as_millis() < STALL.as_millis());
/// How long a new stream, a token or a balance waits for the store in all: a caller may come back, a chunk can't.
pub const STORE_PATIENCE: Duration = Duration::from_secs(1);
/// Calls of one kind in a row without a usable answer that open the breaker.
pub const BREAKER_FAILURES: u32 = 5;
/// How long such calls must go on: one lost connection fails many calls in one instant.
pub const BREAKER_AFTER: Duration = Duration::from_millis(250);
/// A call that takes longer got no usable answer, as far as new streams are concerned.
pub const BREAKER_SLOW: Duration = Duration::from_secs(1);
/// Pause between two probes while the breaker is open.
pub const BREAKER_PROBE: Duration = Duration::from_millis(150);
const _: () = assert!(BREAKER_AFTER.as_millis() < STORE_PATIENCE.as_millis());
const _: () = assert!(BREAKER_SLOW.as_millis() < STALL.as_millis());
const _: () = assert!(HOLD.as_secs() + 2 * HEARTBEAT.as_secs() < DEADLINE.as_secs());
const _: () = assert!(STALL.as_secs() < HOLD.as_secs());

/// How often changes of the embedded store go to disk: leaves a commit three quarters of `DISK_LAG_MAX`.
pub const DISK_TICK: Duration = Duration::from_millis(250);
/// Oldest change that may not be on disk yet; beyond it writes are refused until the disk has followed.
pub const DISK_LAG_MAX: Duration = Duration::from_secs(1);
/// Wait between two tries of a disk that failed.
pub const DISK_RETRY: Duration = Duration::from_secs(1);
/// Changed keys of one shard that are brought to disk before the tick: they are copied under its lock.
pub const DISK_MARKS_SOON: usize = 4096;
/// Most changed keys of one shard that wait for the disk; then writes are refused.
pub const DISK_MARKS_MAX: usize = 65_536;
/// Pages of the embedded store that are kept in memory beside its keys, in bytes.
pub const DISK_CACHE_BYTES: usize = 16 * 1024 * 1024;
const _: () = assert!(DISK_TICK.as_millis() * 2 <= DISK_LAG_MAX.as_millis());
const _: () = assert!(DISK_LAG_MAX.as_secs() < HOLD.as_secs());

/// Largest audio message, in bytes. 64 KiB is 2 s of 16 kHz linear16 and far more than SDKs send at once.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Largest text message from a client, in bytes; control messages need a few dozen.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Unpaid audio held per stream, in bytes, before the gateway stops reading that client.
pub const HOLD_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Header of an audio container that may be pending before it is refused, in bytes.
pub const AUDIO_HEADER_BYTES_MAX: usize = 64 * 1024;
/// Most audio in one message, in seconds. Larger ones come from a wrong `sample_rate`, not from a microphone,
/// and would take an envelope in one step.
pub const CHUNK_SECONDS_MAX: u32 = 30;
/// Lowest sample rate that is believed, in Hz; speech below it is noise, so a lower figure is a mistake.
pub const SAMPLE_RATE_MIN: u32 = 1_000;
/// Highest sample rate that is believed, in Hz; no sound card goes beyond it.
pub const SAMPLE_RATE_MAX: u32 = 384_000;
/// Most interleaved channels of one stream, the figure that the dialect documents.
pub const CHANNELS_MAX: u16 = 20;
/// Largest request target (path and query) of a handshake, in bytes.
pub const TARGET_BYTES_MAX: usize = 8 * 1024;
/// Parameters in one query; SDKs send about ten, key terms and tags the rest.
pub const QUERY_PARAMETERS_MAX: usize = 200;
/// Key terms in one query; models bias by a few hundred tokens at most.
pub const KEYTERMS_MAX: usize = 100;
/// Tags in one query; they are kept in the ledger row.
pub const TAGS_MAX: usize = 20;
/// Longest tag, in characters.
pub const TAG_CHARS_MAX: usize = 128;
/// Longest `extra` pair, in characters.
pub const EXTRA_CHARS_MAX: usize = 2048;
/// Longest model name, in bytes.
pub const MODEL_BYTES_MAX: usize = 128;
/// Longest API key, in bytes; ours are far shorter.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest signed token, in bytes: its claims name an account, a session, a cap and an expiry.
pub const TOKEN_BYTES_MAX: usize = 2048;
/// How long a token may open streams, in seconds: 1 to this.
pub const TOKEN_SECONDS_MAX: u32 = 3600;
/// How long a token may open streams when nothing is said, in seconds; what SDKs expect.
pub const TOKEN_SECONDS: u32 = 30;
/// How far in the future a token may have been signed, by a backend whose clock goes before the store's.
pub const TOKEN_AHEAD: Duration = Duration::from_secs(5);
/// Models that one token may name.
pub const TOKEN_MODELS_MAX: usize = 32;
/// Secrets that tokens may be signed with: the one that signs, and old ones whose tokens still live.
pub const TOKEN_SECRETS_MAX: usize = 8;
/// Length of a secret for tokens, in bytes: no shorter than the hash, no longer than anybody needs.
pub const TOKEN_SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=512;
/// How long the store's own secret is remembered; a lost one is made again within this time.
pub const TOKEN_SECRET_AGE: Duration = Duration::from_secs(60);
/// How long the store's time is carried on without asking; quartz drifts less than 10 ms in that.
pub const STORE_TIME_AGE: Duration = Duration::from_secs(60);
/// Largest body of a request for a token, in bytes.
pub const GRANT_BYTES_MAX: usize = 4 * 1024;
/// How long such a body may take.
pub const GRANT_TIME: Duration = Duration::from_secs(5);
/// Tokens that one key may be granted by one gateway in [`GRANT_WINDOW`].
pub const GRANTS_MAX: u32 = 1_000;
/// The window of [`GRANTS_MAX`].
pub const GRANT_WINDOW: Duration = Duration::from_secs(10);
/// Largest message accepted from a worker, in bytes.
pub const WORKER_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Read and write buffer of a client socket, in bytes (the library's own default is 128 KiB each).
pub const SOCKET_BUFFER_BYTES: usize = 4 * 1024;
/// Transcripts waiting for a client that does not read, in bytes, before its stream is ended.
pub const CLIENT_BACKLOG_BYTES_MAX: usize = 256 * 1024;

const _: () = assert!(QUERY_PARAMETERS_MAX > KEYTERMS_MAX + TAGS_MAX);
const _: () = assert!(TOKEN_BYTES_MAX < TARGET_BYTES_MAX);
/// What the kernel may buffer towards a worker, in bytes (it takes twice as much): paid for and not read yet.
pub const LINK_KERNEL_BYTES: u32 = 64 * 1024;

/// From accept to a complete request head.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// Silence (no audio, no `KeepAlive`) that ends a stream: close 1011 `NET-0001`.
pub const CLIENT_IDLE: Duration = Duration::from_secs(10);
/// Silence after which a stream gives its envelope back until it speaks again.
pub const LEASE_IDLE: Duration = Duration::from_secs(30);
/// How long a worker may take to accept a connection.
pub const WORKER_CONNECT: Duration = Duration::from_secs(5);
/// Workers asked for one link before the stream learns that there is none.
pub const LINK_TRIES: u32 = 3;
/// Silence towards a worker after which it is told that the stream still lives; workers cut off after 10 s.
pub const WORKER_KEEP_ALIVE: Duration = Duration::from_secs(4);
/// How long a worker may take for its last words after the end of the audio.
pub const WORKER_FLUSH: Duration = Duration::from_secs(10);
/// How long the final words may take when a budget ends in mid-stream.
pub const QUOTA_FLUSH: Duration = Duration::from_secs(2);
/// Silence of a client after which it is pinged; after twice as much it counts as gone.
pub const CLIENT_PING: Duration = Duration::from_secs(20);
/// How long what a client is sent may not move before its stream is ended (1013).
pub const CLIENT_STUCK: Duration = Duration::from_secs(10);
/// The same once [`CLIENT_BACKLOG_BYTES_MAX`] waits; below [`CLIENT_IDLE`], so that a client that stopped both ways
/// learns the first reason.
pub const CLIENT_CROWDED: Duration = Duration::from_secs(5);
const _: () = assert!(CLIENT_CROWDED.as_secs() < CLIENT_IDLE.as_secs());
/// How long a worker may take nothing of what is handed to it before it counts as gone; shorter than `HOLD_STUCK`, so
/// that the client is not blamed for it.
pub const WORKER_STUCK: Duration = Duration::from_secs(10);
const _: () = assert!(WORKER_STUCK.as_secs() < HOLD_STUCK.as_secs());
/// How long there may be no room for a client's audio before its stream is ended (1008 `RATE-0000`).
pub const HOLD_STUCK: Duration = Duration::from_secs(15);
/// Messages without audio (pings, empty frames, control texts) that a client may send in [`FLOOD_WINDOW`]; SDKs
/// send a few in that time, an attacker thousands.
pub const FLOOD_MESSAGES_MAX: u32 = 1_000;
/// The window of [`FLOOD_MESSAGES_MAX`].
pub const FLOOD_WINDOW: Duration = Duration::from_secs(10);
/// Messages that make no sense before a stream is ended.
pub const CLIENT_FAULTS_MAX: u32 = 5;
/// Largest request head, in bytes: the target and room for the headers that SDKs and proxies add.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most headers of a request.
pub const HEADERS_MAX: usize = 100;
/// Credentials that are remembered, so that a crowd that returns does not ask the store each time.
pub const CREDENTIALS_MAX: usize = 1_024;
/// How long a credential is remembered: with [`HEARTBEAT`] it bounds how late a revocation is seen.
pub const CREDENTIAL_AGE: Duration = Duration::from_secs(5);
/// How long a refusal for lack of budget is repeated without asking the store.
pub const REFUSAL_AGE: Duration = Duration::from_secs(1);
/// From the end of the patience of a drain to the last stream's end: its words, its settle, its closing.
pub const DRAIN_END: Duration = Duration::from_secs(20);
const _: () = assert!(DRAIN_END.as_secs() > WORKER_FLUSH.as_secs() + CLIENT_CLOSE.as_secs());
const _: () = assert!(TARGET_BYTES_MAX < HEAD_BYTES_MAX);
/// How long the gateway waits for the client's half of the closing handshake.
pub const CLIENT_CLOSE: Duration = Duration::from_secs(5);

/// Longest account, session or key name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Envelopes too small for one chunk before it is refused: each has the stream ask for another one.
pub const CHUNK_ASKS_MAX: u32 = 4;
/// Lost answers that one chunk may meet, each with a lease of its own: a store that can't be read is no lossy line.
/// Beside the asks of [`CHUNK_ASKS_MAX`]: one chunk asks for as many leases as both together allow, and for one more.
pub const CHUNK_DOUBTS_MAX: u32 = 16;

/// After a refusal, how long the same is not asked for again.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a stream waits for its settle before that goes on in the background.
pub const SETTLE_WAIT: Duration = Duration::from_secs(2);
/// How often `admit` is probed on every primary.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How old the last good probe may be before the store counts as silent.
pub const PROBE_FRESH: Duration = Duration::from_secs(3);
/// How often every other script is probed on every primary: a dozen calls each time.
pub const PROBE_ALL_EVERY: Duration = Duration::from_secs(10);
/// How long one probe of every script on one primary may take.
pub const PROBE_ALL_TIME: Duration = Duration::from_secs(5);
/// How long a probe's private keys live when nobody removes them.
pub const PROBE_KEEP: Duration = Duration::from_secs(30);
const _: () = assert!(PROBE_ALL_TIME.as_secs() + PROBE_ALL_EVERY.as_secs() < PROBE_KEEP.as_secs());
const _: () = assert!(PROBE_EVERY.as_secs() < PROBE_FRESH.as_secs());
/// How often each primary is asked what it counts and what its slow log holds.
pub const WATCH_EVERY: Duration = Duration::from_secs(5);
/// Entries of a slow log that are read at once: as many as servers keep unless told otherwise.
pub const SLOW_LOG_MAX: usize = 128;
/// A script that takes longer holds up every chunk of audio: as servers' slow logs have it.
pub const SCRIPT_SLOW: Duration = Duration::from_millis(10);
/// Longest note in a ledger row, in bytes; `settle` and `reap` refuse more.
pub const META_BYTES_MAX: usize = 256;
/// Fields that one call of `account` may write.
pub const ACCOUNT_PAIRS_MAX: usize = 16;
/// How often an account is entered among the active ones at least, while it has streams.
pub const ACTIVE_REFRESH: Duration = Duration::from_secs(60);
/// How long one place among the active ones is waited for before the next one is tried: three together stay below
/// [`STORE_PATIENCE`].
pub const ACTIVE_WAIT: Duration = Duration::from_millis(250);
const _: () = assert!(3 * ACTIVE_WAIT.as_millis() < STORE_PATIENCE.as_millis());
/// How long an account stays among the active ones without a stream.
pub const ACTIVE_KEEP: Duration = Duration::from_secs(2 * 24 * 3600);
const _: () = assert!(ACTIVE_REFRESH.as_secs() + DEADLINE.as_secs() < ACTIVE_KEEP.as_secs());
/// Pause between two rounds of a gateway's reaper.
pub const REAP_EVERY: Duration = Duration::from_secs(5);
/// How far the store's clock may run ahead of ours between two rounds before the reaper waits for heartbeats.
pub const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// Leases that a reaper closes per account and round.
pub const REAP_BATCH: u32 = 100;
/// Pause between two audits of all active accounts by one gateway.
pub const AUDIT_EVERY: Duration = Duration::from_secs(30);
const _: () = assert!(AUDIT_EVERY.as_secs() >= REAP_EVERY.as_secs());
/// Drift that is no alarm. Each script keeps taken = held + settled, so only loss of data makes any.
pub const DRIFT_TOLERANCE: Units = Units::ZERO;
/// Most ledger rows, or open leases, read by one command.
pub const LEDGER_PAGE_MAX: usize = 500;
/// Counts of a period that changes meanwhile before a deep audit or a rebuild gives up.
pub const STEADY_TRIES_MAX: u32 = 200;
/// Key sums written by one call of `rebuild`.
pub const REBUILD_KEYS_MAX: usize = 64;
