//! The PTX that the reader accepts, and its error messages about all other PTX.

use std::time::Duration;

use virtual_gpu_ptx::{self as ptx, LoadError};

use crate::processor_time::processor_time;

const AXPY: &str = include_str!("../ptx/axpy.ptx");
const FORMS: &str = include_str!("../ptx/forms.ptx");

fn refused(source: &str) -> LoadError {
    ptx::load(source).expect_err("this must not load")
}

#[test]
fn everything_that_nvrtc_wrote_loads() {
    for source in [AXPY, FORMS, include_str!("../ptx/training.ptx"), include_str!("../ptx/waiting.ptx")] {
        if let Err(error) = ptx::load(source) {
            panic!("{error}");
        }
    }
}

#[test]
fn text_that_is_not_ptx_is_one_clear_error() {
    let bytes: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let binary = String::from_utf8_lossy(&bytes).into_owned();
    for source in ["", "hello", "\0\0\0", "extern \"C\" __global__ void f() {}", &binary] {
        let error = refused(source);
        assert_eq!(error.diagnostics().len(), 1, "{error}");
        assert!(error.to_string().contains("not PTX"), "{error}");
    }
}

#[test]
fn every_unsupported_instruction_is_listed_with_its_line() {
    let source = "\
.version 9.9
.target sm_999
.address_size 64
.visible .entry f(.param .u64 p)
{
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    tex.2dms.v4.f32.s32 {%r1,%r2,%r3,%r4}, [%rd1, {%r1,%r2,%r3,%r4}];
    mov.u32 %r1, 5;
    wmma.mma.sync.aligned %r1, %r2;
    frobnicate.u32 %r1;
    add.u32 %r1, %r2, %zork;
    add.rn.u32 %r1, %r2, %r3;
    mov.u32 %r1, %ntid.w;
    bra NOWHERE;
    ret;
}
";
    let error = refused(source);
    let lines: Vec<u32> = error.diagnostics().iter().map(|diagnostic| diagnostic.line).collect();
    assert_eq!(lines, [8, 10, 11, 12, 13, 14, 15], "{error}");
    let text = error.to_string();
    for wanted in [
        "line 10: unsupported instruction `wmma.mma.sync.aligned`",
        "line 11: unsupported instruction `frobnicate.u32`",
        "line 13: unsupported instruction `add.rn.u32`",
        "%ntid.w",
        "NOWHERE",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn a_text_cut_off_anywhere_does_no_harm() {
    for source in [AXPY, FORMS] {
        let step = (source.len() / 3000).max(1);
        for end in (0..source.len()).step_by(step) {
            let _ = ptx::load(&source[..end]);
        }
    }
}

#[test]
fn a_text_with_random_changes_does_no_harm() {
    let mut numbers = crate::gpu::Numbers(21);
    for _ in 0..1500 {
        let mut bytes = AXPY.as_bytes()[4800..].to_vec();
        bytes.splice(0..0, *b".version 8.0\n.target sm_70\n.address_size 64\n");
        for _ in 0..1 + numbers.next() % 6 {
            let at = (numbers.next() % bytes.len() as u64) as usize;
            match numbers.next() % 3 {
                0 => bytes[at] = (numbers.next() % 128) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"{}()[];,.%@:<>\"/*-"[(numbers.next() % 18) as usize]),
            }
        }
        let _ = ptx::load(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn hostile_texts_are_rejected_soon() {
    let head = ".version 8.0\n.target sm_70\n.address_size 64\n";
    let function = |body: &str| format!("{head}.visible .entry f()\n{{\n{body}\nret;\n}}\n");
    let calls: String = (0..40)
        .map(|i| format!(".func f{i}() {{ call f{}; call f{}; call f{}; ret; }}\n", i + 1, i + 1, i + 1))
        .collect();
    let sources = [
        function(&"{".repeat(200_000)),
        function(&format!("{}{}", "{".repeat(100_000), "}".repeat(100_000))),
        function(".reg .b32 %r<4000000000>;\nmov.u32 %r3999999999, 1;"),
        function(".local .align 8 .b8 x[4000000000];"),
        function(".shared .align 8 .b8 x[4000000000][4000000000];"),
        function("call f;"),
        format!("{head}.func f() {{ call g; ret; }}\n.func g() {{ call f; ret; }}\n"),
        format!("{head}{calls}.func f40() {{ ret; }}\n"),
        format!("{head}.global .u32 x = {}", "{".repeat(100_000)),
        format!("{head}{}", ".visible ".repeat(100_000)),
        format!("{head}.visible .entry f({}", ".param .u32 x,".repeat(50_000)),
    ];
    for source in sources {
        let (_, took) = processor_time(|| ptx::load(&source));
        assert!(took < Duration::from_secs(5), "{took:?}: {}", &source[..200.min(source.len())]);
    }
}

#[test]
fn parameters_have_the_layout_of_the_abi() {
    let module = ptx::load(AXPY).unwrap();
    let kernel = module.kernel("axpy").unwrap();
    let layout: Vec<_> = kernel.parameters().iter().map(|one| (one.offset, one.size, one.align)).collect();
    assert_eq!(layout, [(0, 4, 4), (8, 8, 8), (16, 8, 8), (24, 4, 4)]);
    assert_eq!(kernel.parameter_bytes(), 28);
    assert_eq!(module.kernel_names().collect::<Vec<_>>(), ["axpy", "fill"]);
    let variable = &module.variables()[0];
    assert_eq!((variable.size, variable.align, &variable.initial[..]), (8, 8, &1_u64.to_le_bytes()[..]));
}
