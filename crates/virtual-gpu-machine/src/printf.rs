//! Formats `printf` output from a format string and its arguments ("CUDA C++ Programming Guide", formatted output),
//! like the C library on a 64-bit Linux host.

/// A conversion: `%[flags][width][.precision][size]type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    /// Whether the width is an argument.
    star: bool,
    precision: Option<usize>,
    /// The number of size letters: negative for `h`, positive for `l`.
    size: i8,
    kind: u8,
}

/// A part of a format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part<'f> {
    Text(&'f [u8]),
    /// A conversion, with its text in the format string.
    Conversion(Conversion, &'f [u8]),
}

/// Widths and precisions are clamped to this.
const WIDEST: usize = 4096;

/// Splits a format string. Everything that is not a conversion is text.
pub(crate) fn parts(format: &[u8]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = format;
    while let Some(first) = rest.first() {
        let text = rest.iter().position(|&byte| byte == b'%').unwrap_or(rest.len());
        if text > 0 {
            parts.push(Part::Text(&rest[..text]));
            rest = &rest[text..];
        } else if rest.get(1) == Some(first) {
            parts.push(Part::Text(&rest[..1]));
            rest = &rest[2..];
        } else if let Some((conversion, len)) = conversion(rest) {
            parts.push(Part::Conversion(conversion, &rest[..len]));
            rest = &rest[len..];
        } else {
            parts.push(Part::Text(&rest[..1]));
            rest = &rest[1..];
        }
    }
    parts
}

/// Returns the conversion at the start of the text, and the conversion's length.
fn conversion(text: &[u8]) -> Option<(Conversion, usize)> {
    let mut it = Conversion::default();
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'-' => it.left = true,
            b'+' => it.plus = true,
            b' ' => it.space = true,
            b'#' => it.alternate = true,
            b'0' => it.zero = true,
            _ => break,
        }
        at += 1;
    }
    let number = |at: &mut usize| {
        let digits = text[*at..].iter().take_while(|byte| byte.is_ascii_digit());
        let value = digits.clone().fold(0, |value: usize, &digit| {
            value.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
        });
        *at += digits.count();
        value.min(WIDEST)
    };
    if text.get(at) == Some(&b'*') {
        it.star = true;
        at += 1;
    } else {
        it.width = number(&mut at);
    }
    if text.get(at) == Some(&b'.') {
        at += 1;
        it.precision = Some(number(&mut at));
    }
    while let Some(letter @ (b'h' | b'l')) = text.get(at) {
        it.size += if *letter == b'h' { -1 } else { 1 };
        at += 1;
    }
    it.kind = *text.get(at)?;
    b"cdiouxXpeEfFgGaAs".contains(&it.kind).then_some((it, at + 1))
}

impl Conversion {
    /// Returns whether the width is an argument.
    pub(crate) fn takes_width(&self) -> bool {
        self.star
    }

    /// Sets a width that was an argument; a negative width means `-`.
    pub(crate) fn set_width(&mut self, width: i32) {
        self.left |= width < 0;
        self.width = (width.unsigned_abs() as usize).min(WIDEST);
    }

    pub(crate) fn is_string(&self) -> bool {
        self.kind == b's'
    }

    /// Returns the number of bytes of its argument, which is also the argument's alignment.
    pub(crate) fn bytes(&self) -> usize {
        match self.kind {
            b'p' | b's' | b'a' | b'A' | b'e'..=b'g' | b'E'..=b'G' => 8,
            b'c' => 4,
            _ if self.size > 0 => 8,
            _ => 4,
        }
    }

    /// Returns the maximum number of bytes that are read from a string.
    pub(crate) fn longest(&self) -> Option<usize> {
        self.precision
    }

    /// Writes a string's text.
    pub(crate) fn string(&self, text: &[u8], out: &mut Vec<u8>) {
        self.pad(b"", text, false, out);
    }

    /// Writes the text of any other argument, from its bits.
    pub(crate) fn number(&self, bits: u64, out: &mut Vec<u8>) {
        match self.kind {
            b'c' => self.pad(b"", &[bits as u8], false, out),
            b'd' | b'i' => {
                let value = match self.size {
                    1.. => bits as i64,
                    0 => i64::from(bits as i32),
                    -1 => i64::from(bits as i16),
                    _ => i64::from(bits as i8),
                };
                self.integer(self.sign(value < 0), value.unsigned_abs().to_string(), value == 0, out);
            }
            b'p' if bits == 0 => self.pad(b"", b"(nil)", false, out),
            b'p' => self.integer("0x", format!("{bits:x}"), false, out),
            b'o' | b'u' | b'x' | b'X' => self.unsigned(bits, out),
            _ => self.float(f64::from_bits(bits), out),
        }
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    fn unsigned(&self, bits: u64, out: &mut Vec<u8>) {
        let value = match self.size {
            1.. => bits,
            0 => bits & 0xffff_ffff,
            -1 => bits & 0xffff,
            _ => bits & 0xff,
        };
        let is_marked = self.alternate && value != 0;
        let (prefix, digits) = match self.kind {
            b'x' => (if is_marked { "0x" } else { "" }, format!("{value:x}")),
            b'X' => (if is_marked { "0X" } else { "" }, format!("{value:X}")),
            b'o' => {
                let digits = format!("{value:o}");
                let has_zero = self.precision.is_some_and(|least| least > digits.len());
                ("", if is_marked && !has_zero { format!("0{digits}") } else { digits })
            }
            _ => ("", value.to_string()),
        };
        let vanishes = value == 0 && !(self.alternate && self.kind == b'o');
        self.integer(prefix, digits, vanishes, out);
    }

    /// Writes an integer. If `vanishes`, the value is 0, and a precision of 0 leaves no digits.
    fn integer(&self, prefix: &str, digits: String, vanishes: bool, out: &mut Vec<u8>) {
        let digits = match self.precision {
            Some(0) if vanishes => String::new(),
            Some(least) => format!("{digits:0>least$}"),
            None => digits,
        };
        self.pad(prefix.as_bytes(), digits.as_bytes(), self.precision.is_none(), out);
    }

    fn float(&self, value: f64, out: &mut Vec<u8>) {
        let is_upper = self.kind.is_ascii_uppercase();
        let sign = self.sign(value.is_sign_negative());
        let size = value.abs();
        if !size.is_finite() {
            let text = if size.is_nan() { "nan" } else { "inf" };
            let text = if is_upper { text.to_uppercase() } else { text.to_owned() };
            return self.pad(sign.as_bytes(), text.as_bytes(), false, out);
        }
        let precision = self.precision.unwrap_or(6);
        let (prefix, text) = match self.kind.to_ascii_lowercase() {
            b'f' => ("", self.with_point(format!("{size:.precision$}"))),
            b'e' => ("", self.exponential(size, precision)),
            b'g' => ("", self.general(size, precision.max(1))),
            _ => ("0x", self.hexadecimal(size)),
        };
        let prefix = format!("{sign}{prefix}");
        match is_upper {
            true => self.pad(prefix.to_uppercase().as_bytes(), text.to_uppercase().as_bytes(), true, out),
            false => self.pad(prefix.as_bytes(), text.as_bytes(), true, out),
        }
    }

    /// Keeps the decimal point in a number without fractional digits if the conversion has `#`.
    fn with_point(&self, digits: String) -> String {
        if self.alternate && !digits.contains('.') { digits + "." } else { digits }
    }

    fn exponential(&self, size: f64, precision: usize) -> String {
        let (mantissa, exponent) = decimal(size, precision);
        exponent_form(&self.with_point(mantissa), exponent)
    }

    fn general(&self, size: f64, digits: usize) -> String {
        let (mantissa, exponent) = decimal(size, digits - 1);
        let trimmed = |text: String| match self.alternate {
            true => self.with_point(text),
            false if text.contains('.') => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        };
        match exponent {
            -4.. if (exponent as i64) < digits as i64 => {
                let decimals = (digits as i64 - 1 - i64::from(exponent)) as usize;
                trimmed(format!("{size:.decimals$}"))
            }
            _ => exponent_form(&trimmed(mantissa), exponent),
        }
    }

    /// Returns what follows `0x` in the output of `%a`.
    fn hexadecimal(&self, size: f64) -> String {
        let bits = size.to_bits();
        let (raw, mut fraction) = (bits >> 52, bits & ((1 << 52) - 1));
        let mut lead = u64::from(raw != 0);
        let exponent = match (raw, fraction) {
            (0, 0) => 0,
            (0, _) => -1022,
            _ => raw as i64 - 1023,
        };
        let digits = match self.precision {
            Some(digits) if digits < 13 => {
                let cut = 52 - 4 * digits as u32;
                let all = lead << 52 | fraction;
                let (kept, lost, half) = (all >> cut, all & ((1 << cut) - 1), 1_u64 << (cut - 1));
                let up = lost > half || lost == half && kept & 1 == 1;
                let rounded = (kept + u64::from(up)) << cut;
                (lead, fraction) = (rounded >> 52, rounded & ((1 << 52) - 1));
                format!("{fraction:013x}")[..digits].to_owned()
            }
            Some(digits) => format!("{:0<digits$}", format!("{fraction:013x}")),
            None => format!("{fraction:013x}").trim_end_matches('0').to_owned(),
        };
        let point = if digits.is_empty() && !self.alternate { "" } else { "." };
        format!("{lead}{point}{digits}p{exponent:+}")
    }

    /// Pads to the width. With `0`, zeros go between the sign and the digits, if `zeros` allows it.
    fn pad(&self, prefix: &[u8], text: &[u8], zeros: bool, out: &mut Vec<u8>) {
        let missing = self.width.saturating_sub(prefix.len() + text.len());
        let fill = |out: &mut Vec<u8>, byte| out.extend(std::iter::repeat_n(byte, missing));
        let with_zeros = zeros && self.zero && !self.left;
        if !self.left && !with_zeros {
            fill(out, b' ');
        }
        out.extend_from_slice(prefix);
        if with_zeros {
            fill(out, b'0');
        }
        out.extend_from_slice(text);
        if self.left {
            fill(out, b' ');
        }
    }
}

/// Returns `d.ddd` with the given number of decimal places, and the power of ten.
fn decimal(size: f64, precision: usize) -> (String, i32) {
    let text = format!("{size:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (mantissa.to_owned(), exponent.parse().unwrap_or(0))
}

fn exponent_form(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(format: &str, bits: u64) -> String {
        let mut out = Vec::new();
        for part in parts(format.as_bytes()) {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Conversion(conversion, _) => conversion.number(bits, &mut out),
            }
        }
        String::from_utf8(out).unwrap()
    }

    /// The expected texts are what glibc's `printf` prints.
    #[test]
    fn integers_are_written_as_c_does() {
        let minus_42 = -42_i64 as u64;
        for (format, bits, text) in [
            ("[%d]", minus_42, "[-42]"),
            ("[%6d|%-6d|%06d]", minus_42, "[   -42|-42   |-00042]"),
            ("[%+d% d]", 7, "[+7 7]"),
            ("[%.3d|%8.3d|%08.3d]", 7, "[007|     007|     007]"),
            ("[%.0d]", 0, "[]"),
            ("[%u]", minus_42, "[4294967254]"),
            ("[%lu]", minus_42, "[18446744073709551574]"),
            ("[%hd|%hhd|%hu]", 0x1_ff85, "[-123|-123|65413]"),
            ("[%x|%#x|%#X|%#010x]", 0xbeef, "[beef|0xbeef|0XBEEF|0x0000beef]"),
            ("[%o|%#o|%#.5o]", 8, "[10|010|00010]"),
            ("[%#x|%#o|%#.0o]", 0, "[0|0|0]"),
            ("[%c|%3c|%-3c]", 65, "[A|  A|A  ]"),
            ("[%p]", 0x7f00, "[0x7f00]"),
            ("[%p]", 0, "[(nil)]"),
            ("100%% of %lld", 1 << 40, "100% of 1099511627776"),
            ("%y and %", 0, "%y and %"),
        ] {
            assert_eq!(formatted(format, bits), text, "{format}");
        }
    }

    #[test]
    fn floats_are_written_as_c_does() {
        for (format, value, text) in [
            ("[%f|%.2f|%8.2f|%-8.2f|%08.2f]", 3.25, "[3.250000|3.25|    3.25|3.25    |00003.25]"),
            ("[%.0f|%#.0f|%+.1f]", 2.5, "[2|2.|+2.5]"),
            ("[%e|%.3E|%.0e|%#.0e]", 12345.678, "[1.234568e+04|1.235E+04|1e+04|1.e+04]"),
            ("[%e]", 1e-300, "[1.000000e-300]"),
            ("[%g|%#g|%.3g|%G]", 0.0001, "[0.0001|0.000100000|0.0001|0.0001]"),
            ("[%g|%G]", 0.00001, "[1e-05|1E-05]"),
            ("[%g|%.3g]", 1234567.0, "[1.23457e+06|1.23e+06]"),
            ("[%g|%.0g]", 100000.0, "[100000|1e+05]"),
            ("[%g|%f|%e|%a]", 0.0, "[0|0.000000|0.000000e+00|0x0p+0]"),
            ("[%g|%5.1f]", -0.0, "[-0| -0.0]"),
            ("[%a|%A|%.1a|%.0a]", 1.5, "[0x1.8p+0|0X1.8P+0|0x1.8p+0|0x2p+0]"),
            ("[%a|%.2a]", 0.1, "[0x1.999999999999ap-4|0x1.9ap-4]"),
            ("[%f|%5F|%05e]", f64::INFINITY, "[inf|  INF|  inf]"),
            ("[%f|%G]", f64::NAN, "[nan|NAN]"),
            ("[%.20f]", 0.1, "[0.10000000000000000555]"),
        ] {
            assert_eq!(formatted(format, f64::to_bits(value)), text, "{format}");
        }
    }
}
