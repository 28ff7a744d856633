//! Random calls: commands with now and then a wrong word, and scripts made of them.

use fastrand::Rng;

/// One call to a store.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// A plain command.
    Command(Vec<String>),
    /// A script with its keys and arguments.
    Script { text: &'static str, keys: Vec<String>, args: Vec<String> },
}

impl Call {
    /// A command written as one line.
    pub(super) fn plain(line: &str) -> Self {
        Self::Command(line.split(' ').map(str::to_owned).collect())
    }

    /// How far two clocks may let its reply differ.
    pub(super) fn slack_ms(&self) -> i64 {
        let words = match self {
            Self::Command(words) => words,
            Self::Script { args, .. } => args,
        };
        let timed = ["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"];
        if words.first().is_some_and(|name| timed.contains(&name.to_uppercase().as_str())) {
            super::SLACK_MS
        } else {
            0
        }
    }
}

/// The source of calls; the same seed and time give the same ones.
pub(super) struct Calls {
    random: Rng,
    now_ms: i64,
}

impl Calls {
    pub(super) fn new(seed: u64, now_ms: i64) -> Self {
        Self { random: Rng::with_seed(seed), now_ms }
    }

    pub(super) fn draw(&mut self) -> Call {
        if self.random.u8(0..3) > 0 {
            return Call::Command(self.command());
        }
        let text = self.pick(&SCRIPTS);
        let args = if text.contains("ARGV[") {
            (0..3).map(|_| self.fill(&["i", "v", "f"])).collect()
        } else {
            self.command()
        };
        Call::Script { text, keys: vec![self.fill(&["k"]), self.fill(&["k"])], args }
    }

    /// A command, one in twelve with a word too many, too few or out of place.
    fn command(&mut self) -> Vec<String> {
        let pattern = self.pick(&COMMANDS);
        let mut words = Vec::new();
        for word in pattern.split(' ') {
            match word.strip_prefix('?') {
                Some(_) if self.random.bool() => break,
                Some(rest) => words.push(self.word(rest)),
                None => words.push(self.word(word)),
            }
        }
        // The name and the key stay: a foreign key would leave the script's slot, which only we refuse here.
        let spares: &[&str] = match words[0].as_str() {
            "DEL" | "UNLINK" | "EXISTS" => &["k"],
            "ZADD" => &["w", "f"], // servers print huge scores each in their own way
            _ => &["w", "i", "f"],
        };
        let at = self.random.usize(2..=words.len().max(2));
        match self.random.u8(0..36) {
            0 if at < words.len() => drop(words.remove(at)),
            1 if at <= words.len() => words.insert(at, self.fill(spares)),
            2 if at < words.len() => words[at] = self.fill(spares),
            3 => words[0].make_ascii_lowercase(),
            _ => {}
        }
        words
    }

    /// A word of a pattern: lower case names a pool, anything else is itself.
    fn word(&mut self, word: &str) -> String {
        match word {
            "t" => (self.now_ms + self.random.i64(-3..9) * 100_000 + 1_000_000).to_string(),
            "T" => (self.now_ms + self.random.i64(-3..9) * 100_000 + 50_000).to_string(),
            "k" | "v" | "i" | "f" | "s" | "e" | "d" | "x" | "r" | "c" => self.fill(&[word]),
            _ => word.to_owned(),
        }
    }

    fn fill(&mut self, pools: &[&str]) -> String {
        let pool: &[&str] = match self.pick(pools) {
            "k" => &["{t}0", "{t}1", "{t}2", "{t}3", "{t}4", "{t}5"],
            "v" => &[
                "a",
                "",
                "10",
                "-7",
                "0",
                "9223372036854775807",
                "1.5",
                " 1",
                "01",
                "word",
                "two words",
                "ü\t\u{1}",
            ],
            // No leading blank: servers differ in where they take one. No line ends: Redis 7.4 puts them into error lines raw.
            "w" => &["a", "", "10", "-7", "1.5", "01", "word", "ü", "nx", "GT", "COUNT", "LIMIT", "+", "("],
            "i" => &[
                "1",
                "2",
                "-3",
                "0",
                "100",
                "9007199254740993",
                "9223372036854775807",
                "-9223372036854775808",
                "x",
            ],
            "f" => &["f1", "f2", "f3", "10", ""],
            "s" => &["1", "2", "-3.5", "0", "1e3", "inf", "-inf", "7", "nan", "x"],
            "e" => &["-inf", "+inf", "1", "(1", "2", "(7", "-3.5", "x", "(-inf"],
            "d" => &["100", "5000", "0", "-1", "x", "9223372036854775807"],
            "x" => &["1-1", "2-0", "2-*", "5", "7-7", "9-*", "0-0", "x", "1-x", "18446744073709551615-1"],
            "r" => &["-", "+", "1", "2-0", "(2-0", "(5", "7-7", "(0-0", "x"],
            "c" => &["0", "1", "2", "-1", "3", "-2", "100", "x"],
            other => panic!("no pool {other}"),
        };
        self.pick(pool).to_owned()
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        *self.random.choice(list).expect("a pool has words")
    }
}

#[rustfmt::skip]
const COMMANDS: [&str; 82] = [
    "GET k", "SET k v", "SET k i", "SET k v EX d", "SET k v PX d", "SET k v PXAT t", "SET k v NX", "SET k v XX",
    "SET k v KEEPTTL", "SET k v GET", "SET k v NX GET", "SET k v EX d KEEPTTL", "SET k v EX d NX",
    "INCRBY k i", "DECRBY k i", "DECRBY k i", "DEL k", "DEL k k", "UNLINK k", "EXISTS k k", "TYPE k",
    "EXPIRE k d", "PEXPIRE k d", "PEXPIREAT k t", "PEXPIREAT k t NX", "PEXPIREAT k t XX", "PEXPIREAT k T GT",
    "PEXPIREAT k T LT", "PEXPIREAT k T NX GT", "PEXPIREAT k T GT LT", "EXPIREAT k d", "PERSIST k", "TTL k",
    "PTTL k", "PEXPIRETIME k", "EXPIRE k d v",
    "HGET k f", "HMGET k f f f", "HSET k f v", "HSET k f v f v", "HSET k f i", "HSETNX k f v", "HINCRBY k f i",
    "HINCRBY k f i", "HDEL k f", "HDEL k f f", "HEXISTS k f", "HGETALL k", "HLEN k", "HKEYS k",
    "ZADD k s f", "ZADD k s f s f", "ZADD k NX s f", "ZADD k XX s f", "ZADD k GT CH s f s f", "ZADD k LT CH s f",
    "ZADD k NX GT s f", "ZREM k f f", "ZSCORE k f", "ZCARD k", "ZCOUNT k e e", "ZRANGE k c c", "ZRANGE k c c WITHSCORES",
    "ZRANGE k c c REV ?WITHSCORES", "ZRANGEBYSCORE k e e", "ZRANGEBYSCORE k e e WITHSCORES",
    "ZRANGEBYSCORE k e e LIMIT c c ?WITHSCORES", "ZREMRANGEBYSCORE k e e",
    "XADD k x f v", "XADD k x f v f v", "XADD k MAXLEN c x f v", "XADD k NOMKSTREAM x f v", "XADD k MAXLEN = c x f v",
    "XLEN k", "XRANGE k r r", "XRANGE k r r COUNT c", "XTRIM k MAXLEN c", "XTRIM k MINID x", "XDEL k x x",
    "PING", "PING v", "NOPE v v",
];

/// Those that name `ARGV[` get values; the others get a whole command as their arguments.
const SCRIPTS: [&str; 40] = [
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "#!lua\nreturn redis.call(unpack(ARGV))",
    "#!lua flags=no-writes\nreturn redis.call(unpack(ARGV))",
    "#!lua flags=no-writes,allow-stale\nreturn redis.pcall(unpack(ARGV))",
    "return { 1, redis.pcall(unpack(ARGV)), 'end' }",
    "return { { redis.call(unpack(ARGV)) }, { ok = 'nested' } }",
    "return type(redis.call(unpack(ARGV)))",
    "local r = redis.pcall(unpack(ARGV)) if type(r) == 'table' and r.err then return { 'err', r.err } end return r",
    "local r = redis.call(unpack(ARGV)) if type(r) == 'table' and r.ok then return r.ok end return r",
    "local r = redis.call(unpack(ARGV)) if type(r) == 'table' then return { #r, r[1], r[2] } end return { r }",
    "local ok, e = pcall(redis.call, unpack(ARGV)) return { tostring(ok), type(e), ok and 1 or e }",
    "local ok, e = pcall(function() return redis.call(unpack(ARGV)) end) return { tostring(ok), e }",
    "local function f() return redis.call(unpack(ARGV)) end
    local ok, e = xpcall(f, function(e) return type(e) == 'table' and e.err or tostring(e) end)
    return { tostring(ok), e }",
    "redis.call('SET', KEYS[1], 'before') return redis.call(unpack(ARGV))",
    "redis.pcall('HSET', KEYS[1], 'f', 'before') local r = redis.call(unpack(ARGV)) redis.call('DEL', KEYS[2]) return r",
    "redis.call(unpack(ARGV)) redis.call(unpack(ARGV)) return redis.call('EXISTS', KEYS[1], KEYS[2])",
    "local ok, e = pcall(redis.call, unpack(ARGV)) if not ok then error(e, 0) end return 'fine'",
    "local ok, e = pcall(redis.call, unpack(ARGV)) if not ok then return redis.error_reply(e) end return 'fine'",
    "local left = redis.call('GET', KEYS[1])
    if not left then return { 'lapse', 0 } end
    if not (left:match('^[1-9]%d*$') or left == '0') or not ARGV[1]:match('^[1-9]%d*$') then return { 'corrupt' } end
    if tonumber(left) < tonumber(ARGV[1]) then return { 'refuse', tonumber(left) } end
    return { 'grant', redis.call('DECRBY', KEYS[1], ARGV[1]) }",
    "return tonumber(ARGV[1])",
    "return { tonumber(ARGV[1]) or 'none', tonumber(ARGV[2]) or 'none', ARGV[3] }",
    "return redis.call('INCRBY', KEYS[1], (tonumber(ARGV[1]) or 5) % 1000)",
    "redis.call('SET', KEYS[1], 2.5) return redis.call('GET', KEYS[1])",
    "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], 7, -12) return redis.call('HGETALL', KEYS[1])",
    "return redis.error_reply(ARGV[1])",
    "return redis.status_reply(ARGV[2])",
    "return { err = ARGV[1] }",
    "return { ok = ARGV[1], ARGV[2] }",
    "error(ARGV[1])",
    "error({ err = 'CODE ' .. ARGV[1] })",
    "return { true, false, ARGV[1] }",
    "return { 1, 2.9, -2.9, { 'a', { nil, 'b' } }, ARGV[1], nil, 'lost' }",
    "x = ARGV[1]",
    "return nope .. ARGV[1]",
    "return ARGV[1] + 1",
    "return redis.sha1hex(ARGV[1])",
    "return { #KEYS, #ARGV, KEYS[1], ARGV[3], KEYS[3] == nil and ARGV[4] == nil }",
    "local t = {} for i = 1, 3 do t[i] = redis.pcall('HINCRBY', KEYS[1], ARGV[i], i) end return t",
    "local a = redis.call('TIME') local b = redis.pcall('GET', KEYS[1], ARGV[1]) return { #a, b }",
];
