//! NCCL's parameters: the environment variables that a program can read with `ncclParamGetParameter` and similar calls.
//!
//! `nccl.h` declares these calls, but NCCL's documentation does not say which variables are parameters. The table, the
//! accepted values, and the results are those of libnccl 2.30.7, which was called with each variable set and not set.

use std::fmt::{self, Display, Write};
use std::sync::OnceLock;

/// The numbers of the levels that are printed here. Each level includes all levels before it.
pub(crate) mod level {
    /// Nothing is printed.
    pub(crate) const NONE: u32 = 0;
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const WARN: u32 = 2;
    pub(crate) const INFO: u32 = 3;
}

/// The names in `NCCL_DEBUG`, with their levels.
const LEVELS: [(&str, u32); 5] =
    [("VERSION", level::VERSION), ("WARN", level::WARN), ("INFO", level::INFO), ("ABORT", 4), ("TRACE", 5)];

/// The names in `NCCL_DEBUG_SUBSYS`, with their bits.
const SUBSYSTEMS: [(&str, u32); 18] = [
    ("INIT", 0),
    ("COLL", 1),
    ("P2P", 2),
    ("SHM", 3),
    ("NET", 4),
    ("GRAPH", 5),
    ("TUNING", 6),
    ("ENV", 7),
    ("ALLOC", 8),
    ("ALLOC_HOST", 16),
    ("CALL", 9),
    ("PROXY", 10),
    ("NVLS", 11),
    ("BOOTSTRAP", 12),
    ("REG", 13),
    ("PROFILE", 14),
    ("RAS", 15),
    ("DESTROY", 17),
];

/// A parameter.
#[derive(Debug, PartialEq)]
pub struct Parameter {
    /// The environment variable.
    pub key: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A string, with its default.
    Text(&'static str),
    Level,
    LevelSet,
    SubsystemSet,
    /// A boolean value, which is read once.
    Flag,
}

/// The parameters, in the order in which NCCL lists them.
pub static PARAMETERS: [Parameter; 6] = [
    Parameter { key: "NCCL_DEBUG_FILE", kind: Kind::Text("") },
    Parameter { key: "NCCL_DEBUG_TIMESTAMP_FORMAT", kind: Kind::Text("[%F %T] ") },
    Parameter { key: "NCCL_DEBUG_TIMESTAMP_LEVELS", kind: Kind::LevelSet },
    Parameter { key: "NCCL_SET_THREAD_NAME", kind: Kind::Flag },
    Parameter { key: "NCCL_DEBUG_SUBSYS", kind: Kind::SubsystemSet },
    Parameter { key: "NCCL_DEBUG", kind: Kind::Level },
];

/// A parameter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A level of `NCCL_DEBUG`: 0 if there is none.
    Level(u32),
    /// A set of levels, with one bit for each.
    LevelSet(u32),
    /// A set of subsystems, with one bit for each.
    SubsystemSet(u64),
    /// Yes or no.
    Flag(bool),
}

impl Parameter {
    /// Returns the present value. If the environment variable has a value that is not accepted, this is the default.
    pub fn value(&self) -> Value {
        static FLAG: OnceLock<Value> = OnceLock::new();
        let read = || self.value_of(std::env::var(self.key).ok().as_deref());
        match self.kind {
            Kind::Flag => FLAG.get_or_init(read).clone(),
            _ => read(),
        }
    }

    /// Returns the value for the text of the variable, which is `None` if it is not set.
    fn value_of(&self, text: Option<&str>) -> Value {
        match self.kind {
            Kind::Text(default) => Value::Text(text.unwrap_or(default).to_owned()),
            Kind::Level => Value::Level(level_of(text)),
            Kind::LevelSet => Value::LevelSet(level_set(text)),
            Kind::SubsystemSet => Value::SubsystemSet(subsystems(text)),
            Kind::Flag => Value::Flag(flag(text)),
        }
    }

    /// Describes the values that are accepted.
    fn accepted(&self) -> String {
        match self.kind {
            Kind::Text(_) => "any text".to_owned(),
            Kind::Level => format!("one of {}", names(&LEVELS)),
            Kind::LevelSet => format!("a list of {}, or ALL", names(&LEVELS)),
            Kind::SubsystemSet => format!("a list of {}, or ALL", names(&SUBSYSTEMS)),
            Kind::Flag => "1, T, or TRUE; 0, F, or FALSE".to_owned(),
        }
    }
}

impl Value {
    /// Returns the value as it is in memory: a string ends with a zero byte.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.bytes().chain([0]).collect(),
            Self::Level(number) | Self::LevelSet(number) => number.to_le_bytes().into(),
            Self::SubsystemSet(number) => number.to_le_bytes().into(),
            Self::Flag(is_on) => vec![u8::from(*is_on)],
        }
    }

    /// Returns the type in C.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "const char*",
            Self::Level(_) => "ncclDebugLogLevel",
            Self::LevelSet(_) => "uint32_t",
            Self::SubsystemSet(_) => "uint64_t",
            Self::Flag(_) => "bool",
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Level(level) => {
                let known = LEVELS.iter().find(|(_, number)| number == level);
                f.write_str(known.map_or("<unknown>", |(name, _)| name))
            }
            Self::LevelSet(bits) => f.write_str(&list(&LEVELS, (*bits).into(), ALL_LEVELS)),
            Self::SubsystemSet(bits) => f.write_str(&list(&SUBSYSTEMS, *bits, u64::MAX)),
            Self::Flag(is_on) => f.write_str(if *is_on { "TRUE" } else { "FALSE" }),
        }
    }
}

/// Describes all parameters and their values.
pub fn dump() -> String {
    let mut text = String::from("=== NCCL's parameters ===\n");
    for parameter in &PARAMETERS {
        let (value, default) = (parameter.value(), parameter.value_of(None));
        // Writing to a string can't fail.
        let _ = writeln!(text, "{} ({})\n    value: {value}", parameter.key, value.type_name());
        let _ = writeln!(text, "    default: {default}\n    accepted: {}\n", parameter.accepted());
    }
    text
}

fn names(of: &[(&str, u32)]) -> String {
    of.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The bits of all levels.
const ALL_LEVELS: u64 = 0b11_1110;

/// Returns the names of the bits that are set.
fn list(names: &[(&str, u32)], bits: u64, all: u64) -> String {
    let set: Vec<_> = names.iter().filter(|(_, bit)| bits >> bit & 1 == 1).map(|(name, _)| *name).collect();
    match bits == all {
        true => "ALL".to_owned(),
        false if set.is_empty() => "NONE".to_owned(),
        false => set.join(","),
    }
}

/// Returns the bits of a list of names, in which a leading `^` stands for all but the listed ones; `None` for an
/// unknown name.
fn bits_of(names: &[(&str, u32)], text: &str, all: u64) -> Option<u64> {
    let (is_inverted, text) = match text.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let mut bits = 0;
    for item in items {
        bits |= match names.iter().find(|(name, _)| name.eq_ignore_ascii_case(item)) {
            Some((_, bit)) => 1 << bit,
            None if item.eq_ignore_ascii_case("ALL") => all,
            None => return None,
        };
    }
    Some(if is_inverted { !bits } else { bits })
}

/// Returns the level that a value of `NCCL_DEBUG` stands for.
pub(crate) fn level_of(text: Option<&str>) -> u32 {
    let asked = text.unwrap_or_default().trim();
    let known = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(asked));
    known.map_or(level::NONE, |(_, level)| *level)
}

fn level_set(text: Option<&str>) -> u32 {
    text.and_then(|text| bits_of(&LEVELS, text, ALL_LEVELS)).map_or(1 << level::WARN, |bits| bits as u32)
}

/// Returns the subsystems that a value of `NCCL_DEBUG_SUBSYS` stands for.
pub(crate) fn subsystems(text: Option<&str>) -> u64 {
    let default = || bit("INIT") | bit("ENV") | bit("BOOTSTRAP");
    text.and_then(|text| bits_of(&SUBSYSTEMS, text, u64::MAX)).unwrap_or_else(default)
}

/// Returns a subsystem's bit.
pub(crate) fn bit(subsystem: &str) -> u64 {
    SUBSYSTEMS.iter().find(|(name, _)| *name == subsystem).map_or(0, |(_, bit)| 1 << bit)
}

fn flag(text: Option<&str>) -> bool {
    text.is_some_and(|text| ["1", "T", "TRUE"].iter().any(|yes| text.eq_ignore_ascii_case(yes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What libnccl 2.30.7 returned.
    #[test]
    fn values_are_those_of_nccl() {
        let cases = [
            (None, "<unknown>"),
            (Some("warn"), "WARN"),
            (Some(" warn"), "WARN"),
            (Some("TRACE"), "TRACE"),
            (Some("WARN,INFO"), "<unknown>"),
            (Some("3"), "<unknown>"),
            (Some(""), "<unknown>"),
        ];
        for (text, expected) in cases {
            assert_eq!(Value::Level(level_of(text)).to_string(), expected, "{text:?}");
        }
        let cases = [
            (None, "INIT,ENV,BOOTSTRAP", 0x1081),
            (Some("coll"), "COLL", 2),
            (Some("COLL, NET"), "COLL,NET", 0x12),
            (Some("COLL,"), "COLL", 2),
            (Some("ALL"), "ALL", u64::MAX),
            (Some("^ALL"), "NONE", 0),
            (Some(""), "NONE", 0),
            (Some("bogus,COLL"), "INIT,ENV,BOOTSTRAP", 0x1081),
            (Some("COLL,^NET"), "INIT,ENV,BOOTSTRAP", 0x1081),
            (
                Some("^coll,net"),
                "INIT,P2P,SHM,GRAPH,TUNING,ENV,ALLOC,ALLOC_HOST,CALL,PROXY,NVLS,BOOTSTRAP,REG,PROFILE,RAS,DESTROY",
                u64::MAX - 0x12,
            ),
        ];
        for (text, expected, bits) in cases {
            let value = Value::SubsystemSet(subsystems(text));
            assert_eq!(
                (value.to_string().as_str(), &value),
                (expected, &Value::SubsystemSet(bits)),
                "{text:?}"
            );
        }
        let cases = [
            (None, "WARN", 4),
            (Some("WARN,INFO"), "WARN,INFO", 12),
            (Some("^INFO"), "VERSION,WARN,ABORT,TRACE", 0xffff_fff7),
            (Some("ALL"), "ALL", 0x3e),
            (Some(""), "NONE", 0),
            (Some("bogus"), "WARN", 4),
        ];
        for (text, expected, bits) in cases {
            let value = Value::LevelSet(level_set(text));
            assert_eq!((value.to_string().as_str(), &value), (expected, &Value::LevelSet(bits)), "{text:?}");
        }
        for (text, expected) in [("1", true), ("t", true), ("True", true), ("yes", false), (" 1", false)] {
            assert_eq!(flag(Some(text)), expected, "{text:?}");
        }
    }
}
