//! The Lua of Redis: globals, conversions between Lua values and replies, errors, and an end to runaway scripts.
//!
//! Lua values become replies and back exactly as Redis does for RESP2; numbers given to a command are printed
//! as Redis 7.2+ and Valkey print them. It never decides what a command does.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use mlua::{
    Error, Function, HookTriggers, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value, VmState,
};
use sha1::{Digest, Sha1};

use super::{
    Room,
    flags::{self, Flags},
    lock,
};
use crate::quota::store::{
    Reply, Script,
    keyspace::{Answer, Fault, number::push_double},
};

/// One Lua with its compiled scripts.
pub(super) struct Dialect {
    lua: Lua,
    /// The table behind a script's globals.
    globals: Table,
    /// Lua's own `pcall`, so that a raised table reaches us as it is.
    protect: Function,
    words: Words,
    compiled: HashMap<String, Arc<Compiled>>,
    steps: Arc<AtomicU64>,
}

/// A script, ready to run.
pub(super) struct Compiled {
    pub(super) function: Function,
    pub(super) flags: Flags,
}

/// Strings needed by every call, made once.
struct Words {
    keys: LuaString,
    argv: LuaString,
    err: LuaString,
    ok: LuaString,
    double: LuaString,
}

/// An error that a command raised, on its way through Lua.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl Dialect {
    /// Makes a Lua whose commands run in `room`.
    pub(super) fn new(room: &Arc<Mutex<Room>>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        lua.set_memory_limit(MEMORY)?;
        let protect: Function = lua.globals().get("pcall")?;
        let steps = Arc::new(AtomicU64::new(0));
        bound_steps(&lua, Arc::clone(&steps))?;
        let parts = (
            command(&lua, Arc::clone(room), true)?,
            command(&lua, Arc::clone(room), false)?,
            explain(&lua, Arc::clone(&steps))?,
            lua.create_function(|_, text: LuaString| Ok(hex::encode(Sha1::digest(text.as_bytes()))))?,
        );
        let prelude = lua.load(include_str!("prelude.lua")).set_name("@prelude").into_function()?;
        let (sealed, globals): (Table, Table) = prelude.call(parts)?;
        lua.set_globals(sealed)?;
        let words = Words {
            keys: lua.create_string("KEYS")?,
            argv: lua.create_string("ARGV")?,
            err: lua.create_string("err")?,
            ok: lua.create_string("ok")?,
            double: lua.create_string("double")?,
        };
        Ok(Self { lua, globals, protect, words, compiled: HashMap::new(), steps })
    }

    /// The script compiled, once per text.
    pub(super) fn compiled(&mut self, script: &Script) -> Result<Arc<Compiled>, Fault> {
        if let Some(compiled) = self.compiled.get(&script.sha) {
            return Ok(Arc::clone(compiled));
        }
        let (flags, body) = flags::split(&script.text)?;
        let chunk = self.lua.load(body).set_name("@user_script").set_mode(mlua::chunk::ChunkMode::Text);
        let function = chunk.into_function().map_err(|error| {
            let message = match &error {
                Error::SyntaxError { message, .. } => message.clone(),
                other => other.to_string(),
            };
            Fault::Owned(format!("ERR Error compiling script (new function): {message}"))
        })?;
        if self.compiled.len() >= SCRIPTS {
            self.compiled.clear();
        }
        let compiled = Arc::new(Compiled { function, flags });
        self.compiled.insert(script.sha.clone(), Arc::clone(&compiled));
        Ok(compiled)
    }

    /// Runs a compiled script.
    pub(super) fn run(&self, script: &Function, keys: &[&str], args: &[&str]) -> Answer {
        self.steps.store(0, Ordering::Relaxed);
        let (done, value) =
            self.start(script, keys, args).map_err(|error| self.raised(&Value::Error(error.into())))?;
        if done { self.reply(value, 0) } else { Err(self.raised(&value)) }
    }

    fn start(&self, script: &Function, keys: &[&str], args: &[&str]) -> mlua::Result<(bool, Value)> {
        for (name, list) in [(&self.words.keys, keys), (&self.words.argv, args)] {
            self.globals.raw_set(name, self.lua.create_sequence_from(list.iter().copied())?)?;
        }
        self.protect.call(script)
    }

    /// What a script returned, as a reply.
    fn reply(&self, value: Value, depth: usize) -> Answer {
        Ok(match value {
            Value::Boolean(true) => Reply::Int(1),
            Value::Integer(number) => Reply::Int(number),
            Value::Number(number) => Reply::Int(truncate(number)),
            Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
            Value::Table(table) => return self.reply_of_table(&table, depth),
            _ => Reply::Nil, // a foreign enum: functions and the like are nothing to a client
        })
    }

    fn reply_of_table(&self, table: &Table, depth: usize) -> Answer {
        if depth > DEPTH {
            return Err("ERR reached lua stack limit".into());
        }
        if let Some(text) = self.field(table, &self.words.err) {
            return Err(line(&text).into());
        }
        if let Some(text) = self.field(table, &self.words.ok) {
            return Ok(Reply::Status(line(&text)));
        }
        if let Ok(Value::Number(double)) = table.raw_get(&self.words.double) {
            let mut text = Vec::new();
            push_double(&mut text, double);
            return Ok(Reply::Bulk(text));
        }
        let mut list = Vec::new();
        for place in 1_i64.. {
            match table.raw_get(place).unwrap_or(Value::Nil) {
                Value::Nil => break,
                value => list.push(self.reply(value, depth + 1)?),
            }
        }
        Ok(Reply::List(list))
    }

    fn field(&self, table: &Table, name: &LuaString) -> Option<LuaString> {
        match table.raw_get(name) {
            Ok(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The text of whatever a script died of.
    fn raised(&self, value: &Value) -> Fault {
        match value {
            Value::Error(error) => text_of(error).into(),
            Value::String(text) => format!("ERR {}", line(text)).into(),
            Value::Table(table) => match self.field(table, &self.words.err) {
                Some(text) => line(&text).into(),
                None => "ERR unknown error".into(),
            },
            other => format!("ERR {}", other.to_string().unwrap_or_default()).into(),
        }
    }
}

/// `redis.call` when errors raise, else `redis.pcall`.
fn command(lua: &Lua, room: Arc<Mutex<Room>>, raises: bool) -> mlua::Result<Function> {
    let ok = lua.create_string("ok")?;
    lua.create_function(move |lua, args: MultiValue| {
        let answer = with_words(&args, |words| lock(&room).call(words));
        match answer {
            Ok(reply) => to_lua(lua, reply, &ok),
            Err(fault) if raises => Err(Error::external(Raised(fault.into_owned()))),
            Err(fault) => {
                let table = lua.create_table()?;
                table.raw_set("err", fault.as_ref())?;
                Ok(Value::Table(table))
            }
        }
    })
}

/// Lends the arguments of a command as bytes; numbers are printed.
fn with_words(args: &MultiValue, work: impl FnOnce(&[&[u8]]) -> Answer) -> Answer {
    let mut texts = Vec::with_capacity(args.len());
    for arg in args {
        texts.push(match arg {
            Value::String(text) => Text::Lua(text.as_bytes()),
            Value::Integer(number) => Text::Own(number.to_string().into_bytes()),
            Value::Number(number) => {
                let mut text = Vec::new();
                push_double(&mut text, *number);
                Text::Own(text)
            }
            _ => return Err("ERR Lua redis lib command arguments must be strings or integers".into()),
        });
    }
    let words: Vec<&[u8]> = texts.iter().map(Text::bytes).collect();
    work(&words)
}

/// One argument, borrowed from Lua where it can be.
enum Text {
    Lua(mlua::BorrowedBytes),
    Own(Vec<u8>),
}

impl Text {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lua(text) => text,
            Self::Own(text) => text,
        }
    }
}

fn to_lua(lua: &Lua, reply: Reply, ok: &LuaString) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        #[expect(clippy::cast_precision_loss, reason = "Lua 5.1 has doubles only, as in Redis")]
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(text) => Value::String(lua.create_string(text)?),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set(ok, text)?;
            Value::Table(table)
        }
        Reply::List(list) => {
            let table = lua.create_table_with_capacity(list.len(), 0)?;
            for item in list {
                table.raw_push(to_lua(lua, item, ok)?)?;
            }
            Value::Table(table)
        }
    })
}

/// What `pcall` and `xpcall` show of an error; raises once the script is stopped, so that no `pcall` outlives that.
fn explain(lua: &Lua, steps: Arc<AtomicU64>) -> mlua::Result<Function> {
    lua.create_function(move |lua, (value, as_table): (Value, bool)| {
        if steps.load(Ordering::Relaxed) > STEPS {
            return Err(stopped());
        }
        let text = match &value {
            Value::Error(error) => lua.create_string(text_of(error))?,
            Value::Table(table) if !as_table => match table.raw_get("err")? {
                Value::String(text) => text,
                _ => return Ok(value),
            },
            _ => return Ok(value),
        };
        if !as_table {
            return Ok(Value::String(text));
        }
        let table = lua.create_table()?;
        table.raw_set("err", text)?;
        Ok(Value::Table(table))
    })
}

/// Counts instructions and ends a script that needs more than [`STEPS`].
fn bound_steps(lua: &Lua, steps: Arc<AtomicU64>) -> mlua::Result<()> {
    lua.set_hook(HookTriggers::new().every_nth_instruction(STRIDE), move |_, _| {
        let before = steps.fetch_add(u64::from(STRIDE), Ordering::Relaxed);
        if before >= STEPS { Err(stopped()) } else { Ok(VmState::Continue) }
    })
}

fn stopped() -> Error {
    Error::external(Raised(format!("ERR Script killed: it ran more than {STEPS} instructions")))
}

fn text_of(error: &Error) -> String {
    match error.downcast_ref::<Raised>() {
        Some(Raised(text)) => text.clone(),
        None => format!("ERR {}", error.to_string().replace(['\r', '\n'], " ")),
    }
}

/// A text fit for one line of the protocol.
fn line(text: &LuaString) -> String {
    text.to_string_lossy().replace(['\r', '\n'], " ")
}

/// Cuts to an integer as the processor does for Redis: what doesn't fit becomes the least integer.
fn truncate(number: f64) -> i64 {
    const EDGE: f64 = 9_223_372_036_854_775_808.0; // 2^63
    if !(-EDGE..EDGE).contains(&number) {
        return i64::MIN;
    }
    #[expect(clippy::cast_possible_truncation, reason = "cutting is what Redis does; the range is checked")]
    let whole = number as i64;
    whole
}

/// Most Lua instructions of one call; ours need hundreds.
const STEPS: u64 = 10_000_000;
/// Instructions between two looks at the count.
const STRIDE: u32 = 10_000;
/// Most bytes that one Lua may hold.
const MEMORY: usize = 64 * 1024 * 1024;
/// Most compiled scripts kept, as in Redis.
const SCRIPTS: usize = 500;
/// Deepest nesting of a returned table.
const DEPTH: usize = 100;
