//! What a student gets wrong, and what he is told.

use virtual_gpu::machine::{Access, FaultKind};
use virtual_gpu::memory::BadAddress;
use virtual_gpu::site::Site;

use crate::arguments;
use crate::gpu::Gpu;

const AXPY: &str = include_str!("../ptx/axpy.ptx");

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
    assert!(text.ends_with(", 0 bytes behind the end of a 400-byte allocation"), "{text}");
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
