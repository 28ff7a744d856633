//! The first line of a script, `#!lua flags=...`; read as Redis reads it, pure.

use super::Fault;

/// What a script declares about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// It never writes, and is held to that.
    pub(super) no_writes: bool,
    /// It may touch slots other than that of its KEYS.
    pub(super) allow_cross_slot_keys: bool,
}

/// Splits a script into its flags and the Lua text, which keeps its line numbers.
///
/// # Errors
/// Redis' own text for an unknown engine, option or flag.
pub(super) fn split(text: &str) -> Result<(Flags, &str), Fault> {
    if !text.starts_with("#!") {
        return Ok((Flags::default(), text));
    }
    let end = text.find('\n').ok_or(Fault::Borrowed("ERR Invalid script shebang"))?;
    let (line, body) = text.split_at(end);
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}").into());
    }
    let mut flags = Flags::default();
    for word in words {
        let list = word
            .strip_prefix("flags=")
            .ok_or_else(|| Fault::Owned(format!("ERR Unknown lua shebang option: {word}")))?;
        if !list.is_empty() {
            list.split(',').try_for_each(|flag| flags.set(flag))?;
        }
    }
    Ok((flags, body))
}

impl Flags {
    fn set(&mut self, flag: &str) -> Result<(), Fault> {
        match flag {
            "no-writes" => self.no_writes = true,
            "allow-cross-slot-keys" => self.allow_cross_slot_keys = true,
            "allow-oom" | "allow-stale" => {} // memory and replication are not this store's affair
            "no-cluster" => return Err("ERR Can not run script on cluster, 'no-cluster' flag is set.".into()),
            _ => return Err(format!("ERR Unexpected flag in script shebang: {flag}").into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_in_redis() {
        let both = Flags { no_writes: true, allow_cross_slot_keys: true };
        assert_eq!(split("return 1"), Ok((Flags::default(), "return 1")));
        assert_eq!(split("#!lua\nreturn 1"), Ok((Flags::default(), "\nreturn 1")));
        assert_eq!(split("#!lua flags=\nx"), Ok((Flags::default(), "\nx")));
        assert_eq!(
            split("#!lua flags=no-writes,allow-oom flags=allow-cross-slot-keys\nx"),
            Ok((both, "\nx"))
        );
    }

    #[test]
    fn unknown_shebang_is_refused() {
        for (text, fault) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!python\nx", "ERR Unexpected engine in script shebang: #!python"),
            ("#!lua name=x\nx", "ERR Unknown lua shebang option: name=x"),
            ("#!lua flags=foo\nx", "ERR Unexpected flag in script shebang: foo"),
            ("#!lua flags=no-writes, allow-oom\nx", "ERR Unexpected flag in script shebang: "),
        ] {
            assert_eq!(split(text), Err(fault.into()), "{text}");
        }
    }
}
