//! The token that `serve` makes for itself when none is configured: a file that only its user can read.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::Secret;

/// A token file of this process; gone when this is dropped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    token: Secret,
}

impl TokenFile {
    /// Makes a token and writes it where [`token_path`] says, readable by this user only.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn create(port: u16) -> std::io::Result<Self> {
        Self::create_at(token_path(port))
    }

    fn create_at(path: PathBuf) -> std::io::Result<Self> {
        let token = make_token();
        // A file left by an earlier run is removed, never written into: it might be somebody else's.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{}", token.expose())?;
        Ok(Self { path, token })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds.
    pub fn token(&self) -> &Secret {
        &self.token
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}

/// Where a server with this admin port keeps the token it made: `$XDG_RUNTIME_DIR`, else the system's
/// directory for temporary files.
pub fn token_path(port: u16) -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir());
    runtime.unwrap_or_else(std::env::temp_dir).join(format!("voxgate-admin-{port}.token"))
}

/// Reads a token file, if there is one of this user that nobody else can read.
pub fn read_token(path: &Path) -> Option<Secret> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    let own = std::fs::metadata("/proc/self").map_or(true, |process| process.uid() == meta.uid());
    if !own || !meta.is_file() || meta.mode() & 0o077 != 0 || meta.len() > 1024 {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty()).map(Secret::new)
}

/// 244 random bits from the system, in hex.
pub fn make_token() -> Secret {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    Secret::new(halves.map(|half| half.simple().to_string()).concat())
}

#[cfg(test)]
mod tests {
    use super::{TokenFile, make_token, read_token};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    #[test]
    fn the_file_is_private_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.token");
        std::fs::write(&path, "left by an earlier run").unwrap();
        let file = TokenFile::create_at(path.clone()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read_token(&path).as_ref(), Some(file.token()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_token(&path), None);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(make_token(), make_token());
        assert_eq!(make_token().expose().len(), 64);
    }
}
