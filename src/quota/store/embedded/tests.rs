//! What a script may rely on in process.

use super::*;

fn store() -> (Embedded, Arc<AtomicU64>) {
    let micros = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    (Embedded::new(Clock::Manual(Arc::clone(&micros))).unwrap(), micros)
}

fn script(text: &'static str) -> Script {
    Script::new("test", text.to_owned())
}

fn run(store: &Embedded, text: &'static str) -> Result<Reply, StoreError> {
    store.run(&script(text), &["k{a}"], &["x"])
}

fn command(store: &Embedded, line: &str) -> Result<Reply, StoreError> {
    store.command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

fn odd<T>(text: &str) -> Result<T, StoreError> {
    Err(StoreError::Odd(text.to_owned()))
}

const ADMIT: &str = "#!lua flags=allow-oom
local left = redis.call('GET', KEYS[1])
if not left then return { 'lapse', 0 } end
if tonumber(left) < tonumber(ARGV[1]) then return { 'refuse', tonumber(left) } end
return { 'grant', redis.call('DECRBY', KEYS[1], ARGV[1]) }";

#[test]
fn admit_takes_what_it_grants() {
    let (store, _) = store();
    let admit = script(ADMIT);
    let words = |word: &str, left| Ok(Reply::List(vec![Reply::Bulk(word.into()), Reply::Int(left)]));

    assert_eq!(store.run(&admit, &["q{a}"], &["3"]), words("lapse", 0));
    command(&store, "SET q{a} 10").unwrap();
    assert_eq!(store.run(&admit, &["q{a}"], &["3"]), words("grant", 7));
    assert_eq!(store.run(&admit, &["q{a}"], &["8"]), words("refuse", 7));
    assert_eq!(command(&store, "GET q{a}"), Ok(Reply::Bulk(b"7".to_vec())));
}

#[test]
fn runaway_script_is_stopped() {
    let (store, _) = store();
    for text in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
    ] {
        assert_eq!(
            run(&store, text),
            odd("ERR Script killed: it ran more than 10000000 instructions"),
            "{text}"
        );
        assert_eq!(run(&store, "return 1"), Ok(Reply::Int(1)), "after {text}");
    }
}

#[test]
fn greedy_script_is_stopped() {
    let (store, _) = store();
    let error = run(&store, "local t = 'x' while true do t = t .. t end").unwrap_err();
    assert!(matches!(&error, StoreError::Odd(text) if text.contains("memory")), "{error}");
    assert_eq!(run(&store, "return 1"), Ok(Reply::Int(1)));
}

#[test]
fn keys_must_share_a_slot() {
    let (store, _) = store();
    let text = "return redis.call('GET', KEYS[1])";
    assert_eq!(
        store.run(&script(text), &["{a}1", "{b}1"], &[]),
        odd("CROSSSLOT Keys in request don't hash to the same slot")
    );
    assert!(run(&store, "return redis.call('GET', 'other{a}')").is_ok());
    for other in ["{b}", "{foo}", "{e}"] {
        let text: &'static str = format!("return redis.call('GET', '{other}')").leak();
        assert!(matches!(run(&store, text), Err(StoreError::Odd(_))), "{other}");
    }
    assert!(store.run(&script("return redis.call('GET', 'x')"), &[], &[]).is_err());
    assert!(command(&store, "DEL {a} {b}").is_err());
}

#[test]
fn time_stands_still_in_a_script() {
    let store = Embedded::new(Clock::System).unwrap();
    let text = "local a = redis.call('TIME') local t = os.clock() while os.clock() < t + 0.002 do end
        local b = redis.call('TIME') return { a[1] == b[1], a[2] == b[2] }";
    assert_eq!(run(&store, text), Ok(Reply::List(vec![Reply::Int(1), Reply::Int(1)])));
}

#[test]
fn writes_before_an_error_stay() {
    let (store, _) = store();
    let answer = run(&store, "redis.call('SET', KEYS[1], 'v') return redis.call('HGET', KEYS[1], 'f')");
    assert!(matches!(answer, Err(StoreError::Corrupt(_))));
    assert_eq!(command(&store, "GET k{a}"), Ok(Reply::Bulk(b"v".to_vec())));
}

#[test]
fn globals_are_sealed() {
    let (store, _) = store();
    let readonly = "Attempt to modify a readonly table";
    for (text, fault) in [
        ("x = 1", format!("ERR user_script:1: {readonly}")),
        ("KEYS = 1", format!("ERR user_script:1: {readonly}")),
        ("redis.call = 1", format!("ERR user_script:1: {readonly}")),
        ("rawset(_G, 'a', 1)", format!("ERR {readonly}")),
        ("setmetatable(string, {})", format!("ERR {readonly}")),
        (
            "return y",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'y'".to_owned(),
        ),
    ] {
        assert_eq!(run(&store, text), odd(&fault), "{text}");
    }
    for name in
        ["io", "debug", "require", "loadfile", "dofile", "load", "loadstring", "print", "getfenv", "setfenv"]
    {
        let text: &'static str = format!("return {name}").leak();
        assert!(run(&store, text).is_err(), "{name}");
    }
    assert_eq!(run(&store, "return getmetatable('')"), Ok(Reply::Nil));
    assert_eq!(run(&store, "return rawget(_G, 'x')"), Ok(Reply::Nil));
}

#[test]
fn nothing_leaks_into_the_next_call() {
    let (store, _) = store();
    run(&store, "KEYS[2] = 'x' KEYS.more = 1 setmetatable(ARGV, { __index = function() return 'leak' end })")
        .unwrap();
    assert_eq!(
        run(&store, "return { #KEYS, KEYS.more == nil, ARGV[9] == nil }"),
        Ok(Reply::List(vec![Reply::Int(1); 3]))
    );
}

#[test]
fn read_only_script_cannot_write() {
    let (store, _) = store();
    let fault = "ERR Write commands are not allowed from read-only scripts.";
    assert_eq!(run(&store, "#!lua flags=no-writes\nreturn redis.call('SET', KEYS[1], 1)"), odd(fault));
    assert!(run(&store, "return redis.call('SET', KEYS[1], 1)").is_ok());
}

#[test]
fn scan_finds_every_key_once() {
    let (store, _) = store();
    let mut expected: Vec<_> = (0..300).map(|n| format!("key:{n}").into_bytes()).collect();
    for key in &expected {
        store.command(&[b"SET", key, b"1"]).unwrap();
    }
    store.command(&[b"SET", b"other", b"1"]).unwrap();

    let (mut found, mut cursor) = (Vec::new(), b"0".to_vec());
    loop {
        let reply = store.command(&[b"SCAN", &cursor, b"MATCH", b"key:*", b"COUNT", b"10"]).unwrap();
        let Reply::List(parts) = reply else { panic!("{reply:?}") };
        let [Reply::Bulk(next), Reply::List(names)] = parts.as_slice() else { panic!("{parts:?}") };
        found.extend(names.iter().cloned());
        cursor.clone_from(next);
        if cursor == b"0" {
            break;
        }
    }

    let mut found: Vec<_> =
        found.into_iter().map(|name| if let Reply::Bulk(n) = name { n } else { vec![] }).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(command(&store, "DBSIZE"), Ok(Reply::Int(301)));
}

#[test]
fn key_ends_with_the_clock() {
    let (store, micros) = store();
    command(&store, "SET k{a} 1 PX 100").unwrap();
    micros.fetch_add(101_000, Ordering::Release);
    assert_eq!(run(&store, "return redis.call('EXISTS', KEYS[1])"), Ok(Reply::Int(0)));
}

#[test]
fn many_threads_take_each_unit_once() {
    let (store, _) = store();
    let admit = script(ADMIT);
    command(&store, "SET q{a} 1000").unwrap();

    let granted: usize = std::thread::scope(|scope| {
        let work =
            || (0..400).filter(|_| store.run(&admit, &["q{a}"], &["1"]).is_ok_and(|r| is_grant(&r))).count();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });

    assert_eq!(granted, 1000);
    assert_eq!(command(&store, "GET q{a}"), Ok(Reply::Bulk(b"0".to_vec())));
}

fn is_grant(reply: &Reply) -> bool {
    matches!(reply, Reply::List(parts) if parts.first() == Some(&Reply::Bulk(b"grant".to_vec())))
}
