//! Tests PTX with random changes. Each text must be rejected, run, or fault; none may cause a panic, hang, or use
//! unbounded memory.

use std::time::Duration;

use virtual_gpu_core::array::{Channel, Format, Geometry, Level};
use virtual_gpu_core::texture::{Object, Sampling, Surface, Texture};
use virtual_gpu_ptx as ptx;

use crate::gpu::{Gpu, Numbers};
use crate::number;
use crate::processor_time::processor_time;

const SOURCES: [&str; 15] = [
    include_str!("../ptx/axpy.ptx"),
    include_str!("../ptx/training.ptx"),
    include_str!("../ptx/waiting.ptx"),
    include_str!("../ptx/lines.ptx"),
    include_str!("../ptx/recursion.ptx"),
    include_str!("../ptx/matrices.ptx"),
    include_str!("../ptx/tensor_cores.ptx"),
    include_str!("../ptx/block_barriers.ptx"),
    include_str!("../ptx/bulk_copies.ptx"),
    include_str!("../ptx/textures.ptx"),
    include_str!("../kernels/12.9-compute_90/ampere.ptx"),
    include_str!("../kernels/12.9-compute_90/atomics.ptx"),
    include_str!("../kernels/12.9-compute_90/control.ptx"),
    include_str!("../kernels/12.9-compute_90/warps.ptx"),
    include_str!("../kernels/12.9-compute_90/integers.ptx"),
];

/// Returns modules with one kernel each: a file's head with its variables and functions, followed by one of its
/// kernels.
fn modules() -> Vec<String> {
    let mut modules = Vec::new();
    for source in SOURCES {
        let mut parts = source.split(".visible .entry ");
        let head = parts.next().unwrap_or("");
        modules.extend(parts.map(|kernel| format!("{head}.visible .entry {kernel}")));
    }
    modules
}

/// Splits a text into words, numbers, and single characters, each with the blanks that follow it.
fn pieces(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (piece, more) = rest.split_at(len);
        pieces.push(piece);
        rest = more;
    }
    pieces
}

struct Mutator {
    numbers: Numbers,
    modules: Vec<String>,
    /// The words and characters of all modules.
    vocabulary: Vec<String>,
}

impl Mutator {
    fn new(seed: u64) -> Self {
        let modules = modules();
        let mut vocabulary: Vec<String> =
            modules.iter().flat_map(|module| pieces(module)).map(str::to_owned).collect();
        vocabulary
            .extend(["0", "-1", "1000000000", "18446744073709551615", "0f7FC00000", "_"].map(String::from));
        vocabulary.sort_unstable();
        vocabulary.dedup();
        Self { numbers: Numbers(seed), modules, vocabulary }
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.numbers.next() % limit.max(1) as u64) as usize
    }

    /// Returns a module with one to six changes, mostly after its head.
    fn next(&mut self) -> String {
        let which = self.below(self.modules.len());
        let module = self.modules[which].clone();
        if self.numbers.next().is_multiple_of(4) {
            return self.with_other_bytes(module.into_bytes());
        }
        let mut pieces: Vec<String> = pieces(&module).into_iter().map(str::to_owned).collect();
        // In half of the modules, change only registers, labels, and numbers, to others from the same text: many of
        // these modules still load.
        let is_gentle = self.numbers.next().is_multiple_of(2);
        for _ in 0..1 + self.below(6) {
            let (at, other) = (self.below(pieces.len()), self.below(pieces.len()));
            match if is_gentle { 9 } else { self.numbers.next() % 10 } {
                0 => drop(pieces.remove(at)),
                1 => pieces.insert(at, self.word()),
                2 => pieces[at] = self.word(),
                3 => pieces.swap(at, other),
                // Copy a run of pieces to another place.
                4 => {
                    let run = pieces[at..(at + 20).min(pieces.len())].to_vec();
                    pieces.splice(other..other, run);
                }
                5 => drop(pieces.drain(at..(at + 10).min(pieces.len()))),
                6 => pieces[at] = pieces[other].clone(),
                _ => self.exchange(&mut pieces),
            }
            if pieces.is_empty() {
                break;
            }
        }
        pieces.concat()
    }

    fn word(&mut self) -> String {
        let at = self.below(self.vocabulary.len());
        self.vocabulary[at].clone()
    }

    /// Replaces a piece with another piece that differs only in its digits.
    fn exchange(&mut self, pieces: &mut [String]) {
        let shape = |piece: &str| piece.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let ends_in_digit = |piece: &str| piece.ends_with(|c: char| c.is_ascii_digit());
        for _ in 0..200 {
            let (at, other) = (self.below(pieces.len()), self.below(pieces.len()));
            let (one, two) = (&pieces[at], &pieces[other]);
            if one != two && ends_in_digit(one) && ends_in_digit(two) && shape(one) == shape(two) {
                pieces[at] = two.clone();
                return;
            }
        }
    }

    fn with_other_bytes(&mut self, mut bytes: Vec<u8>) -> String {
        for _ in 0..1 + self.below(6) {
            let at = self.below(bytes.len());
            match self.numbers.next() % 4 {
                0 => bytes[at] = self.numbers.next() as u8,
                1 => drop(bytes.remove(at)),
                2 if bytes[at].is_ascii_digit() => bytes[at] = b'0' + self.below(10) as u8,
                _ => bytes.insert(at, b"{}()[];,.%@:<>\"/*-+=!|09"[self.below(24)]),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Returns a texture or surface of 64 elements of the kind that a module accesses first.
fn object(source: &str, address: u64) -> Object {
    let format = Format { channel: Channel::F32, channels: 2 };
    let shapes = [
        (".a2d.", Geometry::Planes, [4, 4, 4]),
        (".2d.", Geometry::Plane, [8, 8, 1]),
        (".3d.", Geometry::Volume, [4, 4, 4]),
        (".cube.", Geometry::Cube, [3, 3, 6]),
        (".1d.", Geometry::Line, [64, 1, 1]),
    ];
    let found = shapes.into_iter().find(|(shape, ..)| source.contains(shape));
    let (_, geometry, extent) = found.unwrap_or(shapes[1]);
    let level = Level::packed(address, extent, format.bytes());
    if source.contains("sust") && !source.contains("tex.") {
        return Object::Surface(Surface { geometry, format, level });
    }
    let sampling = Sampling { is_linear: true, is_normalized: true, ..crate::textures::sampling() };
    let is_buffer = source.contains(".1d.");
    Object::Texture(Texture { geometry, format, levels: vec![level], sampling, is_buffer, can_gather: true })
}

/// Loads a module and runs its kernels. Returns whether it loaded.
fn load_and_run(source: &str) -> bool {
    let Ok(module) = ptx::load(source) else { return false };
    let Some(mut gpu) = Gpu::with(module) else { return true };
    (gpu.limit, gpu.thread_limit, gpu.dynamic_shared) = (20_000, 5_000, 64);
    let names: Vec<String> = gpu.module.kernel_names().map(str::to_owned).collect();
    for name in names {
        let buffer = gpu.buffer(&[1_u64; 64]);
        let parameters = gpu.module.kernel(&name).map_or(&[][..], |kernel| kernel.parameters()).to_vec();
        let arguments: Vec<Vec<u8>> = parameters
            .iter()
            .map(|parameter| match parameter.size {
                8 => buffer.to_le_bytes().to_vec(),
                size => 8_u32.to_le_bytes().into_iter().cycle().take(size as usize).collect(),
            })
            .collect();
        // The address is a handle, too.
        gpu.objects.insert(buffer, object(source, buffer));
        let _ = gpu.launch(&name, [2, 1, 1], [40, 1, 1], &arguments);
    }
    true
}

/// The processor time that one module may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Tries `count` modified modules, and returns how many of them loaded.
fn try_modules(seed: u64, count: usize) -> usize {
    let mut mutator = Mutator::new(seed);
    let mut loaded = 0;
    for round in 0..count {
        let source = mutator.next();
        let (outcome, took) = processor_time(|| std::panic::catch_unwind(|| load_and_run(&source)));
        match outcome {
            Ok(is_loaded) => loaded += usize::from(is_loaded),
            Err(_) => panic!("seed {seed}, round {round}:\n{source}"),
        }
        assert!(took < TIMEOUT, "seed {seed}, round {round} took {took:?}:\n{source}");
    }
    loaded
}

/// Runs `MUTATIONS` modules on two threads. With each number in `SEED`, they are others.
#[test]
fn changed_modules_do_no_harm() {
    let count = number("MUTATIONS", 1000) as usize;
    let first = 1 + 2 * number("SEED", 0);
    let threads: Vec<_> =
        (first..first + 2).map(|seed| std::thread::spawn(move || try_modules(seed, count / 2))).collect();
    let loaded: usize =
        threads.into_iter().map(|thread| thread.join().expect("no module causes a panic")).sum();
    assert!(loaded > count / 10, "only {loaded} of {count} loaded");
}
