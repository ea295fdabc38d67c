//! Tests instructions on random numbers, including special values, against arithmetic that shares no code with the
//! machine.

use std::cell::Cell;

use crate::exact::{BF16, Exact, F16, F32, F64, Format, MODES, Mode};
use crate::gpu::Numbers;
use crate::opcodes::{INTEGERS, run_on_threads};

/// The number of threads for each form of an instruction.
const LANES: usize = 768;

thread_local! {
    /// The number of comparisons made by the test on this thread.
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Whether the machine's result is right; if it isn't, the error describes the expected result.
type Verdict = Result<(), String>;

/// Runs an instruction on `LANES` sets of operands and judges each result.
fn check<const N: usize>(
    instruction: &str,
    result: &str,
    mut operand: impl FnMut(usize) -> u64,
    judge: impl Fn([u64; N], u64) -> Verdict,
) {
    let inputs: Vec<[u64; N]> = (0..LANES).map(|_| std::array::from_fn(&mut operand)).collect();
    let slices: Vec<&[u64]> = inputs.iter().map(|inputs| inputs.as_slice()).collect();
    for (got, inputs) in run_on_threads(result, instruction, &slices).into_iter().zip(inputs) {
        if let Err(expected) = judge(inputs, got) {
            panic!("{instruction} of {inputs:x?}: {got:#x}, not {expected}");
        }
    }
    COMPARED.set(COMPARED.get() + LANES);
}

fn equals(got: u64, expected: u64) -> Verdict {
    if got == expected { Ok(()) } else { Err(format!("{expected:#x}")) }
}

/// Compares two floats, and treats all NaNs as equal.
fn same_float(format: Format, got: u64, expected: u64) -> Verdict {
    if format.is_nan(got) && format.is_nan(expected) { Ok(()) } else { equals(got, expected) }
}

fn register(bits: u32) -> &'static str {
    match bits {
        64 => "%d",
        32 => "%r",
        16 => "%h",
        _ => "%p",
    }
}

/// Generates numbers in a format: zeros, infinities, NaN, the smallest and the largest numbers, and others, some of
/// which are close to each other.
fn floats(format: Format, seed: u64) -> impl FnMut(usize) -> u64 {
    let mut numbers = Numbers(seed);
    let mut last = 0;
    let one = format.infinity() >> 1;
    let odd = [
        0,
        format.infinity(),
        format.infinity() + 1,
        format.infinity() | format.infinity() >> 1,
        1,
        2,
        format.infinity() - 1,
        one,
        one & format.infinity(),
    ];
    move |_| {
        let sign = numbers.next() & format.sign();
        let random = numbers.next() & (format.sign() - 1);
        last = sign
            | match numbers.next() % 6 {
                0 => odd[numbers.next() as usize % odd.len()],
                // This is a subnormal number.
                1 => random & !format.infinity(),
                // This is next to the previous number, so that sums cancel and quotients are near 1.
                2 => (last & (format.sign() - 1)) ^ (numbers.next() % 4),
                // This is near 1.
                3 => (one & format.infinity()) + numbers.next() % 64 - 32,
                _ => random,
            };
        last & (format.sign() | (format.sign() - 1))
    }
}

/// Generates integers of all magnitudes, including the limits of their types.
fn integers(seed: u64) -> impl FnMut(usize) -> u64 {
    let mut numbers = Numbers(seed);
    move |_| {
        let edge = 1_u64 << (numbers.next() % 64);
        match numbers.next() % 6 {
            0 => edge.wrapping_sub(numbers.next() % 3),
            1 => edge.wrapping_neg().wrapping_add(numbers.next() % 3),
            2 => numbers.next() % 70,
            3 => numbers.next() >> (numbers.next() % 64),
            4 => 0x0001_0001_0001_0001 * (numbers.next() & 0xffff),
            _ => numbers.next(),
        }
    }
}

/// Returns the exact result of an operation on finite numbers.
fn exact(op: &str, format: Format, [a, b, c]: [u64; 3]) -> Exact {
    let number = |bits| Exact::number(format, bits);
    match op {
        "add" => number(a).plus(number(b)),
        "sub" => number(a).plus(number(b ^ format.sign())),
        "mul" => Exact::product(format, a, b),
        _ => Exact::product(format, a, b).plus(number(c)),
    }
}

/// Returns the result if an operand is infinite or NaN. Only the class of the result matters, and doubles have the same
/// classes.
fn of_odd(op: &str, format: Format, operands: [u64; 3]) -> u64 {
    // For finite numbers, only the sign and whether they are zero matter; larger values could make a product overflow.
    let [a, b, c] = operands
        .map(|bits| format.to_f64(bits))
        .map(|x| if x.is_finite() && x != 0.0 { x.signum() } else { x });
    let result = match op {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        _ => a * b + c,
    };
    let sign = if result.is_sign_negative() { format.sign() } else { 0 };
    if result.is_nan() { format.infinity() + 1 } else { sign | format.infinity() }
}

/// Checks one form of `add`, `sub`, `mul`, or `fma`.
fn check_sum(op: &str, format: Format, mode: (&str, Mode), flush: bool, saturate: bool) {
    let r = register(format.bits());
    let count = if op == "fma" { 3 } else { 2 };
    let sources: Vec<String> = (1..=count).map(|n| format!("{r}{n}")).collect();
    let (ftz, sat) = (if flush { ".ftz" } else { "" }, if saturate { ".sat" } else { "" });
    let name = format!("{op}.{}{ftz}{sat}.{}", mode.0, format.name);
    let instruction = format!("mov.b64 %d9, %d3; {name} {r}0, {};", sources.join(", "));
    let one = Exact::integer(1).round(format, Mode::Nearest);
    check(&instruction, &format!("{r}0"), floats(format, 7), |operands: [u64; 3], got| {
        let operands = operands.map(|bits| if flush { format.flushed(bits) } else { bits });
        let used = &operands[..count];
        let mut expected = match used.iter().all(|&bits| format.is_finite(bits)) {
            true => exact(op, format, operands).round(format, mode.1),
            false => of_odd(op, format, operands),
        };
        if saturate {
            let is_positive = !format.is_nan(expected) && expected & format.sign() == 0;
            expected = if is_positive { expected.min(one) } else { 0 };
        }
        if flush {
            // The manual does not specify whether a subnormal result that rounding makes normal is flushed.
            let smallest =
                format.sign().wrapping_shr(format.bits() - 1) << (format.infinity().trailing_zeros());
            let size = expected & (format.sign() - 1);
            if size == smallest && got & (format.sign() - 1) == 0 {
                return Ok(());
            }
            expected = format.flushed(expected);
        }
        same_float(format, got, expected)
    });
}

#[test]
fn sums_and_products_in_every_rounding() {
    for op in ["add", "sub", "mul", "fma"] {
        for mode in MODES {
            check_sum(op, F64, mode, false, false);
            for (flush, saturate) in [(false, false), (true, false), (false, true), (true, true)] {
                check_sum(op, F32, mode, flush, saturate);
            }
        }
        for (flush, saturate) in [(false, false), (true, false), (false, true)] {
            check_sum(op, F16, MODES[0], flush, saturate);
        }
        check_sum(op, BF16, MODES[0], false, false);
    }
    assert!(COMPARED.get() >= 60_000, "{}", COMPARED.get());
}

/// Returns which side of a quotient or root a candidate is on: the sign of the exact result minus the candidate.
fn side(op: &str, format: Format, [a, b]: [u64; 2], candidate: u64) -> i32 {
    let opposite = |bits: u64| bits ^ format.sign();
    let number = |bits| Exact::number(format, bits);
    match op {
        // The difference a / b - q has the sign of (a - q·b) / b.
        "div" => {
            let rest = number(a).plus(Exact::product(format, opposite(candidate), b));
            if b & format.sign() != 0 { -rest.signum() } else { rest.signum() }
        }
        _ => number(a).plus(Exact::product(format, opposite(candidate), candidate)).signum(),
    }
}

/// Moves the host's nearest result in the direction of the rounding mode.
fn directed(op: &str, format: Format, operands: [u64; 2], nearest: u64, mode: Mode) -> u64 {
    let largest = format.infinity() - 1;
    let (sign, size) = (nearest & format.sign(), nearest & (format.sign() - 1));
    let negative = sign != 0;
    let away = match mode {
        Mode::Nearest => return nearest,
        Mode::Zero => false,
        Mode::Down => negative,
        Mode::Up => !negative,
    };
    if size == format.infinity() {
        return if away { nearest } else { sign | largest };
    }
    let beyond = side(op, format, operands, nearest) * if negative { -1 } else { 1 };
    match (beyond, away) {
        (1, true) => nearest + 1,
        (-1, false) => nearest - 1,
        _ => nearest,
    }
}

#[test]
fn quotients_and_roots_in_every_rounding() {
    for format in [F32, F64] {
        let host = |op: &str, a: u64, b: u64| match (format == F32, op) {
            (true, "div") => u64::from((f32::from_bits(a as u32) / f32::from_bits(b as u32)).to_bits()),
            (true, _) => u64::from(f32::from_bits(a as u32).sqrt().to_bits()),
            (false, "div") => (f64::from_bits(a) / f64::from_bits(b)).to_bits(),
            (false, _) => f64::from_bits(a).sqrt().to_bits(),
        };
        let one = Exact::integer(1).round(format, Mode::Nearest);
        let r = register(format.bits());
        for (name, mode) in MODES {
            for op in ["div", "sqrt", "rcp"] {
                let sources = if op == "div" { format!("{r}1, {r}2") } else { format!("{r}1") };
                let instruction = format!("mov.b64 %d9, %d2; {op}.{name}.{} {r}0, {sources};", format.name);
                check(&instruction, &format!("{r}0"), floats(format, 11), |[a, b]: [u64; 2], got| {
                    let (kind, a, b) = if op == "rcp" { ("div", one, a) } else { (op, a, b) };
                    let nearest = host(kind, a, b);
                    let is_plain = format.is_finite(a) && (kind != "div" || format.is_finite(b));
                    let is_rounded = is_plain
                        && !format.is_nan(nearest)
                        && (kind != "div" || b & (format.sign() - 1) != 0);
                    let expected = match is_rounded {
                        true => directed(kind, format, [a, b], nearest, mode),
                        false => nearest,
                    };
                    same_float(format, got, expected)
                });
            }
        }
    }
    assert!(COMPARED.get() >= 15_000, "{}", COMPARED.get());
}

/// A function that rounds to an integral value.
type Rounding = fn(f64) -> f64;

/// The functions that round to an integral value, by their modifiers.
const INTEGRAL_ROUNDINGS: [(&str, Rounding); 4] =
    [("rni", f64::round_ties_even), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)];

/// Interprets the low bits of a register as a number.
fn integer(bits: u64, width: u32, signed: bool) -> i128 {
    let low = i128::from(bits) & ((1 << width) - 1);
    if signed && low >= 1 << (width - 1) { low - (1 << width) } else { low }
}

fn cut(value: i128, width: u32) -> u64 {
    (value & ((1 << width) - 1)) as u64
}

#[test]
fn conversions_between_floats_and_integers() {
    for format in [F16, F32, F64] {
        let r = register(format.bits());
        for (name, width, signed) in INTEGERS {
            let i = register(width.max(16));
            let limits = if signed {
                (-(1 << (width - 1)), (1 << (width - 1)) - 1)
            } else {
                (0, (1_i128 << width) - 1)
            };
            for (rounding, round) in INTEGRAL_ROUNDINGS {
                let instruction = format!("cvt.{rounding}.{name}.{} {i}0, {r}1;", format.name);
                check(&instruction, &format!("{i}0"), floats(format, 13), |[a]: [u64; 1], got| {
                    let expected = match format.is_nan(a) {
                        true if format == F64 || width == 64 => 1 << (width - 1),
                        true => 0,
                        false => (round(format.to_f64(a)) as i128).clamp(limits.0, limits.1),
                    };
                    equals(cut(i128::from(got), width), cut(expected, width))
                });
            }
            for (rounding, mode) in MODES {
                let instruction = format!("cvt.{rounding}.{}.{name} {r}0, {i}1;", format.name);
                check(&instruction, &format!("{r}0"), integers(17), |[a]: [u64; 1], got| {
                    equals(got, Exact::integer(integer(a, width, signed)).round(format, mode))
                });
            }
        }
    }
    assert!(COMPARED.get() >= 100_000, "{}", COMPARED.get());
}

#[test]
fn conversions_between_floats() {
    for (from, to, modes) in [
        (F64, F32, &MODES[..]),
        (F64, F16, &MODES[..]),
        (F32, F16, &MODES[..]),
        (F32, BF16, &MODES[..2]),
        (F16, F32, &[]),
        (F16, F64, &[]),
        (F32, F64, &[]),
        (BF16, F32, &[]),
    ] {
        let (r, d) = (register(from.bits()), register(to.bits()));
        let modes = if modes.is_empty() { &[("", Mode::Nearest)] } else { modes };
        for (name, mode) in modes {
            let dot = if name.is_empty() { "" } else { "." };
            let instruction = format!("cvt{dot}{name}.{}.{} {d}0, {r}1;", to.name, from.name);
            check(&instruction, &format!("{d}0"), floats(from, 19), |[a]: [u64; 1], got| {
                let sign = if a & from.sign() != 0 { to.sign() } else { 0 };
                let expected = match (from.is_nan(a), from.is_finite(a)) {
                    (true, _) => to.infinity() + 1,
                    (_, false) => sign | to.infinity(),
                    _ => Exact::number(from, a).round(to, *mode),
                };
                same_float(to, got, expected)
            });
        }
    }
    for format in [F16, F32, F64] {
        let r = register(format.bits());
        for (name, round) in INTEGRAL_ROUNDINGS {
            let instruction = format!("cvt.{name}.{}.{} {r}0, {r}1;", format.name, format.name);
            check(&instruction, &format!("{r}0"), floats(format, 23), |[a]: [u64; 1], got| {
                let value = round(format.to_f64(a));
                let back = format.to_f64(got);
                let same = value.is_nan() && back.is_nan() || value.to_bits() == back.to_bits();
                if same { Ok(()) } else { Err(format!("{value:e}")) }
            });
        }
    }
    assert!(COMPARED.get() >= 20_000, "{}", COMPARED.get());
}

/// Evaluates a float comparison by its name, for numbers and for NaN.
fn compares(name: &str, a: f64, b: f64) -> bool {
    let is_unordered = a.is_nan() || b.is_nan();
    match name {
        "num" => !is_unordered,
        "nan" => is_unordered,
        _ => {
            let ordered = match &name[..2] {
                "eq" => a == b,
                "ne" => a != b,
                "lt" => a < b,
                "le" => a <= b,
                "gt" => a > b,
                _ => a >= b,
            };
            if is_unordered { name.ends_with('u') } else { ordered }
        }
    }
}

#[test]
fn comparisons_of_floats() {
    let names = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
    for (format, ftz) in [(F16, ""), (F16, ".ftz"), (BF16, ""), (F32, ""), (F32, ".ftz"), (F64, "")] {
        let r = register(format.bits());
        let value = |bits: u64| format.to_f64(if ftz.is_empty() { bits } else { format.flushed(bits) });
        for name in names {
            let instruction = format!("setp.{name}{ftz}.{} %p0, {r}1, {r}2;", format.name);
            check(&instruction, "%p0", floats(format, 29), |[a, b]: [u64; 2], got| {
                equals(got, u64::from(compares(name, value(a), value(b))))
            });
        }
    }
    assert!(COMPARED.get() >= 60_000, "{}", COMPARED.get());
}

#[test]
fn smaller_and_larger_floats() {
    for format in [F16, BF16, F32, F64] {
        let r = register(format.bits());
        // In sign-magnitude form, all numbers are ordered, with −0 below +0.
        let order = |bits: u64| {
            let size = (bits & (format.sign() - 1)) as i128;
            if bits & format.sign() != 0 { -1 - size } else { size }
        };
        for (op, nan_wins) in [("min", false), ("max", false), ("min.NaN", true), ("max.NaN", true)] {
            if nan_wins && format == F64 {
                continue;
            }
            let instruction = format!("{op}.{} {r}0, {r}1, {r}2;", format.name);
            check(&instruction, &format!("{r}0"), floats(format, 31), |[a, b]: [u64; 2], got| {
                let is_first = if op.starts_with("min") { order(a) < order(b) } else { order(a) > order(b) };
                let expected = match (format.is_nan(a), format.is_nan(b)) {
                    (false, false) => {
                        if is_first {
                            a
                        } else {
                            b
                        }
                    }
                    (true, false) if !nan_wins => b,
                    (false, true) if !nan_wins => a,
                    _ => format.infinity() + 1,
                };
                same_float(format, got, expected)
            });
        }
        for (op, clear) in [("abs", true), ("neg", false)] {
            let instruction = format!("{op}.{} {r}0, {r}1;", format.name);
            check(&instruction, &format!("{r}0"), floats(format, 37), |[a]: [u64; 1], got| {
                let expected = if clear { a & !format.sign() } else { a ^ format.sign() };
                same_float(format, got, expected)
            });
        }
    }
}

type Integer = fn(i128, i128, i128) -> i128;

#[test]
fn integers_of_16_32_and_64_bits() {
    let operations: [(&str, Integer); 15] = [
        ("add", |a, b, _| a + b),
        ("sub", |a, b, _| a - b),
        ("mul.lo", |a, b, _| a.wrapping_mul(b)),
        ("mad.lo", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("div", |a, b, _| if b == 0 { -1 } else { a / b }),
        ("rem", |a, b, _| if b == 0 { -1 } else { a % b }),
        ("min", |a, b, _| a.min(b)),
        ("max", |a, b, _| a.max(b)),
        ("sad", |a, b, c| (a - b).abs() + c),
        ("and", |a, b, _| a & b),
        ("or", |a, b, _| a | b),
        ("xor", |a, b, _| a ^ b),
        ("not", |a, _, _| !a),
        ("abs", |a, _, _| a.abs()),
        ("neg", |a, _, _| -a),
    ];
    for (name, width, signed) in &INTEGERS[2..] {
        let r = register(*width);
        for (op, expected) in operations {
            let (kind, count) = match op {
                "and" | "or" | "xor" => (format!("b{width}"), 2),
                "not" => (format!("b{width}"), 1),
                "abs" | "neg" if !signed => continue,
                "abs" | "neg" => (name.to_string(), 1),
                "mad.lo" | "sad" => (name.to_string(), 3),
                _ => (name.to_string(), 2),
            };
            let sources: Vec<String> = (1..=count).map(|n| format!("{r}{n}")).collect();
            let instruction = format!("mov.b64 %d9, %d3; {op}.{kind} {r}0, {};", sources.join(", "));
            check(&instruction, &format!("{r}0"), integers(41), |operands: [u64; 3], got| {
                let [a, b, c] = operands.map(|bits| integer(bits, *width, *signed));
                equals(got, cut(expected(a, b, c), *width))
            });
        }
        for (op, holds) in [
            ("eq", i128::eq as fn(&i128, &i128) -> bool),
            ("ne", i128::ne),
            ("lt", i128::lt),
            ("le", i128::le),
            ("gt", i128::gt),
            ("ge", i128::ge),
        ] {
            check(
                &format!("setp.{op}.{name} %p0, {r}1, {r}2;"),
                "%p0",
                integers(43),
                |[a, b]: [u64; 2], got| {
                    let (a, b) = (integer(a, *width, *signed), integer(b, *width, *signed));
                    equals(got, u64::from(holds(&a, &b)))
                },
            );
        }
    }
    assert!(COMPARED.get() >= 80_000, "{}", COMPARED.get());
}

#[test]
fn upper_and_wide_products() {
    for (name, width, signed) in &INTEGERS[2..] {
        let r = register(*width);
        let read = |bits: u64| integer(bits, *width, *signed);
        // The product of two 64-bit unsigned numbers overflows i128, but its bits are still right.
        let high = |a: u64, b: u64| match (*width, *signed) {
            (64, false) => ((u128::from(a) * u128::from(b)) >> 64) as i128,
            _ => (read(a) * read(b)) >> width,
        };
        check(
            &format!("mul.hi.{name} {r}0, {r}1, {r}2;"),
            &format!("{r}0"),
            integers(47),
            |[a, b]: [u64; 2], got| equals(got, cut(high(a, b), *width)),
        );
        if *width > 16 {
            let instruction = format!("mad.hi.{name} {r}0, {r}1, {r}2, {r}3;");
            check(&instruction, &format!("{r}0"), integers(53), |[a, b, c]: [u64; 3], got| {
                equals(got, cut(high(a, b) + read(c), *width))
            });
        }
        if *width < 64 {
            let d = register(2 * width);
            check(
                &format!("mul.wide.{name} {d}0, {r}1, {r}2;"),
                &format!("{d}0"),
                integers(59),
                |[a, b]: [u64; 2], got| equals(got, cut(read(a) * read(b), 2 * width)),
            );
            let instruction = format!("mad.wide.{name} {d}0, {r}1, {r}2, {d}3;");
            check(&instruction, &format!("{d}0"), integers(61), |[a, b, c]: [u64; 3], got| {
                equals(got, cut(read(a) * read(b) + i128::from(c), 2 * width))
            });
        }
    }
}

#[test]
fn shifts_of_every_width() {
    for (name, width, signed) in &INTEGERS[2..] {
        let r = register(*width);
        // A shift amount is clamped: a shift by the width or more leaves nothing, or only the sign.
        let instruction = format!("and.b32 %r2, %r2, 255; shr.{name} {r}0, {r}1, %r2;");
        check(&instruction, &format!("{r}0"), integers(67), |[a, b]: [u64; 2], got| {
            equals(got, cut(integer(a, *width, *signed) >> (b as u8).min(64), *width))
        });
        let instruction = format!("shl.b{width} {r}0, {r}1, %r2;");
        check(&instruction, &format!("{r}0"), integers(71), |[a, b]: [u64; 2], got| {
            let amount = (b as u32).min(64);
            equals(got, cut(((u128::from(a)) << amount) as i128, *width))
        });
    }
}
