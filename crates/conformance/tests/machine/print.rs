//! Kernel output and kernel assertions.

use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::Gpu;

const PRINT: &str = include_str!("../ptx/print.ptx");

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn each_thread_prints_its_own_line_in_order() {
    let mut gpu = Gpu::new(PRINT);
    let (name, parsed) = (gpu.buffer(b"abc\0"), gpu.buffer(&[0_i32; 3]));
    let done = gpu.run("hello", 1, 3, arguments!(3_i32, name, parsed));
    let expected = "thread 0 of 3:  0.00|abc     |1099511627776|a%\n\
                    thread 1 of 3:  1.50|abc     |1099511627776|b%\n\
                    thread 2 of 3:  3.00|abc     |1099511627776|c%\n";
    assert_eq!(text(done.printed.concat()), expected);
    assert_eq!(gpu.read::<i32>(parsed), [6; 3]);
}

#[test]
fn the_result_is_the_number_of_arguments() {
    let mut gpu = Gpu::new(PRINT);
    let parsed = gpu.buffer(&[9_i32; 3]);
    let done = gpu.run("plain", 1, 1, arguments!(parsed));
    assert_eq!(text(done.printed.concat()), "no arguments\n    42|7   |\n");
    assert_eq!(gpu.read::<i32>(parsed), [0, 4, -1]);
}

#[test]
fn text_after_32_arguments_is_written_unchanged() {
    let mut gpu = Gpu::new(PRINT);
    let done = gpu.run("many", 1, 1, &[]);
    assert!(text(done.printed.concat()).ends_with(" 31 32 %d\n"));
}

#[test]
fn a_full_buffer_drops_the_oldest_lines() {
    let mut gpu = Gpu::new(PRINT);
    gpu.print_buffer = 25;
    let done = gpu.run("numbered", 1, 1, arguments!(100_i32));
    assert_eq!(text(done.printed.concat()), "line   98\nline   99\n");
}

#[test]
fn an_invalid_string_is_a_fault() {
    let mut gpu = Gpu::new(PRINT);
    let parsed = gpu.buffer(&[0_i32; 3]);
    let done = gpu.run("hello", 1, 1, arguments!(3_i32, 0_u64, parsed));
    assert!(text(done.printed.concat()).contains("|(null)  |"));
    let fault = gpu.fault("hello", 1, 1, arguments!(3_i32, 12_345_u64, parsed));
    assert!(matches!(fault.kind, FaultKind::BadAddress(_)), "{fault}");
    assert_eq!(fault.at.access.unwrap().address, 12_345);
}

#[test]
fn an_assertion_that_fails_stops_the_kernel() {
    let mut gpu = Gpu::new(PRINT);
    let x = gpu.buffer(&[1.0_f32, -2.0, 3.0, -4.0]);
    let fault = gpu.fault("positive", 1, 4, arguments!(x, 4_i32));
    let FaultKind::Assert(assertion) = &fault.kind else { panic!("{fault}") };
    assert_eq!(
        (assertion.message.as_str(), assertion.file.as_str(), assertion.line),
        ("x[i] > 0", "print.cu", 28)
    );
    assert_eq!(assertion.function, "void positive(const float *, int)");
    assert_eq!(assertion.threads, [[1, 0, 0], [3, 0, 0]]);
    assert_eq!(text(fault.printed.concat()), "before\n");
    gpu.run("positive", 1, 4, arguments!(x, 1_i32));
}

#[test]
fn other_functions_that_are_only_declared_are_refused_by_name() {
    let source = PRINT.replace("vprintf", "vfprintf");
    let error = virtual_gpu_ptx::load(&source).unwrap_err().to_string();
    assert!(error.contains("call to `vfprintf`, which is only declared here"), "{error}");
}
