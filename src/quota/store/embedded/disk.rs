//! The directory of an embedded store: one file of a kept database (redb), opened by one process; never half a batch.
//!
//! # What is promised
//! - One batch is one transaction of the database, synced before it counts. A crash at any point leaves the state
//!   before it or after it.
//! - The whole file is checked (checksums over every page in use) before a record is believed. What a torn last
//!   commit left is rolled back to the commit before it, and said in the log; anything else is refused.
//! - One process at a time, by the system's lock on the file; it ends with the process, however that ends.
//!
//! # Failures
//! | what | when | then |
//! |---|---|---|
//! | directory missing | start | it is made, readable by its owner only |
//! | holds other files and no store | start | refused: most likely the wrong directory, or the store was removed |
//! | file empty, cut, damaged, not ours, newer layout | start | refused with [`StoreError::Corrupt`] |
//! | open in another process | start | refused with [`StoreError::Away`] |
//! | not writable | start | refused with [`StoreError::Refuses`] |
//! | disk full, I/O error | running | [`Books::write`] fails with the reason; the next one opens the file anew and repeats |
//! | file removed or replaced | running | the same, until it is back |
//! | the database panics on a damage it did not expect | both | as a damage, or as an I/O error |

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{
    Builder, Database, DatabaseError, ReadableTable as _, StorageError, TableDefinition, TableError,
    TransactionError,
};

use super::super::{
    StoreError,
    keyspace::{Damage, LAYOUT, Loaded, Loader, Write},
};
use crate::limits::DISK_CACHE_BYTES;

/// The open directory. Dropping it gives the lock back; what was written is on disk already.
pub(super) struct Books {
    file: PathBuf,
    /// Device and number of the file that was opened.
    identity: (u64, u64),
    /// None after a failure, until the next write opens it anew.
    database: Option<Database>,
}

impl Books {
    /// Opens a directory, makes it when it is not there, and checks all of it.
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        let file = folder.join(FILE);
        if !file.exists() {
            make(folder, &file).map_err(|wrong| wrong.told(&file))?;
        }
        let length = fs::metadata(&file).map_err(|error| Wrong::from(error).told(&file))?.len();
        if length == 0 {
            return Err(Wrong::Damaged("it is empty".into()).told(&file));
        }
        let database = guarded(|| opened(&file, true)).map_err(|wrong| wrong.told(&file))?;
        let identity = identity(&file).map_err(|error| Wrong::from(error).told(&file))?;
        Ok(Self { file, identity, database: Some(database) })
    }

    /// Hands every key to `take`, once.
    pub(super) fn load(
        &self,
        mut take: impl FnMut(Loaded) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Some(database) = &self.database else { return Ok(()) };
        let mut loaded = Vec::new(); // bounded by one key at a time below
        let mut outcome = Ok(());
        let mut each = |key: Option<Loaded>| {
            loaded.extend(key);
            outcome = outcome.clone().and_then(|()| loaded.drain(..).try_for_each(&mut take));
        };
        guarded(|| read(database, &mut each)).map_err(|wrong| wrong.told(&self.file))?;
        outcome
    }

    /// Brings one batch to disk, all or nothing; on an error nothing may be concluded but that it must be repeated,
    /// which does no harm.
    pub(super) fn write(&mut self, batch: &[Write]) -> Result<(), String> {
        let outcome = guarded(|| {
            if identity(&self.file)? != self.identity {
                return Err(Wrong::Io("the file was replaced".into()));
            }
            let database = match self.database.take() {
                Some(database) => database,
                None => opened(&self.file, false)?,
            };
            commit(&database, batch)?;
            self.database = Some(database);
            Ok(())
        });
        outcome.map_err(|wrong| match wrong.told(&self.file) {
            StoreError::Away(text) | StoreError::Refuses(text) | StoreError::Corrupt(text) => text,
            other => other.to_string(),
        })
    }
}

/// What went wrong, before it is told.
#[derive(Debug)]
enum Wrong {
    InUse,
    Damaged(String),
    Foreign(String),
    Newer(u64),
    Denied(String),
    Io(String),
}

impl Wrong {
    fn told(self, file: &Path) -> StoreError {
        let path = file.display();
        match self {
            Self::InUse => StoreError::Away(format!(
                "{path} is open in another process: end that one, or name another directory (gateways that share \
                 books need redis://)"
            )),
            Self::Damaged(what) => StoreError::Corrupt(format!(
                "{path} is damaged ({what}): put a backup in its place, or move it away to begin with empty budgets"
            )),
            Self::Foreign(what) => StoreError::Corrupt(format!("{path}: {what}")),
            Self::Newer(layout) => StoreError::Corrupt(format!(
                "{path} has layout {layout}, this version reads up to {LAYOUT}: use the version that wrote it"
            )),
            Self::Denied(what) => StoreError::Refuses(format!(
                "{path}: {what}; give the directory to the user that runs this, on a file system it may write"
            )),
            Self::Io(what) => {
                StoreError::Refuses(format!("{path}: {what}; mend the disk or make room, then it goes on"))
            }
        }
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory => {
                Self::Denied(error.to_string())
            }
            ErrorKind::InvalidData => Self::Damaged(error.to_string()),
            ErrorKind::UnexpectedEof => Self::Damaged("it is cut short".into()),
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<StorageError> for Wrong {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io(error) => error.into(),
            StorageError::Corrupted(what) => Self::Damaged(what),
            error => Self::Io(error.to_string()),
        }
    }
}

impl From<DatabaseError> for Wrong {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(error) => error.into(),
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl From<TableError> for Wrong {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            error => Self::Foreign(format!("it is no store of voxgate ({error}): name another directory")),
        }
    }
}

impl From<TransactionError> for Wrong {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => error.into(),
            error => Self::Io(error.to_string()),
        }
    }
}

impl From<redb::CommitError> for Wrong {
    fn from(error: redb::CommitError) -> Self {
        match error {
            redb::CommitError::Storage(error) => error.into(),
            error => Self::Io(error.to_string()),
        }
    }
}

impl From<Damage> for Wrong {
    fn from(Damage(what): Damage) -> Self {
        Self::Damaged(what)
    }
}

/// Runs what may meet damage that the database does not expect: its panic is an error like any other.
fn guarded<T>(work: impl FnOnce() -> Result<T, Wrong>) -> Result<T, Wrong> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Wrong::Damaged(
            text.unwrap_or("the database gave up").lines().next().unwrap_or_default().to_owned(),
        ))
    })
}

/// Makes a store that appears under its name only when it is whole.
fn make(folder: &Path, file: &Path) -> Result<(), Wrong> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let ours = name.to_string_lossy().starts_with(FILE) || name == "lost+found";
        if !ours {
            let what = format!(
                "the directory holds {name:?} and no store: name an empty directory, or put the store back"
            );
            return Err(Wrong::Foreign(what));
        }
    }
    let draft = folder.join(format!("{FILE}.{}", uuid::Uuid::new_v4().simple()));
    let made = guarded(|| fill(&draft)).and_then(|()| match fs::hard_link(&draft, file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()), // somebody else was first
        linked => Ok(linked?),
    });
    _ = fs::remove_file(&draft);
    made?;
    Ok(File::open(folder)?.sync_all()?)
}

fn fill(draft: &Path) -> Result<(), Wrong> {
    let database = builder().create(draft)?;
    let transaction = database.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(FACTS)?.insert(LAYOUT_NAME, LAYOUT)?;
    Ok(transaction.commit()?)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(DISK_CACHE_BYTES).create_with_file_format_v3(true);
    builder
}

fn opened(file: &Path, check: bool) -> Result<Database, Wrong> {
    let mut database = builder().open(file)?;
    if check && !database.check_integrity()? {
        tracing::warn!(file = %file.display(), "last commit was incomplete and is rolled back");
    }
    let layout = database.begin_read()?.open_table(FACTS)?.get(LAYOUT_NAME)?.map(|layout| layout.value());
    match layout {
        Some(LAYOUT) => Ok(database),
        Some(newer) if newer > LAYOUT => Err(Wrong::Newer(newer)),
        other => Err(Wrong::Damaged(format!("layout {other:?}"))),
    }
}

fn read(database: &Database, each: &mut impl FnMut(Option<Loaded>)) -> Result<(), Wrong> {
    let mut loader = Loader::default();
    for record in database.begin_read()?.open_table(RECORDS)?.iter()? {
        let (name, value) = record?;
        each(loader.record(name.value(), value.value())?);
    }
    each(loader.finish()?);
    Ok(())
}

fn commit(database: &Database, batch: &[Write]) -> Result<(), Wrong> {
    let transaction = database.begin_write()?;
    {
        let mut records = transaction.open_table(RECORDS)?;
        for write in batch {
            match write {
                Write::Put(name, value) => _ = records.insert(name.as_slice(), value.as_slice())?,
                Write::Drop(name) => _ = records.remove(name.as_slice())?,
                Write::Clear(from, to) => {
                    records.retain_in(from.as_slice()..to.as_slice(), |_, _| false)?;
                }
            }
        }
    }
    Ok(transaction.commit()?)
}

fn identity(file: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(file).map(|facts| (facts.dev(), facts.ino()))
}

/// The one file of the directory.
const FILE: &str = "books.redb";
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
const LAYOUT_NAME: &str = "layout";
