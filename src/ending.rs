//! Why a stream ended: one enum feeds the close code, the log, the metric label and the ledger row.

/// Why a stream stopped. The first ending asked for wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The client said that no more audio comes (`CloseStream`).
    ClientDone,
    /// The client closed the socket, or its connection was lost.
    ClientGone,
    /// The client sent neither audio nor `KeepAlive` in time.
    ClientIdle,
    /// The client sent audio faster than it may, or than the worker takes, for too long.
    ClientFast,
    /// The client does not read what it is sent.
    ClientSlow,
    /// The client broke the protocol (too many messages that make no sense).
    ClientFault,
    /// A message was larger than allowed.
    ChunkLarge,
    /// The bytes are not the audio that was announced.
    AudioFault,
    /// The account's budget for the period is used up.
    BudgetSpent,
    /// What is left of the budget is held by other streams.
    BudgetHeld,
    /// The session's own cap is used up.
    SessionSpent,
    /// The quota key is gone: ended, revoked or reaped.
    LeaseLapsed,
    /// The key or account was revoked, frozen or ended by its owner.
    Revoked,
    /// A stored value is not what our scripts wrote.
    StoreCorrupt,
    /// The store gave no usable answer for as long as a chunk may be held.
    StoreBusy,
    /// No worker could be had, or the last one is gone.
    WorkerGone,
    /// The stream lasted as long as a stream may.
    StreamLong,
    /// The gateway is shutting down.
    Drained,
    /// A bug of ours ended this stream.
    Panicked,
}

impl Ending {
    /// Every ending, in the order of the README's table.
    pub const ALL: [Self; 19] = [
        Self::ClientDone,
        Self::ClientGone,
        Self::ClientIdle,
        Self::ClientFast,
        Self::ClientSlow,
        Self::ClientFault,
        Self::ChunkLarge,
        Self::AudioFault,
        Self::BudgetSpent,
        Self::BudgetHeld,
        Self::SessionSpent,
        Self::LeaseLapsed,
        Self::Revoked,
        Self::StoreCorrupt,
        Self::StoreBusy,
        Self::WorkerGone,
        Self::StreamLong,
        Self::Drained,
        Self::Panicked,
    ];

    /// The word in logs, metric labels and ledger rows.
    pub const fn word(self) -> &'static str {
        match self {
            Self::ClientDone => "client_done",
            Self::ClientGone => "client_gone",
            Self::ClientIdle => "client_idle",
            Self::ClientFast => "client_fast",
            Self::ClientSlow => "client_slow",
            Self::ClientFault => "client_fault",
            Self::ChunkLarge => "chunk_large",
            Self::AudioFault => "audio_fault",
            Self::BudgetSpent => "budget_spent",
            Self::BudgetHeld => "budget_held",
            Self::SessionSpent => "session_spent",
            Self::LeaseLapsed => "lease_lapsed",
            Self::Revoked => "revoked",
            Self::StoreCorrupt => "store_corrupt",
            Self::StoreBusy => "store_busy",
            Self::WorkerGone => "worker_gone",
            Self::StreamLong => "stream_long",
            Self::Drained => "drained",
            Self::Panicked => "panicked",
        }
    }
}
