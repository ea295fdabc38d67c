//! Tests of `control.cu`.

use super::{assert_each, builds};
use crate::arguments;
use crate::gpu::{Gpu, Numbers, Plain};

const BUILDS: [&str; 4] = builds!("control");

/// Returns the value that a thread of `dense_switch` leaves in `out[i]`, whose initial value is `before`.
fn dense_switch(x: i32, i: i32, before: i32) -> i32 {
    match x {
        0 => 3,
        1 => before ^ 0x55,
        2 => 2 - 1000,
        3 => (3_i32 * 77).count_ones() as i32,
        4 => (4 << 9) * 3 + i,
        6 => i * i,
        7 => i % 13,
        8 => -i,
        9 => i / 3,
        10 => i.reverse_bits(),
        11 => before,
        12 => 12 * i + before,
        _ => -1,
    }
}

#[test]
fn switches_with_many_cases() {
    let mut numbers = Numbers(1);
    // Leave out case 5: unless case 4 falls through to it, it uses an uninitialized variable.
    let a: Vec<i32> =
        (0..500).map(|_| (numbers.next() % 16) as i32 - 1).map(|x| if x == 5 { 99 } else { x }).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.buffer(&[7_i32; 500]));
        gpu.run("dense_switch", 4, 128, arguments!(at_a, out, 500_i32));
        assert_each("dense_switch", &gpu.read::<i32>(out), |i| [dense_switch(a[i], i as i32, 7)]);

        let cases = [-5_i64, 100, 1 << 40, 77777, 0, -6, 1 << 41];
        let b: Vec<i64> = (0..100).map(|at| cases[at % cases.len()]).collect();
        let (at_b, out) = (gpu.buffer(&b), gpu.unwritten(400));
        gpu.run("sparse_switch", 1, 128, arguments!(at_b, out, 100_i32));
        assert_each("sparse_switch", &gpu.read::<i32>(out), |i| [[1, 2, 3, 4, 0, 0, 0][i % 7]]);
    }
}

#[test]
fn functions_called_through_pointers() {
    let functions: [fn(i32) -> i32; 3] = [|x| x + 1, |x| 2 * x, |x| x * x];
    let which: Vec<i32> = (0..200).map(|i| i * 7 % 3).collect();
    let a: Vec<i32> = (0..200).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_which, at_a, out) = (gpu.buffer(&which), gpu.buffer(&a), gpu.unwritten(800));
        gpu.run("by_function_pointer", 2, 100, arguments!(at_which, at_a, out, 200_i32));
        assert_each("by_function_pointer", &gpu.read::<i32>(out), |i| [functions[which[i] as usize](a[i])]);
        for doubled in [0, 1] {
            gpu.run("chosen_function", 2, 100, arguments!(at_a, out, 200_i32, doubled));
            assert_each("chosen_function", &gpu.read::<i32>(out), |i| {
                [functions[2 - doubled as usize](a[i]) + 1]
            });
        }
    }
}

#[test]
fn structs_are_passed_and_returned_by_value() {
    let pair = |key: i32, value: f32, weights: [f64; 3]| -> Vec<u8> {
        [key.bytes(), value.bytes(), weights.map(Plain::bytes).concat()].concat()
    };
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let out = gpu.unwritten(32 * 50);
        let arguments = [pair(5, 1.5, [1.0, 2.0, 3.0]), 2.0_f32.bytes(), Plain::bytes(out), 50_i32.bytes()];
        gpu.run("structs", 1, 64, &arguments);
        let expected: Vec<u8> = (0..50)
            .flat_map(|i| {
                let key = 5 + i;
                let weights = [1.0, 2.0, 3.0].map(|x| x + f64::from(key) * (x - 1.0));
                pair(key, 1.5 * (2.0 + i as f32), weights)
            })
            .collect();
        assert_eq!(gpu.read::<u8>(out), expected);
    }
}

#[test]
fn results_come_back_through_pointers_to_local_memory() {
    let mut numbers = Numbers(2);
    let a: Vec<i32> = (0..300).map(|_| numbers.next() as i32).collect();
    let b: Vec<i32> = (0..300).map(|_| (numbers.next() % 21) as i32 - 10).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, at_b, out) = (gpu.buffer(&a), gpu.buffer(&b), gpu.unwritten(300 * 8));
        gpu.run("results_through_pointers", 3, 100, arguments!(at_a, at_b, out, 300_i32));
        assert_each("results_through_pointers", &gpu.read::<i32>(out), |i| {
            [a[i].checked_div(b[i]).unwrap_or(0), a[i].checked_rem(b[i]).unwrap_or(0)]
        });
    }
}

#[test]
fn functions_with_tables_in_local_memory() {
    let a = Numbers(3).floats(300);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(1200));
        gpu.run("polynomials", 3, 100, arguments!(at_a, out, 300_i32));
        assert_each("polynomials", &gpu.read::<f32>(out), |i| {
            let coefficients: &[f32] = match a[i] < 0.0 {
                true => &[1.0, -2.0, 0.5, 3.0],
                false => &[0.0, 1.0, 0.0, -1.0 / 6.0, 0.0, 1.0 / 120.0],
            };
            [coefficients.iter().rev().fold(0.0, |sum: f32, coefficient| sum.mul_add(a[i], *coefficient))]
        });
    }
}

#[test]
fn loops_that_lanes_leave_at_different_times() {
    let mut numbers = Numbers(4);
    let a: Vec<i32> = (0..400).map(|_| (numbers.next() >> (32 + numbers.next() % 28)) as i32).collect();
    let expected = |mut x: i32| {
        let mut found = 0;
        let number = x;
        for p in (2..60).filter(|p| (2..*p).all(|d| p % d != 0)) {
            x = number;
            while x != 0 && x % p == 0 {
                x /= p;
                found += 1;
                if found > 6 {
                    return -p;
                }
            }
        }
        found
    };
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(1600));
        gpu.run("nested_loops", 4, 128, arguments!(at_a, out, 400_i32));
        assert_each("nested_loops", &gpu.read::<i32>(out), |i| [expected(a[i])]);
    }
}

#[test]
fn launch_bounds_are_read() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        assert_eq!(gpu.module.kernel("bounded").unwrap().max_threads(), Some([128, 1, 1]));
        let out = gpu.unwritten(1024);
        gpu.run("bounded", 2, 128, arguments!(out));
        assert_each("bounded", &gpu.read::<i32>(out), |i| [(i % 128 * 2) as i32]);
    }
}
