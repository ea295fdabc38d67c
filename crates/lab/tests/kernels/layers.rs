//! Kernels of layers and of the loss.

use anyhow::ensure;
use lab::kernels::{Matrix, Product};

use super::{Bench, expect};

pub(super) fn products() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (m, n, k) in [(1, 1, 1), (16, 16, 16), (17, 33, 5), (3, 40, 64), (31, 15, 47), (5, 4, 0), (0, 3, 2)] {
        let shape = Product { m, n, k };
        let (a, a_device) = bench.values(m * k + 1)?;
        let (b, b_device) = bench.values(k * n + 1)?;
        let (a_view, b_view) = (a_device.slice(..m * k), b_device.slice(..k * n));
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        for (a_transposed, b_transposed) in [(false, false), (true, false), (false, true)] {
            let mut c = stream.clone_htod(&vec![9.0; m * n + 1])?;
            let mut c_view = c.slice_mut(..m * n);
            match (a_transposed, b_transposed) {
                (true, _) => kernels.matmul_ta(stream, &mut c_view, &a_view, &b_view, shape)?,
                (_, true) => kernels.matmul_tb(stream, &mut c_view, &a_view, &b_view, shape)?,
                _ => kernels.matmul(stream, &mut c_view, &a_view, &b_view, shape)?,
            }
            let a_at =
                |row: usize, i: usize| f64::from(a[if a_transposed { i * m + row } else { row * k + i }]);
            let b_at = |i: usize, column: usize| {
                f64::from(b[if b_transposed { column * k + i } else { i * n + column }])
            };
            let mut expected: Vec<f64> = (0..m * n)
                .map(|index| (0..k).map(|i| a_at(index / n, i) * b_at(i, index % n)).sum())
                .collect();
            expected.push(9.0);
            let what = format!("{shape:?}, a transposed: {a_transposed}, b transposed: {b_transposed}");
            expect(&what, &bench.read(&c)?, &expected, 2 * k, k as f64)?;
        }
    }
    Ok(())
}

pub(super) fn layers() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (37, 10), (5, 300), (0, 3)] {
        let (shape, len) = (Matrix { rows, columns }, rows * columns);
        let (matrix, mut matrix_device) = bench.values(len + 1)?;
        let (bias, bias_device) = bench.values(columns)?;
        let (upstream, mut upstream_device) = bench.values(len + 1)?;
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let mut sums = stream.clone_htod(&vec![9.0; columns])?;
        kernels.add_bias(stream, &mut matrix_device.slice_mut(..len), &bias_device, shape)?;
        kernels.column_sums(stream, &mut sums, &matrix_device.slice(..len), shape)?;
        let add = |(value, bias): (&f32, &f32)| f64::from(*value) + f64::from(*bias);
        let biased: Vec<f64> = matrix[..len].iter().zip(bias.iter().cycle()).map(add).collect();
        expect("add_bias", &bench.read(&matrix_device)?[..len], &biased, 1, 2.0)?;
        let expected: Vec<f64> =
            (0..columns).map(|column| (0..rows).map(|row| biased[row * columns + column]).sum()).collect();
        expect("column_sums", &bench.read(&sums)?, &expected, rows + 1, 2.0 * rows as f64)?;

        kernels.relu(stream, &mut matrix_device.slice_mut(..len))?;
        let activation = matrix_device.slice(..len);
        kernels.relu_gradient(stream, &mut upstream_device.slice_mut(..len), &activation)?;
        let rectified: Vec<f64> = biased.iter().map(|value| value.max(0.0)).collect();
        let after = bench.read(&matrix_device)?;
        expect("relu", &after[..len], &rectified, 1, 2.0)?;
        ensure!(after[len] == matrix[len], "an element after the matrix was changed");
        let back = |(slope, value): (&f32, &f64)| if *value > 0.0 { f64::from(*slope) } else { 0.0 };
        let expected: Vec<f64> = upstream.iter().zip(&rectified).map(back).collect();
        expect("relu_gradient", &bench.read(&upstream_device)?[..len], &expected, 0, 1.0)?;
    }
    Ok(())
}

pub(super) fn losses() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    for (rows, columns) in [(1, 1), (300, 10), (7, 3)] {
        let shape = Matrix { rows, columns };
        let (_, mut logits_device) = bench.values(rows * columns)?;
        bench.kernels.scale(&bench.stream, &mut logits_device, 40.0)?;
        let logits = bench.read(&logits_device)?;
        let labels: Vec<u32> = (0..rows).map(|_| bench.random.below(columns) as u32).collect();
        let (kernels, stream) = (&bench.kernels, &bench.stream);
        let labels_device = stream.clone_htod(&labels)?;
        let mut losses = stream.alloc_zeros(rows)?;
        let mut gradient = stream.alloc_zeros(rows * columns)?;
        let mut count = stream.clone_htod(&[5_u32])?;
        kernels.cross_entropy(stream, &mut losses, &logits_device, &labels_device, shape)?;
        kernels.cross_entropy_gradient(stream, &mut gradient, &logits_device, &labels_device, 0.5, shape)?;
        kernels.count_correct(stream, &mut count, &logits_device, &labels_device, shape)?;

        let (mut expected_losses, mut expected_gradient, mut right) = (Vec::new(), Vec::new(), 5);
        for (scores, &label) in logits.chunks(columns).zip(&labels) {
            let exponentials: Vec<f64> = scores.iter().map(|&score| f64::from(score).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            expected_losses.push(sum.ln() - f64::from(scores[label as usize]));
            let is_label = |class: usize| if class == label as usize { 1.0 } else { 0.0 };
            expected_gradient
                .extend(exponentials.iter().enumerate().map(|(class, e)| 0.5 * (e / sum - is_label(class))));
            right += u32::from(scores.iter().all(|score| *score <= scores[label as usize]));
        }
        // expf is within 2 units in the last place, and logf within 1 (CUDA C++ Programming Guide). Scores are at most
        // 40.
        expect("cross_entropy", &bench.read(&losses)?, &expected_losses, columns + 10, 80.0)?;
        expect("cross_entropy_gradient", &bench.read(&gradient)?, &expected_gradient, columns + 100, 0.5)?;
        ensure!(stream.clone_dtoh(&count)? == [right], "count_correct: expected {right}");

        let strange = stream.clone_htod(&vec![columns as u32; rows])?;
        kernels.cross_entropy(stream, &mut losses, &logits_device, &strange, shape)?;
        ensure!(
            bench.read(&losses)?.iter().all(|loss| loss.is_nan()),
            "a label that is not a class has a finite loss"
        );
    }
    Ok(())
}
