//! Compares the kernels of a training loop with plain loops.

use virtual_gpu_machine::Access;

use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const AXPY: &str = include_str!("../ptx/axpy.ptx");
const TRAINING: &str = include_str!("../ptx/training.ptx");

/// Tests the same kernels as NVRTC compiles them by default, with `--use_fast_math`, and with `--device-debug`.
fn in_each_build(test: impl Fn(Gpu)) {
    test(Gpu::new(TRAINING));
    test(Gpu::new(include_str!("../ptx/training_fast.ptx")));
    test(Gpu::new(include_str!("../ptx/training_debug.ptx")));
}

#[test]
fn axpy_is_one_fma_per_element() {
    let mut gpu = Gpu::new(AXPY);
    let mut numbers = Numbers(1);
    let (x, y) = (numbers.floats(1000), numbers.floats(1000));
    let (at_x, at_y) = (gpu.buffer(&x), gpu.buffer(&y));
    let done = gpu.run("axpy", 4, 256, arguments!(1.5_f32, at_x, at_y, 1000_u32));
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 1.5_f32.mul_add(*x, *y)).collect();
    assert_eq!(gpu.read::<f32>(at_y), expected);
    assert!(done.unwritten.is_none());
    assert_eq!((done.bytes_read, done.bytes_written), (8000, 4000));
    let touched: Vec<_> = done
        .touched
        .iter()
        .flat_map(|one| one.ranges.iter().map(|range| (range.clone(), one.access)))
        .collect();
    assert_eq!(touched, [(0..4000, Access::Read), (0..4000, Access::Read), (0..4000, Access::Write)]);
    // Each thread runs 10 instructions up to the branch, and then 10 more or only `ret`.
    assert_eq!(done.longest_thread, 20);
    assert_eq!(done.instructions, 1000 * 20 + 24 * 11);
}

#[test]
fn fill_writes_what_it_should_and_no_more() {
    let mut gpu = Gpu::new(AXPY);
    let y = gpu.unwritten(4 * 100);
    gpu.run("fill", 1, 128, arguments!(y, 2.5_f32, 99_u32));
    let (allocation, _) = gpu.memory.range(y, 400).unwrap();
    assert_eq!(allocation.first_unwritten(0..400), Some(396));
    assert!(gpu.read::<f32>(y)[..99].iter().all(|value| *value == 2.5));
}

#[test]
fn a_tiled_product_of_odd_sizes() {
    in_each_build(|mut gpu| {
        let (m, n, k) = (37, 29, 45);
        let mut numbers = Numbers(2);
        let (a, b) = (numbers.floats(m * k), numbers.floats(k * n));
        let (at_a, at_b, c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(4 * m * n));
        let arguments = arguments!(at_a, at_b, c, m as u32, n as u32, k as u32);
        let done = gpu.launch("matmul", [2, 3, 1], [16, 16, 1], arguments).unwrap();
        assert!(done.unwritten.is_none(), "{}", done.unwritten.unwrap());
        // Tiles of 16 are padded with zeros, so the order of the sums is the same. A debug build doesn't fuse
        // multiplications and additions.
        let product = |add: fn(f32, f32, f32) -> f32| -> Vec<f32> {
            let cells = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
            cells
                .map(|(row, column)| (0..k).fold(0.0, |sum, t| add(a[row * k + t], b[t * n + column], sum)))
                .collect()
        };
        let got = gpu.read::<f32>(c);
        assert!(got == product(f32::mul_add) || got == product(|a, b, sum| a * b + sum));
    });
}

#[test]
fn relu_and_its_gradient() {
    in_each_build(|mut gpu| {
        let x = Numbers(3).floats(300);
        let (y, dy) = (gpu.buffer(&x), gpu.buffer(&vec![1.0_f32; 300]));
        gpu.run("relu", 2, 256, arguments!(y, 300_u32));
        gpu.run("relu_backward", 1, 64, arguments!(y, dy, 300_u32));
        assert_eq!(gpu.read::<f32>(y), x.iter().map(|x| x.max(0.0)).collect::<Vec<_>>());
        let expected: Vec<f32> = x.iter().map(|x| if *x > 0.0 { 1.0 } else { 0.0 }).collect();
        assert_eq!(gpu.read::<f32>(dy), expected);
    });
}

#[test]
fn softmax_cross_entropy_and_its_gradient() {
    in_each_build(|mut gpu| {
        let (rows, classes) = (50, 10);
        let mut numbers = Numbers(4);
        let logits = numbers.floats(rows * classes);
        let labels: Vec<i32> = (0..rows).map(|_| (numbers.next() % 10) as i32).collect();
        let (z, at_labels, loss) = (gpu.buffer(&logits), gpu.buffer(&labels), gpu.buffer(&[0.0_f32]));
        let d = gpu.unwritten(4 * rows * classes);
        gpu.run("cross_entropy", 1, 64, arguments!(z, at_labels, loss, d, rows as u32, classes as u32));
        let gradient = gpu.read::<f32>(d);
        let mut expected_loss = 0.0;
        for row in 0..rows {
            let z: Vec<f64> = logits[row * classes..][..classes].iter().map(|z| f64::from(*z)).collect();
            let sum: f64 = z.iter().map(|z| z.exp()).sum();
            let label = labels[row] as usize;
            expected_loss += (sum.ln() - z[label]) / rows as f64;
            for class in 0..classes {
                let one = if class == label { 1.0 } else { 0.0 };
                let expected = (z[class].exp() / sum - one) / rows as f64;
                assert!((f64::from(gradient[row * classes + class]) - expected).abs() < 1e-7);
            }
        }
        assert!((f64::from(gpu.read::<f32>(loss)[0]) - expected_loss).abs() < 1e-5);
    });
}

#[test]
fn sums_in_shared_memory_and_by_shuffles() {
    in_each_build(|mut gpu| {
        let x: Vec<f32> = (0..1000).map(|i| (i % 17) as f32).collect();
        let expected: f32 = x.iter().sum();
        let (at_x, total, total_wide) = (gpu.buffer(&x), gpu.buffer(&[0.0_f32]), gpu.buffer(&[0.0_f64]));
        gpu.dynamic_shared = 256 * 4;
        let done = gpu.run("sum", 4, 256, arguments!(at_x, total, 1000_u32));
        assert!(done.unwritten.is_none());
        gpu.run("sum_by_shuffles", 8, 128, arguments!(at_x, total_wide, 1000_u32));
        assert_eq!(gpu.read::<f32>(total), [expected]);
        assert_eq!(gpu.read::<f64>(total_wide), [f64::from(expected)]);
    });
}

#[test]
fn counts_by_atomics_of_many_blocks() {
    in_each_build(|mut gpu| {
        let mut numbers = Numbers(5);
        let x: Vec<u8> = (0..5000).map(|_| numbers.next() as u8).collect();
        let (at_x, counts) = (gpu.buffer(&x), gpu.buffer(&[0_i32; 256]));
        let done = gpu.run("histogram", 3, 96, arguments!(at_x, counts, 5000_u32));
        let mut expected = [0; 256];
        x.iter().for_each(|x| expected[usize::from(*x)] += 1);
        assert_eq!(gpu.read::<i32>(counts), expected);
        assert!(
            done.touched.iter().any(|one| one.access == Access::Atomic && one.ranges.contains(&(0..1024)))
        );
    });
}

#[test]
fn vectors_of_four_are_loaded_and_stored_whole() {
    in_each_build(|mut gpu| {
        let (rows, columns) = (7, 40);
        let x: Vec<f32> = (0..rows * columns * 4).map(|i| i as f32).collect();
        let (at_x, sums) = (gpu.buffer(&x), gpu.unwritten(columns * 16));
        gpu.run("column_sums", 1, 64, arguments!(at_x, sums, rows as u32, columns as u32));
        let expected: Vec<f32> =
            (0..columns * 4).map(|at| (0..rows).map(|row| x[row * columns * 4 + at]).sum()).collect();
        assert_eq!(gpu.read::<f32>(sums), expected);
    });
}
