//! Modules with a mistake, made from the repository's PTX. A seed decides where and which, so they are the same on every
//! run.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

/// The seed of the changes.
const SEED: u64 = 20;

/// How many modules are made with each kind of mistake, at most.
const OF_KIND: usize = 30;

/// Modules above this size take too long.
const MAX_BYTES: usize = 20_000;

/// A module with a mistake.
pub(super) struct Mutant {
    pub(super) kind: &'static str,
    /// The line before and after the change.
    pub(super) change: String,
    pub(super) text: String,
}

/// Pseudorandom numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// An instruction: `@guard opcode.modifier.type operand, operand;`.
#[derive(Clone)]
struct Instruction {
    guard: Option<String>,
    opcode: Vec<String>,
    operands: Vec<String>,
}

impl Instruction {
    fn read(line: &str) -> Option<Self> {
        let line = line.trim().strip_suffix(';')?;
        let (guard, rest) = match line.strip_prefix('@') {
            Some(rest) => {
                rest.split_once([' ', '\t']).map(|(guard, rest)| (Some(guard.to_owned()), rest.trim()))?
            }
            None => (None, line),
        };
        let (opcode, operands) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
            return None;
        }
        let opcode = opcode.split('.').map(str::to_owned).collect();
        Some(Self { guard, opcode, operands: operands_of(operands.trim()) })
    }

    fn shown(&self) -> String {
        let guard = self.guard.as_ref().map_or_else(String::new, |guard| format!("@{guard} "));
        format!("\t{guard}{} {};", self.opcode.join("."), self.operands.join(", "))
    }
}

/// Splits operands at commas outside brackets.
fn operands_of(text: &str) -> Vec<String> {
    let (mut operands, mut depth) = (vec![String::new()], 0_usize);
    for c in text.chars() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match operands.last_mut() {
            Some(last) if c != ',' || depth > 0 => last.push(c),
            _ => operands.push(String::new()),
        }
    }
    operands.iter().map(|operand| operand.trim().to_owned()).filter(|operand| !operand.is_empty()).collect()
}

/// Changes an instruction; returns `None` where the mistake is not possible.
type OfInstruction = fn(&Instruction, &mut Numbers) -> Option<Instruction>;

const TYPES: [&str; 14] =
    ["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f32", "f64"];

/// Modifiers of other instructions.
const MODIFIERS: [&str; 22] = [
    "sat", "ftz", "rn", "rz", "rni", "approx", "full", "wide", "lo", "hi", "cc", "volatile", "relaxed",
    "acquire", "gpu", "sync", "aligned", "nc", "v2", "eq", "ltu", "uni",
];

const OPCODES: [&str; 24] = [
    "add", "sub", "mul", "mad", "fma", "div", "rem", "min", "abs", "neg", "and", "not", "shl", "shr", "setp",
    "selp", "mov", "cvt", "ld", "st", "atom", "rcp", "popc", "bfe",
];

const REGISTERS: [&str; 6] = ["%r", "%rd", "%f", "%fd", "%rs", "%p"];

/// Splits a register into its class and number.
fn register(operand: &str) -> Option<(&str, &str)> {
    let at = operand.find(|c: char| c.is_ascii_digit())?;
    let (class, number) = operand.split_at(at);
    (class.starts_with('%') && !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
        .then_some((class, number))
}

fn is_immediate(operand: &str) -> bool {
    operand.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the places of the operands that fit.
fn places(instruction: &Instruction, fits: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..instruction.operands.len()).filter(|&at| fits(&instruction.operands[at])).collect()
}

fn with_operand(
    instruction: &Instruction,
    numbers: &mut Numbers,
    fits: impl Fn(&str) -> bool,
    change: impl Fn(&str, &mut Numbers) -> Option<String>,
) -> Option<Instruction> {
    let places = places(instruction, fits);
    let at = *places.get(numbers.below(places.len()))?;
    let mut changed = instruction.clone();
    changed.operands[at] = change(&instruction.operands[at], numbers)?;
    Some(changed)
}

fn with_opcode(instruction: &Instruction, change: impl FnOnce(&mut Vec<String>)) -> Option<Instruction> {
    let mut changed = instruction.clone();
    change(&mut changed.opcode);
    Some(changed)
}

/// The mistakes in an instruction, with their names.
const OF_INSTRUCTION: &[(&str, OfInstruction)] = &[
    ("no type", |it, _| {
        TYPES.contains(&it.opcode.last()?.as_str()).then(|| with_opcode(it, |opcode| drop(opcode.pop())))?
    }),
    ("another type", |it, numbers| {
        let last = it.opcode.last()?.clone();
        let other = numbers.one(&TYPES);
        (TYPES.contains(&&*last) && other != last)
            .then(|| with_opcode(it, |opcode| *opcode.last_mut().expect("a type") = other.to_owned()))?
    }),
    ("another class of register", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| register(operand).is_some(),
            |operand, numbers| {
                let (class, _) = register(operand)?;
                let other = numbers.one(&REGISTERS);
                (other != class).then(|| format!("{other}1"))
            },
        )
    }),
    ("no such register", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| register(operand).is_some(),
            |operand, numbers| {
                let (class, number) = register(operand)?;
                Some(if numbers.below(2) == 0 { format!("{class}9999") } else { format!("%zork{number}") })
            },
        )
    }),
    ("an operand too few", |it, numbers| {
        let mut changed = it.clone();
        (it.operands.len() > 1).then(|| changed.operands.remove(numbers.below(it.operands.len())))?;
        Some(changed)
    }),
    ("an operand too many", |it, _| {
        let mut changed = it.clone();
        changed.operands.push(it.operands.last()?.clone());
        Some(changed)
    }),
    ("two operands swapped", |it, numbers| {
        let mut changed = it.clone();
        let (one, other) = (numbers.below(it.operands.len()), numbers.below(it.operands.len()));
        (it.operands.get(one)? != it.operands.get(other)?).then(|| changed.operands.swap(one, other))?;
        Some(changed)
    }),
    ("no such opcode", |it, numbers| {
        let ending = numbers.one(&["x", "2", "_", "wide"]);
        with_opcode(it, |opcode| opcode[0] += ending)
    }),
    ("another opcode", |it, numbers| {
        let other = numbers.one(&OPCODES);
        (it.opcode[0] != other).then(|| with_opcode(it, |opcode| opcode[0] = other.to_owned()))?
    }),
    ("no such modifier", |it, numbers| {
        let at = 1 + numbers.below(it.opcode.len());
        with_opcode(it, |opcode| opcode.insert(at, "zork".to_owned()))
    }),
    ("a modifier of another instruction", |it, numbers| {
        let (at, other) = (1 + numbers.below(it.opcode.len()), numbers.one(&MODIFIERS));
        with_opcode(it, |opcode| opcode.insert(at, other.to_owned()))
    }),
    ("no modifier", |it, numbers| {
        let at = 1 + numbers.below(it.opcode.len().saturating_sub(2));
        (it.opcode.len() > 2).then(|| with_opcode(it, |opcode| drop(opcode.remove(at))))?
    }),
    ("a modifier twice", |it, numbers| {
        let at = 1 + numbers.below(it.opcode.len().saturating_sub(1));
        let modifier = it.opcode.get(at)?.clone();
        with_opcode(it, |opcode| opcode.insert(at, modifier))
    }),
    ("two modifiers swapped", |it, numbers| {
        let at = 1 + numbers.below(it.opcode.len().saturating_sub(2));
        (it.opcode.len() > 2 && it.opcode[at] != it.opcode[at + 1])
            .then(|| with_opcode(it, |opcode| opcode.swap(at, at + 1)))?
    }),
    ("an immediate out of range", |it, numbers| {
        with_operand(it, numbers, is_immediate, |_, numbers| {
            Some(
                numbers
                    .one(&["99999999999999999999", "0x1ffffffffffffffff", "-99999999999999999999"])
                    .to_owned(),
            )
        })
    }),
    ("an immediate of another kind", |it, numbers| {
        with_operand(it, numbers, is_immediate, |operand, numbers| {
            let other =
                numbers.one(&["0f3F800000", "0d3FF0000000000000", "1", "1.5", "0f123", "08", "0b102"]);
            (operand != other).then(|| other.to_owned())
        })
    }),
    ("an immediate for a register", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| register(operand).is_some(),
            |_, numbers| Some(numbers.one(&["7", "0f3F800000", "-1"]).to_owned()),
        )
    }),
    ("an immediate as destination", |it, numbers| {
        let mut changed = it.clone();
        register(it.operands.first()?)?;
        changed.operands[0] = numbers.one(&["7", "0f3F800000"]).to_owned();
        Some(changed)
    }),
    ("another state space", |it, numbers| {
        let spaces = ["global", "shared", "local", "param", "const"];
        let at = it.opcode.iter().position(|part| spaces.contains(&part.as_str()))?;
        let other = numbers.one(&spaces);
        (it.opcode[at] != other).then(|| with_opcode(it, |opcode| opcode[at] = other.to_owned()))?
    }),
    ("another vector width", |it, numbers| {
        let other = numbers.one(&["v2", "v3", "v4", "v8", "v16"]);
        match it.opcode.iter().position(|part| part.starts_with('v') && part.len() == 2) {
            Some(at) if it.opcode[at] != other => with_opcode(it, |opcode| opcode[at] = other.to_owned()),
            None if matches!(&*it.opcode[0], "ld" | "st") => {
                with_opcode(it, |opcode| opcode.insert(opcode.len() - 1, other.to_owned()))
            }
            _ => None,
        }
    }),
    ("another vector", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| operand.starts_with('{'),
            |operand, numbers| {
                let inner = operand.trim_matches(['{', '}', ' ']);
                let first = inner.split(',').next()?.trim();
                Some(match numbers.below(4) {
                    0 => format!("{{{first}}}"),
                    1 => format!("{{{inner}, {first}}}"),
                    2 => format!("{{{inner}, 1}}"),
                    _ => first.to_owned(),
                })
            },
        )
    }),
    ("another address", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| operand.starts_with('['),
            |operand, numbers| {
                let inner = operand.trim_matches(['[', ']']);
                Some(match numbers.below(7) {
                    0 => inner.to_owned(),
                    1 => format!("[{inner}+%rd1]"),
                    2 => "[%r1]".to_owned(),
                    3 => "[%f1]".to_owned(),
                    4 => "[zork]".to_owned(),
                    5 => "[]".to_owned(),
                    _ => "[%p1+4]".to_owned(),
                })
            },
        )
    }),
    ("another guard", |it, numbers| {
        let mut changed = it.clone();
        let guards = ["%r1", "!%rd1", "%f1", "1", "%p9999", "%tid.x", "!!%p1"];
        changed.guard = Some(numbers.one(&guards).to_owned());
        Some(changed)
    }),
    ("no such label", |it, numbers| {
        let other = numbers.one(&["$zork", "%r1", "7", "f"]);
        let mut changed = it.clone();
        (it.opcode[0] == "bra").then(|| changed.operands[0] = other.to_owned())?;
        Some(changed)
    }),
    ("a special register as an operand", |it, numbers| {
        with_operand(
            it,
            numbers,
            |operand| register(operand).is_some(),
            |_, numbers| {
                Some(numbers.one(&["%tid.x", "%tid", "%tid.q", "%clock64", "%laneid", "WARP_SZ"]).to_owned())
            },
        )
    }),
    ("a comparison of another kind", |it, numbers| {
        let at = (it.opcode[0] == "setp").then_some(1)?;
        let other = numbers.one(&["lo", "ls", "hs", "equ", "nan", "num", "zork", "ltu", "and"]);
        with_opcode(it, |opcode| opcode[at] = other.to_owned())
    }),
];

/// Changes a whole module, given as lines; returns whether it did, with the line's number.
type OfModule = fn(&mut Vec<String>, &mut Numbers) -> Option<usize>;

/// Returns the number of a line that fits.
fn line(lines: &[String], numbers: &mut Numbers, fits: impl Fn(&str) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..lines.len()).filter(|&at| fits(lines[at].trim())).collect();
    places.get(numbers.below(places.len())).copied()
}

fn replace(lines: &mut [String], numbers: &mut Numbers, part: &str, by: &[&str]) -> Option<usize> {
    let at = line(lines, numbers, |line| line.contains(part))?;
    lines[at] = lines[at].replacen(part, numbers.one(by), 1);
    Some(at)
}

/// The mistakes outside instructions, with their names.
const OF_MODULE: &[(&str, OfModule)] = &[
    ("a line without its end", |lines, numbers| {
        let at = line(lines, numbers, |line| line.ends_with(';'))?;
        lines[at] = lines[at].replace(';', "");
        Some(at)
    }),
    ("no brace", |lines, numbers| {
        let at = line(lines, numbers, |line| line == "{" || line == "}")?;
        lines[at] = String::new();
        Some(at)
    }),
    ("a brace too many", |lines, numbers| {
        let at = line(lines, numbers, |line| line.ends_with(';'))?;
        lines[at] += numbers.one(&["{", "}", ")"]);
        Some(at)
    }),
    ("a line missing", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with(".reg") || line.ends_with(':'))?;
        lines[at] = String::new();
        Some(at)
    }),
    ("a declaration twice", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with(".reg") || line.ends_with(':'))?;
        lines[at] = format!("{0}\n{0}", lines[at]);
        Some(at)
    }),
    ("another type of register", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with(".reg"))?;
        let others = [".b33", ".s8", ".pred", ".b16", ".f32", ".f64", ".b32", ".b64", "", ".v2"];
        let words: Vec<&str> = lines[at].split_whitespace().collect();
        lines[at] = format!(".reg {} {}", numbers.one(&others), words.get(2)?);
        Some(at)
    }),
    ("another parameter", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with("ld.param"))?;
        let (start, end) = (lines[at].find('[')?, lines[at].find(']')?);
        lines[at].replace_range(start + 1..end, numbers.one(&["zork", "f_param_0", "0", "%rd1"]));
        Some(at)
    }),
    ("another type of parameter", |lines, numbers| {
        replace(
            lines,
            numbers,
            ".param .u",
            &[".param .v", ".param .pred .u", ".param", ".param .b1", ".parm .u"],
        )
    }),
    ("another version", |lines, numbers| {
        replace(lines, numbers, ".version", &[".version 1", ".version 9", ".versio"])
    }),
    ("another target", |lines, numbers| {
        replace(
            lines,
            numbers,
            ".target sm_",
            &[".target sm_9", ".target zork_", ".target ", ".target sm_999, sm_"],
        )
    }),
    ("another address size", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with(".address_size"))?;
        lines[at] = format!(".address_size {}", numbers.one(&["16", "32", "zork", "-64", ""]));
        Some(at)
    }),
    ("no such directive", |lines, numbers| {
        let at = line(lines, numbers, |line| line.starts_with('.'))?;
        lines[at] =
            format!("{}{}", numbers.one(&[".zork ", ".visible ", ".entry ", ".func "]), lines[at].trim());
        Some(at)
    }),
    ("another kind of variable", |lines, numbers| {
        let at =
            line(lines, numbers, |line| line.contains(".shared .align") || line.contains(".global .align"))?;
        let others =
            [".shared .align 3", ".reg .align 4", ".global .align 0", ".shared .algn 4", ".local .align -1"];
        let end = lines[at].find(".b").or_else(|| lines[at].find(".u"))?;
        lines[at] = format!("{} {}", numbers.one(&others), &lines[at][end..]);
        Some(at)
    }),
];

/// Returns modules with one kernel each: a file's head with its variables and functions, followed by one of its
/// kernels.
pub(super) fn modules(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut modules = Vec::new();
    for source in sources.values() {
        let mut parts = source.split(".visible .entry ");
        let head = parts.next().unwrap_or("");
        modules.extend(parts.map(|kernel| format!("{head}.visible .entry {kernel}")));
    }
    modules.retain(|module| module.len() < MAX_BYTES && !module.contains(".section"));
    modules
}

/// Returns the modules with a mistake each, of every kind.
pub(super) fn all(modules: &[String]) -> Vec<Mutant> {
    let (mut numbers, mut seen) = (Numbers(SEED), HashSet::new());
    let mut mutants = Vec::new();
    let mut add = |kind, lines: &[String], before: &str, at: usize| {
        let change = format!("{} → {}", before.trim(), lines[at].trim());
        // The same change of the same line in another file would be the same mistake.
        if seen.insert(change.clone()) {
            mutants.push(Mutant { kind, change, text: lines.join("\n") + "\n" });
        }
    };
    for (kind, mistake) in OF_INSTRUCTION {
        for _ in 0..OF_KIND {
            let mut lines = lines(&modules[numbers.below(modules.len())]);
            let changed = (0..100).find_map(|_| {
                let at = line(&lines, &mut numbers, |line| Instruction::read(line).is_some())?;
                Some((at, mistake(&Instruction::read(&lines[at])?, &mut numbers)?))
            });
            if let Some((at, changed)) = changed {
                let before = std::mem::replace(&mut lines[at], changed.shown());
                add(kind, &lines, &before, at);
            }
        }
    }
    for (kind, mistake) in OF_MODULE {
        for _ in 0..OF_KIND {
            let before = lines(&modules[numbers.below(modules.len())]);
            let mut lines = before.clone();
            if let Some(at) = mistake(&mut lines, &mut numbers) {
                add(kind, &lines, &before[at], at);
            }
        }
    }
    mutants
}

fn lines(module: &str) -> Vec<String> {
    module.lines().map(str::to_owned).collect()
}
