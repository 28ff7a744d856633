//! The section `store`: its URL, and what belongs to it but can't stand in it. Reads the files that are named.

use super::Store;
use super::reader::Reader;
use super::values::StoreUrl;
use crate::quota::store::redis::Options;

pub(super) fn store(reader: &mut Reader<'_>) -> Store {
    // The URL may hold a password, so it is shown masked and never repeated in a fault.
    let text = reader.hidden("store.url").unwrap_or_default();
    let url = match StoreUrl::parse(&text) {
        Ok(url) => url,
        Err(reason) => {
            let allowed = "such as \"embedded\", \"embedded:/a/directory\", \"redis://127.0.0.1:6379/0\", \
                           \"redis+sentinel://a,b,c/NAME\" or \"redis+cluster://a,b,c\"";
            reader.fault("store.url", format!("{reason}; {allowed}"));
            StoreUrl::Embedded
        }
    };
    let origin = reader.origin("store.url");
    reader.shown.insert("store.url".to_owned(), (format!("{:?}", url.to_string()), origin));
    let allowed = "1 to 32 of A-Z a-z 0-9 - _ . :";
    let prefix = reader.parsed("store.prefix", allowed, |text| is_prefix(text).then(|| text.to_owned()));
    let options = store_options(reader, &text);
    Store { url, options, prefix: prefix.unwrap_or_default() }
}

/// What stands beside the URL; each of it must fit the URL.
fn store_options(reader: &mut Reader<'_>, url: &str) -> Options {
    let password = file(reader, "store.password_file").map(|text| {
        let text = String::from_utf8_lossy(&text).trim_end_matches(['\r', '\n']).to_owned();
        if text.is_empty() {
            reader.fault("store.password_file", "the file is empty".to_owned());
        }
        text
    });
    let authorities = file(reader, "store.ca_file");
    let certificate = match (file(reader, "store.cert_file"), file(reader, "store.key_file")) {
        (Some(chain), Some(key)) => Some((chain, key)),
        (None, None) => None,
        (Some(_), None) => {
            reader.fault("store.key_file", "store.cert_file needs its key".to_owned());
            None
        }
        (None, Some(_)) => {
            reader.fault("store.cert_file", "store.key_file needs its certificate".to_owned());
            None
        }
    };
    if !url.starts_with("rediss") && (authorities.is_some() || certificate.is_some()) {
        reader.fault("store.url", "certificates are for TLS; begin the URL with rediss".to_owned());
    }
    let wait_replicas = reader.whole32("store.wait_replicas", 0..=16);
    if !url.starts_with("redis") && (wait_replicas > 0 || password.is_some()) {
        let name = if wait_replicas > 0 { "store.wait_replicas" } else { "store.password_file" };
        reader.fault(name, "this is for Redis and Valkey only".to_owned());
    }
    Options { password, authorities, certificate, wait_replicas }
}

/// What the file holds that a setting names.
fn file(reader: &mut Reader<'_>, name: &str) -> Option<Vec<u8>> {
    let path = reader.text(name);
    if path.is_empty() {
        return None;
    }
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            reader.fault(name, format!("{path:?} can't be read: {error}"));
            None
        }
    }
}

fn is_prefix(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Sources};
    use std::io::Write as _;

    fn load(section: &str) -> Result<Config, String> {
        let text = format!("[store]\n{section}\n");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
        Config::load(&sources).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_password_comes_from_its_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "canary").unwrap();
        let section = format!("url = \"redis://me:@h\"\npassword_file = {:?}", file.path());
        let config = load(&section).unwrap();
        assert_eq!(config.store.options.password.as_deref(), Some("canary"));
        assert!(!format!("{config:?}{}", config.show()).contains("canary"));
    }

    #[test]
    fn what_does_not_fit_the_url_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        for (section, part) in [
            (format!("url = \"redis://h\"\nca_file = {path:?}"), "begin the URL with rediss"),
            (format!("url = \"rediss://h\"\ncert_file = {path:?}"), "store.key_file"),
            (format!("url = \"rediss://h\"\nkey_file = {path:?}"), "store.cert_file"),
            ("url = \"embedded\"\nwait_replicas = 1".to_owned(), "Redis and Valkey only"),
            (format!("url = \"redis://h\"\npassword_file = {path:?}"), "the file is empty"),
            ("url = \"redis://h\"\nca_file = \"/nowhere\"".to_owned(), "can't be read"),
            ("url = \"redis://h\"\nwait_replicas = 17".to_owned(), "store.wait_replicas"),
        ] {
            let faults = load(&section).expect_err(&section);
            assert!(faults.contains(part), "{section}: {faults}");
        }
    }
}
