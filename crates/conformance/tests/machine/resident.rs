//! Blocks that wait for each other, and blocks that wait forever.

use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::Gpu;

const COOPERATIVE: &str = include_str!("../ptx/cooperative.ptx");

/// Returns a GPU whose launches are cooperative.
fn cooperative() -> Gpu {
    let mut gpu = Gpu::new(COOPERATIVE);
    gpu.workspace = gpu.buffer(&[8_u32, 0]);
    gpu
}

#[test]
fn a_grid_synchronizes_any_number_of_times() {
    for (blocks, threads) in [(1, 32), (7, 33), (264, 64), (2000, 1)] {
        let mut gpu = cooperative();
        gpu.resident = 4224;
        let count = blocks * threads;
        let (data, out) =
            (gpu.buffer(&vec![0_i32; count as usize]), gpu.buffer(&vec![0_i32; count as usize]));
        gpu.run("reverse_steps", blocks, threads, arguments!(data, out, 5_i32));
        let n = count as i32;
        let expected: Vec<i32> = (0..n).map(|i| (0..5).map(|step| n - 1 - i + step).sum()).collect();
        assert_eq!(gpu.read::<i32>(out), expected, "{blocks} blocks of {threads} threads");
    }
}

#[test]
fn a_grid_barrier_in_an_ordinary_launch_traps() {
    let mut gpu = Gpu::new(COOPERATIVE);
    let data = gpu.buffer(&[0_i32; 64]);
    let fault = gpu.fault("reverse_steps", 2, 32, arguments!(data, data, 1_i32));
    assert!(matches!(fault.kind, FaultKind::Trap), "{fault}");
}

#[test]
fn a_barrier_by_hand_holds_as_many_blocks_as_are_resident() {
    let mut gpu = Gpu::new(COOPERATIVE);
    let launch = |gpu: &mut Gpu, blocks: u32| {
        let (arrived, go) = (gpu.buffer(&[0_i32]), gpu.buffer(&[0_i32]));
        let out = gpu.buffer(&vec![0_i32; blocks as usize * 32]);
        let done = gpu.launch("barrier_by_hand", [blocks, 1, 1], [32, 1, 1], arguments!(arrived, go, out));
        done.map(|_| gpu.read::<i32>(out))
    };
    assert_eq!(launch(&mut gpu, 264).unwrap(), vec![264; 264 * 32]);
    let fault = launch(&mut gpu, 265).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::WaitsForever { waiting: 264, unstarted: 1 }), "{fault}");
    assert_eq!((fault.at.block, fault.at.thread), ([0; 3], [0; 3]));
}

#[test]
fn an_earlier_block_waits_for_a_later_one() {
    let mut gpu = Gpu::new(COOPERATIVE);
    // There are far more blocks than can be resident, and only the first one waits.
    for blocks in [2, 100, 3000] {
        let (flag, out) = (gpu.buffer(&[0_i32]), gpu.buffer(&vec![0_i32; blocks]));
        gpu.run("first_waits_for_last", blocks as u32, 32, arguments!(flag, out));
        let out = gpu.read::<i32>(out);
        assert_eq!((out[0], &out[1..]), (7, &vec![1; blocks - 1][..]));
    }
    let flag = gpu.buffer(&[0_i32]);
    gpu.run("waits_behind_a_fence", 2, 1, arguments!(flag));
}

#[test]
fn a_kernel_that_can_never_end_is_reported_at_once() {
    let mut gpu = Gpu::new(COOPERATIVE);
    let fault = gpu.fault("for_ever", 3, 64, &[]);
    assert!(matches!(fault.kind, FaultKind::WaitsForever { waiting: 1, unstarted: 0 }), "{fault}");
    let text = fault.to_string();
    assert!(
        text.starts_with("kernel `for_ever`, block (0,0,0), thread (0,0,0) (cooperative.cu:65)"),
        "{text}"
    );
    assert!(text.contains("this block repeats the same instructions"), "{text}");
    let flag = gpu.buffer(&[0_i32]);
    let fault = gpu.fault("waits_behind_a_fence", 1, 1, arguments!(flag));
    assert!(matches!(fault.kind, FaultKind::WaitsForever { waiting: 1, unstarted: 0 }), "{fault}");
    let flags = gpu.buffer(&[0_i32; 5]);
    let fault = gpu.fault("waits_in_a_circle", 5, 40, arguments!(flags));
    assert!(matches!(fault.kind, FaultKind::WaitsForever { waiting: 5, unstarted: 0 }), "{fault}");
    assert!(fault.to_string().contains("all running blocks repeat"), "{fault}");
    assert_eq!(fault.at.cuda_line.as_ref().unwrap().line, 76);
}

#[test]
fn a_slow_kernel_is_not_reported() {
    let mut gpu = Gpu::new(COOPERATIVE);
    let (flag, turns) = (gpu.buffer(&[0_i32]), gpu.buffer(&[0_i32]));
    gpu.run("gives_up", 3, 32, arguments!(flag, turns));
    assert_eq!(gpu.read::<i32>(turns), [100_000]);
}

#[test]
fn a_loop_that_does_something_new_each_time_ends_by_its_limit() {
    let mut gpu = Gpu::new(COOPERATIVE);
    gpu.thread_limit = 1_000_000;
    let at = gpu.buffer(&[0_i32]);
    let fault = gpu.fault("counts_for_ever", 2, 1, arguments!(at));
    assert!(matches!(fault.kind, FaultKind::Endless { limit: 1_000_000, of_thread: true }), "{fault}");
}
