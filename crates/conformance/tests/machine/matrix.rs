//! Compares `ldmatrix` and `mma` with plain loops. The manual's formulas define which lane holds which element.

use half::{bf16, f16};
use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::{Gpu, Numbers};

/// A form of `mma`.
struct Form {
    name: &'static str,
    /// The number of columns of `a`.
    inner: usize,
    /// Whether `c` and `d` are `.f16`.
    in_halves: bool,
}

const FORMS: [Form; 14] = [
    Form { name: "m16n8k8.row.col.f32.f16.f16.f32", inner: 8, in_halves: false },
    Form { name: "m16n8k16.row.col.f32.f16.f16.f32", inner: 16, in_halves: false },
    Form { name: "m16n8k8.row.col.f16.f16.f16.f16", inner: 8, in_halves: true },
    Form { name: "m16n8k16.row.col.f16.f16.f16.f16", inner: 16, in_halves: true },
    Form { name: "m16n8k8.row.col.f32.bf16.bf16.f32", inner: 8, in_halves: false },
    Form { name: "m16n8k16.row.col.f32.bf16.bf16.f32", inner: 16, in_halves: false },
    Form { name: "m16n8k4.row.col.f32.tf32.tf32.f32", inner: 4, in_halves: false },
    Form { name: "m16n8k8.row.col.f32.tf32.tf32.f32", inner: 8, in_halves: false },
    Form { name: "m16n8k16.row.col.f32.e4m3.e4m3.f32", inner: 16, in_halves: false },
    Form { name: "m16n8k16.row.col.f16.e5m2.e4m3.f16", inner: 16, in_halves: true },
    Form { name: "m16n8k32.row.col.f32.e4m3.e4m3.f32", inner: 32, in_halves: false },
    Form { name: "m16n8k32.row.col.f32.e4m3.e5m2.f32", inner: 32, in_halves: false },
    Form { name: "m16n8k32.row.col.f32.e5m2.e5m2.f32", inner: 32, in_halves: false },
    Form { name: "m16n8k32.row.col.f16.e4m3.e4m3.f16", inner: 32, in_halves: true },
];

impl Form {
    fn is_tf32(&self) -> bool {
        self.name.contains("tf32")
    }

    fn is_fp8(&self) -> bool {
        self.name.contains(".e4m3") || self.name.contains(".e5m2")
    }

    /// Returns the number of elements in a register.
    fn per_register(&self) -> usize {
        match (self.is_tf32(), self.is_fp8()) {
            (true, _) => 1,
            (_, true) => 4,
            _ => 2,
        }
    }

    /// Converts a number to the type of a multiplicand (0 or 1), and returns its bits and its value.
    fn element(&self, multiplicand: usize, value: f64) -> (u32, f64) {
        if self.is_fp8() {
            let format = self.name.split('.').nth(4 + multiplicand).unwrap();
            let bits = if value.is_infinite() { 0x7c } else { crate::fp8::nearest(format, value) };
            (bits.into(), crate::fp8::value_of(format, bits))
        } else if self.name.contains("bf16") {
            let rounded = bf16::from_f64(value);
            (rounded.to_bits().into(), rounded.to_f64())
        } else if self.is_tf32() {
            let bits = (value as f32).to_bits() & !0x1fff;
            (bits, f64::from(f32::from_bits(bits)))
        } else {
            let rounded = f16::from_f64(value);
            (rounded.to_bits().into(), rounded.to_f64())
        }
    }

    /// Returns the row and column of the `i`th element of `a` that a lane holds.
    fn place_in_a(&self, lane: usize, i: usize) -> (usize, usize) {
        let (group, in_group) = (lane >> 2, lane % 4);
        if self.is_fp8() {
            // The manual has a formula for each shape; this is its formula for `.m16n8k32`, which includes the other one.
            let row = if i < 4 || (8..12).contains(&i) { group } else { group + 8 };
            return (row, in_group * 4 + (i & 3) + if i < 8 { 0 } else { 16 });
        }
        if self.is_tf32() {
            let row = if i == 0 || i == 2 { group } else { group + 8 };
            return (row, if i < 2 { in_group } else { in_group + 4 });
        }
        let row = if i < 2 || (4..6).contains(&i) { group } else { group + 8 };
        (row, in_group * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
    }

    fn place_in_b(&self, lane: usize, i: usize) -> (usize, usize) {
        let (group, in_group) = (lane >> 2, lane % 4);
        if self.is_fp8() {
            return (in_group * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, group);
        }
        match self.is_tf32() {
            true => (if i == 0 { in_group } else { in_group + 4 }, group),
            false => (in_group * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, group),
        }
    }

    fn place_in_c(lane: usize, i: usize) -> (usize, usize) {
        ((lane >> 2) + if i < 2 { 0 } else { 8 }, (lane % 4) * 2 + (i & 1))
    }

    /// Multiplies matrices in row-major order: `a` has 16 rows, and `b` and `c` have 8 columns. `a` and `b` are rounded
    /// first. Returns the machine's result and the result of plain loops.
    fn multiply(&self, a: &[f64], b: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let inner = self.inner;
        let (a, b) = (a.iter().map(|&x| self.element(0, x)), b.iter().map(|&x| self.element(1, x)));
        let (a, b): (Vec<_>, Vec<_>) = (a.collect(), b.collect());
        let per_register = self.per_register();
        let pack = |elements: Vec<u32>| -> Vec<u32> {
            let words = elements.chunks(per_register);
            words
                .map(|word| word.iter().rev().fold(0, |all, bits| all << (32 / per_register % 32) | bits))
                .collect()
        };
        let (count_a, count_b) = (16 * inner / 32, 8 * inner / 32);
        let mut fragments = Vec::new();
        for lane in 0..32 {
            let of_a =
                (0..count_a).map(|i| self.place_in_a(lane, i)).map(|(row, column)| a[row * inner + column].0);
            let of_b =
                (0..count_b).map(|i| self.place_in_b(lane, i)).map(|(row, column)| b[row * 8 + column].0);
            let of_c = (0..4).map(|i| Self::place_in_c(lane, i)).map(|(row, column)| c[row * 8 + column]);
            let mut words = [pack(of_a.collect()), pack(of_b.collect())].concat();
            match self.in_halves {
                true => {
                    let halves: Vec<u32> = of_c.map(|x| f16::from_f64(x).to_bits().into()).collect();
                    words.extend(halves.chunks(2).map(|pair| pair[0] | pair[1] << 16));
                }
                false => words.extend(of_c.map(|x| (x as f32).to_bits())),
            }
            words.resize(16, 0);
            fragments.extend(words);
        }
        let results = self.run(&fragments);
        let mut product = vec![0.0; 128];
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = Self::place_in_c(lane, i);
                product[row * 8 + column] = match self.in_halves {
                    true => f16::from_bits((results[4 * lane + i / 2] >> (16 * (i % 2))) as u16).to_f64(),
                    false => f64::from(f32::from_bits(results[4 * lane + i])),
                };
            }
        }
        let expected = (0..128).map(|at| {
            let (row, column) = (at / 8, at % 8);
            let terms = (0..inner).map(|k| a[row * inner + k].1 * b[k * 8 + column].1);
            terms.sum::<f64>() + c[at]
        });
        (product, expected.collect())
    }

    /// Runs the instruction on one warp. Each lane reads 16 words, its parts of `a`, `b`, and `c`, and writes 4 words.
    fn run(&self, fragments: &[u32]) -> Vec<u32> {
        let registers = |range: std::ops::Range<usize>| -> String {
            range.map(|at| format!("%r{at}")).collect::<Vec<_>>().join(", ")
        };
        let per_register = self.per_register();
        let (a, b) = (self.inner / 2 / per_register, self.inner / 4 / per_register);
        let c = if self.in_halves { 2 } else { 4 };
        let loads: String = (0..16).map(|at| format!("ld.global.u32 %r{at}, [%d1+{}];\n", 4 * at)).collect();
        let stores: String =
            (0..c).map(|at| format!("st.global.u32 [%d2+{}], %r{};\n", 4 * at, 16 + at)).collect();
        let source = format!(
            ".version 8.7\n.target sm_90\n.address_size 64\n
            .visible .entry test(.param .u64 x, .param .u64 y)
            {{
            .reg .b32 %r<21>; .reg .b64 %d<4>;
            ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
            mov.u32 %r20, %tid.x;
            mul.wide.u32 %d3, %r20, 64; add.u64 %d1, %d1, %d3;
            mul.wide.u32 %d3, %r20, 16; add.u64 %d2, %d2, %d3;
            {loads}
            mma.sync.aligned.{} {{{}}}, {{{}}}, {{{}}}, {{{}}};
            {stores}
            ret;
            }}",
            self.name,
            registers(16..16 + c),
            registers(0..a),
            registers(a..a + b),
            registers(a + b..a + b + c),
        );
        let mut gpu = Gpu::new(&source);
        let (x, y) = (gpu.buffer(fragments), gpu.buffer(&[0_u32; 128]));
        gpu.run("test", 1, 32, arguments!(x, y));
        gpu.read(y)
    }
}

#[test]
fn products_of_small_integers_are_exact() {
    let mut numbers = Numbers(5);
    for form in FORMS {
        let mut whole = |count: usize| -> Vec<f64> {
            (0..count).map(|_| (numbers.next() >> 32) as f64 % 9.0 - 4.0).collect()
        };
        let (a, b, c) = (whole(16 * form.inner), whole(8 * form.inner), whole(128));
        let (product, expected) = form.multiply(&a, &b, &c);
        assert_eq!(product, expected, "{}", form.name);
        assert!(expected.iter().any(|&x| x != expected[0]));
    }
}

#[test]
fn products_of_fractions_are_rounded_once() {
    let mut numbers = Numbers(6);
    for form in FORMS {
        let mut fractions =
            |count: usize| -> Vec<f64> { numbers.floats(count).into_iter().map(f64::from).collect() };
        let (a, b) = (fractions(16 * form.inner), fractions(8 * form.inner));
        let c: Vec<f64> = fractions(128).iter().map(|&x| f16::from_f64(x).to_f64()).collect();
        let (product, expected) = form.multiply(&a, &b, &c);
        for (got, expected) in product.into_iter().zip(expected) {
            let rounded = match form.in_halves {
                true => f16::from_f64(expected).to_f64(),
                false => f64::from(expected as f32),
            };
            let unit = if form.in_halves { 1e-3 } else { 1.2e-7 };
            assert!((got - rounded).abs() <= unit * rounded.abs(), "{}: {got}, not {rounded}", form.name);
        }
    }
}

#[test]
fn infinities_and_their_differences() {
    // `.e4m3` has no infinity.
    for form in FORMS.into_iter().filter(|form| form.name.split('.').nth(4) != Some("e4m3")) {
        let mut a = vec![0.0; 16 * form.inner];
        let b = vec![1.0; 8 * form.inner];
        let mut c = vec![0.0; 128];
        (a[0], a[form.inner]) = (f64::INFINITY, f64::INFINITY);
        c[8] = f64::NEG_INFINITY;
        let (product, _) = form.multiply(&a, &b, &c);
        assert_eq!(product[..8], [f64::INFINITY; 8], "{}", form.name);
        assert!(product[8].is_nan() && product[9] == f64::INFINITY, "{}", form.name);
        assert_eq!(product[16..], [0.0; 112], "{}", form.name);
    }
}

/// Runs a block of `threads`. Its shared memory holds 32 rows of 16 bytes; row `r` has the elements `8 r` to `8 r + 7`.
/// Lane `l` passes the address of row `31 - l`. Returns the GPU, the address of the results, and the report, if any.
fn load_matrices(modifiers: &str, count: usize, threads: u32, barrier: &str) -> (Gpu, u64, String) {
    let registers: Vec<String> = (0..count).map(|at| format!("%r{}", 10 + at)).collect();
    let stores: String =
        (0..count).map(|at| format!("st.global.u32 [%d2+{}], %r{};\n", 4 * at, 10 + at)).collect();
    let source = format!(
        ".version 8.7\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)
        {{
        .reg .b32 %r<20>; .reg .b64 %d<4>;
        .shared .align 16 .b8 tile[512];
        ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %d3, %r1, 16; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
        ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1];
        mov.u32 %r6, tile; shl.b32 %r7, %r1, 4; add.u32 %r8, %r6, %r7;
        st.shared.v4.u32 [%r8], {{%r2, %r3, %r4, %r5}};
        sub.u32 %r9, 496, %r7; add.u32 %r9, %r9, %r6;
        {barrier}
        ldmatrix.sync.aligned.m8n8.{modifiers}.b16 {{{}}}, [%r9];
        {stores}
        ret;
        }}",
        registers.join(", ")
    );
    let mut gpu = Gpu::new(&source);
    let elements: Vec<u16> = (0..256).collect();
    let x = gpu.buffer(&elements);
    let y = gpu.buffer(&[0_u32; 128]);
    let arguments = arguments!(x, y);
    let outcome = gpu.launch("test", [1; 3], [threads, 1, 1], arguments);
    let outcome = match outcome {
        Ok(done) => done.race.map_or_else(String::new, |race| race.to_string()),
        Err(fault) => {
            assert!(matches!(fault.kind, FaultKind::DivergentWarp { .. }), "{fault}");
            fault.to_string()
        }
    };
    (gpu, y, outcome)
}

#[test]
fn matrices_are_loaded_by_rows_or_by_columns() {
    for (count, name) in [(1, "x1"), (2, "x2"), (4, "x4")] {
        for (is_transposed, options) in [(false, ""), (true, ".trans")] {
            let modifiers = format!("{name}{options}.shared");
            let (gpu, y, outcome) = load_matrices(&modifiers, count, 32, "bar.sync 0;");
            assert_eq!(outcome, "", "{modifiers}");
            for (lane, got) in gpu.read::<u32>(y).chunks(4).enumerate() {
                for (matrix, got) in got[..count].iter().enumerate() {
                    let element = |i: usize| {
                        let (row, column) = match is_transposed {
                            false => (lane / 4, 2 * (lane % 4) + i),
                            true => (2 * (lane % 4) + i, lane / 4),
                        };
                        let row_in_memory = 31 - (8 * matrix + row);
                        (8 * row_in_memory + column) as u32
                    };
                    assert_eq!(*got, element(0) | element(1) << 16, "{modifiers}, lane {lane}");
                }
            }
        }
    }
}

#[test]
fn a_matrix_is_read_after_a_barrier() {
    let (.., outcome) = load_matrices("x4.shared", 4, 32, "");
    assert!(outcome.contains("read after write") && outcome.contains("reads 16 bytes"), "{outcome}");
    let (.., outcome) = load_matrices("x4.shared", 4, 32, "bar.warp.sync -1;");
    assert_eq!(outcome, "");
}

#[test]
fn a_matrix_needs_a_whole_warp() {
    let (.., outcome) = load_matrices("x1.shared", 1, 16, "bar.sync 0;");
    assert!(!outcome.is_empty());
}

#[test]
fn rounding_to_tf32_is_to_nearest_and_away_from_zero() {
    let convert = |bits: u32| {
        let source = "cvt.rna.tf32.f32 %r0, %r1;";
        crate::opcodes::run_on_threads("%r0", source, &[&[u64::from(bits)]])[0] as u32
    };
    for (bits, expected) in [
        (0x3f80_0fff, 0x3f80_0000),
        (0x3f80_1000, 0x3f80_2000),
        (0xbf80_1000, 0xbf80_2000),
        (0x3fff_ffff, 0x4000_0000),
        (0x7f7f_ffff, 0x7f80_0000),
        (0x0000_1000, 0x0000_2000),
        (0xff80_0000, 0xff80_0000),
        (0x8000_0000, 0x8000_0000),
    ] {
        assert_eq!(convert(bits), expected, "{bits:#x}");
    }
    assert!(f32::from_bits(convert(0x7f80_0001)).is_nan());
}

#[test]
fn a_product_that_is_copied_loaded_and_multiplied_by_these_instructions() {
    let mut gpu = Gpu::new(include_str!("../ptx/matrices.ptx"));
    let mut numbers = Numbers(7);
    let k = 80;
    let mut whole = |count: usize| -> Vec<f64> {
        (0..count).map(|_| (numbers.next() >> 32) as f64 % 9.0 - 4.0).collect()
    };
    let (a, b) = (whole(16 * k), whole(8 * k));
    let halves =
        |values: &[f64]| -> Vec<u16> { values.iter().map(|&x| f16::from_f64(x).to_bits()).collect() };
    let (at_a, at_b, at_c) = (gpu.buffer(&halves(&a)), gpu.buffer(&halves(&b)), gpu.unwritten(4 * 128));
    let done = gpu.run("product", 1, 32, arguments!(at_a, at_b, at_c, k as i32));
    assert!(done.race.is_none() && done.unwritten.is_none(), "{:?}", done.race);
    for (at, got) in gpu.read::<f32>(at_c).into_iter().enumerate() {
        let (row, column) = (at / 8, at % 8);
        let expected: f64 = (0..k).map(|i| a[row * k + i] * b[i * 8 + column]).sum();
        assert_eq!(f64::from(got), expected, "row {row}, column {column}");
    }
}
