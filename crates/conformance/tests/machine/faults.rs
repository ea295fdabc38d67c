//! What a student gets wrong, and what he is told.

use virtual_gpu::machine::{Access, FaultKind};
use virtual_gpu::memory::BadAddress;
use virtual_gpu::site::Site;

use crate::arguments;
use crate::gpu::Gpu;

const AXPY: &str = include_str!("../ptx/axpy.ptx");
const LINES: &str = include_str!("../ptx/lines.ptx");

#[test]
fn one_element_too_far_is_found() {
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
    assert!(text.ends_with(", just behind the end of a 400-byte allocation"), "{text}");
}

#[test]
fn freed_memory_and_null_are_told_apart() {
    let mut gpu = Gpu::new(AXPY);
    let y = gpu.unwritten(400);
    gpu.memory.free(y, Site::unknown()).unwrap();
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
fn bytes_that_nothing_wrote_read_as_poison_and_are_reported() {
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
fn a_barrier_that_some_threads_never_reach_is_a_fault() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&[0_i32; 64]);
    for (kernel, arguments, waiting) in
        [("half_a_barrier", arguments!(x).to_vec(), 40), ("early_return", arguments!(x, 50_u32).to_vec(), 50)]
    {
        let fault = gpu.fault(kernel, 1, 64, &arguments);
        assert!(
            matches!(fault.kind, FaultKind::DivergentBarrier { waiting: w, expected: 64, ended } if w == waiting && ended == 64 - waiting),
            "{fault}"
        );
    }
    gpu.run("early_return", 1, 64, arguments!(x, 64_u32));
}

#[test]
fn a_shuffle_that_some_lanes_never_reach_is_a_fault() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&[0_i32; 32]);
    let fault = gpu.fault("half_a_shuffle", 1, 32, arguments!(x));
    assert!(
        matches!(fault.kind, FaultKind::DivergentWarp { members: 0xffff_ffff, present: 0xf_ffff }),
        "{fault}"
    );
}

#[test]
fn shared_memory_is_watched_too() {
    let mut gpu = Gpu::new(LINES);
    let x = gpu.buffer(&[0_i32; 64]);
    let done = gpu.run("unwritten_shared", 1, 64, arguments!(x));
    let report = done.unwritten.expect("the upper half was never written");
    assert_eq!((report.thread, report.access.unwrap().address), ([32, 0, 0], 128));
    assert_eq!(gpu.read::<i32>(x)[31..33], [3, -1]);
    let fault = gpu.fault("beyond_shared", 1, 64, arguments!(x, 1_u32));
    assert!(matches!(fault.kind, FaultKind::SharedOutOfBounds { size: 256 }));
    assert_eq!(fault.at.thread, [63, 0, 0]);
    assert!(fault.to_string().contains("at offset 256 of shared memory"), "{fault}");
}
