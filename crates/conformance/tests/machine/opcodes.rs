//! Tests one instruction at a time: the expected bits come from the manual's text or pseudocode, or from the host's
//! IEEE arithmetic.

use half::f16;

use crate::gpu::{Gpu, Numbers};

/// The integer types, with their widths in bits and whether they are signed.
pub(crate) const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

/// Runs one or more instructions on one thread. The inputs are in `%h1…` (16 bits), `%r1…` (32), and `%d1…` (64), each
/// truncated to its register. Returns the value of the register `%h0`, `%r0`, `%d0`, or `%p0`.
fn evaluate(result: &str, instructions: &str, inputs: &[u64]) -> u64 {
    run_on_threads(result, instructions, &[inputs])[0]
}

/// Like `evaluate`, but runs one thread per set of inputs.
pub(crate) fn run_on_threads(result: &str, instructions: &str, inputs: &[&[u64]]) -> Vec<u64> {
    let count = inputs[0].len();
    let mut loads = String::new();
    for input in 0..count {
        let n = input + 1;
        loads += &format!("ld.global.u64 %d{n}, [%in+{}];\n", 8 * input);
        loads += &format!("cvt.u32.u64 %r{n}, %d{n};\ncvt.u16.u64 %h{n}, %d{n};\n");
    }
    let store = match result {
        "%p0" => "selp.u64 %d0, 1, 0, %p0;\nst.global.u64 [%out], %d0;".to_owned(),
        "%h0" => "cvt.u64.u16 %d0, %h0;\nst.global.u64 [%out], %d0;".to_owned(),
        "%r0" => "cvt.u64.u32 %d0, %r0;\nst.global.u64 [%out], %d0;".to_owned(),
        _ => "st.global.u64 [%out], %d0;".to_owned(),
    };
    let source = format!(
        ".version 8.7\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 in, .param .u64 out)
        {{
        .reg .b16 %h<10>; .reg .b32 %r<10>; .reg .b64 %d<10>; .reg .pred %p<10>;
        .reg .b32 %t; .reg .b64 %in, %out, %at;
        ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
        mov.u32 %t, %tid.x;
        mul.wide.u32 %at, %t, {stride}; add.s64 %in, %in, %at;
        mul.wide.u32 %at, %t, 8; add.s64 %out, %out, %at;
        {loads}{instructions}\n{store}
        ret;
        }}",
        stride = 8 * count
    );
    let mut gpu = Gpu::new(&source);
    let flat: Vec<u64> = inputs.iter().flat_map(|inputs| inputs.iter().copied()).collect();
    let at = gpu.buffer(&flat);
    let mut results = Vec::new();
    for (block, chunk) in inputs.chunks(256).enumerate() {
        let out = gpu.unwritten(8 * chunk.len());
        let start = at + (block * 256 * 8 * count) as u64;
        let arguments = crate::arguments!(start, out);
        assert!(gpu.run("test", 1, chunk.len() as u32, arguments).unwritten.is_none());
        results.extend(gpu.read::<u64>(out));
    }
    results
}

/// Compares an instruction with a function on edge cases and random inputs.
fn differential<const N: usize>(result: &str, instruction: &str, expected: impl Fn([u64; N]) -> u64) {
    let edges =
        [0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let mut numbers = Numbers(31);
    let inputs: Vec<[u64; N]> = (0..700)
        .map(|_| {
            std::array::from_fn(|_| match numbers.next() % 4 {
                0 => edges[(numbers.next() % edges.len() as u64) as usize],
                1 => !edges[(numbers.next() % edges.len() as u64) as usize],
                2 => numbers.next(),
                _ => numbers.next() >> (numbers.next() % 64),
            })
        })
        .collect();
    let slices: Vec<&[u64]> = inputs.iter().map(|inputs| inputs.as_slice()).collect();
    for (got, inputs) in run_on_threads(result, instruction, &slices).into_iter().zip(&inputs) {
        let expected = expected(*inputs);
        assert_eq!(got, expected, "{instruction} of {inputs:x?}: {got:#x}, not {expected:#x}");
    }
}

fn single(value: f32) -> u64 {
    u64::from(value.to_bits())
}

#[test]
fn bit_fields_as_in_the_manuals_pseudo_code() {
    let bit = |a: u64, at: u64| a >> at & 1;
    let bfe = |a: u64, b: u64, c: u64, msb: u64, signed: bool| {
        let (position, length) = (b & 0xff, c & 0xff);
        let sign = if !signed || length == 0 { 0 } else { bit(a, (position + length - 1).min(msb)) };
        (0..=msb).fold(0, |d, i| {
            d | if i < length && position + i <= msb { bit(a, position + i) } else { sign } << i
        })
    };
    differential("%r0", "bfe.u32 %r0, %r1, %r2, %r3;", |[a, b, c]| bfe(a, b, c, 31, false));
    differential("%r0", "bfe.s32 %r0, %r1, %r2, %r3;", |[a, b, c]| bfe(a, b, c, 31, true));
    differential("%d0", "bfe.u64 %d0, %d1, %r2, %r3;", |[a, b, c]| bfe(a, b, c, 63, false));
    differential("%d0", "bfe.s64 %d0, %d1, %r2, %r3;", |[a, b, c]| bfe(a, b, c, 63, true));
    let bfi = |a: u64, b: u64, c: u64, d: u64, msb: u64| {
        let (position, length) = (c & 0xff, d & 0xff);
        (0..length)
            .take_while(|i| position + i <= msb)
            .fold(b, |f, i| f & !(1 << (position + i)) | bit(a, i) << (position + i))
    };
    differential("%r0", "bfi.b32 %r0, %r1, %r2, %r3, %r4;", |[a, b, c, d]| bfi(a, b & 0xffff_ffff, c, d, 31));
    differential("%d0", "bfi.b64 %d0, %d1, %d2, %r3, %r4;", |[a, b, c, d]| bfi(a, b, c, d, 63));
}

#[test]
fn masks_and_extensions_as_in_the_manuals_pseudo_code() {
    let bmsk = |a: u64, b: u64, clamp: bool| {
        let (a, b) = (a as u32, b as u32);
        let (first, count) = (a & 0x1f, b & 0x1f);
        let mask0 = if clamp && a >= 32 { 0 } else { !0_u32 << first };
        let overflows = first + count >= 32 || clamp && (a >= 32 || b >= 32);
        let mask1 = if overflows { 0 } else { !0_u32 << (first + count) };
        u64::from(mask0 & !mask1)
    };
    differential("%r0", "bmsk.clamp.b32 %r0, %r1, %r2;", |[a, b]| bmsk(a, b, true));
    differential("%r0", "bmsk.wrap.b32 %r0, %r1, %r2;", |[a, b]| bmsk(a, b, false));
    let szext = |a: u64, b: u64, clamp: bool, signed: bool| {
        let (a, b) = (a as u32, b as u32);
        let count = b & 0x1f;
        let too_large = b >= 32 && clamp;
        let mask = if too_large { 0 } else { !0_u32 << count };
        let is_negative = count != 0 && !too_large && signed && a >> (count - 1) & 1 == 1;
        u64::from(a & !mask | if is_negative { mask } else { 0 })
    };
    differential("%r0", "szext.clamp.u32 %r0, %r1, %r2;", |[a, b]| szext(a, b, true, false));
    differential("%r0", "szext.clamp.s32 %r0, %r1, %r2;", |[a, b]| szext(a, b, true, true));
    differential("%r0", "szext.wrap.u32 %r0, %r1, %r2;", |[a, b]| szext(a, b, false, false));
    differential("%r0", "szext.wrap.s32 %r0, %r1, %r2;", |[a, b]| szext(a, b, false, true));
    assert_eq!(evaluate("%r0", "bmsk.wrap.b32 %r0, 1, 2;", &[0]), 6);
    assert_eq!(evaluate("%r0", "szext.wrap.u32 %r0, 0xffffffff, 0;", &[0]), 0);
}

#[test]
fn counting_and_finding_bits() {
    differential("%r0", "popc.b32 %r0, %r1;", |[a]| u64::from((a as u32).count_ones()));
    differential("%r0", "popc.b64 %r0, %d1;", |[a]| u64::from(a.count_ones()));
    differential("%r0", "clz.b32 %r0, %r1;", |[a]| u64::from((a as u32).leading_zeros()));
    differential("%r0", "clz.b64 %r0, %d1;", |[a]| u64::from(a.leading_zeros()));
    differential("%d0", "brev.b64 %d0, %d1;", |[a]| a.reverse_bits());
    let find = |a: u64, msb: u32, shift: bool| match (0..=msb).rev().find(|&i| a >> i & 1 == 1) {
        Some(i) => u64::from(if shift { msb - i } else { i }),
        None => 0xffff_ffff,
    };
    let positive = |a: u64| if (a as i64) < 0 { !a } else { a };
    let positive_word = |a: u64| positive(a as u32 as i32 as i64 as u64) & 0xffff_ffff;
    differential("%r0", "bfind.u32 %r0, %r1;", |[a]| find(a, 31, false));
    differential("%r0", "bfind.s32 %r0, %r1;", |[a]| find(positive_word(a), 31, false));
    differential("%r0", "bfind.shiftamt.s32 %r0, %r1;", |[a]| find(positive_word(a), 31, true));
    differential("%r0", "bfind.u64 %r0, %d1;", |[a]| find(a, 63, false));
    differential("%r0", "bfind.shiftamt.s64 %r0, %d1;", |[a]| find(positive(a), 63, true));
}

#[test]
fn shifts_clamp_at_the_width() {
    differential("%r0", "shl.b32 %r0, %r1, %r2;", |[a, b]| {
        u64::from((a as u32).checked_shl(b as u32).unwrap_or(0))
    });
    differential("%r0", "shr.u32 %r0, %r1, %r2;", |[a, b]| {
        u64::from((a as u32).checked_shr(b as u32).unwrap_or(0))
    });
    differential("%r0", "shr.s32 %r0, %r1, %r2;", |[a, b]| (a as i32 >> (b as u32).min(31)) as u32 as u64);
    differential("%d0", "shl.b64 %d0, %d1, %r2;", |[a, b]| a.checked_shl(b as u32).unwrap_or(0));
    differential("%d0", "shr.s64 %d0, %d1, %r2;", |[a, b]| (a as i64 >> (b as u32).min(63)) as u64);
    differential("%h0", "shl.b16 %h0, %h1, %r2;", |[a, b]| {
        u64::from((a as u16).checked_shl(b as u32).unwrap_or(0))
    });
    differential("%h0", "shr.s16 %h0, %h1, %r2;", |[a, b]| (a as i16 >> (b as u32).min(15)) as u16 as u64);
    differential("%h0", "shr.u16 %h0, %h1, %r2;", |[a, b]| {
        u64::from((a as u16).checked_shr(b as u32).unwrap_or(0))
    });
    let pair = |a: u64, b: u64| (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
    differential("%r0", "shf.l.wrap.b32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        u64::from((pair(a, b) << (c & 31) >> 32) as u32)
    });
    differential("%r0", "shf.r.clamp.b32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        u64::from((pair(a, b) >> (c as u32).min(32)) as u32)
    });
    differential("%r0", "shf.l.clamp.b32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        u64::from((u128::from(pair(a, b)) << (c as u32).min(32) >> 32) as u32)
    });
}

#[test]
fn sixteen_bit_integers() {
    differential("%h0", "add.u16 %h0, %h1, %h2;", |[a, b]| u64::from((a as u16).wrapping_add(b as u16)));
    differential("%h0", "mul.lo.s16 %h0, %h1, %h2;", |[a, b]| u64::from((a as u16).wrapping_mul(b as u16)));
    differential("%h0", "mul.hi.s16 %h0, %h1, %h2;", |[a, b]| {
        u64::from(((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16)
    });
    differential("%h0", "mul.hi.u16 %h0, %h1, %h2;", |[a, b]| ((a & 0xffff) * (b & 0xffff)) >> 16);
    differential("%r0", "mul.wide.s16 %r0, %h1, %h2;", |[a, b]| {
        u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32)
    });
    differential("%r0", "mad.wide.u16 %r0, %h1, %h2, %r3;", |[a, b, c]| {
        ((a & 0xffff) * (b & 0xffff) + (c & 0xffff_ffff)) & 0xffff_ffff
    });
    differential("%h0", "div.s16 %h0, %h1, %h2;", |[a, b]| match b as i16 {
        0 => 0xffff,
        b => u64::from((a as i16).wrapping_div(b) as u16),
    });
    differential("%h0", "min.s16 %h0, %h1, %h2;", |[a, b]| u64::from((a as i16).min(b as i16) as u16));
    differential("%p0", "setp.lt.s16 %p0, %h1, %h2;", |[a, b]| u64::from((a as i16) < b as i16));
    differential("%p0", "setp.hi.u16 %p0, %h1, %h2;", |[a, b]| u64::from(a as u16 > b as u16));
}

#[test]
fn numbers_of_several_words() {
    differential(
        "%d0",
        "add.cc.u32 %r5, %r1, %r2; shr.u64 %d3, %d1, 32; shr.u64 %d4, %d2, 32; cvt.u32.u64 %r3, %d3; cvt.u32.u64 %r4, %d4; addc.u32 %r6, %r3, %r4; mov.b64 %d0, {%r5, %r6};",
        |[a, b]| a.wrapping_add(b),
    );
    differential(
        "%d0",
        "sub.cc.u32 %r5, %r1, %r2; shr.u64 %d3, %d1, 32; shr.u64 %d4, %d2, 32; cvt.u32.u64 %r3, %d3; cvt.u32.u64 %r4, %d4; subc.u32 %r6, %r3, %r4; mov.b64 %d0, {%r5, %r6};",
        |[a, b]| a.wrapping_sub(b),
    );
    differential("%d0", "mad.lo.cc.u64 %d5, %d1, %d2, %d3; madc.hi.u64 %d0, %d1, %d2, 0;", |[a, b, c]| {
        ((u128::from(a) * u128::from(b) + u128::from(c)) >> 64) as u64
    });
    differential("%d0", "mad.lo.u64 %d0, %d1, %d2, %d3;", |[a, b, c]| a.wrapping_mul(b).wrapping_add(c));
    differential("%r0", "mad.hi.s32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        u64::from((((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32).wrapping_add(c as u32))
    });
    differential("%d0", "mad.wide.s32 %d0, %r1, %r2, %d3;", |[a, b, c]| {
        (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
    });
    differential("%r0", "add.sat.s32 %r0, %r1, %r2;", |[a, b]| {
        u64::from((a as i32).saturating_add(b as i32) as u32)
    });
    differential("%d0", "sad.u64 %d0, %d1, %d2, %d3;", |[a, b, c]| a.abs_diff(b).wrapping_add(c));
    differential("%r0", "rem.u32 %r0, %r1, %r2;", |[a, b]| {
        u64::from((a as u32).checked_rem(b as u32).unwrap_or(u32::MAX))
    });
    differential("%d0", "cnot.b64 %d0, %d1;", |[a]| u64::from(a == 0));
}

#[test]
fn permutes_logic_and_dot_products() {
    differential("%r0", "prmt.b32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        let bytes = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
        let pick = |at: u64| {
            let nibble = c >> (4 * at) & 15;
            let byte = bytes[(nibble & 7) as usize];
            u64::from(if nibble < 8 {
                byte
            } else if byte >= 128 {
                255
            } else {
                0
            })
        };
        pick(0) | pick(1) << 8 | pick(2) << 16 | pick(3) << 24
    });
    differential("%r0", "lop3.b32 %r0, %r1, %r2, %r3, 0x96;", |[a, b, c]| (a ^ b ^ c) & 0xffff_ffff);
    differential("%r0", "lop3.b32 %r0, %r1, %r2, %r3, 0xb8;", |[a, b, c]| ((b & c) | (a & !b)) & 0xffff_ffff);
    differential("%r0", "dp4a.s32.s32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        let bytes = |value: u64| (value as u32).to_le_bytes().map(|byte| i32::from(byte as i8));
        let sum: i32 = bytes(a).into_iter().zip(bytes(b)).map(|(a, b)| a * b).sum();
        u64::from(sum.wrapping_add(c as i32) as u32)
    });
    differential("%r0", "slct.u32.s32 %r0, %r1, %r2, %r3;", |[a, b, c]| {
        (if c as i32 >= 0 { a } else { b }) & 0xffff_ffff
    });
    differential(
        "%r0",
        "set.le.u32.s32 %r0, %r1, %r2;",
        |[a, b]| if a as i32 <= b as i32 { 0xffff_ffff } else { 0 },
    );
    differential(
        "%r0",
        "set.gt.f32.u32 %r0, %r1, %r2;",
        |[a, b]| if a as u32 > b as u32 { single(1.0) } else { 0 },
    );
    differential("%d0", "selp.b64 %d0, %d1, %d2, 1;", |[a, _b]| a);
    differential("%d0", "mov.b64 {%r5, %r6}, %d1; mov.b64 %d0, {%r6, %r5};", |[a]| a.rotate_left(32));
    differential("%r0", "mov.b32 {%h5, %h6}, %r1; mov.b32 %r0, {%h6, %h5};", |[a]| {
        u64::from((a as u32).rotate_left(16))
    });
}

#[test]
fn integer_conversions_between_all_widths() {
    let register = |bits: u32| match bits {
        64 => "%d",
        32 => "%r",
        _ => "%h",
    };
    let read = |value: u64, bits: u32, signed: bool| {
        let shift = 64 - bits;
        if signed {
            i128::from((value << shift) as i64 >> shift)
        } else {
            i128::from(value << shift >> shift)
        }
    };
    for (to, to_bits, to_signed) in INTEGERS {
        for (from, from_bits, from_signed) in INTEGERS {
            let d = format!("{}0", register(to_bits));
            let instruction = format!("cvt.{to}.{from} {d}, {}1;", register(from_bits));
            // Extend the result to its register's width, and then with zeros to 64 bits.
            let width = to_bits.max(16);
            differential(&d, &instruction, |[a]| {
                let value = read(read(a, from_bits, from_signed) as u64, to_bits, to_signed);
                value as u64 & u64::MAX >> (64 - width)
            });
            let (low, high) = if to_signed {
                (-(1_i128 << (to_bits - 1)), (1 << (to_bits - 1)) - 1)
            } else {
                (0, (1 << to_bits) - 1)
            };
            let saturating = instruction.replace("cvt.", "cvt.sat.");
            let holds_all = match (from_signed, to_signed) {
                (false, true) => from_bits < to_bits,
                (true, false) => false,
                _ => from_bits <= to_bits,
            };
            if holds_all {
                // "Saturation modifier is illegal in cases where saturation is not possible"; `ptxas` refuses it.
                crate::manual::assert_refused(&[&saturating]);
                continue;
            }
            differential(&d, &saturating, |[a]| {
                read(a, from_bits, from_signed).clamp(low, high) as u64 & u64::MAX >> (64 - width)
            });
        }
    }
    // The destination register is wider than the type, which `cvt` allows.
    differential("%d0", "cvt.s8.s32 %d0, %r1;", |[a]| a as i8 as i64 as u64);
    differential("%r0", "cvt.u16.s8 %r0, %h1;", |[a]| u64::from(a as i8 as u16));
}

#[test]
fn comparisons_with_nan() {
    let nan = single(f32::NAN);
    for (comparison, with_nan, less, equal) in [
        ("eq", 0, 0, 1),
        ("ne", 0, 1, 0),
        ("lt", 0, 1, 0),
        ("le", 0, 1, 1),
        ("gt", 0, 0, 0),
        ("ge", 0, 0, 1),
        ("equ", 1, 0, 1),
        ("neu", 1, 1, 0),
        ("ltu", 1, 1, 0),
        ("leu", 1, 1, 1),
        ("gtu", 1, 0, 0),
        ("geu", 1, 0, 1),
        ("num", 0, 1, 1),
        ("nan", 1, 0, 0),
    ] {
        let instruction = format!("setp.{comparison}.f32 %p0, %r1, %r2;");
        assert_eq!(evaluate("%p0", &instruction, &[single(1.0), nan]), with_nan, "{comparison}");
        assert_eq!(evaluate("%p0", &instruction, &[single(1.0), single(2.0)]), less, "{comparison}");
        assert_eq!(evaluate("%p0", &instruction, &[single(0.0), single(-0.0)]), equal, "{comparison}");
        let wide = format!("setp.{comparison}.f64 %p0, %d1, %d2;");
        assert_eq!(evaluate("%p0", &wide, &[1_f64.to_bits(), f64::NAN.to_bits()]), with_nan, "{comparison}");
    }
    let both = "setp.lt.s32 %p1|%p2, %r1, %r2; and.pred %p3, %p1, !%p2; setp.lt.and.s32 %p0, %r1, %r2, %p3;";
    differential("%p0", both, |[a, b]| u64::from((a as i32) < b as i32));
    assert_eq!(evaluate("%p0", "setp.lt.ftz.f32 %p0, %r1, %r2;", &[0, 1]), 0);
    assert_eq!(evaluate("%p0", "testp.subnormal.f32 %p0, %r1;", &[1]), 1);
    assert_eq!(evaluate("%p0", "testp.finite.f64 %p0, %d1;", &[f64::INFINITY.to_bits()]), 0);
}

#[test]
fn single_precision_corner_cases() {
    let one = |instruction: &str, a: f32, b: f32| evaluate("%r0", instruction, &[single(a), single(b)]);
    let (nan, tiny) = (0x7fff_ffff, f32::from_bits(1));
    assert_eq!(one("add.f32 %r0, %r1, %r2;", f32::INFINITY, f32::NEG_INFINITY), nan);
    assert_eq!(one("min.f32 %r0, %r1, %r2;", f32::NAN, 3.0), single(3.0));
    assert_eq!(one("max.f32 %r0, %r1, %r2;", f32::NAN, f32::NAN), nan);
    assert_eq!(one("min.f32 %r0, %r1, %r2;", 0.0, -0.0), single(-0.0));
    assert_eq!(one("max.f32 %r0, %r1, %r2;", -0.0, 0.0), single(0.0));
    assert_eq!(one("max.NaN.f32 %r0, %r1, %r2;", 1.0, f32::NAN), nan);
    assert_eq!(one("add.ftz.f32 %r0, %r1, %r2;", -tiny, -tiny), single(-0.0));
    assert_eq!(one("mul.ftz.f32 %r0, %r1, %r2;", 1e-30, 1e-10), 0);
    assert_eq!(one("mul.f32 %r0, %r1, %r2;", 1e-30, 1e-10), single(1e-30 * 1e-10));
    assert_eq!(one("add.sat.f32 %r0, %r1, %r2;", 0.75, 0.5), single(1.0));
    assert_eq!(one("add.sat.f32 %r0, %r1, %r2;", f32::NAN, 0.5), 0);
    assert_eq!(one("add.rm.f32 %r0, %r1, %r2;", 1.0, -1.0), single(-0.0));
    assert_eq!(one("add.rn.f32 %r0, %r1, %r2;", 1.0, -1.0), 0);
    assert_eq!(one("add.rz.f32 %r0, %r1, %r2;", f32::MAX, f32::MAX), single(f32::MAX));
    assert_eq!(one("mul.rp.f32 %r0, %r1, %r2;", 1e-30, 1e-30), 1);
    assert_eq!(one("mul.rm.f32 %r0, %r1, %r2;", -1e-30, 1e-30), single(-tiny));
    assert_eq!(one("div.rn.f32 %r0, %r1, %r2;", 1.0, 0.0), single(f32::INFINITY));
    assert_eq!(one("div.approx.f32 %r0, %r1, %r2;", 1e38, 1e38), 0);
    assert_eq!(one("div.full.f32 %r0, %r1, %r2;", 6.0, 3.0), single(2.0));
    assert_eq!(one("rcp.rm.f32 %r0, %r1; mov.b32 %r2, %r2;", 3.0, 0.0), single((1.0_f32 / 3.0).next_down()));
    assert_eq!(one("sqrt.rn.f32 %r0, %r1; mov.b32 %r2, %r2;", -1.0, 0.0), nan);
    assert_eq!(one("ex2.approx.f32 %r0, %r1; mov.b32 %r2, %r2;", -149.0, 0.0), 1);
    assert_eq!(one("ex2.approx.ftz.f32 %r0, %r1; mov.b32 %r2, %r2;", -149.0, 0.0), 0);
    assert_eq!(one("ex2.approx.f32 %r0, %r1; mov.b32 %r2, %r2;", f32::NEG_INFINITY, 0.0), 0);
    assert_eq!(one("lg2.approx.f32 %r0, %r1; mov.b32 %r2, %r2;", 0.0, 0.0), single(f32::NEG_INFINITY));
    assert_eq!(one("lg2.approx.f32 %r0, %r1; mov.b32 %r2, %r2;", 8.0, 0.0), single(3.0));
    assert_eq!(one("lg2.approx.f32 %r0, %r1; mov.b32 %r2, %r2;", tiny, 0.0), single(-149.0));
    assert_eq!(one("copysign.f32 %r0, %r1, %r2;", -1.0, 5.0), single(-5.0));
    assert_eq!(one("cvt.rni.f32.f32 %r0, %r1; mov.b32 %r2, %r2;", -0.5, 0.0), single(-0.0));
    assert_eq!(one("mov.f32 %r0, 0f3F800000; mov.b32 %r2, %r2;", 0.0, 0.0), single(1.0));
    assert_eq!(one("add.f32 %r0, %r1, 1.5; mov.b32 %r2, %r2;", 1.0, 0.0), single(2.5));
}

#[test]
fn approximations_keep_within_the_manuals_bounds() {
    let mut numbers = Numbers(41);
    let inputs: Vec<[u64; 1]> =
        (0..2000).map(|_| [single((numbers.next() >> 40) as f32 / (1 << 16) as f32 - 100.0)]).collect();
    let slices: Vec<&[u64]> = inputs.iter().map(|input| input.as_slice()).collect();
    type Case = (&'static str, fn(f64) -> f64, f64, f64);
    let cases: [Case; 7] = [
        ("ex2.approx.f32 %r0, %r1;", f64::exp2, 0.0, 2.4e-7),
        ("abs.f32 %r1, %r1; lg2.approx.f32 %r0, %r1;", |x| x.abs().log2(), 2.4e-7, 2.4e-7),
        ("sin.approx.f32 %r0, %r1;", f64::sin, 5e-7, 0.0),
        ("cos.approx.f32 %r0, %r1;", f64::cos, 5e-7, 0.0),
        ("tanh.approx.f32 %r0, %r1;", f64::tanh, 0.0, 5e-4),
        ("abs.f32 %r1, %r1; rsqrt.approx.f32 %r0, %r1;", |x| 1.0 / x.abs().sqrt(), 0.0, 1.3e-7),
        ("rcp.approx.ftz.f32 %r0, %r1;", |x| 1.0 / x, 0.0, 1.2e-7),
    ];
    for (instruction, exact, absolute, relative) in cases {
        for (got, input) in run_on_threads("%r0", instruction, &slices).into_iter().zip(&inputs) {
            let x = f64::from(f32::from_bits(input[0] as u32));
            let (got, exact) = (f64::from(f32::from_bits(got as u32)), exact(x));
            // Beyond the range of single precision, the result is infinite.
            let exact = if exact > f64::from(f32::MAX) { f64::INFINITY } else { exact };
            let allowed = absolute + relative * exact.abs();
            assert!(
                (got - exact).abs() <= allowed || got == exact,
                "{instruction} of {x}: {got}, not {exact}"
            );
        }
    }
}

#[test]
fn float_to_integer_out_of_range_and_nan() {
    let (nan, wide_nan) = (single(f32::NAN), f64::NAN.to_bits());
    assert_eq!(evaluate("%r0", "cvt.rzi.s32.f32 %r0, %r1;", &[nan]), 0);
    assert_eq!(evaluate("%d0", "cvt.rzi.s64.f32 %d0, %r1;", &[nan]), 1 << 63);
    assert_eq!(evaluate("%r0", "cvt.rzi.s32.f64 %r0, %d1;", &[wide_nan]), 1 << 31);
    assert_eq!(evaluate("%r0", "cvt.rzi.s32.f32 %r0, %r1;", &[single(1e10)]), 0x7fff_ffff);
    assert_eq!(evaluate("%r0", "cvt.rzi.u32.f32 %r0, %r1;", &[single(-1.0)]), 0);
    assert_eq!(evaluate("%r0", "cvt.rni.s8.f32 %r0, %r1;", &[single(-300.0)]), 0xffff_ff80);
    assert_eq!(evaluate("%r0", "cvt.rpi.u8.f32 %r0, %r1;", &[single(254.5)]), 255);
    assert_eq!(evaluate("%r0", "cvt.rn.f32.u64 %r0, %d1;", &[u64::MAX]), single(u64::MAX as f32));
    assert_eq!(
        evaluate("%r0", "cvt.rz.f32.u64 %r0, %d1;", &[u64::MAX]),
        single((u64::MAX as f32).next_down())
    );
    assert_eq!(
        evaluate("%d0", "cvt.rm.f64.s64 %d0, %d1;", &[i64::MAX as u64]),
        (2f64.powi(63).next_down()).to_bits()
    );
    assert_eq!(evaluate("%d0", "cvt.f64.f32 %d0, %r1;", &[single(0.1)]), f64::from(0.1_f32).to_bits());
    differential("%r0", "cvt.rn.f32.s32 %r0, %r1;", |[a]| single(a as i32 as f32));
    differential("%r0", "cvt.rn.f32.s64 %r0, %d1;", |[a]| single(a as i64 as f32));
    differential("%d0", "cvt.rn.f64.u64 %d0, %d1;", |[a]| (a as f64).to_bits());
    differential("%r0", "cvt.rn.f32.u16 %r0, %h1;", |[a]| single(f32::from(a as u16)));
}

#[test]
fn half_precision_rounds_once() {
    let half = |bits: u64| f16::from_bits(bits as u16);
    let same = |value: f64| if value.is_nan() { 0x7fff } else { u64::from(f16::from_f64(value).to_bits()) };
    differential("%h0", "add.f16 %h0, %h1, %h2;", |[a, b]| same(half(a).to_f64() + half(b).to_f64()));
    differential("%h0", "mul.rn.f16 %h0, %h1, %h2;", |[a, b]| same(half(a).to_f64() * half(b).to_f64()));
    differential("%h0", "neg.f16 %h0, %h1;", |[a]| (a ^ 0x8000) & 0xffff);
    differential("%r0", "cvt.f32.f16 %r0, %h1;", |[a]| match half(a) {
        value if value.is_nan() => 0x7fff_ffff,
        value => single(value.to_f32()),
    });
    differential("%h0", "cvt.rn.f16.f32 %h0, %r1;", |[a]| same(f64::from(f32::from_bits(a as u32))));
    differential("%r0", "add.f16x2 %r0, %r1, %r2;", |[a, b]| {
        same(half(a).to_f64() + half(b).to_f64())
            | same(half(a >> 16).to_f64() + half(b >> 16).to_f64()) << 16
    });
    differential("%p0", "setp.lt.f16 %p0, %h1, %h2;", |[a, b]| u64::from(half(a) < half(b)));
    // 1 + 2^-11 + 2^-24 is just above the midpoint of 1 and 1 + 2^-10; a sum that is rounded twice would be 1.
    let (one, near) = (f16::from_f64(1.0), f16::from_f64(2f64.powi(-24)));
    let halfway = f16::from_f64(2f64.powi(-11));
    let inputs = [u64::from(one.to_bits()), u64::from(halfway.to_bits()), u64::from(near.to_bits())];
    let fused = "mov.b16 %h4, 0x3c01; fma.rn.f16 %h0, %h2, %h4, %h1;";
    assert_eq!(evaluate("%h0", fused, &inputs), 0x3c01);
    let down = "cvt.rz.f16.f32 %h0, %r1;";
    assert_eq!(evaluate("%h0", down, &[single(1.0009)]), u64::from(f16::from_f32(1.0).to_bits()));
    assert_eq!(evaluate("%r0", "cvt.rn.f16x2.f32 %r0, %r1, %r2;", &[single(1.0), single(2.0)]), 0x3c00_4000);
}

#[test]
fn guards_branches_and_nested_scopes() {
    differential(
        "%r0",
        "setp.gt.s32 %p1, %r1, %r2; mov.u32 %r0, 1; @%p1 mov.u32 %r0, 2; @!%p1 add.u32 %r0, %r0, 10;",
        |[a, b]| {
            if a as i32 > b as i32 { 2 } else { 11 }
        },
    );
    // The lanes leave the loop one by one.
    let collatz = "and.b32 %r1, %r1, 0xff; add.u32 %r1, %r1, 1; mov.u32 %r0, 0;
        again: setp.le.u32 %p1, %r1, 1; @%p1 bra done;
        and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0;
        @%p2 bra even;
        mad.lo.u32 %r1, %r1, 3, 1; bra.uni next;
        even: shr.u32 %r1, %r1, 1;
        next: add.u32 %r0, %r0, 1; bra again;
        done:";
    differential("%r0", collatz, |[a]| {
        let mut n = (a & 0xff) + 1;
        let mut steps = 0;
        while n > 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    });
    let scopes = "{ .reg .pred %p0; .reg .b32 %r0; mov.u32 %r0, 7; add.u32 %r1, %r1, %r0; } { .reg .b32 x; mov.u32 x, 1; sub.u32 %r0, %r1, x; }";
    differential("%r0", scopes, |[a]| u64::from((a as u32).wrapping_add(6)));
}

#[test]
fn generic_addresses_reach_shared_and_local_memory() {
    let body = "{ .shared .align 8 .b8 s[2048]; .local .align 8 .b8 l[16]; .reg .b64 %a<9>;
        mov.u64 %a1, s; cvta.shared.u64 %a2, %a1; mul.wide.u32 %a3, %t, 8; add.u64 %a2, %a2, %a3;
        st.u64 [%a2], %d1; add.u64 %a4, %a1, %a3; ld.shared.u64 %d5, [%a4];
        mov.u64 %a5, l; cvta.local.u64 %a6, %a5; st.u64 [%a6+8], %d5; ld.local.u64 %d6, [l+8];
        isspacep.shared %p1, %a2; isspacep.local %p2, %a6; isspacep.global %p3, %in;
        and.pred %p4, %p1, %p2; and.pred %p4, %p4, %p3;
        cvta.to.shared.u64 %a7, %a2; setp.eq.u64 %p5, %a7, %a4; and.pred %p4, %p4, %p5;
        selp.u64 %d0, %d6, 0, %p4; }";
    differential("%d0", body, |[a]| a);
}

#[test]
fn narrow_and_vector_memory_accesses() {
    let body = "{ .local .align 16 .b8 l[32];
        st.local.u64 [l], %d1; st.local.u64 [l+8], %d2;
        ld.local.s8 %r5, [l+1]; ld.local.u16 %r6, [l+2]; ld.local.v2.u32 {%r7, %r8}, [l+8];
        st.local.v4.u32 [l+16], {%r5, %r6, %r7, %r8}; ld.local.v2.b64 {%d5, %d6}, [l+16];
        ld.local.s16 %d7, [l+6]; st.local.u8 [l+16], %d7; ld.local.u8 %d8, [l+16];
        xor.b64 %d0, %d5, %d6; xor.b64 %d0, %d0, %d7; xor.b64 %d0, %d0, %d8; }";
    differential("%d0", body, |[a, b]| {
        let byte = (a >> 8) as i8 as i32 as u32;
        let five = u64::from(byte) | (a >> 16 & 0xffff) << 32;
        let seven = (a >> 48) as i16 as i64 as u64;
        five ^ b ^ seven ^ seven & 0xff
    });
}
