//! `mma` and `wmma` for integers of 8, 4, and 1 bits.

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::{Gpu, Numbers};

/// A form of `mma`: its shape, and the types of `a` and `b`.
#[derive(Clone, Copy)]
struct Form {
    rows: usize,
    inner: usize,
    types: [&'static str; 2],
}

fn bits(kind: &str) -> usize {
    match kind {
        "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        _ => 1,
    }
}

/// Returns the value of a number whose bits are the lowest ones of `number`.
fn value(kind: &str, number: u64) -> i64 {
    let unused = 64 - bits(kind) as u32;
    match kind.starts_with('s') {
        true => (number << unused).cast_signed() >> unused,
        false => (number << unused >> unused).cast_signed(),
    }
}

fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for (names, inner) in [(["s8", "u8"], 16), (["s4", "u4"], 32)] {
        for types in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let types = types.map(|at: usize| names[at]);
            for (rows, inner) in [(8, inner), (16, inner), (16, 2 * inner)] {
                forms.push(Form { rows, inner, types });
            }
        }
    }
    for (rows, inner) in [(8, 128), (16, 128), (16, 256)] {
        forms.push(Form { rows, inner, types: ["b1", "b1"] });
    }
    forms
}

impl Form {
    /// Multiplies with `mma` on one warp. `a` has the given rows and `b` has 8 columns; the matrices are given row by row.
    fn multiply(&self, options: [&str; 2], [a, b, c]: [&[i64]; 3]) -> Vec<i32> {
        let [a_type, b_type] = self.types;
        let each = 32 / bits(a_type);
        let counts = [self.rows * self.inner / 32 / each, 8 * self.inner / 32 / each, self.rows * 8 / 32];
        let pack = |numbers: Vec<i64>| {
            let mask = u64::MAX >> (64 - bits(a_type));
            let packed = |all, (at, &number): (usize, &i64)| {
                all | (number.cast_unsigned() & mask) << (at * bits(a_type))
            };
            numbers.iter().enumerate().fold(0, packed) as u32
        };
        let mut words = Vec::new();
        for lane in 0..32 {
            let (group, in_group) = (lane / 4, lane % 4);
            // The manual's formulas for all shapes and types: a register has `each` consecutive numbers.
            for register in 0..counts[0] {
                let row = group + if register % 2 == 0 { 0 } else { 8 };
                let first = in_group * each + if register < 2 { 0 } else { self.inner / 2 };
                words.push(pack((first..first + each).map(|column| a[row * self.inner + column]).collect()));
            }
            for register in 0..counts[1] {
                let first = in_group * each + if register == 0 { 0 } else { self.inner / 2 };
                words.push(pack((first..first + each).map(|row| b[row * 8 + group]).collect()));
            }
            for at in 0..counts[2] {
                words.push(c[(group + 8 * (at / 2)) * 8 + 2 * in_group + at % 2] as u32);
            }
        }
        let all: usize = counts.iter().sum();
        let list = |from: usize, count: usize| {
            let names: Vec<_> = (from..from + count).map(|at| format!("%r{at}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let loads: String = (0..all).map(|at| format!("ld.global.u32 %r{at}, [%x+{}];\n", 4 * at)).collect();
        let stores: String =
            (0..counts[2]).map(|at| format!("st.global.u32 [%y+{}], %r{};\n", 4 * at, 16 + at)).collect();
        let (saturate, bit_op) = (options[0], options[1]);
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n
            .visible .entry test(.param .u64 x, .param .u64 y)
            {{
            .reg .b32 %r<20>, %t; .reg .b64 %x, %y, %z;
            ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x;
            mul.wide.u32 %z, %t, {}; add.u64 %x, %x, %z; mul.wide.u32 %z, %t, {}; add.u64 %y, %y, %z;
            {loads}
            mma.sync.aligned.m{}n8k{}.row.col{saturate}.s32.{a_type}.{b_type}.s32{bit_op} {}, {}, {}, {};
            {stores}
            ret;
            }}",
            4 * all,
            4 * counts[2],
            self.rows,
            self.inner,
            list(16, counts[2]),
            list(0, counts[0]),
            list(counts[0], counts[1]),
            list(counts[0] + counts[1], counts[2]),
        );
        let mut gpu = Gpu::new(&source);
        let (x, y) = (gpu.buffer(&words), gpu.buffer(&vec![0_u32; 32 * counts[2]]));
        gpu.run("test", 1, 32, arguments!(x, y));
        let results = gpu.read::<i32>(y);
        let mut product = vec![0; self.rows * 8];
        for (at, result) in results.into_iter().enumerate() {
            let (lane, at) = (at / counts[2], at % counts[2]);
            product[(lane / 4 + 8 * (at / 2)) * 8 + 2 * (lane % 4) + at % 2] = result;
        }
        product
    }

    /// Returns random matrices; the numbers of `c` are small.
    fn matrices(&self, numbers: &mut Numbers) -> [Vec<i64>; 3] {
        let mut matrix = |kind: &str, count: usize| -> Vec<i64> {
            (0..count).map(|_| value(kind, numbers.next() >> 32)).collect()
        };
        [
            matrix(self.types[0], self.rows * self.inner),
            matrix(self.types[1], self.inner * 8),
            matrix("s8", self.rows * 8),
        ]
    }

    fn product(&self, [a, b, c]: [&[i64]; 3], multiply: impl Fn(i64, i64) -> i64) -> Vec<i64> {
        let element = |row: usize, column: usize| {
            let terms = (0..self.inner).map(|k| multiply(a[row * self.inner + k], b[k * 8 + column]));
            terms.sum::<i64>() + c[row * 8 + column]
        };
        (0..self.rows * 8).map(|at| element(at / 8, at % 8)).collect()
    }
}

#[test]
fn products_are_exact_in_every_shape_and_type() {
    let mut numbers = Numbers(41);
    for form in forms() {
        let [a, b, c] = form.matrices(&mut numbers);
        let matrices = [&a[..], &b, &c];
        type Multiply = fn(i64, i64) -> i64;
        let ways: &[(&str, &str, Multiply)] = match form.types[0] {
            "b1" => &[("", ".xor.popc", |x, y| x ^ y), ("", ".and.popc", |x, y| x & y)],
            _ => &[("", "", |x, y| x * y), (".satfinite", "", |x, y| x * y)],
        };
        for &(saturate, bit_op, multiply) in ways {
            let expected: Vec<i32> =
                form.product(matrices, multiply).into_iter().map(|sum| i32::try_from(sum).unwrap()).collect();
            let product = form.multiply([saturate, bit_op], matrices);
            assert_eq!(product, expected, "m{}n8k{} {:?} {bit_op}", form.rows, form.inner, form.types);
        }
    }
}

#[test]
fn sums_wrap_or_are_clamped() {
    let form = Form { rows: 16, inner: 32, types: ["s8", "s8"] };
    let (a, b) = (vec![-128; 16 * 32], vec![-128; 32 * 8]);
    let c: Vec<i64> = (0..128).map(|at| i64::from(i32::MAX) - 600_000 * (at % 2)).collect();
    let exact = form.product([&a, &b, &c], |x, y| x * y);
    let wrapped: Vec<i32> = exact.iter().map(|&sum| sum as i32).collect();
    let clamped: Vec<i32> = exact.iter().map(|&sum| sum.min(i32::MAX.into()) as i32).collect();
    assert_ne!(wrapped, clamped);
    assert_eq!(form.multiply(["", ""], [&a, &b, &c]), wrapped);
    assert_eq!(form.multiply([".satfinite", ""], [&a, &b, &c]), clamped);
}

/// Multiplies 8 rows of `a` with 8 columns of `b` by `wmma`, where rows and columns are `stride` numbers apart. The words of
/// `a` and `b` are given row by row and column by column.
fn multiply_fragments(
    kind: &str,
    op: &str,
    satfinite: &str,
    stride: usize,
    [a, b]: [&[u32]; 2],
    c: &[i32],
) -> Vec<i32> {
    let shape = if kind == "b1" { "m8n8k128" } else { "m8n8k32" };
    let source = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y, .param .u64 z, .param .u64 out)
        {{
        .reg .b32 %a, %b, %c<2>, %d<2>; .reg .b64 %p<4>;
        ld.param.u64 %p0, [x]; ld.param.u64 %p1, [y]; ld.param.u64 %p2, [z]; ld.param.u64 %p3, [out];
        wmma.load.a.sync.aligned.row.{shape}.global.{kind} {{%a}}, [%p0], {stride};
        wmma.load.b.sync.aligned.col.{shape}.global.{kind} {{%b}}, [%p1], {stride};
        wmma.load.c.sync.aligned.row.{shape}.global.s32 {{%c0, %c1}}, [%p2];
        wmma.mma{op}.sync.aligned.row.col.{shape}.s32.{kind}.{kind}.s32{satfinite} {{%d0, %d1}}, {{%a}}, {{%b}}, {{%c0, %c1}};
        wmma.store.d.sync.aligned.col.{shape}.global.s32 [%p3], {{%d0, %d1}};
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let (x, y, z) = (gpu.buffer(a), gpu.buffer(b), gpu.buffer(c));
    let out = gpu.buffer(&[0_i32; 64]);
    let done = gpu.run("test", 1, 32, arguments!(x, y, z, out));
    assert!(done.unwritten.is_none());
    gpu.read(out)
}

#[test]
fn fragments_of_small_numbers_are_multiplied() {
    let mut numbers = Numbers(43);
    for (kind, op, satfinite) in [
        ("s4", "", ""),
        ("s4", "", ".satfinite"),
        ("u4", "", ""),
        ("b1", ".xor.popc", ""),
        ("b1", ".and.popc", ""),
    ] {
        let each = 32 / bits(kind);
        for padding in [0, 4] {
            let words = 4 + padding;
            let [a, b] =
                [0; 2].map(|_| -> Vec<u32> { (0..8 * words).map(|_| numbers.next() as u32).collect() });
            let c: Vec<i32> = (0..64).map(|_| numbers.next() as i32 >> 8).collect();
            let got = multiply_fragments(kind, op, satfinite, words * each, [&a, &b], &c);
            let number = |words: &[u32], at: usize| {
                value(kind, u64::from(words[at / each]) >> (at % each * bits(kind)))
            };
            for (row, column) in (0..8).flat_map(|row| (0..8).map(move |column| (row, column))) {
                let (a, b) = (&a[row * words..][..4], &b[column * words..][..4]);
                let terms = (0..4 * each).map(|k| match op {
                    ".xor.popc" => number(a, k) ^ number(b, k),
                    ".and.popc" => number(a, k) & number(b, k),
                    _ => number(a, k) * number(b, k),
                });
                let expected = terms.sum::<i64>() + i64::from(c[row * 8 + column]);
                assert_eq!(i64::from(got[column * 8 + row]), expected, "{kind}{op}, ({row}, {column})");
            }
        }
    }
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for instruction in [
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s4.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2}, {%r0, %r1, %r2, %r3};",
        "mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2}, {%r0, %r1, %r2, %r3};",
        "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2}, {%r0, %r1, %r2, %r3};",
        "mma.sync.aligned.m16n8k128.row.col.satfinite.s32.b1.b1.s32.xor.popc {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2}, {%r0, %r1, %r2, %r3};",
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, {%r0, %r1}, {%r2}, {%r0, %r1};",
        "mma.sync.aligned.m16n8k16.col.row.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r2}, {%r0, %r1, %r2, %r3};",
        "wmma.load.a.sync.aligned.col.m8n8k32.s4 {%r0}, [%x];",
        "wmma.load.b.sync.aligned.row.m8n8k128.b1 {%r0}, [%x];",
        "wmma.load.a.sync.aligned.row.m8n8k32.b1 {%r0}, [%x];",
        "wmma.load.a.sync.aligned.row.m16n16k16.s4 {%r0}, [%x];",
        "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%r0, %r1}, {%r0}, {%r1}, {%r0, %r1};",
        "wmma.mma.or.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%r0, %r1}, {%r0}, {%r1}, {%r0, %r1};",
        "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {%r0, %r1}, {%r0}, {%r1}, {%r0, %r1};",
        "wmma.mma.sync.aligned.row.row.m8n8k32.s32.s4.s4.s32 {%r0, %r1}, {%r0}, {%r1}, {%r0, %r1};",
    ] {
        assert_refused_by_name(".reg .b32 %r<4>; .reg .b64 %x;", instruction, "");
    }
}
