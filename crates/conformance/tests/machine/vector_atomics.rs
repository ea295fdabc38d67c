//! `atom` and `red` on vectors: each element is compared with the host's arithmetic.

use half::{bf16, f16};
use virtual_gpu_machine::{Fault, FaultKind};

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::Gpu;

/// Runs `threads` with a buffer that holds `memory`, at `[%d1]`. Each thread stores what `instruction` leaves in
/// `registers` at its place in the results.
fn run(
    instruction: &str,
    registers: &[&str],
    threads: u32,
    memory: &[u32],
) -> Result<(Vec<u32>, Vec<u32>), Box<Fault>> {
    let stores: String = registers
        .iter()
        .enumerate()
        .map(|(at, register)| {
            let size = if register.starts_with("%h") { "b16" } else { "b32" };
            format!("st.global.{size} [%d2+{}], {register};\n", 4 * at)
        })
        .collect();
    let source = format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)
        {{
        .reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b16 %h<9>; .reg .b64 %d<4>; .reg .b32 %t;
        ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
        mov.u32 %t, %tid.x; mul.wide.u32 %d3, %t, 32; add.u64 %d2, %d2, %d3;
        mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0fBF800000; mov.f32 %f4, 0f3F000000;
        mov.b32 %r1, 0x3C004000; mov.b32 %r2, 0xBC00C400; mov.b32 %r3, 0x3F804000; mov.b32 %r4, 0x7FFF3C00;
        mov.b16 %h1, 0x3C00; mov.b16 %h2, 0x4000; mov.b16 %h3, 0xBC00; mov.b16 %h4, 0x3800;
        mov.b16 %h5, 0x4200; mov.b16 %h6, 0x4400; mov.b16 %h7, 0x7E00; mov.b16 %h8, 0x8000;
        {instruction}
        {stores}
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let (x, y) = (gpu.buffer(memory), gpu.buffer(&vec![0_u32; 8 * threads as usize]));
    gpu.launch("test", [1; 3], [threads, 1, 1], arguments!(x, y))?;
    Ok((gpu.read(x), gpu.read(y)))
}

fn singles(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn singles_are_added_element_by_element() {
    let start = singles(&[10.0, 20.0, 30.0, 40.0]);
    let registers = ["%f1", "%f2", "%f3", "%f4"];
    // The destinations are the sources in another order, so no source may be overwritten too early.
    for name in ["atom.global.add.v4.f32", "atom.global.v4.f32.add", "atom.acq_rel.gpu.add.v4.f32"] {
        let instruction = format!("{name} {{%f4, %f3, %f2, %f1}}, [%d1], {{%f1, %f2, %f3, %f4}};");
        let (memory, results) = run(&instruction, &registers, 1, &start).unwrap();
        assert_eq!(memory, singles(&[11.0, 22.0, 29.0, 40.5]), "{name}");
        assert_eq!(results[..4], singles(&[40.0, 30.0, 20.0, 10.0]), "{name}");
    }
    let instruction = "red.relaxed.gpu.global.add.v2.f32 [%d1+8], {%f1, %f2};";
    let (memory, _) = run(instruction, &[], 64, &start).unwrap();
    assert_eq!(memory, singles(&[10.0, 20.0, 94.0, 168.0]));
}

#[test]
fn halves_are_added_and_compared() {
    let bits = |values: [f64; 4]| values.map(|value| f16::from_f64(value).to_bits());
    let pack = |halves: &[u16]| -> Vec<u32> {
        halves.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16).collect()
    };
    let start = pack(&[bits([0.5, 3.0, -2.0, 1.0]), bits([5.0, 1.0, 7.0, 0.0])].concat());
    let eight = "{%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}";
    // The registers hold 1, 2, -1, 0.5, 3, 4, NaN, and -0.
    for (op, first, last) in [
        ("add", [1.5, 5.0, -3.0, 1.5], [8.0, 5.0, f64::NAN, 0.0]),
        ("min", [0.5, 2.0, -2.0, 0.5], [3.0, 1.0, 7.0, -0.0]),
        ("max", [1.0, 3.0, -1.0, 1.0], [5.0, 4.0, 7.0, 0.0]),
    ] {
        let expected: Vec<u16> = first
            .iter()
            .chain(&last)
            .map(|value| if value.is_nan() { 0x7fff } else { f16::from_f64(*value).to_bits() })
            .collect();
        let instruction = format!("red.global.{op}.noftz.v8.f16 [%d1], {eight};");
        assert_eq!(run(&instruction, &[], 1, &start).unwrap().0, pack(&expected), "{op}");
        let instruction =
            format!("atom.global.{op}.noftz.v4.f16 {{%h5, %h6, %h7, %h8}}, [%d1], {{%h1, %h2, %h3, %h4}};");
        let (memory, results) = run(&instruction, &["%h5", "%h6", "%h7", "%h8"], 1, &start).unwrap();
        assert_eq!(memory[..2], pack(&expected[..4]), "{op}");
        let old: Vec<u32> = [0.5, 3.0, -2.0, 1.0].map(|value| f16::from_f64(value).to_bits().into()).to_vec();
        assert_eq!(results[..4], old, "{op}");
    }
}

#[test]
fn packed_pairs_are_added_and_compared() {
    // The low and high halves of `%r1` are 2 and 1 in half precision, and those of `%r2` -4 and -1.
    let pair = |low: f64, high: f64| {
        u32::from(f16::from_f64(low).to_bits()) | u32::from(f16::from_f64(high).to_bits()) << 16
    };
    let start = [pair(1.0, 1.5), pair(-5.0, 0.0)];
    for (op, expected) in [
        ("add", [pair(3.0, 2.5), pair(-9.0, -1.0)]),
        ("min", [pair(1.0, 1.0), pair(-5.0, -1.0)]),
        ("max", [pair(2.0, 1.5), pair(-4.0, 0.0)]),
    ] {
        let instruction = format!("red.global.{op}.noftz.v2.f16x2 [%d1], {{%r1, %r2}};");
        assert_eq!(run(&instruction, &[], 1, &start).unwrap().0, expected, "{op}");
    }
    // The low and high halves of `%r3` are 2 and 1 as `.bf16`.
    let pair = |low: f64, high: f64| {
        u32::from(bf16::from_f64(low).to_bits()) | u32::from(bf16::from_f64(high).to_bits()) << 16
    };
    let instruction = "atom.global.add.noftz.v2.bf16x2 {%r5, %r6}, [%d1], {%r3, %r3};";
    let (memory, results) = run(instruction, &["%r5", "%r6"], 1, &[pair(0.5, 7.0), pair(1.0, 1.0)]).unwrap();
    assert_eq!(memory, [pair(2.5, 8.0), pair(3.0, 2.0)]);
    assert_eq!(results[..2], [pair(0.5, 7.0), pair(1.0, 1.0)]);
}

#[test]
fn a_vector_must_be_aligned_as_a_whole() {
    let fault = run("red.global.add.v4.f32 [%d1+8], {%f1, %f2, %f3, %f4};", &[], 1, &[0; 8]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 16 }), "{fault}");
    let fault = run("red.global.add.v2.f32 [%d1+4], {%f1, %f2};", &[], 1, &[0; 8]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 8 }), "{fault}");
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for (instruction, words) in [
        ("red.global.add.v8.f32 [%d1], {%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1};", "unsupported"),
        ("red.global.min.v2.f32 [%d1], {%f1, %f1};", "unsupported"),
        ("red.shared.add.v2.f32 [%d1], {%f1, %f1};", "unsupported"),
        ("red.acquire.gpu.global.add.v2.f32 [%d1], {%f1, %f1};", "unsupported"),
        ("red.global.add.v2.f16x2 [%d1], {%r1, %r1};", "unsupported"),
        ("red.global.add.noftz.v8.f16x2 [%d1], {%r1, %r1};", "unsupported"),
        ("red.global.add.v2.u32 [%d1], {%r1, %r1};", "unsupported"),
        ("red.global.add.v2.f32 [%d1], {%f1};", "2 registers"),
        ("red.global.add.v2.f32 [%d1], %f1;", "2 registers"),
        ("atom.global.add.v2.f32 [%d1], {%f1, %f1};", "operands"),
    ] {
        let declarations = ".reg .b32 %r<3>; .reg .f32 %f<3>; .reg .b64 %d<3>;";
        assert_refused_by_name(declarations, instruction, words);
    }
}
