//! Random programs whose threads don't exchange values: a thread must compute the same in a block with others as in a
//! block of its own, although the machine handles a block's threads together.
//!
//! `RANDOM_PROGRAMS=10000 cargo test -p conformance --test machine random` runs more programs than the default. With
//! `SEED=10001`, too, it runs the 10,000 after them.

use std::fmt::Write as _;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::arguments;
use crate::gpu::{Gpu, Numbers};
use crate::number;

/// The number of registers of each kind.
const REGISTERS: u64 = 6;
const PREDICATES: u64 = 3;
/// The bytes that each thread stores at the end: 32-bit, 64-bit, and `f32` registers, then what it stored on the way.
const STORED: u64 = REGISTERS * 16 + 32;
/// The number of 32-bit inputs. A power of two.
const INPUTS: u64 = 1024;
const SIZES: [u32; 6] = [1, 16, 40, 64, 100, 256];

struct Program {
    numbers: Numbers,
    text: String,
    labels: u64,
}

impl Program {
    fn below(&mut self, end: u64) -> u64 {
        self.numbers.next() % end
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn add(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn register(&mut self, kind: &str) -> String {
        format!("%{kind}{}", self.below(REGISTERS))
    }

    /// Returns a register or a number.
    fn source(&mut self, kind: &str) -> String {
        match (kind, self.below(4)) {
            ("r" | "d", 0) => self.one_of(&[0, 1, 3, 4, 16, 100, -1, -7]).to_string(),
            _ => self.register(kind),
        }
    }

    /// Adds the start: values that all threads share, values in a row, and others.
    fn start(&mut self) {
        self.add("mov.u32 %gid, %ctaid.x;\nmov.u32 %index, %ntid.x;");
        self.add("mad.lo.u32 %gid, %gid, %index, %tx;\nmov.u32 %index, 5;");
        self.add("mad.wide.u32 %own, %gid, STORED, %out;");
        self.add("mad.wide.u32 %mine, %gid, 4, %in;\nmov.u64 %place, %mine;");
        for n in 0..REGISTERS {
            let (word, long) = (self.below(INPUTS), self.below(INPUTS));
            let lines = match self.below(4) {
                0 => [format!("mov.u32 %r{n}, {word};"), format!("mov.u64 %d{n}, {long};")],
                1 => [format!("mov.u32 %r{n}, %gid;"), format!("cvt.u64.u32 %d{n}, %gid;")],
                2 => [
                    format!("ld.global.u32 %r{n}, [%in+{}];", 4 * word),
                    format!("mad.wide.u32 %d{n}, %gid, 4, %in;"),
                ],
                _ => [format!("ld.global.u32 %r{n}, [%mine];"), format!("ld.global.u32 %d{n}, [%mine];")],
            };
            lines.iter().for_each(|line| self.add(line));
            self.add(&format!("cvt.rn.f32.u32 %f{n}, %r{n};"));
        }
        for n in 0..PREDICATES {
            let (a, b) = (self.register("r"), self.source("r"));
            self.add(&format!("setp.lt.s32 %p{n}, {a}, {b};"));
        }
    }

    /// Adds an instruction, which only some of the threads may execute.
    fn instruction(&mut self) {
        let guard = match self.below(3) {
            0 => format!("@{}%p{} ", self.one_of(&["", "!"]), self.below(PREDICATES)),
            _ => String::new(),
        };
        let p = self.below(PREDICATES);
        let [r, d, f] = ["r", "d", "f"].map(|kind| self.register(kind));
        let [r1, r2, r3] = [(); 3].map(|()| self.source("r"));
        let [d1, d2] = [(); 2].map(|()| self.source("d"));
        let [f1, f2] = [(); 2].map(|()| self.source("f"));
        let from = self.register("r");
        let at = 4 * self.below(8) + REGISTERS * 16;
        let line = match self.below(28) {
            0 | 1 => {
                let op = self.one_of(&[
                    "add.s32",
                    "sub.s32",
                    "mul.lo.s32",
                    "min.s32",
                    "max.u32",
                    "and.b32",
                    "xor.b32",
                ]);
                format!("{op} {r}, {r1}, {r2};")
            }
            2 => format!("mad.lo.s32 {r}, {r1}, {r2}, {r3};"),
            3 => {
                let op = self.one_of(&["add.s64", "sub.s64", "mul.lo.s64", "min.u64", "or.b64"]);
                format!("{op} {d}, {d1}, {d2};")
            }
            4 => format!("mad.wide.s32 {d}, {r1}, {r2}, {d1};"),
            5 => format!("mul.wide.u32 {d}, {r1}, {r2};"),
            6 => format!("shl.b64 {d}, {d1}, 3;"),
            7 | 8 => {
                let op = self.one_of(&["add.f32", "sub.ftz.f32", "mul.f32", "max.f32", "add.sat.f32"]);
                format!("{op} {f}, {f1}, {f2};")
            }
            9 => format!("fma.rn.f32 {f}, {f1}, {f2}, {f};"),
            10 | 11 => {
                let how = self.one_of(&["lt.s32", "eq.u32", "ge.u32", "ne.s32"]);
                format!("setp.{how} %p{p}, {from}, {r1};")
            }
            12 => {
                let how = self.one_of(&["gt.f32", "le.f32", "equ.f32", "num.f32"]);
                format!("setp.{how} %p{p}, {f1}, {f2};")
            }
            13 => {
                let how = self.one_of(&["lo.and.u64", "ge.or.s64", "ne.xor.s64"]);
                format!("setp.{how} %p{p}, {d1}, {d2}, %p{};", self.below(PREDICATES))
            }
            14 => format!("selp.b32 {r}, {r1}, {r2}, %p{p};"),
            15 => format!("selp.b64 {d}, {d1}, {d2}, %p{p};"),
            16 => {
                let conversion = self.one_of(&["cvt.u64.u32", "cvt.s64.s32"]);
                let from = self.register("r");
                format!("{conversion} {d}, {from};")
            }
            17 => {
                let from = self.register("d");
                format!("cvt.u32.u64 {r}, {from};")
            }
            18 => {
                let value = self.register("r");
                let to = self.one_of(&["st.global.u32 [%own", "st.shared.u32 [%slot", "st.local.u32 [room"]);
                let at = if to.contains("own") { at } else { 0 };
                format!("{to}+{at}], {value};")
            }
            19 => self
                .one_of(&[
                    "add.u64 %place, %mine, 4;",
                    "add.u64 %place, %mine, 64;",
                    "add.u64 %place, %in, 32;",
                    "mad.wide.u32 %place, %index, 4, %in;",
                ])
                .to_owned(),
            20 => format!("and.b32 %index, {from}, {};", INPUTS - 1),
            _ => {
                let load = self.one_of(&[
                    "ld.global.u32 #, [%place];",
                    "ld.global.u32 #, [%mine];",
                    "ld.shared.u32 #, [%slot];",
                    "ld.local.u32 #, [room];",
                    "ld.global.u32 #, [%in+64];",
                ]);
                load.replace('#', &r)
            }
        };
        self.add(&format!("{guard}{line}"));
    }

    /// Adds instructions, a branch over some of them, or a loop that threads leave at different times.
    fn statements(&mut self, depth: u64) {
        for _ in 0..4 + self.below(8) {
            let label = self.labels;
            match self.below(10) {
                0 if depth < 2 => {
                    self.labels += 1;
                    let p = self.below(PREDICATES);
                    self.add(&format!("@%p{p} bra over{label};"));
                    self.statements(depth + 1);
                    self.add(&format!("over{label}:"));
                }
                1 if depth < 1 => {
                    self.labels += 1;
                    let turns = self.register("r");
                    self.add(&format!("and.b32 %turns, {turns}, 3;\nagain{label}:"));
                    self.statements(2);
                    self.add("sub.s32 %turns, %turns, 1;\nsetp.ge.s32 %more, %turns, 0;");
                    self.add(&format!("@%more bra again{label};"));
                }
                _ => self.instruction(),
            }
        }
    }

    /// Returns a kernel that runs the program and then stores all registers.
    fn kernel(seed: u64) -> String {
        let mut program = Self { numbers: Numbers(seed), text: String::new(), labels: 0 };
        program.start();
        program.statements(0);
        program.statements(0);
        let mut end = String::new();
        for n in 0..REGISTERS {
            let (word, long, float) = (4 * n, REGISTERS * 4 + 8 * n, REGISTERS * 12 + 4 * n);
            let _ = writeln!(end, "st.global.u32 [%own+{word}], %r{n};\nst.global.u64 [%own+{long}], %d{n};");
            let _ = writeln!(end, "st.global.f32 [%own+{float}], %f{n};");
        }
        format!(
            ".version 8.0
.target sm_70
.address_size 64
.visible .entry program(.param .u64 out, .param .u64 in)
{{
.reg .b32 %r<{REGISTERS}>, %gid, %index, %turns, %slot, %tx;
.reg .b64 %d<{REGISTERS}>, %own, %out, %in, %mine, %place;
.reg .f32 %f<{REGISTERS}>;
.reg .pred %p<{PREDICATES}>, %more;
.shared .align 4 .b8 slots[1024];
.local .align 4 .b8 room[4];
ld.param.u64 %out, [out]; ld.param.u64 %in, [in];
mov.u32 %slot, slots;
mov.u32 %tx, %tid.x;
mad.lo.u32 %slot, %tx, 4, %slot;
mov.u32 %index, 0;
st.shared.u32 [%slot], %index;
st.local.u32 [room], %index;
{}{end}ret;
}}
",
            program.text.replace("STORED", &STORED.to_string())
        )
    }
}

/// Runs a program in a block of some size, and each of its threads alone.
fn check(seed: u64) {
    let source = Program::kernel(seed);
    let mut gpu = Gpu::new(&source);
    let mut numbers = Numbers(seed);
    let inputs: Vec<u32> = (0..INPUTS)
        .map(|_| {
            if numbers.next().is_multiple_of(3) { 9 } else { numbers.next() as u32 >> (numbers.next() % 32) }
        })
        .collect();
    let input = gpu.buffer(&inputs);
    let threads = SIZES[(numbers.next() % SIZES.len() as u64) as usize];
    let mut run = |blocks, threads| {
        let out = gpu.buffer(&vec![0_u8; (blocks * u64::from(threads) * STORED) as usize]);
        gpu.run("program", blocks as u32, threads, arguments!(out, input));
        gpu.read::<u8>(out)
    };
    let (together, alone) = (run(1, threads), run(u64::from(threads), 1));
    let differs = together.iter().zip(&alone).position(|(a, b)| a != b);
    if let Some(at) = differs {
        let (thread, byte) = (at as u64 / STORED, at as u64 % STORED);
        panic!("seed {seed}, thread {thread} of {threads}: byte {byte} differs\n{source}");
    }
}

#[test]
fn a_thread_computes_the_same_alone() {
    // From 0, the generator returns only zeros.
    let first = number("SEED", 1);
    let end = first + number("RANDOM_PROGRAMS", 360);
    let next = AtomicU64::new(first);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                seeds.take_while(|&seed| seed < end).for_each(check);
            });
        }
    });
}
