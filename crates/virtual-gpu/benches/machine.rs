//! How fast the machine runs: `cargo bench -p virtual-gpu [-- PART_OF_TITLE]`. One line per kernel, the best of several launches.

use std::time::{Duration, Instant};

use virtual_gpu::machine::{self, Execution, Launch};
use virtual_gpu::memory::DeviceMemory;
use virtual_gpu::ptx::{self, Module};
use virtual_gpu::site::Site;

const AXPY: &str = include_str!("../tests/ptx/axpy.ptx");
const TRAINING: &str = include_str!("../tests/ptx/training.ptx");
const WAITING: &str = include_str!("../tests/ptx/waiting.ptx");

fn main() {
    // `cargo test --benches` calls with this; there is nothing to test here.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let mut bench = Bench::new(only);
    let n = 1 << 20;
    let (x, y) = (bench.floats(n), bench.floats(n));
    let axpy = [Word::Float(1.5), Word::Long(x), Word::Long(y), Word::Int(n as u32)];
    bench.measure("axpy, 1 Mi elements", AXPY, "axpy", [4096, 1, 1], [256, 1, 1], &axpy);
    let (a, b, c) = (bench.floats(256 * 256), bench.floats(256 * 256), bench.floats(256 * 256));
    let size = Word::Int(256);
    let matmul = [Word::Long(a), Word::Long(b), Word::Long(c), size, size, size];
    bench.measure("tiled product, 256 x 256 x 256", TRAINING, "matmul", [16, 16, 1], [16, 16, 1], &matmul);
    let relu = [Word::Long(x), Word::Int(n as u32)];
    bench.measure("relu, 1 Mi elements", TRAINING, "relu", [4096, 1, 1], [256, 1, 1], &relu);
    let (labels, loss) = (bench.zeros(4096), bench.zeros(1));
    let rows =
        [Word::Long(x), Word::Long(labels), Word::Long(loss), Word::Long(y), Word::Int(4096), Word::Int(10)];
    bench.measure("cross-entropy, 4096 rows", TRAINING, "cross_entropy", [32, 1, 1], [128, 1, 1], &rows);
    let sum = [Word::Long(x), Word::Long(loss), Word::Int(n as u32)];
    bench.measure("sum in shared memory, 1 Mi", TRAINING, "sum", [4096, 1, 1], [256, 1, 1], &sum);
    bench.measure(
        "axpy, nothing to do",
        AXPY,
        "axpy",
        [1, 1, 1],
        [32, 1, 1],
        &[Word::Float(1.5), Word::Long(x), Word::Long(y), Word::Int(0)],
    );
    bench.measure("spin for 1 M cycles", WAITING, "spin", [1, 1, 1], [1, 1, 1], &[Word::Long(1_000_000)]);
}

#[derive(Clone, Copy)]
enum Word {
    Int(u32),
    Float(f32),
    Long(u64),
}

struct Bench {
    /// Part of the title of what is to be measured.
    only: Option<String>,
    memory: DeviceMemory,
}

impl Bench {
    fn new(only: Option<String>) -> Self {
        Self { only, memory: DeviceMemory::new(1 << 44, 1 << 32) }
    }

    fn zeros(&mut self, count: usize) -> u64 {
        let len = 4 * count as u64;
        let base = self.memory.allocate(len, Site::unknown()).expect("there is room");
        let (allocation, _) = self.memory.range_mut(base, len).expect("it was just allocated");
        allocation.mark_written(0..len);
        base
    }

    fn floats(&mut self, count: usize) -> u64 {
        let base = self.zeros(count);
        let (allocation, _) = self.memory.range_mut(base, 1).expect("it was just allocated");
        for (at, bytes) in allocation.bytes_mut().chunks_exact_mut(4).enumerate() {
            bytes.copy_from_slice(&((at % 1000) as f32 * 1e-3).to_le_bytes());
        }
        base
    }

    fn measure(
        &mut self,
        title: &str,
        source: &str,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        words: &[Word],
    ) {
        if self.only.as_ref().is_some_and(|only| !title.contains(only.as_str())) {
            return;
        }
        let module = ptx::load(source).expect("it loads");
        let mut best = Duration::MAX;
        let mut instructions = 0;
        for _ in 0..7 {
            let start = Instant::now();
            instructions = self.launch(&module, kernel, grid, block, words).instructions;
            best = best.min(start.elapsed());
        }
        let rate = instructions as f64 / best.as_secs_f64() / 1e9;
        println!("{title:32} {best:>12.2?} {instructions:>12} lane-instructions {rate:>7.3} G/s");
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
            ..Launch::default()
        };
        machine::run(kernel, &launch, &mut self.memory).unwrap_or_else(|fault| panic!("{fault}"))
    }
}
