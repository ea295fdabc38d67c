//! Kernels whose arguments are vectors, one number per thread or one number for all.

use anyhow::ensure;
use lab::Momentum;

use super::{Bench, expect, expect_error};

pub(super) fn elementwise() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [1, 255, 256, 257, 1000] {
        let (x, x_device) = bench.values(len)?;
        let (before, mut buffer) = bench.values(len + 2)?;
        let (kernels, stream) = (&bench.kernels, &*bench.stream);
        let mut view = buffer.slice_mut(1..len + 1);
        kernels.axpy(stream, &mut view, &x_device, -2.5)?;
        kernels.scale(stream, &mut view, 0.75)?;
        kernels.sgd_step(stream, &mut view, &x_device, 0.3)?;
        let mut expected: Vec<f64> = before.iter().map(|&value| f64::from(value)).collect();
        for (value, x) in expected[1..=len].iter_mut().zip(&x) {
            *value = (*value - 2.5 * f64::from(*x)) * 0.75 - f64::from(0.3_f32) * f64::from(*x);
        }
        let after = bench.read(&buffer)?;
        expect("axpy, scale, sgd_step", &after, &expected, 5, 4.0)?;
        ensure!(
            (after[0], after[len + 1]) == (before[0], before[len + 1]),
            "a neighbor of the view was changed"
        );

        bench.kernels.fill(&bench.stream, &mut buffer.slice_mut(1..len + 1), 7.5)?;
        expected[1..=len].fill(7.5);
        expect("fill", &bench.read(&buffer)?, &expected, 0, 1.0)?;
    }
    Ok(())
}

pub(super) fn sums() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [0, 1, 255, 1000, 4099] {
        let (x, x_device) = bench.values(len + 1)?;
        let mut sum = bench.stream.clone_htod(&[9.0_f32])?;
        let mut seen = Vec::new();
        for _ in 0..3 {
            bench.kernels.sum(&bench.stream, &mut sum, &x_device.slice(..len))?;
            seen.push(bench.read(&sum)?[0]);
        }
        ensure!(
            seen.iter().all(|sum| sum.to_bits() == seen[0].to_bits()),
            "{seen:?} of the same {len} values"
        );
        let expected: f64 = x[..len].iter().map(|&value| f64::from(value)).sum();
        expect("sum", &seen[..1], &[expected], len / 256 + 10, len as f64)?;
    }
    Ok(())
}

pub(super) fn vectors() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for len in [0, 1, 255, 1000, 4099] {
        let (mut x, mut device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut number = stream.clone_htod(&[9.0_f32])?;
        let values: Vec<f64> = x[..len].iter().map(|&value| f64::from(value)).collect();
        kernels.sum_of_squares(stream, &mut number, &device.slice(..len))?;
        let squares: f64 = values.iter().map(|value| value * value).sum();
        expect("sum_of_squares", &bench.read(&number)?, &[squares], len / 256 + 11, len as f64)?;
        kernels.maximum(stream, &mut number, &device.slice(..len))?;
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        ensure!(bench.read(&number)? == [most as f32], "maximum of {len}: expected {most}");

        let shift = stream.clone_htod(&[0.75_f32])?;
        kernels.exp_minus(stream, &mut device.slice_mut(..len), &shift)?;
        kernels.divide(stream, &mut device.slice_mut(..len), &stream.clone_htod(&[3.0_f32])?)?;
        let expected: Vec<f64> = values.iter().map(|value| (value - 0.75).exp() / 3.0).collect();
        let after = bench.read(&device)?;
        // expf is within 2 units in the last place (CUDA C++ Programming Guide). The difference and the quotient are
        // rounded too.
        expect("exp_minus, divide", &after[..len], &expected, 8, 1.0)?;
        ensure!(after[len] == x[len], "an element after the vector was changed");

        for (index, value) in x.iter_mut().enumerate() {
            *value = match index % 100 {
                3 => f32::NAN,
                31 => f32::INFINITY,
                77 => f32::NEG_INFINITY,
                _ => f32::MAX,
            };
        }
        let (device, mut count) = (stream.clone_htod(&x)?, stream.clone_htod(&[5_u32])?);
        kernels.count_not_finite(stream, &mut count, &device.slice(..len))?;
        let expected = 5 + x[..len].iter().filter(|value| !value.is_finite()).count() as u32;
        ensure!(stream.clone_dtoh(&count)? == [expected], "count_not_finite of {len}: expected {expected}");
    }
    Ok(())
}

pub(super) fn momentum() -> anyhow::Result<()> {
    const LEN: usize = 300;
    let mut bench = Bench::new()?;
    let (start, mut parameters) = bench.values(LEN)?;
    let mut expected: Vec<f64> = start.iter().map(|&value| f64::from(value)).collect();
    let mut velocity = vec![0.0; LEN];
    let mut optimizer = Momentum::new(&bench.stream, LEN, 0.5)?;
    for _ in 0..4 {
        let (slopes, gradient) = bench.values(LEN)?;
        optimizer.step(&mut parameters.as_view_mut(), &gradient.as_view(), 0.25)?;
        for ((value, velocity), slope) in expected.iter_mut().zip(&mut velocity).zip(&slopes) {
            *velocity = 0.5 * *velocity + f64::from(*slope);
            *value -= 0.25 * *velocity;
        }
    }
    // Velocities stay below 2, and parameters below 3. Each step rounds both.
    expect("momentum_step", &bench.read(&parameters)?, &expected, 12, 3.0)?;
    ensure!(optimizer.bytes() == 4 * LEN, "{} bytes", optimizer.bytes());
    let gradient = bench.stream.alloc_zeros(LEN - 1)?;
    let refused = optimizer.step(&mut parameters.as_view_mut(), &gradient.as_view(), 0.25);
    expect_error(
        refused,
        "the optimizer is for 300 parameters, but was given 300 parameters and 299 gradients",
    )
}

pub(super) fn spin() -> anyhow::Result<()> {
    let bench = Bench::new()?;
    bench.kernels.spin(&bench.stream, 0)?;
    bench.kernels.spin(&bench.stream, 1_000_000)?;
    Ok(bench.stream.synchronize()?)
}
