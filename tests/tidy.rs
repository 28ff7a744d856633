//! The house rules that no lint knows: file lengths, arrows between rooms, pure rooms, scripts, words of one place.
//!
//! Reads the sources as text; needs nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use voxgate::ending::Ending;

/// Longest source file, in lines; tests may be longer.
const LINES_MAX: usize = 500;
const TEST_LINES_MAX: usize = 600;

/// Which room may use which. `main` and `cli` may use all; a room may always use itself.
const ARROWS: &[(&str, &[&str])] = &[
    ("admin", &["quota", "telemetry", "config", "gateway", "worker", "ending", "limits", "units"]),
    ("gateway", &["quota", "worker", "wire", "audio", "ending", "limits", "units", "telemetry"]),
    ("worker", &["wire", "audio", "ending", "limits", "units", "telemetry"]),
    ("quota", &["ending", "limits", "units", "telemetry"]),
    ("wire", &["audio", "ending", "limits", "units"]),
    ("audio", &["ending", "limits", "units"]),
    ("config", &["ending", "limits", "units", "telemetry", "quota", "worker", "gateway"]),
    ("telemetry", &["ending", "limits", "units"]),
    ("ending", &[]),
    ("limits", &["units"]),
    ("units", &[]),
];

/// Rooms of values in, values out.
const PURE: &[&str] = &["src/wire", "src/audio", "src/units.rs", "src/quota/keys.rs", "src/quota/script.rs"];
const IMPURE: &[&str] = &["tokio", "std::net", "SystemTime", "Instant::now", "tracing"];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The file without its test module and without comments.
    fn running(&self) -> String {
        if self.path.ends_with("/tests.rs") || self.path.contains("/tests/") {
            return String::new();
        }
        let body = self.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
        body.lines().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str, ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("a readable folder").path()) {
            if path.is_dir() {
                if !["node_modules", ".venv"].iter().any(|name| path.ends_with(name)) {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|word| word == ending) {
                found.push(Source {
                    path: relative(&path),
                    text: fs::read_to_string(&path).expect("readable text"),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("inside the repository").to_string_lossy().replace('\\', "/")
}

/// The room of a source file: the first folder or file under `src`.
fn room(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs")
}

#[track_caller]
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for (folder, most) in [("src", LINES_MAX), ("load", LINES_MAX), ("tests", TEST_LINES_MAX)] {
        for source in sources(folder, "rs") {
            let lines = source.text.lines().count();
            if lines >= most {
                faults.push(format!("{}: {lines} lines, at most {most}", source.path));
            }
        }
    }
    none(faults);
}

#[test]
fn files_begin_with_their_promise() {
    let mut faults = Vec::new();
    for source in ["src", "load", "tests"].iter().flat_map(|folder| sources(folder, "rs")) {
        if !source.text.starts_with("//! ") {
            faults.push(format!("{}: must begin with `//! <what it promises>`", source.path));
        }
    }
    for source in sources("lua", "lua") {
        // A script begins with its engine, a fragment for scripts with its contract.
        let second = source.text.lines().nth(1).unwrap_or_default();
        let script = source.text.starts_with("#!lua") && second.starts_with("--[[ ");
        if !script && !source.text.starts_with("--[[ ") {
            faults.push(format!("{}: must begin with `#!lua` and `--[[ <contract>`", source.path));
        }
    }
    none(faults);
}

#[test]
fn no_arrow_points_back() {
    let mut faults = Vec::new();
    for source in sources("src", "rs") {
        let from = room(&source.path);
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else { continue };
        for to in used_rooms(&source.running()) {
            let known = ARROWS.iter().any(|(name, _)| *name == to);
            if known && to != from && !allowed.contains(&to.as_str()) {
                faults.push(format!("{}: {from} must not use {to}", source.path));
            }
        }
    }
    none(faults);
}

/// The rooms named behind `crate::`, also in `use crate::{a, b::C}`.
fn used_rooms(text: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => rooms.extend(list_heads(list)),
            None => rooms.extend(word(rest)),
        }
    }
    rooms
}

/// The first word of each item of a braced list, nested braces passed over.
fn list_heads(list: &str) -> Vec<String> {
    let (mut depth, mut heads, mut start) = (0, Vec::new(), 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' if depth == 0 => {
                heads.extend(word(list[start..at].trim()));
                start = at + 1;
            }
            '}' if depth == 0 => {
                heads.extend(word(list[start..at].trim()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    heads
}

fn word(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

#[test]
fn used_rooms_are_found() {
    let text = "use crate::quota::{Lease, Quota};\nuse crate::{audio, wire::{self, x}, units::Units};";
    assert_eq!(used_rooms(text).into_iter().collect::<Vec<_>>(), ["audio", "quota", "units", "wire"]);
}

#[test]
fn pure_rooms_stay_pure() {
    let mut faults = Vec::new();
    for source in sources("src", "rs") {
        if !PURE.iter().any(|pure| source.path.starts_with(pure)) {
            continue;
        }
        let text = source.running();
        for word in IMPURE.iter().filter(|word| text.contains(*word)) {
            faults.push(format!("{}: pure, but names {word}", source.path));
        }
    }
    none(faults);
}

#[test]
fn nothing_is_left_open() {
    let mut faults = Vec::new();
    // Spelled in two parts, so that this file does not find itself.
    let open = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("todo", "!("),
        "unimplemented!(",
    ];
    for folder in ["src", "load", "tests", "lua", "clients"] {
        for ending in ["rs", "lua", "py", "js", "mjs", "html"] {
            for source in sources(folder, ending) {
                let here = source.path == "tests/tidy.rs";
                for word in open.iter().filter(|word| !here && source.text.contains(*word)) {
                    faults.push(format!("{}: {word}", source.path));
                }
                if folder == "src" && source.running().contains(".unwrap()") {
                    faults.push(format!("{}: unwrap()", source.path));
                }
            }
        }
    }
    none(faults);
}

#[test]
fn no_machine_is_named() {
    let Some(files) = tracked_files() else { return };
    // Spelled in parts, so that this file does not find itself.
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/tmp/bash", "_jobs"),
        concat!("/tmp/pr", "ep"),
    ];
    let hosts =
        [concat!("registry.npm", "js"), concat!("arti", "factory"), concat!("files.python", "hosted")];
    let mut faults = Vec::new();
    for path in files {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for word in paths.iter().chain(&hosts).filter(|word| text.contains(*word)) {
            faults.push(format!("{path}: names {word}"));
        }
    }
    none(faults);
}

/// What git knows, or `None` where the sources came without git.
fn tracked_files() -> Option<Vec<String>> {
    let listed = Command::new("git").arg("ls-files").current_dir(root()).output().ok()?;
    listed
        .status
        .success()
        .then(|| String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn scripts_keep_their_contract() {
    let mut faults = Vec::new();
    for source in sources("lua", "lua") {
        for fault in script_faults(&source.text) {
            faults.push(format!("{}: {fault}", source.path));
        }
    }
    none(faults);
}

fn script_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (header, code) = text.split_once("]]").unwrap_or(("", text));
    let code: Vec<&str> = code.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let uses_arguments = code.iter().any(|line| line.contains("ARGV"));
    // A fragment, put into scripts, has no keys and no answer of its own.
    let promised: &[&str] =
        if text.starts_with("#!lua") { &["KEYS[1]", "returns", "bound"] } else { &["bound"] };
    for word in promised.iter().chain(uses_arguments.then_some(&"ARGV")) {
        if !header.contains(word) {
            faults.push(format!("the header does not name {word}"));
        }
    }
    for (number, line) in code.iter().enumerate() {
        let place = |what: String| format!("code line {}: {what}: {}", number + 1, line.trim());
        for (word, why) in BANNED.iter().filter(|(word, _)| line.contains(word)) {
            faults.push(place(format!("{word} {why}")));
        }
        if line.trim_start().starts_with("for ") && !is_counted(line, &code) {
            faults.push(place("a loop without a count of its own".to_owned()));
        }
        faults.extend(called(line).into_iter().flat_map(|call| call_faults(&call, &code)).map(place));
        for number in line.split("KEYS[").skip(1).filter_map(|rest| rest.split_once(']')).map(|(n, _)| n) {
            if number.parse::<u32>().is_ok() && !header.contains(&format!("KEYS[{number}]")) {
                faults.push(place(format!("the header does not name KEYS[{number}]")));
            }
        }
    }
    let loops = code.iter().filter(|line| line.trim_start().starts_with("for ")).count();
    if loops > 0 && !header.split_once("bound").is_some_and(|(_, bound)| bound.contains("loop")) {
        faults.push("a loop that 'bound' does not tell of".to_owned());
    }
    faults
}

/// What no script may hold, and why.
const BANNED: &[(&str, &str)] = &[
    ("tostring(", "loses digits"),
    ("'vox:", "builds a key"),
    ("\"vox:", "builds a key"),
    ("'{'", "builds a key"),
    ("while ", "loops without a count"),
    ("repeat", "loops without a count"),
    ("goto ", "loops without a count"),
    ("loadstring", "makes code out of values"),
    ("load(", "makes code out of values"),
    ("sha1hex", "depends on a script's text"),
    ("REDIS_VERSION", "depends on the server"),
    ("math.random", "draws"),
    ("string.rep", "makes texts of any length"),
];

/// Commands that scripts may use: each does bounded work on the keys that it is given, or reads the clock.
const COMMANDS: &[&str] = &[
    "TIME",
    "GET",
    "SET",
    "DECRBY",
    "DEL",
    "PTTL",
    "PEXPIRE",
    "PEXPIREAT",
    "HGET",
    "HSET",
    "HMGET",
    "HINCRBY",
    "HDEL",
    "ZADD",
    "ZREM",
    "ZCARD",
    "ZCOUNT",
    "ZSCORE",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "XADD",
    "XLEN",
    "XRANGE",
];

/// Whether a loop runs over a list written down there, between two numbers, over arguments that were counted, or over
/// a page of so many entries.
fn is_counted(line: &str, code: &[&str]) -> bool {
    let number = |text: &str| text.trim().parse::<u32>().is_ok();
    if line.contains("ipairs({ ") || line.contains("pairs({ ") {
        return true;
    }
    if let Some((_, limit)) = line.split_once("'LIMIT', 0, ") {
        return number(limit.split(')').next().unwrap_or_default());
    }
    let Some((_, range)) = line.split_once(" = ") else { return false };
    let bounds: Vec<&str> = range.split(" do").next().unwrap_or_default().split(',').map(str::trim).collect();
    match bounds[..] {
        [from, "#ARGV", ..] => number(from) && code.iter().any(|line| line.contains("#ARGV > ")),
        [from, to] => number(from) && number(to),
        _ => false,
    }
}

/// A command that a script calls, and what stands behind it.
struct Call {
    command: String,
    key: String,
}

/// The calls of `redis.call` or `redis.pcall` on a line.
fn called(line: &str) -> Vec<Call> {
    let rests = line
        .split("redis.")
        .skip(1)
        .filter_map(|call| call.strip_prefix("call(").or_else(|| call.strip_prefix("pcall(")));
    let word = |text: Option<&str>| text.unwrap_or_default().trim().to_owned();
    rests
        .map(|rest| {
            let mut words = rest.split([',', ')']);
            Call { command: word(words.next()), key: word(words.next()) }
        })
        .collect()
}

/// A command must be written down, and its key be one of KEYS, or a name that stands for one.
fn call_faults(call: &Call, code: &[&str]) -> Option<String> {
    let command = call.command.trim_matches('\'');
    if command.len() + 2 != call.command.len() || !COMMANDS.contains(&command) {
        return Some(format!("{} is no command that scripts may use", call.command));
    }
    let inside = call.key.strip_prefix("KEYS[").and_then(|rest| rest.strip_suffix(']'));
    let counted = |name: &str| {
        let head = format!("for {name} = ");
        code.iter().any(|line| line.trim_start().starts_with(&head) && is_counted(line, code))
    };
    let declared = match inside {
        Some(place) => place.parse::<u32>().is_ok() || counted(place),
        // The keys of a lease that is closed come in a table, which holds nothing but KEYS.
        None if call.key.starts_with("key.") => {
            code.iter().any(|line| line.starts_with("  local key,") && line.contains(" = books.keys,"))
        }
        None => command == "TIME" && call.key.is_empty() || call.key == "unpack(KEYS",
    };
    (!declared).then(|| format!("{} on {}, which is not in KEYS", call.command, call.key))
}

/// What a script hands to `close` as keys is nothing but KEYS.
#[test]
fn handed_keys_are_declared() {
    let mut tables = 0;
    for source in sources("lua", "lua") {
        for table in source.text.split("keys = { ").skip(1).filter_map(|rest| rest.split_once(" }")) {
            tables += 1;
            for pair in table.0.split(", ") {
                let value = pair.split_once(" = ").map_or("", |(_, value)| value);
                let number = value.strip_prefix("KEYS[").and_then(|rest| rest.strip_suffix(']'));
                assert!(number.is_some_and(|n| n.parse::<u32>().is_ok()), "{}: {pair}", source.path);
            }
        }
    }
    assert_eq!(tables, 2, "settle and reap close");
}

/// Scripts are texts of `lua/` alone: none is made out of values, and none goes out by EVAL.
#[test]
fn no_script_is_made_at_run_time() {
    // The last one asks for permissions by a text of its own, which never changes either.
    let makers = ["src/quota/script.rs", "src/quota/store/faults.rs", "src/quota/permissions.rs"];
    for source in sources("src", "rs") {
        let text = source.running();
        assert!(!text.contains("\"EVAL\""), "{} sends a text by EVAL", source.path);
        let makes = text.contains("Script::new(") && !makers.contains(&source.path.as_str());
        assert!(!makes, "{} makes a script", source.path);
    }
}

#[test]
fn broken_scripts_are_found() {
    let good = "#!lua\n--[[ x: y\n  KEYS[1]  quota\n  ARGV[1]  cost\n  returns  {'grant'}\n  bound    1 command ]]\n\
                local left = redis.call('GET', KEYS[1])\nreturn { 'grant', redis.call('DECRBY', KEYS[1], ARGV[1]) }\n";
    assert_eq!(script_faults(good), Vec::<String>::new());
    for (old, new) in [
        ("bound  ", "around "),
        ("KEYS[1])", "'vox:quota')"),
        ("KEYS[1])", "ARGV[1] .. 'x')"),
        ("KEYS[1])", "ARGV[1])"),
        ("KEYS[1])", "KEYS[2])"),
        ("KEYS[1])", "KEYS[i])"),
        ("KEYS[1])", "left)"),
        ("KEYS[1])", "key.quota)"),
        ("'GET'", "'SORT'"),
        ("'GET'", "ARGV[1]"),
        ("'DECRBY'", "'EVALSHA'"),
        ("ARGV[1]) }", "tostring(1)) }"),
        ("return {", "loadstring(ARGV[1])() return {"),
        ("return {", "while true do end return {"),
        ("return {", "\nfor i = 1, 2 do end\nreturn {"),
    ] {
        assert!(!script_faults(&good.replacen(old, new, 1)).is_empty(), "{new} passes");
    }
    let looping = good.replace("1 command", "1 command, one loop over 2");
    for (head, passes) in [
        ("for i = 1, 2 do", true),
        ("for _, i in ipairs({ 1, 2 }) do", true),
        ("for i = 1, #ARGV do", false),
        ("if #ARGV > 4 then return end\nfor i = 1, #ARGV do", true),
        ("for i = 1, left do", false),
        ("for _, i in ipairs(left) do", false),
    ] {
        let text = looping.replacen("return {", &format!("\n{head} end\nreturn {{"), 1);
        assert_eq!(script_faults(&text).is_empty(), passes, "{head}: {:?}", script_faults(&text));
    }
}

#[test]
fn readme_names_every_metric() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap_or_default();
    assert!(readme.contains("<!-- metrics -->"), "README.md has a table of metrics");
    let mut names = BTreeSet::new();
    for source in sources("src", "rs") {
        for (at, _) in source.running().match_indices("\"voxgate_") {
            names.extend(word(&source.running()[at + 1..]));
        }
    }
    none(names.into_iter().filter(|name| !readme.contains(&format!("`{name}`"))).collect());
}

/// The table of the store's answers has a row for each that the code knows.
#[test]
fn readme_names_every_store_answer() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with('|')).collect();
    for code in voxgate::quota::store::code::CODES {
        let word = format!("`{}`", code.word);
        assert!(rows.iter().any(|row| row.contains(&word)), "README's tables do not name {word}");
    }
}

#[test]
fn readme_names_every_ending() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap_or_default();
    assert!(readme.contains("<!-- endings -->"), "README.md has a table of endings");
    let words = Ending::ALL.iter().map(|ending| ending.word());
    none(words.filter(|word| !readme.contains(&format!("`{word}`"))).map(str::to_owned).collect());
}

/// The table of mechanisms is complete, and every test that it names exists.
#[test]
fn mechanisms_name_their_tests() {
    let table = fs::read_to_string(root().join("deploy/mechanisms.md")).expect("the table of mechanisms");
    let tests: BTreeSet<String> = ["tests", "src"]
        .iter()
        .flat_map(|folder| sources(folder, "rs"))
        .flat_map(|source| source.text.split("fn ").skip(1).filter_map(word).collect::<Vec<_>>())
        .collect();
    let (mut rows, mut faults) = (BTreeSet::new(), Vec::new());
    for line in table.lines().filter(|line| ["| A", "| B", "| C"].iter().any(|id| line.starts_with(id))) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        rows.insert(cells[0].to_owned());
        let named: Vec<&str> = cells.last().unwrap_or(&"").split('`').skip(1).step_by(2).collect();
        if cells.len() != 4 || named.is_empty() {
            faults.push(format!("{}: names no test", cells[0]));
        }
        let missing = named.iter().filter(|name| !tests.contains(**name));
        faults.extend(missing.map(|name| format!("{}: there is no test {name}", cells[0])));
    }
    let wanted = (1..=43).map(|n| format!("A{n}")).chain((1..=17).map(|n| format!("B{n}")));
    faults.extend(wanted.filter(|id| !rows.contains(id)));
    none(faults);
}
