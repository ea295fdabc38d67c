//! `mma` for double-precision numbers. The expected layouts are the manual's formulas.

use crate::arguments;
use crate::gpu::{Gpu, Numbers};

/// Multiplies with `mma` on one warp: `a` has `rows` rows and `inner` columns, and `b` has 8 columns. The matrices are given
/// row by row.
fn multiply(rows: usize, inner: usize, rounding: &str, [a, b, c]: [&[f64]; 3]) -> Vec<f64> {
    let counts = [rows * inner / 32, inner / 4, rows / 4];
    let mut words = Vec::new();
    for lane in 0..32 {
        let (group, in_group) = (lane / 4, lane % 4);
        // The manual gives `a` two rows for each column, except in m8n8k4.
        for at in 0..counts[0] {
            let (row, column) = match rows {
                8 => (group, in_group),
                _ if at % 2 == 0 => (group, 2 * at + in_group),
                _ => (group + 8, 2 * at - 2 + in_group),
            };
            words.push(a[row * inner + column]);
        }
        words.extend((0..counts[1]).map(|at| b[(in_group + 4 * at) * 8 + group]));
        for at in 0..counts[2] {
            let row = if at < 2 { group } else { group + 8 };
            words.push(c[row * 8 + 2 * in_group + at % 2]);
        }
    }
    let all: usize = counts.iter().sum();
    let list = |from: usize, count: usize| {
        let names: Vec<_> = (from..from + count).map(|at| format!("%d{at}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let loads: String = (0..all).map(|at| format!("ld.global.f64 %d{at}, [%x+{}];\n", 8 * at)).collect();
    let stores: String =
        (0..counts[2]).map(|at| format!("st.global.f64 [%y+{}], %d{};\n", 8 * at, 16 + at)).collect();
    let source = format!(
        ".version 7.8\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)
        {{
        .reg .b32 %t; .reg .f64 %d<20>; .reg .b64 %x, %y, %z;
        ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x;
        mul.wide.u32 %z, %t, {}; add.u64 %x, %x, %z; mul.wide.u32 %z, %t, {}; add.u64 %y, %y, %z;
        {loads}
        mma.sync.aligned.m{rows}n8k{inner}.row.col.f64.f64.f64.f64{rounding} {}, {}, {}, {};
        {stores}
        ret;
        }}",
        8 * all,
        8 * counts[2],
        list(16, counts[2]),
        list(0, counts[0]),
        list(counts[0], counts[1]),
        list(counts[0] + counts[1], counts[2]),
    );
    let mut gpu = Gpu::new(&source);
    let (x, y) = (gpu.buffer(&words), gpu.buffer(&vec![0.0_f64; 32 * counts[2]]));
    gpu.run("test", 1, 32, arguments!(x, y));
    let mut product = vec![0.0; rows * 8];
    for (at, result) in gpu.read::<f64>(y).into_iter().enumerate() {
        let (lane, at) = (at / counts[2], at % counts[2]);
        product[(lane / 4 + 8 * (at / 2)) * 8 + 2 * (lane % 4) + at % 2] = result;
    }
    product
}

const SHAPES: [(usize, usize); 4] = [(8, 4), (16, 4), (16, 8), (16, 16)];

#[test]
fn products_of_doubles_have_the_manual_s_layouts() {
    let mut numbers = Numbers(47);
    for (rows, inner) in SHAPES {
        // Integers of 20 bits: all sums are exact.
        let [a, b, c] = [rows * inner, inner * 8, rows * 8]
            .map(|count| -> Vec<f64> { (0..count).map(|_| (numbers.next() >> 44) as f64 - 5e5).collect() });
        let expected: Vec<f64> = (0..rows * 8)
            .map(|at| {
                let (row, column) = (at / 8, at % 8);
                c[at] + (0..inner).map(|k| a[row * inner + k] * b[k * 8 + column]).sum::<f64>()
            })
            .collect();
        for rounding in ["", ".rn", ".rz"] {
            assert_eq!(
                multiply(rows, inner, rounding, [&a, &b, &c]),
                expected,
                "m{rows}n8k{inner}{rounding}"
            );
        }
    }
}

#[test]
fn sums_of_doubles_are_rounded_as_written() {
    let above = 1.0 + f64::EPSILON;
    for (rows, inner) in SHAPES {
        // Each result is ±(1 + tiny), and a lane adds only one product that is not 0.
        let mut a = vec![0.0; rows * inner];
        (0..rows).for_each(|row| a[row * inner] = if row % 2 == 0 { 1.0 } else { -1.0 });
        let mut b = vec![0.0; inner * 8];
        b[..8].fill(1.0);
        let c: Vec<f64> = (0..rows * 8).map(|at| if at / 8 % 2 == 0 { 1e-20 } else { -1e-20 }).collect();
        for (rounding, [even, odd]) in [
            ("", [1.0, -1.0]),
            (".rn", [1.0, -1.0]),
            (".rz", [1.0, -1.0]),
            (".rp", [above, -1.0]),
            (".rm", [1.0, -above]),
        ] {
            let product = multiply(rows, inner, rounding, [&a, &b, &c]);
            for (at, &result) in product.iter().enumerate() {
                let expected = if at / 8 % 2 == 0 { even } else { odd };
                assert_eq!(result, expected, "m{rows}n8k{inner}{rounding}, row {}", at / 8);
            }
        }
    }
}
