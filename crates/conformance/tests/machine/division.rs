//! Blocks that several threads run: each launch must do the same as if its blocks ran in order.
//!
//! [`Gpu::launch`] compares. Here are the launches for which that is hardest.

use virtual_gpu_machine::{Division, FaultKind};

use crate::arguments;
use crate::gpu::Gpu;

/// Returns a module with a kernel of this body. `%r4` is the thread's index in the launch, `%rd1` the address of the
/// thread's 32-bit element of `x`, and `%rd2` that of `y`.
fn module(body: &str) -> Gpu {
    Gpu::new(&format!(
        "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry kernel(.param .u64 x, .param .u64 y)
{{
    .reg .pred %p<5>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
    ld.param.u64 %rd8, [x]; ld.param.u64 %rd9, [y];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd1, %rd8, %rd3; add.u64 %rd2, %rd9, %rd3;
{body}
    ret;
}}
"
    ))
}

const BLOCKS: u32 = 32;
const THREADS: u32 = 64;
const COUNT: usize = (BLOCKS * THREADS) as usize;

fn numbers() -> Vec<u32> {
    (0..COUNT as u32).collect()
}

#[test]
fn independent_blocks_run_on_several_threads() {
    let mut gpu = module("ld.global.u32 %r5, [%rd1]; add.u32 %r5, %r5, 1; st.global.u32 [%rd2], %r5;");
    let (x, y) = (gpu.buffer(&numbers()), gpu.unwritten(4 * COUNT));
    let execution = gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y));
    assert!(execution.is_divided);
    assert_eq!(gpu.read::<u32>(y), (1..=COUNT as u32).collect::<Vec<_>>());
    // In place.
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
    assert_eq!(gpu.read::<u32>(y), (2..=COUNT as u32 + 1).collect::<Vec<_>>());
}

#[test]
fn little_work_stays_on_one_thread() {
    let mut gpu = module("st.global.u32 [%rd2], %r4;");
    let y = gpu.unwritten(4 * COUNT);
    gpu.division.from = 1 << 20;
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
    gpu.division = Division::NONE;
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
}

#[test]
fn blocks_that_read_what_others_write_run_in_order() {
    // Each block adds the last element of the block before it to its own.
    let mut gpu = module(
        "mul.lo.u32 %r5, %r1, %r2; max.u32 %r5, %r5, 1; sub.u32 %r5, %r5, 1;
        mul.wide.u32 %rd4, %r5, 4; add.u64 %rd4, %rd8, %rd4;
        ld.global.u32 %r6, [%rd4]; ld.global.u32 %r7, [%rd1]; add.u32 %r6, %r6, %r7; st.global.u32 [%rd1], %r6;",
    );
    let x = gpu.buffer(&vec![1_u32; COUNT]);
    gpu.run("kernel", BLOCKS, THREADS, arguments!(x, x));
    let sums = gpu.read::<u32>(x);
    assert_eq!((sums[64], sums[COUNT - 1]), (sums[63] + 1, sums[63] + 31));
}

#[test]
fn the_last_of_several_writes_to_the_same_bytes_wins() {
    let mut gpu = module("st.global.u32 [%rd9], %r1;");
    let y = gpu.unwritten(4);
    gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y));
    assert_eq!(gpu.read::<u32>(y), [BLOCKS - 1]);
}

#[test]
fn a_thread_reads_its_own_bytes_among_others() {
    // Each thread replaces one byte of its element of x, and then reads the whole element, and its own byte.
    let mut gpu = module(
        "and.b32 %r5, %r4, 3; cvt.u64.u32 %rd4, %r5; add.u64 %rd4, %rd1, %rd4;
        st.global.u8 [%rd4], 7; bar.sync 0;
        ld.global.u32 %r6, [%rd1]; ld.global.u8 %r7, [%rd4]; add.u32 %r6, %r6, %r7; st.global.u32 [%rd2], %r6;",
    );
    let x = gpu.buffer(&vec![0x1111_1111_u32; COUNT]);
    let y = gpu.unwritten(4 * COUNT);
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    let expected = [0x1111_1107_u32, 0x1111_0711, 0x1107_1111, 0x0711_1111].map(|bytes| bytes + 7);
    assert_eq!(gpu.read::<u32>(y)[COUNT - 4..], expected);
}

#[test]
fn a_thread_reads_unwritten_bytes_among_its_own() {
    let mut gpu =
        module("st.global.u8 [%rd1], 7; bar.sync 0; ld.global.u32 %r6, [%rd1]; st.global.u32 [%rd2], %r6;");
    let (x, y) = (gpu.unwritten(4 * COUNT), gpu.unwritten(4 * COUNT));
    let execution = gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y));
    assert!(execution.is_divided);
    assert_eq!(execution.unwritten.expect("three of four bytes").block, [0; 3]);
    assert_eq!(gpu.read::<u32>(y), vec![0xffff_ff07; COUNT]);
}

#[test]
fn the_first_read_of_unwritten_bytes_is_reported() {
    let mut gpu = module("ld.global.u32 %r5, [%rd1]; st.global.u32 [%rd2], %r5;");
    let (x, y) = (gpu.unwritten(4 * COUNT), gpu.unwritten(4 * COUNT));
    let (allocation, _) = gpu.memory.range_mut(x, 4).unwrap();
    // Blocks 20 and 30 read elements that have never been written.
    for block in (0..u64::from(BLOCKS)).filter(|block| ![20, 30].contains(block)) {
        allocation.mark_written(block * 256..(block + 1) * 256);
    }
    let execution = gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y));
    assert_eq!(execution.unwritten.expect("a report").block, [20, 0, 0]);
    assert!(execution.is_divided);
}

#[test]
fn the_first_race_in_shared_memory_is_reported() {
    // In blocks 17 and 29, all threads write the same word of shared memory.
    let mut gpu = module(
        ".shared .align 4 .b8 s[256];
        mov.u32 %r5, s; mad.lo.u32 %r6, %r3, 4, %r5;
        setp.eq.u32 %p1, %r1, 17; @%p1 mov.u32 %r6, %r5; setp.eq.u32 %p1, %r1, 29; @%p1 mov.u32 %r6, %r5;
        st.shared.u32 [%r6], %r4; bar.sync 0; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd2], %r7;",
    );
    let y = gpu.unwritten(4 * COUNT);
    let execution = gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y));
    assert_eq!(execution.race.expect("a race").later.block, [17, 0, 0]);
    assert!(execution.is_divided);
}

#[test]
fn a_fault_in_a_late_block_is_that_of_the_first_block_with_one() {
    let mut gpu = module("st.global.u32 [%rd2], %r4;");
    // The elements of blocks 28 to 31 are out of bounds.
    let y = gpu.unwritten(4 * 28 * THREADS as usize);
    let fault = gpu.fault("kernel", BLOCKS, THREADS, arguments!(y, y));
    assert!(matches!(fault.kind, FaultKind::BadAddress(_)), "{fault}");
    assert_eq!((fault.at.block, fault.at.thread), ([28, 0, 0], [0; 3]));
}

#[test]
fn a_block_waits_for_a_later_one() {
    // Every block waits until the last one has written a flag.
    let mut gpu = module(
        "setp.ne.u32 %p1, %r1, 31; @%p1 bra wait; st.volatile.global.u32 [%rd8], 1;
        wait: ld.volatile.global.u32 %r5, [%rd8]; setp.eq.u32 %p1, %r5, 0; @%p1 bra wait;
        st.global.u32 [%rd2], %r4;",
    );
    let (x, y) = (gpu.buffer(&[0_u32]), gpu.unwritten(4 * COUNT));
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    assert_eq!(gpu.read::<u32>(y), numbers());
}

#[test]
fn the_limit_of_instructions_holds_for_all_threads_together() {
    let mut gpu =
        module("mov.u32 %r5, 0; again: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 100; @%p1 bra again;");
    let x = gpu.buffer(&[0_u32]);
    let all = gpu.run("kernel", BLOCKS, THREADS, arguments!(x, x)).instructions;
    gpu.limit = all * 7 / 8;
    let fault = gpu.fault("kernel", BLOCKS, THREADS, arguments!(x, x));
    assert!(matches!(fault.kind, FaultKind::Endless { of_thread: false, .. }), "{fault}");
    assert_eq!(fault.at.block, [28, 0, 0]);
}

#[test]
fn writes_can_go_anywhere() {
    // Thread i writes element (i * 1031) % 2048, and the last thread writes first.
    let mut gpu = module(
        "sub.u32 %r5, 2047, %r4; mul.lo.u32 %r6, %r5, 1031; and.b32 %r6, %r6, 2047;
        mul.wide.u32 %rd4, %r6, 512; add.u64 %rd4, %rd9, %rd4; st.global.u32 [%rd4], %r5;",
    );
    let y = gpu.unwritten(512 * COUNT);
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
    let all = gpu.read::<u32>(y);
    assert!((0..COUNT).all(|i| all[i * 1031 % COUNT * 128] == i as u32));
    // From the last element to the first.
    let mut gpu = module(
        "sub.u32 %r5, 2047, %r4; mul.wide.u32 %rd4, %r5, 512; add.u64 %rd4, %rd9, %rd4; st.global.u32 [%rd4], %r4;",
    );
    let y = gpu.unwritten(512 * COUNT);
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
    let all = gpu.read::<u32>(y);
    assert!((0..COUNT).all(|i| all[i * 128] == (COUNT - 1 - i) as u32));
}

#[test]
fn atomics_whose_results_are_unused_are_executed_in_the_order_of_the_blocks() {
    // Floating-point sums depend on the order. The kernel reads other bytes of the buffer that has the sum.
    let mut gpu = module(
        "cvt.rn.f32.u32 %r5, %r4; mul.f32 %r5, %r5, 0f3DCCCCCD;
        atom.global.add.f32 %r6, [%rd8], %r5; red.global.max.u32 [%rd8+4], %r4;
        ld.global.u32 %r7, [%rd8+8]; st.global.u32 [%rd2], %r7;
        mov.u32 %r8, 0; again: add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 200; @%p1 bra again;",
    );
    let (x, y) = (gpu.buffer(&[0_u32, 0, 17]), gpu.unwritten(4 * COUNT));
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    let sum = (0..COUNT).fold(0.0_f32, |sum, i| sum + i as f32 * 0.1);
    assert_eq!(gpu.read::<u32>(x), [sum.to_bits(), COUNT as u32 - 1, 17]);
    assert_eq!(gpu.read::<u32>(y), [17; COUNT]);
    // If a block reads the sum, it matters which blocks have added to it.
    let mut gpu = module(
        "red.global.add.u32 [%rd8], 1; bar.sync 0; ld.global.u32 %r7, [%rd8]; st.global.u32 [%rd2], %r7;
        mov.u32 %r8, 0; again: add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 200; @%p1 bra again;",
    );
    let (x, y) = (gpu.buffer(&[0_u32]), gpu.unwritten(4 * COUNT));
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    assert_eq!(
        gpu.read::<u32>(y),
        (0..COUNT as u32).map(|i| (i / THREADS + 1) * THREADS).collect::<Vec<_>>()
    );
}

#[test]
fn a_thread_reads_what_an_atomic_changed_next_to_its_own_bytes() {
    // Each block has 16 bytes of x. Its first thread changes the second word by an atomic, writes one byte of the third, and
    // reads all four words.
    let mut gpu = module(
        "setp.ne.u32 %p1, %r3, 0; @%p1 bra end;
        mul.wide.u32 %rd4, %r1, 16; add.u64 %rd4, %rd8, %rd4;
        red.global.add.u32 [%rd4+4], 5; st.global.u8 [%rd4+8], 7;
        ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd4];
        add.u32 %r6, %r6, %r7; st.global.u32 [%rd2], %r6;
        mov.u32 %r8, 0; again: add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 200; @%p1 bra again;
        end:",
    );
    let (x, y) = (gpu.buffer(&vec![1_u32; 4 * BLOCKS as usize]), gpu.buffer(&vec![0_u32; COUNT]));
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    assert!(gpu.read::<u32>(y).iter().step_by(THREADS as usize).all(|&sum| sum == 6 + 7));
}

#[test]
fn later_blocks_may_have_more_to_do() {
    // Block b repeats a loop b * b times.
    let mut gpu = module(
        "mul.lo.u32 %r5, %r1, %r1; mov.u32 %r6, 0;
        again: add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r5; @%p1 bra again;
        st.global.u32 [%rd2], %r6;",
    );
    let y = gpu.unwritten(4 * COUNT);
    gpu.division.from = 1 << 16;
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(y, y)).is_divided);
    assert_eq!(gpu.read::<u32>(y)[COUNT - 1], (BLOCKS - 1) * (BLOCKS - 1));
}

#[test]
fn atomics_in_shared_memory_are_independent_and_others_are_not() {
    let body = |space: &str, at: &str| {
        format!(
            ".shared .align 4 .b8 s[4]; mov.u32 %r5, s; setp.eq.u32 %p1, %r3, 0; @%p1 st.shared.u32 [%r5], 0;
            bar.sync 0; atom.{space}.add.u32 %r6, [{at}], 1; bar.sync 0; st.global.u32 [%rd2], %r6;"
        )
    };
    let mut gpu = module(&body("shared", "%r5"));
    let (x, y) = (gpu.buffer(&[0_u32]), gpu.unwritten(4 * COUNT));
    assert!(gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    assert_eq!(gpu.read::<u32>(y), (0..COUNT as u32).map(|i| i % THREADS).collect::<Vec<_>>());
    let mut gpu = module(&body("global", "%rd8"));
    let (x, y) = (gpu.buffer(&[0_u32]), gpu.unwritten(4 * COUNT));
    assert!(!gpu.run("kernel", BLOCKS, THREADS, arguments!(x, y)).is_divided);
    assert_eq!(gpu.read::<u32>(y), numbers());
}
