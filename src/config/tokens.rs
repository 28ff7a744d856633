//! The secrets of short-lived tokens, from the settings or a file of their own. Never repeats one in a fault.

use crate::limits;

use super::reader::Reader;
use super::values::Secret;

/// `tokens.secrets`, or the lines of `tokens.secrets_file`; none is fine.
pub(super) fn secrets(reader: &mut Reader<'_>) -> Vec<Secret> {
    let direct = reader.hidden_list(DIRECT);
    let path = reader.text(FILE);
    let (name, secrets) = match (direct.is_empty(), path.as_str()) {
        (_, "") => (DIRECT, direct),
        (false, _) => {
            reader.fault(FILE, format!("give either this or {DIRECT}, not both"));
            return Vec::new();
        }
        (true, path) => match std::fs::read_to_string(path) {
            Ok(text) => (FILE, lines(&text)),
            Err(error) => {
                reader.fault(FILE, format!("{path:?} can't be read: {error}"));
                return Vec::new();
            }
        },
    };
    // An empty file would quietly mean the store's own secret.
    let missing = name == FILE && secrets.is_empty();
    if missing || secrets.len() > limits::TOKEN_SECRETS_MAX || !secrets.iter().all(|secret| sound(secret)) {
        let (least, most) = (limits::TOKEN_SECRET_BYTES.start(), limits::TOKEN_SECRET_BYTES.end());
        let count = limits::TOKEN_SECRETS_MAX;
        let form = "printable ASCII characters each, no spaces";
        reader.fault(name, format!("must be 1 to {count} secrets of {least} to {most} {form}"));
        return Vec::new();
    }
    secrets.into_iter().map(Secret::new).collect()
}

fn sound(secret: &str) -> bool {
    limits::TOKEN_SECRET_BYTES.contains(&secret.len()) && secret.bytes().all(|b| b.is_ascii_graphic())
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

const DIRECT: &str = "tokens.secrets";
const FILE: &str = "tokens.secrets_file";
