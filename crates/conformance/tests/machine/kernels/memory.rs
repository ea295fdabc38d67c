//! Tests of `memory.cu`.

use super::{assert_each, builds, words};
use crate::arguments;
use crate::gpu::{Gpu, Numbers, Plain};

const BUILDS: [&str; 4] = builds!("memory");
const N: usize = 300;

#[test]
fn vectors_of_every_width() {
    let mut numbers = Numbers(1);
    let a = numbers.floats(4 * N);
    let b: Vec<f64> = numbers.floats(2 * N).into_iter().map(f64::from).collect();
    let c: Vec<u8> = words(2, N).into_iter().flat_map(u32::to_le_bytes).collect();
    let d: Vec<i16> = words(3, 2 * N).into_iter().map(|word| word as i16).collect();
    let e: Vec<i64> = (0..2 * N).map(|_| numbers.next() as i64).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let inputs = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c), gpu.buffer(&d), gpu.buffer(&e));
        let [o, p, q, r, s] = [16, 16, 4, 4, 16].map(|bytes| gpu.unwritten(bytes * N));
        let (at_a, at_b, at_c, at_d, at_e) = inputs;
        gpu.run("vectors", 3, 128, arguments!(at_a, at_b, at_c, at_d, at_e, o, p, q, r, s, N as i32));
        assert_each("vectors", &gpu.read::<f32>(o), |i| {
            let [x, y, z, w] = a[4 * i..][..4] else { unreachable!() };
            [w, z, y + x, x]
        });
        assert_each("vectors", &gpu.read::<f64>(p), |i| [b[2 * i + 1], -b[2 * i]]);
        assert_each("vectors", &gpu.read::<u8>(q), |i| {
            let [x, y, z, w] = c[4 * i..][..4] else { unreachable!() };
            [x.wrapping_add(y), y ^ z, w, x]
        });
        assert_each("vectors", &gpu.read::<i16>(r), |i| [d[2 * i + 1], d[2 * i].wrapping_mul(2)]);
        assert_each("vectors", &gpu.read::<i64>(s), |i| {
            [e[2 * i].wrapping_add(e[2 * i + 1]), e[2 * i].wrapping_sub(e[2 * i + 1])]
        });
    }
}

#[test]
fn narrow_loads_extend_as_their_type_says() {
    let bytes: Vec<u8> = words(4, N).into_iter().map(|word| word as u8).collect();
    let shorts: Vec<u16> = words(5, N).into_iter().map(|word| word as u16).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_bytes, at_shorts, out) = (gpu.buffer(&bytes), gpu.buffer(&shorts), gpu.unwritten(8 * N));
        let arguments = arguments!(at_bytes, at_bytes, at_shorts, at_shorts, out, N as i32);
        gpu.run("narrow_loads", 3, 128, arguments);
        assert_each("narrow_loads", &gpu.read::<i64>(out), |i| {
            let signed = i64::from(bytes[i] as i8) * 1_000_003 + i64::from(shorts[i] as i16) * 31;
            [signed + i64::from(bytes[i]) * 10_007 - i64::from(shorts[i])]
        });
    }
}

/// Returns the bytes of a `Particle`: 16 bytes of position, then mass, kind, and flags, without padding.
fn particle(position: [f32; 4], mass: f64, kind: i16, flags: [u8; 6]) -> Vec<u8> {
    [position.map(Plain::bytes).concat(), mass.bytes(), kind.bytes(), flags.to_vec()].concat()
}

#[test]
fn structures_with_members_of_all_sizes() {
    // The fields are length, scale, bytes, and offset, with padding where C inserts it.
    let options = [
        3_i32.bytes(),
        vec![0; 4],
        2.5_f64.bytes(),
        vec![1, 2, 3, 4, 250, 0, 0, 0],
        0.5_f32.bytes(),
        (-4.0_f32).bytes(),
    ]
    .concat();
    let one = |i: usize| ([i as f32, 2.0, 3.0, 4.0], i as f64, i as i16, [i as u8, 1, 2, 3, 100, 9]);
    let particles: Vec<u8> = (0..N)
        .flat_map(|i| {
            let (position, mass, kind, flags) = one(i);
            particle(position, mass, kind, flags)
        })
        .collect();
    let expected: Vec<u8> = (0..N)
        .flat_map(|i| {
            let ([x, y, z, w], mass, kind, mut flags) = one(i);
            for (flag, add) in flags.iter_mut().zip([1, 2, 3, 4, 250]) {
                *flag = flag.wrapping_add(add);
            }
            particle([x + 0.5, y - 4.0, z, w], mass * 2.5, kind + 3, flags)
        })
        .collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (input, out) = (gpu.buffer(&particles), gpu.unwritten(particles.len()));
        gpu.run("structures", 3, 128, &[input.bytes(), out.bytes(), options.clone(), (N as i32).bytes()]);
        assert_eq!(gpu.read::<u8>(out), expected);
    }
}

#[test]
fn constant_memory_and_its_initial_values() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let out = gpu.unwritten(4 * N);
        gpu.run("constants", 3, 128, arguments!(out, N as i32));
        // The `weights` are zeros, so the scale of 2.5 has no effect.
        assert_each("constants", &gpu.read::<f32>(out), |i| [0.5 + (i % 5 + 1) as f32 + 3.0]);
    }
}

#[test]
fn globals_that_hold_addresses_of_globals() {
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let out = gpu.unwritten(4 * 64);
        let done = gpu.run("globals", 1, 64, arguments!(out));
        assert!(done.unwritten.is_none());
        let table = [[1, 2, 3], [4, 5, 6]];
        assert_each("globals", &gpu.read::<i32>(out), |i| {
            let first = table[i % 2][i % 3] + 7 + i32::from(b"virtual"[i % 7]);
            // The cursor has moved from numbers[2], which is now 37, to numbers[3].
            [first + 1000 * 40 + 100_000 * 37]
        });
    }
}

#[test]
fn local_arrays_indexed_by_data() {
    let a: Vec<i32> = words(6, N).into_iter().map(|word| (word >> 8) as i32 - (1 << 22)).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(4 * N));
        gpu.run("local_arrays", 3, 128, arguments!(at_a, out, N as i32));
        assert_each("local_arrays", &gpu.read::<i32>(out), |i| {
            let mut values: Vec<i32> = (0..16).map(|k| a[i].wrapping_mul(k) ^ k).collect();
            values.sort_unstable();
            [values[(a[i] & 15) as usize].wrapping_add(2 * (a[i] & 3) + 1)]
        });
    }
}

#[test]
fn dynamic_shared_memory_divided_among_types() {
    let a = Numbers(7).floats(N);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        gpu.dynamic_shared = 128 * (8 + 4 + 1);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(4 * N));
        gpu.run("dynamic_shared", 3, 128, arguments!(at_a, out, N as i32));
        assert_each("dynamic_shared", &gpu.read::<f32>(out), |i| {
            let other = 127 - i % 128;
            let value = a.get(i / 128 * 128 + other).copied().unwrap_or(0.0);
            [(-a[i]).mul_add(2.0, value) + ((other * 3) as u8) as f32]
        });
    }
}

#[test]
fn a_transpose_by_tiles() {
    let (rows, columns) = (45, 70);
    let a = Numbers(8).floats(rows * columns);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(4 * rows * columns));
        let arguments = arguments!(at_a, out, rows as i32, columns as i32);
        let done = gpu.launch("transpose", [5, 3, 1], [16, 16, 1], arguments).unwrap();
        assert!(done.unwritten.is_none());
        assert_each("transpose", &gpu.read::<f32>(out), |at| [a[at % rows * columns + at / rows]]);
    }
}

#[test]
fn one_function_works_on_every_state_space() {
    let a = Numbers(9).floats(64);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(256));
        gpu.run("generic_pointers", 1, 64, arguments!(at_a, out));
        let got = gpu.read::<f32>(out);
        assert_each("generic_pointers", &got, |t| {
            let (mut global, mut shared, mut local) = (a[t], t as f32, [1.0, 2.0]);
            match t % 3 {
                0 => global += 10.0,
                1 => shared += 10.0,
                _ => local[t & 1] += 10.0,
            }
            [global + shared + local[0] + local[1]]
        });
    }
}

#[test]
fn loads_and_stores_with_cache_hints() {
    let a = Numbers(10).floats(4 * N);
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(16 * N));
        gpu.run("cache_hints", 3, 128, arguments!(at_a, out, N as i32));
        assert_each("cache_hints", &gpu.read::<f32>(out), |i| {
            let four: f32 = a[4 * i..][..4].iter().copied().reduce(|sum, x| sum + x).unwrap();
            let sum = (0..5).fold(four, |sum, _| sum + a[i]);
            [sum, sum + 1.0, sum + 2.0, sum + 3.0]
        });
    }
}

#[test]
fn copies_between_spaces_byte_by_byte() {
    let a: Vec<u8> = words(11, 4 * N).into_iter().flat_map(u32::to_le_bytes).collect();
    for source in BUILDS {
        let mut gpu = Gpu::new(source);
        let (at_a, out) = (gpu.buffer(&a), gpu.unwritten(32 * N));
        gpu.run("copies", 3, 128, arguments!(at_a, out, N as i32));
        assert_each("copies", &gpu.read::<u8>(out), |i| {
            let mut expected = [0xab; 32];
            expected[3..19].copy_from_slice(&a[16 * i..][..16]);
            expected
        });
    }
}
