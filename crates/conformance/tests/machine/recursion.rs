//! Tests of `recursion.cu`, and of infinite recursion.

use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::gpu::{Gpu, Numbers};

const RECURSION: &str = include_str!("../ptx/recursion.ptx");

const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

/// Returns a GPU whose stacks are larger than the default, and a number for each of 128 threads.
fn gpu() -> (Gpu, Vec<i32>, u64) {
    let mut gpu = Gpu::new(RECURSION);
    gpu.stack = 4096;
    let mut numbers = Numbers(17);
    let n: Vec<i32> = (0..128).map(|_| (numbers.next() % 1000) as i32).collect();
    let at = gpu.buffer(&n);
    (gpu, n, at)
}

fn factorial(n: i32) -> i32 {
    (2..=n).product()
}

fn fibonacci(n: i32) -> i32 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

#[test]
fn functions_that_call_themselves_once_twice_and_in_turn() {
    let (mut gpu, n, at) = gpu();
    let out = gpu.buffer(&[-1; 4 * 128]);
    gpu.run("recursions", 4, 32, arguments!(at, out));
    for (got, n) in gpu.read::<i32>(out).chunks(4).zip(n) {
        let last = if n % 3 == 1 { factorial(n % 7) + (n % 9) % 2 } else { -1 };
        let is_even = i32::from(n % 20 % 2 == 0);
        assert_eq!(got, [factorial(n % 13), fibonacci(n % 12), is_even, last], "{n}");
    }
}

#[test]
fn each_call_has_variables_of_its_own() {
    fn through_pointers(n: i32, above: &mut [i32; 4]) -> i64 {
        let mut mine = [n, 2 * n, 3 * n, 4 * n];
        above[n as usize % 4] += 100;
        match n {
            0 => above[0].into(),
            _ => through_pointers(n - 1, &mut mine) + i64::from(mine.iter().sum::<i32>()),
        }
    }
    let (mut gpu, n, at) = gpu();
    let out = gpu.buffer(&[0_i64; 128]);
    gpu.run("locals", 1, 128, arguments!(at, out));
    for (got, n) in gpu.read::<i64>(out).into_iter().zip(n) {
        let mut mine = [1000, 2000, 3000, 4000];
        let below = through_pointers(n % 10, &mut mine);
        assert_eq!(got, below + i64::from(mine.iter().sum::<i32>()), "{n}");
    }
}

#[test]
fn functions_that_call_one_another_through_pointers() {
    fn down(by_two: bool, n: i32, which: i32) -> i32 {
        let (step, points) = if by_two { (2, 10) } else { (1, 1) };
        if n <= 0 { 0 } else { points + down(which & 1 == 1, n - step, which >> 1) }
    }
    let (mut gpu, n, at) = gpu();
    let out = gpu.buffer(&[0_i32; 128]);
    gpu.run("pointers", 2, 64, arguments!(at, out));
    for (i, (got, n)) in gpu.read::<i32>(out).into_iter().zip(n).enumerate() {
        assert_eq!(got, down(i % 2 == 1, n % 16, n), "{i}");
    }
}

#[test]
fn arguments_and_results_of_several_words() {
    fn pairs((x, y): (f64, i32), n: i32) -> (f64, i32) {
        if n == 0 {
            return (x, y);
        }
        let half = pairs((x / 2.0, y + 1), n - 1);
        (half.0 + x, half.1 * 2 - y)
    }
    let (mut gpu, n, at) = gpu();
    let out = gpu.buffer(&[0_f64; 128]);
    gpu.run("structs", 1, 128, arguments!(at, out));
    for (i, (got, n)) in gpu.read::<f64>(out).into_iter().zip(n).enumerate() {
        let (x, y) = pairs((i as f64, n), n % 6);
        assert_eq!(got, x + f64::from(y), "{i}");
    }
}

#[test]
fn a_stack_ends_and_can_be_larger() {
    let mut gpu = Gpu::new(RECURSION);
    let out = gpu.buffer(&[0_i32; 4]);
    gpu.run("depth", 1, 4, arguments!(10_i32, out));
    assert_eq!(gpu.read::<i32>(out), [10, 11, 12, 13].map(|n| fibonacci(n) + factorial(10)));
    let fault = gpu.fault("depth", 1, 4, arguments!(500_i32, out));
    assert!(matches!(fault.kind, FaultKind::StackOverflow { size: 1024, depth: 5.. }), "{fault}");
    gpu.stack = 512 << 10;
    let fault = gpu.fault("depth", 1, 4, arguments!(50_000_i32, out));
    assert!(matches!(fault.kind, FaultKind::StackOverflow { size: 0x80000, depth: 5000.. }), "{fault}");
    // The recursion ends, but takes too long.
    gpu.limit = 1_000_000;
    let fault = gpu.fault("depth", 1, 4, arguments!(60_i32, out));
    assert!(matches!(fault.kind, FaultKind::Endless { .. }), "{fault}");
}

/// Returns a GPU with a function that calls itself until its argument is 0, and a kernel that calls it with the
/// thread's number.
fn counting_down(body: &str) -> Gpu {
    Gpu::new(&format!(
        "{HEAD}.global .align 1 .b8 text[4] = {{37, 100, 10, 0}};
        .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .func down(.param .b32 n)
        {{
        .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<3>;
        .local .align 8 .b8 depot[8];
        ld.param.u32 %r1, [n];
        setp.eq.u32 %p1, %r1, 0;
        @%p1 ret;
        {{ .param .b32 next; sub.u32 %r2, %r1, 1; st.param.b32 [next], %r2; call down, (next); }}
        {body}
        ret;
        }}
        .visible .entry test()
        {{
        .reg .b32 %r<2>; .reg .pred %p<2>;
        mov.u32 %r1, %tid.x;
        setp.ne.u32 %p1, %r1, 2;
        {{ .param .b32 n; st.param.b32 [n], %r1; @%p1 call down, (n); }}
        ret;
        }}"
    ))
}

#[test]
fn a_function_that_calls_itself_prints_from_its_own_variables() {
    let body = "{ .param .b64 f; .param .b64 a; .param .b32 r;
        mov.u64 %d1, depot; cvta.local.u64 %d2, %d1; st.local.u32 [%d1], %r1;
        mov.u64 %d3, text; st.param.b64 [f], %d3; st.param.b64 [a], %d2;
        call (r), vprintf, (f, a); }";
    let done = counting_down(body).run("test", 1, 5, &[]);
    // Thread 2 skips the call.
    assert_eq!(String::from_utf8(done.printed.concat()).unwrap(), "1\n1\n1\n2\n2\n3\n3\n4\n");
}

#[test]
fn threads_may_end_inside_calls() {
    let mut gpu = counting_down("setp.eq.u32 %p2, %r1, 3; @%p2 exit;");
    for _ in 0..3 {
        gpu.run("test", 100, 20, &[]);
    }
}

#[test]
fn a_barrier_in_a_function_that_calls_itself() {
    // Thread 2 does not reach the barrier.
    let fault = counting_down("bar.sync 0;").fault("test", 1, 5, &[]);
    assert!(matches!(fault.kind, FaultKind::DivergentBarrier { .. }), "{fault}");
}
