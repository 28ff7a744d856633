//! What a configuration may say, and how it is told what it may not.

use std::io::Write as _;
use std::time::Duration;

use super::{Config, Sources, StoreUrl};

fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let sources = Sources { file: Some(file.path().to_owned()), environment, ..Sources::default() };
    Config::load(&sources)
        .map_err(|faults| faults.to_string().replace(&file.path().display().to_string(), "f"))
}

#[test]
fn nothing_said_is_a_configuration() {
    let config = Config::load(&Sources::default()).unwrap();
    assert_eq!(config.listen.address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.store.url, StoreUrl::Embedded);
    assert_eq!(config.quota.envelope_longest, Duration::from_secs(300));
    assert!(config.workers.is_empty());
}

#[test]
fn every_fault_is_told_at_once() {
    let text = "[listen]\naddress = \"nowhere\"\n[limits]\nidel = \"5s\"\nidle = 5\nheld_bytes = \"1MiB\"\n\
                [[workers]]\nname = \"a b\"\n[stroe]\nurl = \"x\"\n[models]\nnova-3 = 0\n";
    let faults = load(text, &[("VOXGATE_QUOTA__SHARE", "0"), ("VOXGATE_QUOTA__SHAER", "1")]).unwrap_err();
    for line in [
        "f:2: listen.address: \"nowhere\" is not allowed; must be an IP address and a port",
        "f:4: limits.idel: unknown key; did you mean `limits.idle`?",
        "f:5: limits.idle: a number without a unit; must be a time with its unit",
        "f:6: limits.held_bytes: \"1MiB\" is not allowed; must be a size with its unit from 2MiB to 16384MiB",
        "f:7: workers[0].url: missing",
        "f:8: workers[0].name: \"a b\" is not allowed",
        "f:9: stroe: unknown section; did you mean `store`?",
        "f:12: models.nova-3: 0 is not allowed; must be a whole number from 1 to 1000000",
        "environment VOXGATE_QUOTA__SHARE: quota.share: 0 is not allowed",
        "environment VOXGATE_QUOTA__SHAER: quota.shaer: unknown key; did you mean `quota.share`?",
    ] {
        assert!(faults.contains(line), "{line}\nnot in\n{faults}");
    }
    assert_eq!(faults.lines().count(), 10, "{faults}");
}

#[test]
fn broken_toml_has_a_line() {
    let faults = load("[log]\nlevel = \nformat = \"json\"\n", &[]).unwrap_err();
    assert!(faults.starts_with("f:2: not valid TOML"), "{faults}");
}

#[test]
fn a_missing_file_is_a_fault() {
    let sources = Sources { file: Some("/nonexistent/voxgate.toml".into()), ..Sources::default() };
    let faults = Config::load(&sources).unwrap_err().to_string();
    assert!(faults.starts_with("/nonexistent/voxgate.toml: can't be read"), "{faults}");
}

#[test]
fn environment_wins_over_file_flags_over_both() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"[listen]\naddress = \"127.0.0.1:1\"\n[admin]\naddress = \"127.0.0.1:2\"\n").unwrap();
    let environment = vec![
        ("VOXGATE_LISTEN__ADDRESS".to_owned(), "127.0.0.1:3".to_owned()),
        ("VOXGATE_WORKERS__0__URL".to_owned(), "ws://h/".to_owned()),
        ("VOXGATE_KEY".to_owned(), "ignored".to_owned()),
    ];
    let flags = vec![("listen.address", "127.0.0.1:4".to_owned())];
    let config = Config::load(&Sources {
        file: Some(file.path().to_owned()),
        environment,
        flags,
        workers: Vec::new(),
    })
    .unwrap();
    assert_eq!(config.listen.address.port(), 4);
    assert_eq!(config.admin.address.port(), 2);
    assert_eq!(config.workers[0].url.to_string(), "ws://h:80/v1/listen");
    assert_eq!(config.workers[0].name, "worker-1");
    assert!(config.show().contains("# command line"), "{}", config.show());
}

#[test]
fn workers_given_as_options_stand_alone() {
    let environment = vec![("VOXGATE_WORKERS__1__URL".to_owned(), "ws://old/".to_owned())];
    let workers = vec!["ws://new/".to_owned()];
    let config = Config::load(&Sources { environment, workers, ..Sources::default() }).unwrap();
    assert_eq!(config.workers.len(), 1);
    assert_eq!(config.workers[0].url.to_string(), "ws://new:80/v1/listen");
}

#[test]
fn an_open_admin_needs_a_token() {
    let text = "[admin]\naddress = \"0.0.0.0:9090\"\n";
    assert!(load(text, &[]).unwrap_err().contains("f:2: admin.address"));
    let config = load(text, &[("VOXGATE_ADMIN__TOKEN", "canary-0123456789")]).unwrap();
    assert_eq!(config.admin.token.as_ref().map(super::Secret::expose), Some("canary-0123456789"));
}

#[test]
fn secrets_show_nowhere() {
    let text = "[store]\nurl = \"redis://:canary@h:1\"\n[admin]\ntoken = \"canary-0123456789\"\n\
                [[workers]]\nurl = \"ws://h\"\ntoken = \"canary-abcdefghij\"\n";
    let config = load(text, &[]).unwrap();
    let seen = format!("{config:?}{}", config.show());
    assert!(!seen.contains("canary"), "{seen}");
    let faults = load(
        "[store]\nurl = \"canary\"\n[admin]\ntoken = \"canary\"\n",
        &[("VOXGATE_ADMIN__TOKEN", "canary x")],
    );
    assert!(!faults.as_ref().unwrap_err().contains("canary"), "{faults:?}");
}

#[test]
fn two_addresses_must_differ() {
    let faults = load("[admin]\naddress = \"127.0.0.1:8080\"\n", &[]).unwrap_err();
    assert!(faults.contains("f:2: admin.address: is the public address too"), "{faults}");
}

#[test]
fn the_sample_file_names_every_key() {
    let sample = include_str!("../../deploy/voxgate.toml");
    let mut section = String::new();
    let mut seen = Vec::new();
    for line in sample.lines() {
        let bare = line.trim_start_matches("# ").trim();
        if let Some(name) = bare.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
            section = format!("{name}[]");
        } else if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if let Some((key, _)) = bare.split_once(" = ") {
            seen.push(format!("{section}.{key}"));
        }
    }
    for key in super::keys::KEYS {
        assert!(seen.iter().any(|name| name == key.name), "{} is not in the sample", key.name);
    }
    load(sample, &[]).unwrap();
}

#[test]
fn the_sample_file_uncommented_loads() {
    let sample = include_str!("../../deploy/voxgate.toml");
    let live: Vec<_> = sample
        .lines()
        .filter_map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || rest.contains(" = ") => Some(rest),
            Some(_) => None,
            None => Some(line),
        })
        .filter(|line| !["token", "secrets", "_file"].iter().any(|part| line.contains(part)))
        .collect();
    let config = load(&live.join("\n"), &[]).unwrap();
    assert_eq!(config.workers.len(), 1);
}

#[test]
fn token_secrets_are_read_and_hidden() {
    let (old, new) = ("canary-old-0123456789-0123456789-0", "canary-new-0123456789-0123456789-0");
    let config = load(&format!("[tokens]\nsecrets = [\"{new}\", \"{old}\"]\n"), &[]).unwrap();
    assert!(!config.tokens.is_empty());
    assert!(config.show().contains("tokens.secrets = [\"***\", \"***\"]"), "{}", config.show());
    assert!(!format!("{config:?}{}", config.show()).contains("canary"));
    let environment = format!("{new},{old}");
    assert_eq!(load("", &[("VOXGATE_TOKENS__SECRETS", &environment)]).unwrap().tokens, config.tokens);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{new}\n\n{old}").unwrap();
    let named = format!("[tokens]\nsecrets_file = {:?}\n", file.path());
    assert_eq!(load(&named, &[]).unwrap().tokens, config.tokens);
    assert!(load("", &[]).unwrap().tokens.is_empty());
}

#[test]
fn bad_token_secrets_are_never_repeated() {
    let nine = ["\"canary-0123456789-0123456789-0123\""; 9].join(",");
    for text in [
        "secrets = [\"canary-too-short\"]".to_owned(),
        "secrets = [\"canary with spaces 0123456789-0123456789\"]".to_owned(),
        "secrets = \"canary-no-list-0123456789-0123456789\"".to_owned(),
        "secrets_file = \"/nonexistent/token.secrets\"".to_owned(),
        format!("secrets = [{nine}]"),
        format!("secrets = [{nine}]\nsecrets_file = \"/dev/null\""),
        "secrets_file = \"/dev/null\"".to_owned(),
    ] {
        let faults = load(&format!("[tokens]\n{text}\n"), &[]).unwrap_err();
        assert!(faults.contains("tokens.secrets") && !faults.contains("canary"), "{text}\n{faults}");
    }
}
