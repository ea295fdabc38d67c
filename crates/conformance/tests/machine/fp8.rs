//! 8-bit floating-point numbers: each conversion is compared with a search for the nearest number.

use half::f16;

use crate::bad_input::assert_refused_by_name;
use crate::gpu::Numbers;
use crate::opcodes::run_on_threads;

const FORMATS: [&str; 2] = ["e4m3", "e5m2"];

/// Returns the value that the format's definition (OCP 8-bit Floating Point Specification) gives to these bits.
pub(crate) fn value_of(format: &str, bits: u8) -> f64 {
    let (fraction_bits, bias) = if format == "e4m3" { (3, 7) } else { (2, 15) };
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let exponent = i32::from((bits & 0x7f) >> fraction_bits);
    let is_last = exponent == if format == "e4m3" { 15 } else { 31 };
    let size = match (format, is_last) {
        ("e4m3", true) if bits & 7 == 7 => f64::NAN,
        ("e5m2", true) => return if fraction == 0.0 { f64::INFINITY.copysign(sign(bits)) } else { f64::NAN },
        _ if exponent == 0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    size * sign(bits)
}

fn sign(bits: u8) -> f64 {
    if bits & 0x80 == 0 { 1.0 } else { -1.0 }
}

/// Returns the finite number that is nearest; of two that are equally near, the even one.
pub(crate) fn nearest(format: &str, value: f64) -> u8 {
    let finite = (0..0x7f).filter(|&bits| value_of(format, bits).is_finite());
    let distance = |bits: u8| (value_of(format, bits) - value.abs()).abs();
    let found = finite
        .min_by(|&one, &other| distance(one).total_cmp(&distance(other)).then((one & 1).cmp(&(other & 1))));
    found.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
}

/// Returns the bits that a conversion must give.
fn converted(format: &str, value: f64, relu: bool) -> u8 {
    let largest = if format == "e4m3" { 448.0 } else { 57344.0 };
    match value {
        _ if value.is_nan() => 0x7f,
        _ if relu && value <= 0.0 => 0,
        _ => nearest(format, value.clamp(-largest, largest)),
    }
}

/// Returns every number of a format, the numbers halfway between two of them, and numbers next to all of these.
fn interesting(format: &str) -> Vec<f32> {
    let finite: Vec<f64> =
        (0..=255).map(|bits| value_of(format, bits)).filter(|value| value.is_finite()).collect();
    let mut values: Vec<f32> = finite.iter().map(|&value| value as f32).collect();
    values.extend(finite.windows(2).map(|pair| ((pair[0] + pair[1]) / 2.0) as f32));
    let near: Vec<f32> = values.iter().flat_map(|value| [value.next_up(), value.next_down()]).collect();
    values.extend(near);
    values.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-40, -1e-40]);
    let mut numbers = Numbers(31);
    values.extend((0..300).map(|_| f32::from_bits(numbers.next() as u32)));
    values
}

#[test]
fn singles_are_rounded_to_the_nearest_number_and_clamped() {
    for format in FORMATS {
        for (relu, name) in
            [(false, "rn.satfinite"), (true, "rn.satfinite.relu"), (true, "rn.relu.satfinite")]
        {
            let values = interesting(format);
            let inputs: Vec<[u64; 2]> = values
                .iter()
                .zip(values.iter().rev())
                .map(|(a, b)| [u64::from(a.to_bits()), u64::from(b.to_bits())])
                .collect();
            let inputs: Vec<&[u64]> = inputs.iter().map(|pair| &pair[..]).collect();
            let got = run_on_threads("%h0", &format!("cvt.{name}.{format}x2.f32 %h0, %r1, %r2;"), &inputs);
            for ((&a, &b), got) in values.iter().zip(values.iter().rev()).zip(got) {
                let expected = [b, a].map(|value| converted(format, f64::from(value), relu));
                assert_eq!((got as u16).to_le_bytes(), expected, "{name}.{format} of {a:e}, {b:e}");
            }
        }
    }
}

#[test]
fn halves_are_converted_to_bytes_and_back() {
    let halves: Vec<u16> = (0..=u16::MAX).step_by(7).collect();
    for format in FORMATS {
        for (relu, modifier) in [(false, ""), (true, ".relu")] {
            let inputs: Vec<[u64; 1]> =
                halves.iter().map(|&half| [u64::from(half) | u64::from(half.rotate_left(3)) << 16]).collect();
            let inputs: Vec<&[u64]> = inputs.iter().map(|input| &input[..]).collect();
            let instruction = format!("cvt.rn.satfinite{modifier}.{format}x2.f16x2 %h0, %r1;");
            for (&half, got) in halves.iter().zip(run_on_threads("%h0", &instruction, &inputs)) {
                let expected = [half, half.rotate_left(3)]
                    .map(|half| converted(format, f16::from_bits(half).to_f64(), relu));
                assert_eq!((got as u16).to_le_bytes(), expected, "{instruction} of {half:#x}");
            }
            let inputs: Vec<[u64; 1]> = (0..256).map(|bits| [bits | (255 - bits) << 8]).collect();
            let inputs: Vec<&[u64]> = inputs.iter().map(|input| &input[..]).collect();
            let instruction = format!("cvt.rn{modifier}.f16x2.{format}x2 %r0, %h1;");
            for (bits, got) in (0..=255_u8).zip(run_on_threads("%r0", &instruction, &inputs)) {
                let expected = [bits, 255 - bits].map(|bits| match value_of(format, bits) {
                    value if value.is_nan() => 0x7fff,
                    value if relu && value <= 0.0 => 0,
                    value => f16::from_f64(value).to_bits(),
                });
                assert_eq!([got as u16, (got >> 16) as u16], expected, "{instruction} of {bits:#x}");
            }
        }
    }
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for instruction in [
        "cvt.rn.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.rz.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1;",
        "cvt.rn.satfinite.e4m3x2.bf16x2 %h1, %r1;",
        "cvt.rn.satfinite.e4m3x2.e5m2x2 %h1, %h2;",
        "cvt.rn.satfinite.f16x2.e4m3x2 %r1, %h1;",
        "cvt.rn.f32.e4m3x2 %f1, %h1;",
        "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2;",
        "mma.sync.aligned.m16n8k8.row.col.f32.e4m3.e4m3.f32 {%f1}, {%r1}, {%r1}, {%f1};",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f16 {%f1}, {%r1}, {%r1}, {%r1};",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};",
    ] {
        let declarations = ".reg .b32 %r<3>; .reg .f32 %f<3>; .reg .b16 %h<3>;";
        assert_refused_by_name(declarations, instruction, "");
    }
}
