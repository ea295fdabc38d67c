//! Kernels that wait: for time, for each other, or forever.

use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::Gpu;

const WAITING: &str = include_str!("../ptx/waiting.ptx");

#[test]
fn a_spin_of_n_cycles_takes_n_instructions() {
    let mut gpu = Gpu::new(WAITING);
    let done = gpu.run("spin", 1, 1, arguments!(10_000_i64));
    assert!((10_000..10_020).contains(&done.longest_thread), "{}", done.longest_thread);
}

#[test]
fn the_global_timer_starts_at_the_launch_and_runs_on_while_a_thread_sleeps() {
    let mut gpu = Gpu::new(WAITING);
    let stamps = gpu.buffer(&[0_u64; 2]);
    let done = gpu.run("spin_ns", 1, 1, arguments!(5000_u64, stamps));
    let stamps = gpu.read::<u64>(stamps);
    assert!((1_000_000..1_000_020).contains(&stamps[0]), "{stamps:?}");
    assert!((5000..5200).contains(&(stamps[1] - stamps[0])), "{stamps:?}");
    assert!(done.longest_thread >= 5000 && done.instructions < 500);
}

#[test]
fn every_lane_gets_a_spinlock_in_turn() {
    let mut gpu = Gpu::new(WAITING);
    let (lock, total) = (gpu.buffer(&[0_i32]), gpu.buffer(&[0_i32]));
    gpu.run("locked_add", 2, 100, arguments!(lock, total));
    assert_eq!(gpu.read::<i32>(total), [200]);
}

#[test]
fn a_lane_that_waits_for_its_neighbor_lets_it_run() {
    let mut gpu = Gpu::new(WAITING);
    let (flag, seen) = (gpu.buffer(&[0_i32]), gpu.buffer(&[0_i32]));
    gpu.run("wait_for_lane", 1, 32, arguments!(flag, seen));
    assert_eq!(gpu.read::<i32>(seen), [7]);
}

#[test]
fn a_thread_that_waits_for_a_value_never_written_is_stopped() {
    let mut gpu = Gpu::new(WAITING);
    let flag = gpu.buffer(&[0_i32]);
    let fault = gpu.fault("endless", 1, 64, arguments!(flag));
    assert!(matches!(fault.kind, FaultKind::WaitsForever { waiting: 1, unstarted: 0 }));
    let text = fault.to_string();
    assert!(text.contains("kernel `endless`, block (0,0,0), thread (0,0,0)"), "{text}");
}

#[test]
fn a_thread_that_takes_too_long_is_stopped() {
    let mut gpu = Gpu::new(WAITING);
    gpu.limit = 1_000_000;
    let fault = gpu.fault("spin", 1, 64, arguments!(1_i64 << 40));
    assert!(matches!(fault.kind, FaultKind::Endless { limit: 1_000_000, of_thread: false }));
    // Only one of many threads spins, so all threads together stay far below their limit.
    (gpu.limit, gpu.thread_limit) = (1 << 40, 5_000);
    let alone = gpu.fault("spin", 1, 64, arguments!(1_i64 << 40));
    assert!(matches!(alone.kind, FaultKind::Endless { limit: 5_000, of_thread: true }));
}
