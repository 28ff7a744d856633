//! The secrets of short-lived tokens, from the settings or a file of their own. Never repeats one in a fault.

use crate::gateway::TokenSecrets;
use crate::limits;

use super::reader::Reader;

/// `tokens.secrets`, or the lines of `tokens.secrets_file`; none is fine.
pub(super) fn secrets(reader: &mut Reader<'_>) -> TokenSecrets {
    let direct = reader.hidden_list(DIRECT);
    let path = reader.text(FILE);
    let (name, secrets) = match (direct.is_empty(), path.as_str()) {
        (_, "") => (DIRECT, direct),
        (false, _) => {
            reader.fault(FILE, format!("give either this or {DIRECT}, not both"));
            return TokenSecrets::default();
        }
        (true, path) => match std::fs::read_to_string(path) {
            Ok(text) => (FILE, lines(&text)),
            Err(error) => {
                reader.fault(FILE, format!("{path:?} can't be read: {error}"));
                return TokenSecrets::default();
            }
        },
    };
    // An empty file would quietly mean the store's own secret.
    let missing = name == FILE && secrets.is_empty();
    let plain = secrets.iter().all(|secret| secret.bytes().all(|b| b.is_ascii_graphic()));
    TokenSecrets::new(secrets).filter(|_| plain && !missing).unwrap_or_else(|| {
        let (least, most) = (limits::TOKEN_SECRET_BYTES.start(), limits::TOKEN_SECRET_BYTES.end());
        let count = limits::TOKEN_SECRETS_MAX;
        reader.fault(
            name,
            format!(
                "must be 1 to {count} secrets of {least} to {most} printable ASCII characters each, no spaces"
            ),
        );
        TokenSecrets::default()
    })
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

const DIRECT: &str = "tokens.secrets";
const FILE: &str = "tokens.secrets_file";
