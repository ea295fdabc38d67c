//! Faults that students' kernels cause, and the reports about them.

use virtual_gpu_core::memory::BadAddress;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_machine::{Access, FaultKind};

use crate::arguments;
use crate::gpu::Gpu;

const AXPY: &str = include_str!("../ptx/axpy.ptx");
const LINES: &str = include_str!("../ptx/lines.ptx");

#[test]
fn an_access_one_element_too_far_is_reported() {
    let mut gpu = Gpu::new(AXPY);
    let y = gpu.unwritten(4 * 100);
    let fault = gpu.fault("fill", 1, 128, arguments!(y, 1.0_f32, 101_u32));
    assert!(matches!(
        fault.kind,
        FaultKind::BadAddress(BadAddress::OutOfBounds { offset: 400, size: 400, .. })
    ));
    assert_eq!((fault.at.thread, fault.at.block), ([100, 0, 0], [0, 0, 0]));
    let access = fault.at.access.unwrap();
    assert_eq!((access.access, access.bytes, access.address), (Access::Write, 4, y + 400));
    let text = fault.to_string();
    assert!(
        text.starts_with("kernel `fill`, block (0,0,0), thread (100,0,0): writes 4 bytes at 0x"),
        "{text}"
    );
    assert!(text.ends_with(", just past the end of a 400-byte allocation"), "{text}");
}

#[test]
fn freed_memory_and_null_are_distinguished() {
    let mut gpu = Gpu::new(AXPY);
    let y = gpu.unwritten(400);
    gpu.memory.free(y, CallSite::unknown()).unwrap();
    let fault = gpu.fault("fill", 1, 32, arguments!(y, 1.0_f32, 8_u32));
    assert!(matches!(fault.kind, FaultKind::BadAddress(BadAddress::Freed { .. })));
    let fault = gpu.fault("fill", 1, 32, arguments!(0_u64, 1.0_f32, 8_u32));
    assert!(matches!(fault.kind, FaultKind::BadAddress(BadAddress::Unknown)));
}

#[test]
fn an_address_between_elements_is_misaligned() {
    let mut gpu = Gpu::new(AXPY);
    let y = gpu.unwritten(400);
    let fault = gpu.fault("fill", 1, 32, arguments!(y + 2, 1.0_f32, 8_u32));
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 4 }));
}

#[test]
fn unwritten_bytes_read_as_poison_and_are_reported() {
    let mut gpu = Gpu::new(AXPY);
    let (x, y) = (gpu.unwritten(128), gpu.buffer(&[1.0_f32; 32]));
    let done = gpu.run("axpy", 1, 32, arguments!(1.0_f32, x, y, 32_u32));
    let report = done.unwritten.expect("x was never written");
    assert_eq!((report.thread, report.access.unwrap().address), ([0, 0, 0], x));
    assert!(gpu.read::<f32>(y).iter().all(|value| value.is_nan()));
}

#[test]
fn a_fault_names_the_cuda_line() {
    let mut gpu = Gpu::new(LINES);
    let (x, y) = (gpu.buffer(&[1.0_f32; 32]), gpu.unwritten(4 * 32));
    let fault = gpu.fault("reads_through", 1, 32, arguments!(x, y, 3_u32));
    let line = fault.at.cuda_line.clone().expect("there is a .loc");
    assert!(line.file.ends_with("lines.cu"), "{line:?}");
    assert_eq!(line.line, 5);
    assert_eq!(fault.at.thread, [29, 0, 0]);
    assert!(fault.to_string().contains("lines.cu:5)"), "{fault}");
}

#[test]
fn a_barrier_that_some_threads_skip_is_a_fault() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&[0_i32; 64]);
    let fault = gpu.fault("half_a_barrier", 1, 64, arguments!(x));
    assert!(
        matches!(fault.kind, FaultKind::DivergentBarrier { waiting: 40, expected: 64, ended: 24 }),
        "{fault}"
    );
}

#[test]
fn threads_that_reach_different_barriers_are_a_fault() {
    // The first warp reaches both barriers, but the second warp reaches only the second barrier.
    let mut gpu = Gpu::new(&barriers(
        "setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND; bar.sync 0; SECOND: bar.sync 0; add.u32 %r2, %r1, 1; ret;",
    ));
    let fault = gpu.fault("test", 1, 64, arguments!(0_u64));
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier { waiting: 32, expected: 64, .. }), "{fault}");
    // Within one warp, each half reaches a different barrier.
    let mut gpu = Gpu::new(&barriers(
        "setp.ge.u32 %p1, %r1, 16; @%p1 bra OTHER; bar.sync 0; ret; OTHER: bar.sync 0; ret;",
    ));
    let fault = gpu.fault("test", 1, 32, arguments!(0_u64));
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier { waiting: 16, expected: 32, .. }), "{fault}");
}

fn barriers(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry test(.param .u64 out) {{
        .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<4>;
        mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
        {body} }}"
    )
}

/// "As threads exit, barriers waiting on all threads are checked […]. If the exiting threads are holding up the barrier,
/// the barrier is released" (PTX, `exit`).
#[test]
fn a_thread_that_has_returned_does_not_block_a_barrier() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&(0..64).collect::<Vec<i32>>());
    gpu.run("early_return", 1, 64, arguments!(x, 50_u32));
    let expected: Vec<i32> = (0..64).map(|i| if i < 50 { 49 - i } else { i }).collect();
    assert_eq!(gpu.read::<i32>(x), expected);
    // Threads may return before others wait, or while they wait; `bar.red` counts the threads that arrive.
    for early in ["ret", "bra LATER"] {
        let mut gpu = Gpu::new(&barriers(&format!(
            "setp.ge.u32 %p1, %r1, 50; @%p1 {early}; setp.lt.u32 %p2, %r1, 20; bar.red.popc.u32 %r2, 0, %p2;
             bar.red.and.pred %p3, 0, %p2; @%p3 add.u32 %r2, %r2, 100; st.global.u32 [%rd3], %r2; ret; LATER: ret;"
        )));
        let out = gpu.buffer(&[7_u32; 64]);
        gpu.run("test", 1, 64, arguments!(out));
        let expected: Vec<u32> = (0..64).map(|i| if i < 50 { 20 } else { 7 }).collect();
        assert_eq!(gpu.read::<u32>(out), expected);
    }
    // A barrier with a thread count waits for that many threads.
    let mut gpu = Gpu::new(&barriers("setp.ge.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0, 64; ret;"));
    let fault = gpu.fault("test", 1, 64, arguments!(0_u64));
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier { waiting: 32, ended: 32, .. }), "{fault}");
}

/// "Causes executing thread to wait until all non-exited threads corresponding to membermask have executed" (PTX,
/// `vote.sync`).
#[test]
fn a_lane_that_has_returned_does_not_block_its_warp() {
    for early in ["setp.ge.u32 %p1, %r1, 20; @%p1 ret;", "setp.ge.u32 %p1, %r1, 20; @%p1 bra LATER;"] {
        let mut gpu = Gpu::new(&barriers(&format!(
            "{early} setp.lt.u32 %p2, %r1, 3; vote.sync.ballot.b32 %r2, %p2, -1; redux.sync.add.u32 %r3, %r1, -1;
             add.u32 %r2, %r2, %r3; st.global.u32 [%rd3], %r2; ret; LATER: st.global.u32 [%rd3], %r1; ret;"
        )));
        let out = gpu.buffer(&[0_u32; 32]);
        gpu.run("test", 1, 32, arguments!(out));
        assert_eq!(gpu.read::<u32>(out)[..20], [7 + 190; 20]);
    }
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&(0..32).collect::<Vec<i32>>());
    gpu.run("half_a_shuffle", 1, 32, arguments!(x));
    assert_eq!(gpu.read::<i32>(x)[..20], std::array::from_fn::<i32, 20, _>(|i| i as i32 ^ 1));
}

#[test]
fn a_shuffle_from_a_lane_that_has_returned_is_a_fault() {
    let other = LINES.replace("%r4, 1;\n\tmov.u32 \t%r5, -1;", "%r4, 16;\n\tmov.u32 \t%r5, -1;");
    assert_ne!(other, LINES);
    let mut gpu = Gpu::new(&other);
    let x = gpu.buffer(&[0_i32; 32]);
    let fault = gpu.fault("half_a_shuffle", 1, 32, arguments!(x));
    assert!(
        matches!(fault.kind, FaultKind::DivergentWarp { members: 0xffff_ffff, present: 0xf_ffff }),
        "{fault}"
    );
}

#[test]
fn shared_memory_is_checked_too() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&[0_i32; 64]);
    let done = gpu.run("unwritten_shared", 1, 64, arguments!(x));
    let report = done.unwritten.expect("the upper half was never written");
    assert_eq!((report.thread, report.access.unwrap().address), ([32, 0, 0], 128));
    assert_eq!(gpu.read::<i32>(x)[31..33], [3, -1]);
    let fault = gpu.fault("beyond_shared", 1, 64, arguments!(x, 1_u32));
    assert!(matches!(fault.kind, FaultKind::SharedOutOfBounds { size: 256 }));
    assert_eq!(fault.at.thread, [63, 0, 0]);
    assert!(fault.to_string().contains("at offset 256 in shared memory"), "{fault}");
}
