//! Races in shared memory: each kernel runs both with and without the operation that orders its threads.

use virtual_gpu_machine::Race;

use crate::arguments;
use crate::gpu::Gpu;

const RACES: &str = include_str!("../ptx/shared_races.ptx");

/// Launches one block of 64 threads with a source of 64 numbers, a destination, and a number. Returns the race, if any.
fn race(kernel: &str, how: i32) -> Option<Race> {
    let mut gpu = Gpu::new(RACES);
    let numbers: Vec<i32> = (0..64).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&[0_i32; 64]));
    gpu.run(kernel, 1, 64, arguments!(x, y, how)).race.map(|race| *race)
}

/// Returns the kind of a race, and the lines and threads of its earlier and later accesses.
fn sides(race: &Race) -> (&'static str, [u32; 2], [u32; 2]) {
    let line = |report: &virtual_gpu_machine::ThreadReport| report.cuda_line.as_ref().unwrap().line;
    let (earlier, later) = (&race.earlier, &race.later);
    (race.kind(), [line(earlier), line(later)], [earlier.thread[0], later.thread[0]])
}

#[test]
fn a_read_of_what_another_thread_wrote_needs_a_barrier() {
    let found = race("neighbor", 0).unwrap();
    assert_eq!(sides(&found), ("read after write", [7, 9], [1, 0]));
    assert_eq!((found.location.variable.as_deref(), found.location.offset), (Some("tile"), 4));
    assert!(found.in_warp);
    let text = found.to_string();
    assert!(text.contains("byte 4 of `tile`: read after write; nothing orders it after"), "{text}");
    assert_eq!(race("neighbor", 1), None);
}

#[test]
fn a_write_of_what_another_thread_read_needs_a_barrier() {
    let found = race("rounds", 0).unwrap();
    assert_eq!(sides(&found), ("write after read", [19, 17], [63, 0]));
    assert!(!found.in_warp);
    assert_eq!(race("rounds", 1), None);
}

#[test]
fn two_writes_race_where_they_differ() {
    let launch = |same: i32| {
        let mut gpu = Gpu::new(RACES);
        let y = gpu.buffer(&[0_i32; 64]);
        gpu.run("one_place", 1, 64, arguments!(y, same)).race
    };
    let found = launch(0).unwrap();
    assert_eq!(sides(&found), ("write after write", [28, 28], [0, 1]));
    assert_eq!(launch(1), None);
}

#[test]
fn volatile_orders_nothing_and_a_warp_barrier_orders_its_warp() {
    let found = race("warp_sum", 0).unwrap();
    assert_eq!(sides(&found).0, "read after write");
    assert!(found.in_warp);
    assert_eq!(race("warp_sum", 1), None);
}

#[test]
fn a_named_barrier_orders_its_participants() {
    assert_eq!(race("between_warps", 0), None);
    let found = race("between_warps", 1).unwrap();
    assert_eq!(sides(&found).0, "read after write");
    assert_eq!(race("between_warps", 2), None);
}

#[test]
fn atomics_race_only_with_plain_accesses() {
    assert_eq!(race("counts", 0), None);
    let found = race("counts", 1).unwrap();
    assert_eq!(sides(&found).0, "read after write");
    assert!(found.to_string().contains("atomically changes 4 bytes"), "{found}");
}

#[test]
fn a_lock_orders_by_its_fences() {
    let launch = |fences: i32| {
        let mut gpu = Gpu::new(RACES);
        let y = gpu.buffer(&[0_i32; 64]);
        let race = gpu.run("locked", 1, 64, arguments!(y, fences)).race;
        assert_eq!(gpu.read::<i32>(y), [63 * 64 / 2; 64]);
        race
    };
    assert_eq!(launch(1), None);
    assert_ne!(launch(0), None);
}

#[test]
fn bytes_are_distinguished() {
    assert_eq!(race("bytes", 0), None);
    let found = race("bytes", 1).unwrap();
    assert_eq!(sides(&found).0, "read after write");
    assert_eq!(found.location.offset, 1);
}

#[test]
fn dynamic_memory_has_no_name() {
    let launch = |synchronize: i32| {
        let mut gpu = Gpu::new(RACES);
        gpu.dynamic_shared = 16 * 64;
        let (x, y) = (gpu.buffer(&[1.0_f32; 256]), gpu.buffer(&[0.0_f32; 256]));
        gpu.run("vectors", 1, 64, arguments!(x, y, synchronize)).race
    };
    let found = launch(0).unwrap();
    assert_eq!(found.location.variable, None);
    assert!(found.to_string().contains("byte 4 of dynamic shared memory"), "{found}");
    assert_eq!(launch(1), None);
}

#[test]
fn a_shuffle_orders_no_memory() {
    let mut gpu = Gpu::new(RACES);
    let (x, y) = (gpu.buffer(&[1_i32; 32]), gpu.buffer(&[0_i32; 32]));
    let found = gpu.run("behind_a_shuffle", 1, 32, arguments!(x, y)).race.unwrap();
    assert_eq!(sides(&found).0, "read after write");
}

#[test]
fn correct_kernels_have_no_races() {
    let mut gpu = Gpu::new(include_str!("../ptx/training.ptx"));
    gpu.dynamic_shared = 4 * 256;
    let (a, b, c) =
        (gpu.buffer(&[1.0_f32; 1600]), gpu.buffer(&[2.0_f32; 1600]), gpu.buffer(&[0.0_f32; 1600]));
    let arguments = arguments!(a, b, c, 40_i32, 40_i32, 40_i32);
    let product = gpu.launch("matmul", [3, 3, 1], [16, 16, 1], arguments).unwrap();
    let sum = gpu.run("sum", 4, 256, arguments!(a, c, 1600_i32));
    assert_eq!((product.race, sum.race), (None, None));
}
