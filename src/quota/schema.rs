//! The version of the layout in the store, and who may work with it. Writes one key, once.
//!
//! # Rule
//! [`SCHEMA`] goes up when the meaning of a stored value changes. A version reads and writes its own layout and the
//! one before it, so that a rolling upgrade can run both at once; what it adds is only used once nobody needs the
//! older one. The first gateway of a newer version raises the number; from then on older ones refuse to start, while
//! those that run go on.

use super::store::{Reply, StoreError};
use super::{Quota, accounts};

/// Layout that this version writes.
pub const SCHEMA: u32 = 1;

/// Oldest layout that this version still works with.
const SCHEMA_OLDEST: u32 = 1;

/// Why this version may not work with the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A newer version has raised the layout.
    #[error(
        "the store has layout {found}, this version knows {SCHEMA} at most: start a newer version of voxgate"
    )]
    Newer {
        /// What the store says.
        found: u32,
    },
    /// The layout is older than the one before ours.
    #[error(
        "the store has layout {found}, this version works with {SCHEMA_OLDEST} at least: upgrade step by step"
    )]
    Older {
        /// What the store says.
        found: u32,
    },
    /// The key holds no version.
    #[error(
        "the key {key} holds {found:?}, which is no layout version: is this store used by something else?"
    )]
    Foreign {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
    },
    /// The store did not say.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Quota {
    /// Writes the layout version where there is none, raises the one before ours, refuses any other. Gives the version
    /// found. Call it once before the first stream.
    pub async fn check_schema(&self) -> Result<u32, SchemaError> {
        let (key, ours) = (self.spell().schema(), SCHEMA.to_string());
        self.command(&["SET", &key, &ours, "NX"]).await?;
        let reply = self.command(&["GET", &key]).await?;
        let text = accounts::text(&reply).ok_or_else(|| StoreError::Odd("GET of the schema".into()))?;
        let found: u32 =
            text.parse().map_err(|_| SchemaError::Foreign { key: key.clone(), found: text.clone() })?;
        if found > SCHEMA {
            return Err(SchemaError::Newer { found });
        }
        if found < SCHEMA_OLDEST {
            return Err(SchemaError::Older { found });
        }
        if found < SCHEMA {
            let raised = self.command(&["SET", &key, &ours, "XX"]).await?;
            debug_assert!(matches!(raised, Reply::Status(_)), "{raised:?}");
        }
        Ok(found)
    }
}
