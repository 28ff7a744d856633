//! The Lua texts and their argument order. Pure: values in, values out; replies are read in `answer.rs`.
//!
//! Each struct mirrors the header of the file of the same name under `lua/`, which is the contract.

use std::sync::LazyLock;

use super::store::Script;
use crate::units::Units;

const AMOUNTS: &str = include_str!("../../lua/amounts.lua");
const CLOSE: &str = include_str!("../../lua/close.lua");

fn load(name: &'static str, text: &str) -> Script {
    let text = text.replace("--include amounts.lua", AMOUNTS).replace("--include close.lua", CLOSE);
    Script { waits: WAITING.contains(&name), ..Script::new(name, text) }
}

/// What moves money between budgets and leases.
const WAITING: [&str; 4] = ["reserve", "settle", "reap", "topup"];

/// `reserve` as a heartbeat repeats it: it moves no units, so no replica is waited for.
pub static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script { waits: false, ..load("reserve", include_str!("../../lua/reserve.lua")) });

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$doc])* pub static $name: LazyLock<Script> =
            LazyLock::new(|| load($file, include_str!(concat!("../../lua/", $file, ".lua"))));)*
        /// Every script, for loading and for lints.
        pub fn all() -> Vec<&'static Script> {
            vec![$(&$name),*]
        }
    };
}

scripts! {
    /// `lua/reserve.lua`
    RESERVE = "reserve";
    /// `lua/admit.lua`
    ADMIT = "admit";
    /// `lua/settle.lua`
    SETTLE = "settle";
    /// `lua/reap.lua`
    REAP = "reap";
    /// `lua/topup.lua`
    TOPUP = "topup";
    /// `lua/audit.lua`
    AUDIT = "audit";
    /// `lua/rebuild.lua`
    REBUILD = "rebuild";
    /// `lua/account.lua`
    ACCOUNT = "account";
    /// `lua/session.lua`
    SESSION = "session";
    /// `lua/probe.lua`
    PROBE = "probe";
    /// `lua/permissions.lua`
    PERMISSIONS = "permissions";
}

/// Arguments of `reserve`, besides those that never change within a stream (see `Terms`).
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Session as stored.
    pub sid: String,
    /// Lease asked for.
    pub n: u64,
    /// Period id.
    pub period: String,
    /// The period's first second.
    pub start: i64,
    /// The second after its last.
    pub end: i64,
    /// Who owns the session: the key's fingerprint.
    pub owner: String,
    /// Model, tariff and tags, as one text.
    pub terms: String,
    /// This stream's name within the lease.
    pub attachment: String,
    /// This stream's name within the key's live streams.
    pub stream: String,
    /// Units wanted.
    pub want: Units,
    /// A share is never smaller than this.
    pub floor: Units,
    /// Less than this is a refusal.
    pub least: Units,
    /// The account's cap as this gateway knows it.
    pub cap: Units,
    /// 1/share of what is free may be reserved at once.
    pub share: u32,
    /// The key's own cap.
    pub key_cap: Option<Units>,
    /// The session's own cap, used only when the session is made.
    pub session_cap: Option<Units>,
    /// Live streams allowed on the key.
    pub streams_max: u32,
    /// Milliseconds until the deadline.
    pub lifetime_ms: u64,
    /// Milliseconds that lease and quota outlive the deadline.
    pub lease_keep_ms: u64,
    /// Milliseconds that a session is remembered.
    pub session_keep_ms: u64,
    /// Milliseconds that a budget outlives its period.
    pub budget_keep_ms: u64,
    /// The plan that the window was reckoned by.
    pub plan: u64,
}

impl Reserve {
    /// The arguments in the script's order.
    pub fn args(&self) -> Vec<String> {
        let optional = |cap: Option<Units>| cap.map_or_else(|| "-".into(), |cap| cap.to_string());
        vec![
            self.sid.clone(),
            self.n.to_string(),
            self.period.clone(),
            self.start.to_string(),
            self.end.to_string(),
            self.owner.clone(),
            self.terms.clone(),
            self.attachment.clone(),
            self.stream.clone(),
            self.want.to_string(),
            self.floor.to_string(),
            self.least.to_string(),
            self.cap.to_string(),
            self.share.to_string(),
            optional(self.key_cap),
            optional(self.session_cap),
            self.streams_max.to_string(),
            self.lifetime_ms.to_string(),
            self.lease_keep_ms.to_string(),
            self.session_keep_ms.to_string(),
            self.budget_keep_ms.to_string(),
            self.plan.to_string(),
        ]
    }
}

/// Arguments of `settle`.
#[derive(Clone, Debug)]
pub struct Settle {
    /// Session as stored.
    pub sid: String,
    /// Lease.
    pub n: u64,
    /// Period of the lease.
    pub period: String,
    /// Who owns the session.
    pub owner: String,
    /// Which attachment leaves.
    pub attachment: String,
    /// The stream, if this was its last attachment.
    pub stream: Option<String>,
    /// Units handed to the worker.
    pub tally: Units,
    /// Units taken, or maybe taken, and not owed.
    pub waste: Units,
    /// Overrun allowed.
    pub epsilon: Units,
    /// Milliseconds that a tombstone stays.
    pub tombstone_ms: u64,
    /// Milliseconds that a ledger stays after its last row.
    pub ledger_keep_ms: u64,
    /// For the ledger row, at most 256 bytes.
    pub meta: String,
}

impl Settle {
    /// The arguments in the script's order.
    pub fn args(&self) -> Vec<String> {
        vec![
            self.sid.clone(),
            self.n.to_string(),
            self.period.clone(),
            self.owner.clone(),
            self.attachment.clone(),
            self.stream.clone().unwrap_or_else(|| "-".into()),
            self.tally.to_string(),
            self.waste.to_string(),
            self.epsilon.to_string(),
            self.tombstone_ms.to_string(),
            self.ledger_keep_ms.to_string(),
            self.meta.clone(),
        ]
    }
}
