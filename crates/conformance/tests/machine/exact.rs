//! Exact arithmetic, followed by rounding to each format as the IEEE standard defines it, for comparison with the
//! machine's faster arithmetic.

/// A rounding mode: `.rn`, `.rz`, `.rm`, `.rp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
}

pub(crate) const MODES: [(&str, Mode); 4] =
    [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rm", Mode::Down), ("rp", Mode::Up)];

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    /// The name of its PTX type.
    pub(crate) name: &'static str,
    /// The number of fraction bits.
    fraction: u32,
    /// The number of exponent bits.
    exponent: u32,
}

pub(crate) const F16: Format = Format { name: "f16", fraction: 10, exponent: 5 };
pub(crate) const BF16: Format = Format { name: "bf16", fraction: 7, exponent: 8 };
pub(crate) const F32: Format = Format { name: "f32", fraction: 23, exponent: 8 };
pub(crate) const F64: Format = Format { name: "f64", fraction: 52, exponent: 11 };

impl Format {
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(crate) fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    pub(crate) fn is_finite(self, bits: u64) -> bool {
        bits & (self.sign() - 1) < self.infinity()
    }

    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let size = bits & (self.sign() - 1);
        size != 0 && size >> self.fraction == 0
    }

    /// Applies `.ftz`.
    pub(crate) fn flushed(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// Returns the exponent of the last digit of the smallest numbers.
    fn least(self) -> i32 {
        2 - (1 << (self.exponent - 1)) - self.fraction as i32
    }

    /// Returns a finite number's digits and the exponent of the last digit.
    fn parts(self, bits: u64) -> (u64, i32) {
        let size = bits & (self.sign() - 1);
        let (power, digits) = (size >> self.fraction, size & ((1 << self.fraction) - 1));
        match power {
            0 => (digits, self.least()),
            _ => (digits | 1 << self.fraction, self.least() + power as i32 - 1),
        }
    }

    /// Converts the number to a double, without rounding.
    pub(crate) fn to_f64(self, bits: u64) -> f64 {
        let negative = bits & self.sign() != 0;
        let size = match (self.is_nan(bits), self.is_finite(bits)) {
            (true, _) => f64::NAN,
            (_, false) => f64::INFINITY,
            _ => {
                let (digits, power) = self.parts(bits);
                // Multiply in two steps, because `powi` may not reach 2^-1074 directly.
                digits as f64 * 2f64.powi(power / 2) * 2f64.powi(power - power / 2)
            }
        };
        if negative { -size } else { size }
    }
}

/// The number of words in an exact number.
const WORDS: usize = 68;

/// The exponent of its lowest bit, which is below the square of the smallest double.
const LOWEST: i32 = -2200;

/// The exact value of a sum or product of finite numbers.
#[derive(Clone)]
pub(crate) struct Exact {
    negative: bool,
    words: [u64; WORDS],
    /// Whether all its terms were negative, or `None` if their signs differed. This determines the sign of a zero.
    terms_negative: Option<bool>,
}

impl Exact {
    fn of(negative: bool, digits: u128, power: i32) -> Self {
        let mut words = [0; WORDS];
        let at = (power - LOWEST) as usize;
        let (word, shift) = (at / 64, at % 64);
        words[word] = (digits << shift) as u64;
        words[word + 1] = (digits >> (64 - shift) as u32) as u64;
        if shift == 0 {
            words[word + 1] = (digits >> 64) as u64;
        } else {
            words[word + 2] = (digits >> 64 >> (64 - shift)) as u64;
        }
        Self { negative, words, terms_negative: Some(negative) }
    }

    pub(crate) fn integer(value: i128) -> Self {
        Self::of(value < 0, value.unsigned_abs(), 0)
    }

    pub(crate) fn number(format: Format, bits: u64) -> Self {
        let (digits, power) = format.parts(bits);
        Self::of(bits & format.sign() != 0, u128::from(digits), power)
    }

    pub(crate) fn product(format: Format, a: u64, b: u64) -> Self {
        let ((x, m), (y, n)) = (format.parts(a), format.parts(b));
        Self::of((a ^ b) & format.sign() != 0, u128::from(x) * u128::from(y), m + n)
    }

    fn is_zero(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn is_larger(&self, other: &Self) -> bool {
        self.words.iter().rev().gt(other.words.iter().rev())
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let terms_negative = self.terms_negative.filter(|_| self.terms_negative == other.terms_negative);
        let (mut large, small) = if other.is_larger(&self) { (other, self) } else { (self, other) };
        let subtract = large.negative != small.negative;
        let mut carry = false;
        for (word, other) in large.words.iter_mut().zip(small.words) {
            let (first, second);
            (*word, first) = if subtract { word.overflowing_sub(other) } else { word.overflowing_add(other) };
            let one = u64::from(carry);
            (*word, second) = if subtract { word.overflowing_sub(one) } else { word.overflowing_add(one) };
            carry = first || second;
        }
        large.terms_negative = terms_negative;
        large
    }

    /// Rounds to a number in the format, in the direction that the mode requires.
    pub(crate) fn round(&self, format: Format, mode: Mode) -> u64 {
        if self.is_zero() {
            let negative = self.terms_negative.unwrap_or(mode == Mode::Down);
            return if negative { format.sign() } else { 0 };
        }
        let sign = if self.negative { format.sign() } else { 0 };
        let top = (0..WORDS)
            .rev()
            .find(|&at| self.words[at] != 0)
            .map_or(0, |at| 64 * at as i32 + 63 - self.words[at].leading_zeros() as i32);
        let last = (top + LOWEST - format.fraction as i32).max(format.least());
        let place = (last - LOWEST) as usize;
        let bit = |at: usize| self.words[at / 64] >> (at % 64) & 1;
        let digits = (0..=format.fraction as usize).fold(0, |digits, at| digits | bit(place + at) << at);
        let half = bit(place - 1) == 1;
        let (word, inside) = ((place - 1) / 64, (place - 1) % 64);
        let below =
            self.words[word] & ((1 << inside) - 1) != 0 || self.words[..word].iter().any(|word| *word != 0);
        let is_exact = !half && !below;
        let up = match mode {
            Mode::Nearest => half && (below || digits & 1 == 1),
            Mode::Zero => false,
            Mode::Down => self.negative && !is_exact,
            Mode::Up => !self.negative && !is_exact,
        };
        let bits = (((last - format.least()) as u64) << format.fraction) + digits + u64::from(up);
        let away = match mode {
            Mode::Nearest => true,
            Mode::Zero => false,
            Mode::Down => self.negative,
            Mode::Up => !self.negative,
        };
        sign | if bits < format.infinity() { bits } else { format.infinity() - u64::from(!away) }
    }

    /// Returns the number's sign: -1, 0, or 1.
    pub(crate) fn signum(&self) -> i32 {
        match (self.is_zero(), self.negative) {
            (true, _) => 0,
            (_, true) => -1,
            _ => 1,
        }
    }
}
