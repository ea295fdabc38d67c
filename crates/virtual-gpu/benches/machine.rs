//! Measures how fast the machine runs: `cargo bench -p virtual-gpu [-- PART_OF_TITLE]`. Prints one line per kernel: the
//! best of several launches on one core, how many times as long it takes as the same loop in plain Rust, and how many
//! times as fast it is on all cores. The launches on one core, the loop, and the launches on all cores take turns.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use virtual_gpu_core::memory::DeviceMemory;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_machine::{
    self as machine, Consistency, Division, Execution, Launch, Others, Pause, Together,
};
use virtual_gpu_ptx::{self as ptx, Module};

const AXPY: &str = include_str!("../../conformance/tests/ptx/axpy.ptx");
const TRAINING: &str = include_str!("../../conformance/tests/ptx/training.ptx");
const WAITING: &str = include_str!("../../conformance/tests/ptx/waiting.ptx");
const MATH: &str = include_str!("../../conformance/tests/kernels/12.0-compute_70/math.ptx");
const CONTROL: &str = include_str!("../../conformance/tests/kernels/12.0-compute_70/control.ptx");

/// A kernel that accesses only every other element, so that each element needs its own bits.
const STRIDED: &str = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry axpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    and.b32 %r4, %r4, 0xfffffffe;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd5];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd5], %f3;
    ret;
}
";

/// The number of launches of each kernel; only the fastest counts.
const RUNS: usize = 21;

/// The system allocator, with a count of the allocated bytes.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator; this type only keeps a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees what the system allocator requires of the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc`, and therefore from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    // `cargo test --benches` passes `--test`; there is nothing to test here.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    println!("vector units: {}", vector_units());
    if only.is_none() {
        bytes_per_byte();
    }
    let mut bench = Bench::new(only);
    let n = 1 << 20;
    let (x, y) = (bench.floats(n), bench.floats(n));
    let (host_x, mut host_y) = (floats(n), floats(n));
    let axpy = [Word::Float(1.5), Word::Long(x), Word::Long(y), Word::Int(n as u32)];
    bench.measure("axpy, 1 Mi elements", AXPY, "axpy", [4096, 1, 1], [256, 1, 1], &axpy, &mut || {
        for (x, y) in host_x.iter().zip(&mut host_y) {
            *y += 1.5 * x;
        }
    });
    bench.shares_memory = true;
    let title = "axpy, shared with other GPUs";
    bench.measure(title, AXPY, "axpy", [4096, 1, 1], [256, 1, 1], &axpy, &mut || {
        for (x, y) in host_x.iter().zip(&mut host_y) {
            *y += 1.5 * x;
        }
    });
    bench.shares_memory = false;
    let (a, b, c) = (bench.floats(256 * 256), bench.floats(256 * 256), bench.floats(256 * 256));
    let size = Word::Int(256);
    let matmul = [Word::Long(a), Word::Long(b), Word::Long(c), size, size, size];
    let (left, right, mut product) = (floats(256 * 256), floats(256 * 256), floats(256 * 256));
    let title = "tiled product, 256 x 256 x 256";
    bench.measure(title, TRAINING, "matmul", [16, 16, 1], [16, 16, 1], &matmul, &mut || {
        for (row, sums) in left.chunks_exact(256).zip(product.chunks_exact_mut(256)) {
            sums.fill(0.0);
            for (x, factors) in row.iter().zip(right.chunks_exact(256)) {
                sums.iter_mut().zip(factors).for_each(|(sum, factor)| *sum += x * factor);
            }
        }
    });
    let relu = [Word::Long(x), Word::Int(n as u32)];
    bench.measure("relu, 1 Mi elements", TRAINING, "relu", [4096, 1, 1], [256, 1, 1], &relu, &mut || {
        host_y.iter_mut().for_each(|y| *y = y.max(0.0));
    });
    let gelu = [Word::Long(x), Word::Long(y), Word::Int(n as u32)];
    bench.measure("gelu (erff), 1 Mi elements", MATH, "gelu", [4096, 1, 1], [256, 1, 1], &gelu, &mut || {
        for (x, y) in host_x.iter().zip(&mut host_y) {
            *y = 0.5 * x * (1.0 + erff(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    });
    let softmax = [Word::Long(x), Word::Long(y), Word::Int(1024)];
    let title = "softmax (expf), 1024 x 1024";
    bench.measure(title, MATH, "softmax", [1024, 1, 1], [256, 1, 1], &softmax, &mut || {
        for (x, y) in host_x.chunks_exact(1024).zip(host_y.chunks_exact_mut(1024)) {
            let largest = x.iter().copied().fold(f32::MIN, f32::max);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - largest).exp());
            let sum: f32 = y.iter().sum();
            y.iter_mut().for_each(|y| *y /= sum);
        }
    });
    let loss = bench.zeros(1);
    let sum = [Word::Long(x), Word::Long(loss), Word::Int(n as u32)];
    let title = "sum in shared memory, 1 Mi";
    bench.measure(title, TRAINING, "sum", [4096, 1, 1], [256, 1, 1], &sum, &mut || {
        black_box(host_x.iter().sum::<f32>());
    });
    let spin = [Word::Long(1_000_000)];
    bench.measure("spin for 1 M cycles", WAITING, "spin", [1, 1, 1], [1, 1, 1], &spin, &mut || ());
    let empty = [Word::Float(1.5), Word::Long(x), Word::Long(y), Word::Int(0)];
    bench.measure("launch of an empty block", AXPY, "axpy", [1, 1, 1], [32, 1, 1], &empty, &mut || ());
    let bounded = [Word::Long(y)];
    bench.measure("launch of 128 threads", CONTROL, "bounded", [1, 1, 1], [128, 1, 1], &bounded, &mut || ());
}

// Rust's standard library has no `erff`.
unsafe extern "C" {
    safe fn erff(x: f32) -> f32;
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at % 1000) as f32 * 1e-3).collect()
}

/// Returns the name of the vector instructions that the machine's loops use on this processor.
fn vector_units() -> &'static str {
    if machine::uses_avx2() { "AVX2 and FMA" } else { "only those of the compiler's target" }
}

/// Prints how many bytes of host memory each byte of device memory needs, including all bookkeeping.
fn bytes_per_byte() {
    let count = 16 << 20;
    for (how, step) in [("from end to end", 1), ("every second element", 2)] {
        let before = ALLOCATED.load(Ordering::Relaxed);
        let mut bench = Bench::new(None);
        let (x, y) = (bench.zeros(count), bench.zeros(count));
        let module = ptx::load(if step == 1 { AXPY } else { STRIDED }).expect("it loads");
        let words = [Word::Float(1.5), Word::Long(x), Word::Long(y), Word::Int(count as u32)];
        bench.launch(&module, "axpy", [(count / 256) as u32, 1, 1], [256, 1, 1], &words);
        let used = ALLOCATED.load(Ordering::Relaxed) - before;
        println!("memory, accessed {how}: {:.3} bytes per byte", used as f64 / (8 * count) as f64);
    }
}

#[derive(Clone, Copy)]
enum Word {
    Int(u32),
    Float(f32),
    Long(u64),
}

struct Bench {
    /// Part of the titles of the kernels to measure.
    only: Option<String>,
    memory: DeviceMemory,
    /// Whether the next kernels run as if other GPUs could access the memory.
    shares_memory: bool,
    /// Whether the next kernels run on all cores.
    division: Division,
}

/// A launch without other launches.
struct Alone;

impl Others for Alone {
    fn run(&mut self, _: Pause, _: bool, _: &mut DeviceMemory, _: &mut Consistency) -> bool {
        true
    }
}

impl Bench {
    fn new(only: Option<String>) -> Self {
        Self {
            only,
            memory: DeviceMemory::new(1 << 44..1 << 45, 1 << 32),
            shares_memory: false,
            division: Division::NONE,
        }
    }

    fn zeros(&mut self, count: usize) -> u64 {
        let len = 4 * count as u64;
        let base = self.memory.allocate(len, CallSite::unknown()).expect("there is room");
        let (allocation, _) = self.memory.range_mut(base, len).expect("it was just allocated");
        allocation.mark_written(0..len);
        base
    }

    fn floats(&mut self, count: usize) -> u64 {
        let base = self.zeros(count);
        let (allocation, _) = self.memory.range_mut(base, 1).expect("it was just allocated");
        for (bytes, value) in allocation.bytes_mut().chunks_exact_mut(4).zip(floats(count)) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        base
    }

    #[expect(clippy::too_many_arguments, reason = "a launch needs this many, and each one has a title")]
    fn measure(
        &mut self,
        title: &str,
        source: &str,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        words: &[Word],
        in_rust: &mut dyn FnMut(),
    ) {
        if self.only.as_ref().is_some_and(|only| !title.contains(only.as_str())) {
            return;
        }
        let module = ptx::load(source).expect("it loads");
        let (mut best, mut host, mut divided) = (Duration::MAX, Duration::MAX, Duration::MAX);
        let (mut instructions, mut is_divided) = (0, false);
        let all_cores = Division::among_idle_cores();
        for _ in 0..RUNS {
            let start = Instant::now();
            instructions = self.launch(&module, kernel, grid, block, words).instructions;
            best = best.min(start.elapsed());
            let start = Instant::now();
            in_rust();
            host = host.min(start.elapsed());
            if self.shares_memory {
                continue;
            }
            self.division = all_cores;
            let start = Instant::now();
            is_divided = self.launch(&module, kernel, grid, block, words).is_divided;
            divided = divided.min(start.elapsed());
            self.division = Division::NONE;
        }
        let rate = instructions as f64 / best.as_secs_f64() / 1e9;
        print!("{title:32} {best:>12.2?} {instructions:>12} thread-instructions {rate:>7.3} G/s");
        match host < Duration::from_micros(1) {
            true => print!(" {:>14}", ""),
            false => print!(" {:>7.1} x Rust", best.as_secs_f64() / host.as_secs_f64()),
        }
        match is_divided {
            true => {
                let ratio = best.as_secs_f64() / divided.as_secs_f64();
                println!(", {ratio:.2} x as fast on {} cores", all_cores.threads);
            }
            false => println!(),
        }
    }

    fn launch(
        &mut self,
        module: &Module,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        words: &[Word],
    ) -> Execution {
        let kernel = module.kernel(name).expect("the kernel is there");
        let globals = vec![0; module.variables().len()];
        let mut parameters = vec![0; kernel.parameter_bytes()];
        for (parameter, word) in kernel.parameters().iter().zip(words) {
            let bytes = match word {
                Word::Int(value) => value.to_le_bytes().to_vec(),
                Word::Float(value) => value.to_le_bytes().to_vec(),
                Word::Long(value) => value.to_le_bytes().to_vec(),
            };
            let start = parameter.offset as usize;
            parameters[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        let launch = Launch {
            grid,
            block,
            dynamic_shared: 4 * block[0],
            parameters: &parameters,
            globals: &globals,
            division: self.division,
            ..Launch::default()
        };
        let outcome = if self.shares_memory {
            let mut consistency = Consistency::default();
            consistency.begin(0, kernel.clone(), 0, [grid, block], &[]);
            let together = Together::new(&mut consistency, 0, Box::new(Alone), true);
            machine::run_together(kernel, &launch, &mut self.memory, together)
        } else {
            machine::run(kernel, &launch, &mut self.memory)
        };
        outcome.unwrap_or_else(|fault| panic!("{fault}"))
    }
}
