//! Kernels of transformers: attention, norm, dropout, conversions to `f16`, and rows in another order.

use anyhow::ensure;
use half::f16;
use lab::Attention;
use lab::kernels::{Dropout, Matrix};

use super::{Bench, expect, expect_error};

/// Compares attention over blocks with the softmax over all keys at once.
pub(super) fn attention() -> anyhow::Result<()> {
    const BLOCK: usize = 37;
    let mut bench = Bench::new()?;
    for width in [1, 5, 64] {
        let blocks: Vec<_> =
            (0..3).map(|_| bench.values(2 * BLOCK * width)).collect::<anyhow::Result<_>>()?;
        let (queries, on_gpu) = bench.values(BLOCK * width)?;
        // Block 0 is the queries' own. It comes first, last, or in between.
        for (order, causal) in [([0, 1, 2], false), ([2, 0, 1], false), ([0, 1, 2], true), ([1, 2, 0], true)]
        {
            let mut attention = Attention::new(&bench.stream, BLOCK, width)?;
            for block in order {
                let keys_values = blocks[block].1.as_view();
                attention.fold(&on_gpu.as_view(), &keys_values, causal && block == 0)?;
            }
            attention.finish()?;
            let got = bench.stream.clone_dtoh(&attention.output())?;
            bench.stream.synchronize()?;
            let mut expected = Vec::new();
            for (row, query) in queries.chunks_exact(width).enumerate() {
                let (mut sum, mut output) = (0.0, vec![0.0; width]);
                for (block, (keys_values, _)) in blocks.iter().enumerate() {
                    let (keys, values) = keys_values.split_at(BLOCK * width);
                    let visible = if causal && block == 0 { row + 1 } else { BLOCK };
                    let pairs = keys.chunks_exact(width).zip(values.chunks_exact(width));
                    for (key, value) in pairs.take(visible) {
                        let score: f64 =
                            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        let weight = (score / (width as f64).sqrt()).exp();
                        sum += weight;
                        output
                            .iter_mut()
                            .zip(value)
                            .for_each(|(out, value)| *out += weight * f64::from(*value));
                    }
                }
                expected.extend(output.into_iter().map(|out| out / sum));
            }
            // A score of at most √width has width + 1 roundings, twice, and so has the exponential of a difference. An
            // exponential has 4 roundings, and each of 3 maxima rescales it once. Both sums have a rounding for each key.
            let of_score = 2 * (width + 3) * (width as f64).sqrt().ceil() as usize;
            expect("attention", &got, &expected, 2 * (of_score + 3 * 6 + 3 * BLOCK), 1.0)?;
        }
    }
    let mut attention = Attention::new(&bench.stream, 2, 3)?;
    let (_, six) = bench.values(6)?;
    let refused = attention.fold(&six.as_view(), &six.slice(..5), false);
    expect_error(refused, "kernel `attend`: `keys_values` has 5 elements, expected 0 × 3")?;
    let refused = attention.fold(&six.as_view(), &six.as_view(), true);
    expect_error(
        refused,
        "a causal block has as many keys as queries, but there are 6 elements of queries, and 6 of keys and values",
    )
}

pub(super) fn conversions() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    // Every f16 becomes the f32 with the same value.
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let mut wide = stream.alloc_zeros(halves.len())?;
    kernels.from_f16(stream, &mut wide, &stream.clone_htod(&halves)?, 1.0)?;
    let wide = bench.read(&wide)?;
    for (half, &got) in halves.iter().zip(&wide) {
        let expected = half.to_f32();
        ensure!(got == expected || got.is_nan() && expected.is_nan(), "{half:?} became {got}");
    }
    // Numbers between two neighbors, exactly between them, and out of range.
    let finite = || halves.iter().map(|half| half.to_f32()).filter(|value| value.is_finite());
    let ulp = |value: f32| f32::powi(2.0, value.abs().log2().floor().max(-14.0) as i32 - 10);
    let between = finite().flat_map(|value| [0.25, 0.5, 0.75].map(|part| value + part * ulp(value)));
    let mut values: Vec<f32> = finite().chain(between).collect();
    values.extend([65519.996, 65520.0, -65520.0, f32::MAX, f32::NAN, f32::NEG_INFINITY, 1e-30]);
    let mut narrow = stream.alloc_zeros(values.len() + 2)?;
    kernels.to_f16(stream, &mut narrow.slice_mut(1..values.len() + 1), &stream.clone_htod(&values)?, 1.0)?;
    let got = stream.clone_dtoh(&narrow)?;
    stream.synchronize()?;
    ensure!(got[0] == f16::ZERO && got[values.len() + 1] == f16::ZERO, "a neighbor of the view was changed");
    for (value, &got) in values.iter().zip(&got[1..]) {
        let expected = f16::from_f32(*value);
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        ensure!(same, "{value} became {got:?}, expected {expected:?}");
    }
    // The factor is applied in f32: 3 · 2⁻²⁰ · 2¹⁰ and back, where 3 · 2⁻³⁰ would be 0 in f16.
    let small = 3.0 * f32::powi(2.0, -20);
    let (mut halves, mut wide) = (stream.alloc_zeros(1)?, stream.alloc_zeros(1)?);
    kernels.to_f16(stream, &mut halves, &stream.clone_htod(&[small])?, 1024.0)?;
    kernels.from_f16(stream, &mut wide, &halves, f32::powi(2.0, -20))?;
    ensure!(bench.read(&wide)? == [small / 1024.0], "the factor is not applied in f32");
    Ok(())
}

pub(super) fn norm_and_dropout() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (37, 10), (5, 300), (0, 3)] {
        let (shape, len) = (Matrix { rows, columns }, rows * columns);
        let (x, x_device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut y = stream.clone_htod(&vec![9.0; len + 1])?;
        kernels.rms_norm(stream, &mut y.slice_mut(..len), &x_device.slice(..len), shape)?;
        let norm = |row: &[f32]| {
            let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
            let root = (squares / columns as f64 + 1e-5).sqrt();
            row.iter().map(|&value| f64::from(value) / root).collect::<Vec<_>>()
        };
        let mut expected: Vec<f64> = x[..len].chunks(columns).flat_map(norm).collect();
        expected.push(9.0);
        // An element is at most the square root of the number of columns. The sum of squares rounds twice per column, and the
        // root halves the relative error.
        let largest = (columns as f64).sqrt().max(9.0);
        expect("rms_norm", &bench.read(&y)?, &expected, columns + 5, largest)?;
    }
    let dropout = Dropout { seed: 7, probability: 0.25 };
    let mask = dropout.mask(5_000);
    let dropped = mask.iter().filter(|&&drops| drops).count();
    // The standard deviation of the number is 31.
    ensure!(
        (1_100..1_400).contains(&dropped),
        "{dropped} of 5,000 elements are dropped, expected about 1,250"
    );
    for range in [0..5_000, 0..1, 1_234..4_321, 4_999..5_000] {
        let (x, mut x_device) = bench.values(range.len() + 2)?;
        let mut view = x_device.slice_mut(1..range.len() + 1);
        bench.kernels.dropout(&bench.stream, &mut view, dropout, range.start)?;
        let mut expected: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
        for (value, &drops) in expected[1..].iter_mut().zip(&mask[range]) {
            *value *= if drops { 0.0 } else { f64::from(dropout.factor()) };
        }
        expect("dropout", &bench.read(&x_device)?, &expected, 1, 2.0)?;
    }
    let mut x = bench.stream.alloc_zeros(3)?;
    let refused = bench.kernels.dropout(&bench.stream, &mut x, Dropout { seed: 7, probability: 1.0 }, 0);
    expect_error(refused, "kernel `dropout`: the probability is 1, expected 0 to below 1")
}

pub(super) fn rows() -> anyhow::Result<()> {
    const ROWS: usize = 101;
    let mut bench = Bench::new()?;
    for columns in [1, 5, 37] {
        let (x, x_device) = bench.values(ROWS * columns)?;
        // 3 and 101 have no common factor, so these are the numbers of all rows. The last two rows don't exist.
        let mut indices: Vec<u32> = (0..ROWS).map(|row| (3 * row % ROWS) as u32).collect();
        indices.extend([ROWS as u32, u32::MAX]);
        let some = bench.stream.clone_htod(&indices)?;
        let mut gathered = bench.stream.alloc_zeros::<f32>(indices.len() * columns)?;
        bench.kernels.gather_rows(&bench.stream, &mut gathered, &x_device, &some, columns)?;
        let row = |index: u32| x.chunks_exact(columns).nth(index as usize);
        let got = bench.read(&gathered)?;
        for (got, &index) in got.chunks_exact(columns).zip(&indices) {
            match row(index) {
                Some(row) => {
                    ensure!(got == row, "row {index} of {columns} columns: {got:?}, expected {row:?}")
                }
                None => ensure!(
                    got.iter().all(|value| value.is_nan()),
                    "row {index} does not exist, but is {got:?}"
                ),
            }
        }
        // Scattering reverses gathering. A row more stays as it is.
        let (mut expected, mut scattered) = bench.values((ROWS + 1) * columns)?;
        expected[..ROWS * columns].copy_from_slice(&x);
        let (all, known) = (gathered.slice(..ROWS * columns), some.slice(..ROWS));
        bench.kernels.scatter_rows(&bench.stream, &mut scattered, &all, &known, columns)?;
        ensure!(
            bench.read(&scattered)? == expected,
            "{columns} columns: the rows did not return to their places"
        );
        let dropped = bench.stream.clone_htod(&[u32::MAX])?;
        bench.kernels.scatter_rows(
            &bench.stream,
            &mut scattered,
            &x_device.slice(..columns),
            &dropped,
            columns,
        )?;
        bench.kernels.scatter_rows(
            &bench.stream,
            &mut scattered,
            &x_device.slice(..0),
            &some.slice(..0),
            columns,
        )?;
        ensure!(
            bench.read(&scattered)? == expected,
            "{columns} columns: a row that does not exist was written"
        );
    }
    Ok(())
}
