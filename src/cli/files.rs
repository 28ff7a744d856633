//! The reference worker's files, carried in the program, so that an installed binary can run the demo alone.

use std::io;
use std::path::Path;

/// What the worker needs installed.
pub(super) const REQUIREMENTS: &str = include_str!("../../clients/worker/requirements.txt");

const FILES: [(&str, &str); 6] = [
    ("worker.py", include_str!("../../clients/worker/worker.py")),
    ("audio.py", include_str!("../../clients/worker/audio.py")),
    ("engine.py", include_str!("../../clients/worker/engine.py")),
    ("messages.py", include_str!("../../clients/worker/messages.py")),
    ("session.py", include_str!("../../clients/worker/session.py")),
    ("requirements.txt", REQUIREMENTS),
];

/// Writes them all into `folder`, over what is there.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    FILES.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))
}

#[cfg(test)]
mod tests {
    use super::{FILES, write};

    #[test]
    fn the_worker_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/worker");
        for entry in std::fs::read_dir(source).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".py") || name.ends_with(".txt") {
                assert!(folder.path().join(&name).exists(), "{name} is not carried");
            }
        }
        assert_eq!(FILES[0].0, "worker.py");
    }
}
